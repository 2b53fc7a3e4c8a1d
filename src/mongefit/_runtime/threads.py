"""How many threads LAPACK takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

_MANY = 2**20  # pairs of points from which a factorisation gains from a second thread


@contextlib.contextmanager
def lapack_threads(pairs: int) -> Iterator[None]:
    """Run LAPACK on one thread in the block, unless there are so many pairs that more threads help.

    On a CPU JAX factorises with SciPy's OpenBLAS, whose threads wait for each other in a loop. If
    another process takes one of their cores, a training step takes up to fifty times as long.
    """
    if pairs >= _MANY:
        yield
        return
    with _openblas().limit(limits=1):
        yield


@functools.cache
def _openblas() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  its libraries are found once they are loaded

    return ThreadpoolController().select(internal_api="openblas")
