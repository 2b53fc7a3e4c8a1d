"""The compiled programs of a map: build it, apply it to points in blocks, take its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from mongefit._costs import Cost
from mongefit._duals import DualProblem, DualSolution, as_tau
from mongefit._fitting.data import Clouds
from mongefit._fitting.diagnose import CHECKED, compile_checks, evenly, round_trip_limit
from mongefit._runtime import (
    Program,
    compile_ahead,
    copy_to_host,
    double_precision,
    dual_bytes,
    lapack_threads,
    require_memory,
    rows_per_call,
    to_device,
)
from mongefit._transport import EntropicMap, SelfPotentials, Transported, build_map
from mongefit.errors import ConvergenceError, InPython, Option, warn_or_raise, warn_user


class MapOptions(NamedTuple):
    """Which map of a cost: epsilon, debiased or not, and how strictly weights are kept."""

    epsilon: float
    debias: bool = False
    tau_a: float = 1.0
    tau_b: float = 1.0

    def taus(self, dtype: Any) -> dict[str, Any]:
        """Both strengths as arrays, so that programs serve all of them; None for 1."""
        return {name: as_tau(getattr(self, name), name, dtype) for name in ("tau_a", "tau_b")}


class Solved(NamedTuple):
    """The map of a cost, how its dual was solved, its plan, and at which epsilon."""

    map: EntropicMap
    dual: DualSolution
    plan: Float[Array, "n m"]
    epsilon: float


def _map_and_plan(cost: Cost, x, y, *, a, b, **options):
    C = cost.matrix(x, y)
    entropic_map, dual = build_map(cost, x, y, a=a, b=b, C=C, differentiate="one_step", **options)
    return entropic_map, dual, DualProblem(C, a, b, eps=entropic_map.eps).plan(dual.f, dual.g)


def _map_fast(entropic_map: EntropicMap, points, *, reverse):
    return entropic_map.transport(points, reverse=reverse, every_order=False)


def _on_the_way(entropic_map: EntropicMap, both: Float[Array, "N 2 d"], share):
    cost, units = entropic_map.cost, entropic_map.units
    start, end = both[:, 0], both[:, 1]
    if not cost.shared:
        return (1 - share) * start + share * end
    first, last = (cost.latent_source(units.into(each)) for each in (start, end))
    return units.out_of(cost.source_from_latent((1 - share) * first + share * last))


_solve = Program(_map_and_plan)
_transport = Program(_map_fast)
_plan = Program(EntropicMap.plan)
_cost_matrix = Program(Cost.matrix)
_conditional = Program(EntropicMap.conditional)
_between = Program(_on_the_way)
_f_hat, _g_hat = Program(EntropicMap.f_hat), Program(EntropicMap.g_hat)
_growth = Program(EntropicMap.growth)
_log_density = Program(EntropicMap.log_density)


def require_plan_memory(clouds: Clouds) -> None:
    """Refuse clouds between which a plan would not fit into memory."""
    n, m = len(clouds.x), len(clouds.y)
    needed = dual_bytes(n, m, clouds.x.dtype.itemsize)
    what = f"The plan between {n} and {m} points needs about"
    require_memory(needed, what, "Take a random part of the points.", on_device=True)


def solve_map(clouds: Clouds, cost: Cost, how: MapOptions) -> Solved:
    """The map at epsilon or, where that cannot be solved, at the smallest doubling that can."""
    require_plan_memory(clouds)
    # Below rounding no epsilon can be solved; at 1, the mean cost, every finite cost can.
    used = max(how.epsilon, float(jnp.finfo(clouds.x.dtype).eps))
    while True:
        with lapack_threads(len(clouds.x) * len(clouds.y)):
            entropic_map, dual, P = _solve(**_arguments(clouds, cost, how._replace(epsilon=used)))
            dual = copy_to_host(dual)
        if dual.converged or used >= 1:
            return Solved(entropic_map, dual, P, used)
        used *= 2


def _arguments(clouds: Clouds, cost: Cost, how: MapOptions) -> dict[str, Any]:
    dtype = clouds.x.dtype
    return {
        "cost": cost, "x": clouds.x, "y": clouds.y, "a": clouds.a, "b": clouds.b,
        "epsilon": to_device(dtype.type(how.epsilon)), "units": clouds.units,
        "debias": how.debias, **how.taus(dtype),
    }  # fmt: skip


@double_precision()
def coupling(entropic_map: EntropicMap) -> NDArray[np.float64]:
    """The plan between the clouds of a map."""
    return np.asarray(_plan(entropic_map), np.float64)


@double_precision()
def cost_matrix(
    entropic_map: EntropicMap, source: np.ndarray, target: np.ndarray
) -> NDArray[np.float64]:
    """c(x_i, y_j) for all pairs of rows, in blocks of rows."""
    units, dtype = entropic_map.units, entropic_map.x.dtype
    y = units.into(target).astype(dtype)

    def costs(block):
        return _cost_matrix(entropic_map.cost, units.into(block).astype(dtype), y)

    return _in_blocks(costs, source, len(target)).astype(np.float64)


@double_precision()
def conditional(entropic_map: EntropicMap, points: np.ndarray) -> NDArray[np.float64]:
    """Where each point goes, as weights of the target points, computed in blocks of rows."""
    found = [weights for _, weights in conditional_blocks(entropic_map, points)]
    return np.concatenate(found)


def conditional_blocks(
    entropic_map: EntropicMap, points: np.ndarray, *, reverse: bool = False
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Where each point goes or came from, block by block; call it in double precision."""
    other = len(entropic_map.x if reverse else entropic_map.y)
    found = blocks(partial(_conditional, entropic_map, reverse=reverse), points, other)
    return ((rows, weights.astype(np.float64)) for rows, weights in found)


