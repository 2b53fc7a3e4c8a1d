"""How many pairs or rows to evaluate at a time."""

from __future__ import annotations

import numpy as np

from mongefit._runtime.devices import on_cpu

SEARCHED = 2**24
"""Pairs that are searched at a time for those that matter."""

_CACHED = 2**10  # pairs whose layers stay in the cache of a CPU, several times faster than all
_AT_ONCE = 2**18  # up to so many pairs are one chunk on an accelerator


def chunk_size(pairs: int) -> int:
    """Pairs in one chunk of an evaluation that leaves out pairs without mass."""
    if on_cpu():
        return min(pairs, _CACHED)
    return pairs if pairs <= _AT_ONCE else 2**17


def one_chunk(pairs: int) -> bool:
    """Whether all pairs are one chunk: leaving some out would take longer than it saves."""
    return pairs <= chunk_size(pairs)


def rows_per_block(n: int, m: int) -> int:
    """Rows of an n×m matrix in one block of an evaluation of all pairs."""
    pairs = _CACHED if on_cpu() else 2**20
    return min(n, max(1, pairs // max(m, 1)))


def rows_per_call(points: int, other: int) -> int:
    """Rows that one call of a compiled map takes: so many that they meet about 2^16 pairs.

    It is one of a few sizes, so that few programs are compiled.
    """
    largest = int(np.clip(2 ** int(np.log2(max(2**16 / other, 1))), 8, 1024))
    return int(np.clip(2 ** int(np.ceil(np.log2(points))), 8, largest))
