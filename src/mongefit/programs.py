"""The compiled programs of a map: it is built, applied to points in blocks, asked for its plan.

They are compiled when first called or, while training goes on, before that in a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from mongefit._compilation import QUICK, GpuJit, compile_for
from mongefit._numerics import double_precision, placed
from mongefit.costs import Cost
from mongefit.diagnostics import CHECKED, compile_checks, evenly
from mongefit.duals import LARGEST_FACTORISED, DualSolution, plan
from mongefit.maps import EntropicMap, Transported, Units, build_map
from mongefit.validation import require_memory


class Clouds(NamedTuple):
    """Both clouds, checked, as given and in common units."""

    source: NDArray[np.float64]
    target: NDArray[np.float64]
    units: Units
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    warnings: list[str]

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.source.shape[1]


class Solved(NamedTuple):
    """The map of a cost, how its dual was solved, its plan, and at which epsilon."""

    map: EntropicMap
    dual: DualSolution
    plan: Float[Array, "n m"]
    epsilon: float


def _map_and_plan(cost: Cost, x, y, *, a, b, epsilon, units, dual_solver=None):
    C = cost.matrix(x, y)
    entropic_map, dual = build_map(
        cost, x, y, epsilon=epsilon, a=a, b=b, units=units, dual_solver=dual_solver, C=C
    )
    return entropic_map, dual, plan(C, a, b, entropic_map.eps, dual.f, dual.g)


_solve = GpuJit(_map_and_plan, QUICK)
_transport = GpuJit(EntropicMap.transport, QUICK)
_plan = GpuJit(EntropicMap.plan, QUICK)
_cost_matrix = GpuJit(Cost.matrix, QUICK)


def require_plan_memory(clouds: Clouds) -> None:
    """Refuse clouds between which a plan would not fit into memory."""
    n, m = len(clouds.x), len(clouds.y)
    factors = 4 * m * m if m <= LARGEST_FACTORISED else 0
    require_memory(
        clouds.x.dtype.itemsize * (13 * n * m + factors),
        f"The plan between {n} and {m} points needs about",
        "Take a random part of the points.",
        on_device=True,
    )


def solved_map(clouds: Clouds, cost: Cost, epsilon: float) -> Solved:
    """The map at epsilon or, where that cannot be solved, at the smallest doubling that can."""
    require_plan_memory(clouds)
    # Below rounding no epsilon can be solved; at 1, the mean cost, every finite cost can.
    used = max(epsilon, float(jnp.finfo(clouds.x.dtype).eps))
    while True:
        entropic_map, dual, P = _solve(**_to_solve(clouds, cost, used))
        dual = jax.device_get(dual)
        if dual.converged or used >= 1:
            return Solved(entropic_map, dual, P, used)
        used *= 2


def _to_solve(clouds: Clouds, cost: Cost, epsilon: float) -> dict[str, Any]:
    return {
        "cost": cost, "x": clouds.x, "y": clouds.y, "a": clouds.a, "b": clouds.b,
        "epsilon": placed(clouds.x.dtype.type(epsilon)), "units": clouds.units,
    }  # fmt: skip


def coupling(entropic_map: EntropicMap) -> NDArray[np.floating]:
    """The plan between the clouds of a map."""
    return np.asarray(_plan(entropic_map))


def transported(entropic_map: EntropicMap, points: np.ndarray, *, reverse: bool) -> Transported:
    """The images of many points, in blocks."""
    other = len(entropic_map.x if reverse else entropic_map.y)
    blocks = _in_blocks(
        lambda block: _transport(entropic_map, block, reverse=reverse), points, other
    )
    return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)


def cost_matrix(
    entropic_map: EntropicMap, source: np.ndarray, target: np.ndarray
) -> NDArray[np.floating]:
    """c(x_i, y_j) for all pairs of rows, in blocks of rows."""
    units, dtype = entropic_map.units, entropic_map.x.dtype
    y = units.into(target).astype(dtype)
    blocks = _in_blocks(
        lambda block: _cost_matrix(entropic_map.cost, units.into(block).astype(dtype), y),
        source,
        len(target),
    )
    return np.concatenate(blocks)


def _in_blocks(function: Callable[[Any], Any], points: np.ndarray, other: int) -> list:
    """Apply a function to blocks of rows, padded to a few sizes so that few shapes are compiled."""
    block = _block_size(len(points), other)
    results = []
    for start in range(0, len(points), block):
        part = points[start : start + block]
        padded = np.concatenate([part, np.repeat(part[-1:], block - len(part), axis=0)])
        size = len(part)
        results.append(
            jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], function(padded))
        )
    return results


def _block_size(points: int, other: int) -> int:
    """Rows of a block: so many that they meet about 2^16 pairs with the ``other`` points."""
    largest = int(np.clip(2 ** int(np.log2(max(2**16 / other, 1))), 8, 1024))
    return int(np.clip(2 ** int(np.ceil(np.log2(points))), 8, largest))


CORES_TO_SPARE = 4


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def compiled_meanwhile(clouds: Clouds, cost: Cost) -> Iterator[None]:
    """Compile in a thread what the map of such a cost will need, while the block trains it.

    Not where cores are few: training's own program needs them. When the block is done, so is the
    thread; when it fails or is interrupted, nothing waits but the end of Python, and that for one
    program at most.
    """
    if usable_cores() < CORES_TO_SPARE:
        yield
        return
    stopped = threading.Event()
    # What is set for a block is set for its thread alone.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def work() -> None:
        # What is wrong with a program the caller will be told when it is needed.
        with jax.default_device(device), double_precision(), contextlib.suppress(Exception):
            for program in _programs(clouds, cost):
                if stopped.is_set():
                    return
                program()

    thread = threading.Thread(target=work, name="mongefit-compile")
    try:
        thread.start()
        yield
        thread.join()
    finally:
        stopped.set()


def _programs(clouds: Clouds, cost: Cost) -> list[Callable[[], None]]:
    """What compiles the programs that the end of a fit calls, the slowest first."""
    rows = evenly(len(clouds.x), CHECKED)
    block = np.zeros((_block_size(len(rows), len(clouds.y)), clouds.dim))
    x, y, a, b = clouds.x, clouds.y, clouds.a, clouds.b
    # Weights for potentials: only shapes matter.
    fitted = EntropicMap(cost, x, y, a, b, a, b, placed(x.dtype.type(1)), clouds.units)
    return [
        lambda: compile_for(_transport, fitted, block, reverse=False),
        lambda: compile_for(_solve, **_to_solve(clouds, cost, 1.0)),
        lambda: compile_checks(fitted, rows),
    ]