@double_precision()
def growth(
    entropic_map: EntropicMap, points: np.ndarray, *, reverse: bool = False
) -> NDArray[np.float64]:
    """The mass that a unit of mass at each point sends, or receives, in blocks of rows."""
    if (entropic_map.tau_b if reverse else entropic_map.tau_a) is None:
        return np.ones(len(points))
    other = len(entropic_map.x if reverse else entropic_map.y)
    found = _in_blocks(partial(_growth, entropic_map, reverse=reverse), points, other)
    return np.asarray(found, np.float64)


@double_precision()
def log_density(
    entropic_map: EntropicMap, source: np.ndarray, target: np.ndarray
) -> NDArray[np.float64]:
    """log P(x, y) / (a(x) b(y)) of paired rows."""
    return np.asarray(_log_density(entropic_map, source, target), np.float64)


@double_precision()
def potentials_at(
    entropic_map: EntropicMap, source: np.ndarray, target: np.ndarray
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """f̂ at some points and ĝ at others, in blocks of rows."""
    f = _in_blocks(partial(_f_hat, entropic_map), source, len(entropic_map.y))
    g = _in_blocks(partial(_g_hat, entropic_map), target, len(entropic_map.x))
    return to_device(f), to_device(g)


@double_precision()
def corrections(entropic_map: EntropicMap, points: np.ndarray) -> NDArray[np.float64]:
    """How far a debiased map moves each point beyond the map that is not; else zeros."""
    if entropic_map.own is None:
        return np.zeros_like(points)
    plain = dataclasses.replace(entropic_map, own=None)
    both = (transport_points(each, points, reverse=False) for each in (entropic_map, plain))
    found, without = (np.asarray(each.points, np.float64) for each in both)
    return found - without


@double_precision()
def transport_points(
    entropic_map: EntropicMap, points: np.ndarray, *, reverse: bool
) -> Transported:
    """The images of many points, in blocks, as NumPy arrays."""
    other = len(entropic_map.x if reverse else entropic_map.y)
    return _in_blocks(partial(_transport, entropic_map, reverse=reverse), points, other)


@double_precision()
def between(
    entropic_map: EntropicMap, points: np.ndarray, images: np.ndarray, share: float
) -> NDArray[np.float64]:
    """Points on the way to their images, after a share of it, in blocks of rows."""
    both = np.stack([points, images], axis=1)
    after = np.asarray(share)  # a number would be compiled in
    found = _in_blocks(lambda block: _between(entropic_map, block, after), both, points.shape[1])
    return np.asarray(found, np.float64)


def map_points(
    entropic_map: EntropicMap, points: np.ndarray, *, reverse: bool, strict: bool
) -> NDArray[np.float64]:
    """The images of many points; those that cannot be trusted are refused or warned of."""
    result = transport_points(entropic_map, points, reverse=reverse)
    lost = ~np.all(np.isfinite(result.points), axis=1)
    if np.any(lost):
        raise ConvergenceError(
            "The map is not finite at {lost} of {all} points (first: row {row}). They may lie too "
            "far from the data, or the map itself is broken{where}.",
            lost=lost.sum(), all=len(points), row=np.argmax(lost),
            where=InPython(": see diagnostics_"),
        )  # fmt: skip
    broken = ~(result.round_trip <= round_trip_limit(entropic_map.x.dtype))
    if np.any(broken):
        raise ConvergenceError(
            f"The flow could not be inverted at {broken.sum()} of {len(points)} points (first: row "
            f"{np.argmax(broken)}, round trip {result.round_trip.max():.1e}). They may lie too far "
            "from the data."
        )
    if not np.all(result.converged):
        warn_or_raise(
            "The inverse gradient did not converge at {lost} of {all} points (first: row {row}, "
            "residual {residual:.1e}). A larger {alpha} helps.{where}",
            strict=strict, lost=np.sum(~result.converged), all=len(points),
            row=np.argmin(result.converged), residual=result.residual.max(),
            alpha=Option("alpha"), where=InPython(" map_.transport tells which."),
        )  # fmt: skip
    warn_of_far(entropic_map, np.asarray(result.distance))
    return np.asarray(result.points, np.float64)


def radius_of(entropic_map: EntropicMap) -> float:
    """How far the fitted points reach from their centre, in common units; at least 1."""
    both = np.concatenate([entropic_map.x, entropic_map.y])
    return max(float(np.sqrt(np.max(np.sum(both**2, axis=1)))), 1.0)


def warn_of_far(entropic_map: EntropicMap, distance: NDArray[Any]) -> None:
    """Warn of points whose distance from those fitted is more than three times their radius."""
    radius = radius_of(entropic_map)
    if np.any(far := distance > 3 * radius):
        row = np.argmax(far)
        warn_user(
            f"{far.sum()} of {len(far)} points lie far outside the data that were fitted (first: "
            f"row {row}, {distance[row] / radius:.1f} times the radius of the data away from "
            "them). There the map is a guess."
        )


def blocks(
    function: Callable[[Any], Any], points: np.ndarray, other: int
) -> Iterator[tuple[slice, Any]]:
    """Apply a function to blocks of rows, padded to a few sizes so that few shapes are compiled.

    The rows of each block, and what the function says of them as NumPy arrays.
    """
    size = rows_per_call(len(points), other)
    for start in range(0, len(points), size):
        part = points[start : start + size]
        count = len(part)
        padded = np.concatenate([part, np.repeat(part[-1:], size - count, axis=0)])
        found = jax.tree.map(np.asarray, function(padded))
        yield slice(start, start + count), jax.tree.map(itemgetter(slice(count)), found)


def _in_blocks(function: Callable[[Any], Any], points: np.ndarray, other: int) -> Any:
    """What a function says of all rows, computed in blocks."""
    results = [found for _, found in blocks(function, points, other)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def compile_tasks(clouds: Clouds, cost: Cost, how: MapOptions) -> list[Callable[[], None]]:
    """What compiles the programs that the end of a fit calls, the slowest first."""
    rows = evenly(len(clouds.x), CHECKED)
    block = np.zeros((rows_per_call(len(rows), len(clouds.y)), clouds.dim))
    x, y, a, b = clouds.x, clouds.y, clouds.a, clouds.b
    # Weights for potentials: only shapes matter.
    own = SelfPotentials(a, b) if how.debias else None
    eps = to_device(x.dtype.type(1))
    fitted = EntropicMap(cost, x, y, a, b, a, b, eps, clouds.units, own=own, **how.taus(x.dtype))
    return [
        lambda: compile_ahead(_transport, fitted, block, reverse=False),
        lambda: compile_ahead(_solve, **_arguments(clouds, cost, how)),
        lambda: compile_checks(fitted, rows),
    ]
