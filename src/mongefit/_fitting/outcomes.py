"""Where mass goes and where it came from: the conditional distributions of the plan.

A distribution over many maps between the same clouds is the mean of theirs. What only needs the
conditional weights takes them as a sparse matrix, whichever map or chain of maps they are of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import entr

from mongefit._fitting.apply import (
    conditional_blocks,
    growth,
    potentials_at,
    radius_of,
    warn_of_far,
)
from mongefit._runtime import double_precision, require_memory, to_device
from mongefit._transport import EntropicMap, Units
from mongefit.errors import ConvergenceError

Maps = Sequence[EntropicMap]
Matrix = NDArray[np.float64]


class Conditional(NamedTuple):
    """Distributions over the points of a cloud, one in each row, without their small weights.

    Attributes
    ----------
    weights
        The weights, [N, m]; every row has sum 1.
    dropped
        The mass of each row that was left out before its sum was brought to 1.
    """

    weights: csr_array
    dropped: NDArray[np.float64]

    @classmethod
    def of(cls, weights: Matrix | csr_array, drop: float) -> Conditional:
        """Leave out weights below ``drop``, but never the largest of a row."""
        if isinstance(weights, np.ndarray):
            limit = np.minimum(drop, weights.max(axis=1, keepdims=True))
            kept = csr_array(np.where(weights >= limit, weights, 0.0))
        else:
            rows = np.repeat(np.arange(weights.shape[0]), np.diff(weights.indptr))
            limit = np.minimum(drop, weights.max(axis=1).toarray().ravel())
            kept = weights.copy()
            kept.data[kept.data < limit[rows]] = 0.0
            kept.eliminate_zeros()
        total = np.asarray(kept.sum(axis=1)).ravel()
        kept.data /= np.repeat(total, np.diff(kept.indptr))
        return cls(kept, np.maximum(np.asarray(weights.sum(axis=1)).ravel() - total, 0.0))

    def then(self, following: csr_array, *, drop: float) -> Conditional:
        """Where mass ends that goes on from the points of the cloud as ``following`` says, [m, l].

        What is dropped adds up along a chain.
        """
        found = Conditional.of(csr_array(self.weights @ following), drop)
        return found._replace(dropped=1 - (1 - self.dropped) * (1 - found.dropped))


@double_precision()
def find_conditional(
    maps: Maps, points: Matrix, *, reverse: bool = False, drop: float = 1e-9
) -> Conditional:
    """Where each point goes, or came from, as the mean of some maps says, in blocks of rows."""
    _warn_of_far_queries(maps[0], points, reverse=reverse)
    columns = len(maps[0].x if reverse else maps[0].y)
    parts: list[Conditional] = []
    blocks = (conditional_blocks(each, points, reverse=reverse) for each in maps)
    for found in zip(*blocks, strict=True):
        rows = found[0][0]
        weights = np.mean([weights for _, weights in found], axis=0)
        if np.any(lost := ~np.all(np.isfinite(weights), axis=1)):
            raise ConvergenceError(
                f"The conditional distribution is not finite at row {rows.start + np.argmax(lost)}."
                " The point may lie too far from the data."
            )
        parts.append(Conditional.of(weights, drop))
        if len(parts) == 1:
            # A weight takes a float and a column, and all blocks are stacked once.
            needed = 2 * 16 * parts[0].weights.nnz / len(weights) * len(points)
            what = f"The weights of {len(points)} points over {columns} others need about"
            require_memory(needed, what, "Raise drop, or ask for fewer points at a time.")
    stacked = csr_array(scipy.sparse.vstack([part.weights for part in parts], format="csr"))
    return Conditional(stacked, np.concatenate([part.dropped for part in parts]))


def _warn_of_far_queries(entropic_map: EntropicMap, points: Matrix, *, reverse: bool) -> None:
    """Warn of points that lie far outside the data."""
    inside = np.asarray(entropic_map.units.into(points), np.float64)
    # Only what is that far from the centre can be far from all points. Squares could overflow.
    reach = np.max(np.abs(inside), axis=1) * np.sqrt(inside.shape[1])
    some = reach > 2 * radius_of(entropic_map)
    if np.any(some):
        fitted = np.asarray(entropic_map.y if reverse else entropic_map.x, np.float64)
        distance = np.zeros(len(points))
        for row in np.flatnonzero(some):
            distance[row] = cdist(inside[row : row + 1], fitted).min()
        warn_of_far(entropic_map, distance)


@double_precision()
def move_mass(maps: Maps, mass: Matrix, *, reverse: bool = False) -> Matrix:
    """Pᵀ diag(1/a) mass: where the mass on the source points goes, [n, k] to [m, k].

    With ``reverse`` P diag(1/b) mass, from the target points back, [m, k] to [n, k].
    """
    found: Matrix = np.zeros((len(maps[0].x if reverse else maps[0].y), mass.shape[1]))
    for each in maps:
        here = _in_common_units(each)
        points = np.asarray(here.y if reverse else here.x)
        # A row of P over its weight, which may be zero, is the conditional times the growth.
        sent = mass * growth(here, points, reverse=reverse)[:, None]
        for rows, weights in conditional_blocks(here, points, reverse=reverse):
            found += weights.T @ sent[rows]
    return found / len(maps)


@double_precision()
def mean_values(
    maps: Maps, values: Matrix, *, reverse: bool = False, points: Matrix | None = None
) -> Matrix:
    """diag(1/P1) P values: for each source point their mean where it goes, [m, k] to [n, k].

    With ``reverse`` diag(1/Pᵀ1) Pᵀ values: the mean where each target point came from, [n, k] to
    [m, k]. Other ``points`` have their means under the conditional weights there.
    """
    count = len(maps[0].y if reverse else maps[0].x) if points is None else len(points)
    found: Matrix = np.zeros((count, values.shape[1]))
    for each in maps:
        here, asked = each, points
        if asked is None:
            here = _in_common_units(each)
            asked = np.asarray(here.y if reverse else here.x)
        for rows, weights in conditional_blocks(here, asked, reverse=reverse):
            found[rows] += weights @ values
    return found / len(maps)


def _in_common_units(entropic_map: EntropicMap) -> EntropicMap:
    """The map with points in and out in common units: its own points are then met exactly."""
    return dataclasses.replace(entropic_map, units=Units.none(entropic_map.x.shape[1]))


@double_precision()
def extend(
    entropic_map: EntropicMap,
    source: Matrix,
    target: Matrix,
    source_weight: NDArray[np.float64],
    target_weight: NDArray[np.float64],
) -> EntropicMap:
    """The map between other points and weights, with its potentials at these, f̂ and ĝ.

    Its conditional distributions are those over these points. It is not debiased.
    """
    units, dtype = entropic_map.units, entropic_map.x.dtype
    x, y = (units.into(points).astype(dtype) for points in (source, target))
    f, g = potentials_at(entropic_map, source, target)
    a, b = (to_device(weight.astype(dtype)) for weight in (source_weight, target_weight))
    return dataclasses.replace(entropic_map, x=x, y=y, a=a, b=b, f=f, g=g, own=None)


def draw_columns(weights: csr_array, count: int, seed: int) -> NDArray[np.int64]:
    """Columns drawn by the weights of each row, with sum 1: [N, count]."""
    uniform = np.random.default_rng(seed).random((weights.shape[0], count))
    # One search for all rows: the cumulated weights of row i lie between i and i + 1.
    total = np.cumsum(weights.data)
    places = np.searchsorted(total, np.arange(len(uniform))[:, None] + uniform, side="right")
    # Sums that are off by rounding may lead into the row before or after.
    first, after = weights.indptr[:-1, None], weights.indptr[1:, None]
    return weights.indices[np.clip(places, first, after - 1)].astype(np.int64)


def entropies(weights: csr_array) -> NDArray[np.float64]:
    """−Σ_j s_j log s_j of each row, in nats."""
    terms = csr_array((entr(weights.data), weights.indices, weights.indptr), shape=weights.shape)
    return np.maximum(np.asarray(terms.sum(axis=1)).ravel(), 0.0)


@double_precision()
def fitted_points(entropic_map: EntropicMap, *, source: bool = False) -> Matrix:
    """The target points, or those of the source, in the units of the data."""
    units = entropic_map.units
    points = np.asarray(entropic_map.x if source else entropic_map.y, np.float64)
    return np.asarray(points * np.asarray(units.scale) + np.asarray(units.centre))
