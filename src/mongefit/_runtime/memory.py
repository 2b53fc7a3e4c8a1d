"""How much memory is free, and what problems need."""

from __future__ import annotations

import os
from typing import Any

from mongefit._runtime.devices import current_device, on_cpu
from mongefit.errors import DataError

LARGEST_FACTORISED = 4096
"""Columns up to which the Hessian of the semi-dual is factorised; beyond, it is only applied."""


def available_memory() -> int | None:
    """Free bytes of main memory, or None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # counts what caches would give back
            found = dict(line.split(":") for line in file)
        return 1024 * int(found["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def device_memory() -> int | None:
    """Free bytes where JAX computes: of its accelerator, or of main memory."""
    stats = None if on_cpu() else current_device().memory_stats()
    if stats is None or "bytes_limit" not in stats:
        return available_memory()
    return stats["bytes_limit"] - stats["bytes_in_use"]


def require_memory(
    needed: float, what: str, remedy: str, *, on_device: bool = False, **fields: Any
) -> None:
    """Refuse work that would not fit into memory, before anything is allocated.

    ``remedy`` is a template, as for errors.
    """
    free = device_memory() if on_device else available_memory()
    if free is not None and needed > free:
        raise DataError(
            "{what} {needed:.3g} GiB; {free:.3g} GiB are free. " + remedy,
            what=what, needed=needed / 2**30, free=free / 2**30, **fields,
        )  # fmt: skip


def dual_bytes(n: int, m: int, itemsize: int = 8) -> int:
    """Bytes of a dual solve with its plan: n×m matrices, and factors of the Hessian."""
    factors = 4 * m * m if m <= LARGEST_FACTORISED else 0
    return itemsize * (13 * n * m + factors)
