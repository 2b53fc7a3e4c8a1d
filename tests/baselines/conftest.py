"""What the tests of baselines share."""

from __future__ import annotations

import jax
import pytest

from mongefit import SinkhornDual
from mongefit._duals import solve


@pytest.fixture(scope="module")
def sinkhorn():
    """Sinkhorn's method wherever Newton's is the default, because it compiles several times faster.

    Every family compiles its own solves. That Newton's finds the same is tested with the duals.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "NewtonDual", SinkhornDual)
        yield


@pytest.fixture(autouse=True, scope="package")
def _forget_compiled_programs():
    """Free what was compiled after all modules: they share their shapes, and with them programs."""
    yield
    jax.clear_caches()
