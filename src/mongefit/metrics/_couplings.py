"""What a coupling, a cost or a plan gets right of what is known."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment, linprog
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from mongefit._duals import DualProblem
from mongefit._runtime import double_precision
from mongefit._transport import EntropicMap, Units
from mongefit._validation import check_count, check_pairs, check_points, check_weights
from mongefit.baselines._plans import Weights
from mongefit.errors import ConvergenceError, ConvergenceWarning, DataError, warn_user


def incorrect_mass(coupling: ArrayLike, pairs: ArrayLike) -> float:
    """The share of the mass on entries known to be wrong: Σ P_ij over them.

    An entry is known to be wrong if row i or column j belongs to a known pair and (i, j) is not
    one. Print `incorrect_mass_floor` beside it: with n ≠ m no coupling reaches zero.

    Parameters
    ----------
    coupling
        P, [n, m], non-negative with sum 1.
    pairs
        Known pairs, integers [k, 2]: row, column. A row or a column may have several.
    """
    P = check_points(coupling, "coupling")
    if np.any(P < 0):
        row, column = np.unravel_index(np.argmin(P), P.shape)
        raise DataError(
            f"coupling is negative at row {row} column {column} ({P[row, column]:.3g}). It holds "
            "masses, which are ≥ 0."
        )
    if abs(P.sum() - 1) > 1e-6:
        raise DataError(f"coupling has sum {P.sum():.6g}, not 1. Divide it by its sum.")
    known = _known_pairs(pairs, *P.shape)
    in_question = np.zeros(P.shape, dtype=bool)
    in_question[known[:, 0]] = True
    in_question[:, known[:, 1]] = True
    in_question[known[:, 0], known[:, 1]] = False
    return float(P[in_question].sum())


def incorrect_mass_floor(
    n: int,
    m: int,
    pairs: ArrayLike,
    *,
    source_weight: ArrayLike | None = None,
    target_weight: ArrayLike | None = None,
    normalize_weight: bool = False,
) -> float:
    """The smallest `incorrect_mass` that any coupling with these marginals can have.

    max(Σ_{i∈I} a_i, Σ_{j∈J} b_j) − F, where I and J are the rows and columns of known pairs and F
    is the most mass that the pairs can carry: Σ_k min(a_i(k), b_j(k)) where they are one-to-one,
    else the largest flow through them. With k one-to-one pairs and uniform weights it is
    k · |1/m − 1/n|.

    Parameters
    ----------
    n, m
        Numbers of rows and columns.
    pairs
        As for `incorrect_mass`.
    source_weight, target_weight, normalize_weight
        Marginals; as for `sinkhorn_divergence`.
    """
    n, m = check_count(n, "n", minimum=1), check_count(m, "m", minimum=1)
    a = check_weights(source_weight, n, "source_weight", normalize=normalize_weight)
    b = check_weights(target_weight, m, "target_weight", normalize=normalize_weight)
    known = _known_pairs(pairs, n, m)
    # Mass on entries that are not known wrong lies on pairs, or between rows outside I and columns
    # outside J. The two share no row and no column, and what any such part of a coupling leaves
    # over can always be placed on wrong entries. So the floor is 1 − F − min(1 − a(I), 1 − b(J)).
    rows, columns = (np.unique(side) for side in known.T)
    return float(max(a[rows].sum(), b[columns].sum()) - _largest_flow(known, a, b))


def is_one_to_one(pairs: NDArray[np.int64]) -> bool:
    """Whether no row and no column belongs to two pairs."""
    return all(len(np.unique(side)) == len(side) for side in pairs.T)


def _largest_flow(pairs: NDArray[np.int64], a: Weights, b: Weights) -> float:
    """max Σ_k p_k with p ≥ 0 and no row or column carrying more than its weight."""
    if is_one_to_one(pairs):
        return float(np.minimum(a[pairs[:, 0]], b[pairs[:, 1]]).sum())
    # Variable k, the mass of pair k, counts for row i(k) and for column j(k).
    count = len(pairs)
    limits = np.concatenate([pairs[:, 0], len(a) + pairs[:, 1]])
    counted = scipy.sparse.csc_array(
        (np.ones(2 * count), (limits, np.tile(np.arange(count), 2))), (len(a) + len(b), count)
    )
    # In units of the largest weight: the solver's tolerances are absolute.
    unit = max(a.max(), b.max())
    found = linprog(-np.ones(count), A_ub=counted, b_ub=np.concatenate([a, b]) / unit)
    if not found.success:
        raise ConvergenceError(f"The floor of the incorrect mass was not found: {found.message}")
    return float(-found.fun * unit)


def recovered_pairs(cost_matrix: ArrayLike, truth: ArrayLike | None = None) -> float:
    """Share of rows that exact assignment under a cost sends to their true column.

    Ties are broken without regard to the order of rows and columns, so that a cost that knows
    nothing recovers about one row in m and not all of them.

    Parameters
    ----------
    cost_matrix
        C, [n, m]. With n > m only m rows are assigned; the others count as not recovered.
    truth
        The true column of each row, integers [n]; row i belongs to column i by default.
    """
    C = check_points(cost_matrix, "cost_matrix")
    n, m = C.shape
    if truth is None and n > m:
        raise DataError(
            f"cost_matrix has {n} rows and {m} columns: row {m} has no column of its own. Give "
            "truth, the true column of each row."
        )
    true_column = np.arange(n) if truth is None else np.asarray(truth)
    if true_column.shape != (n,) or true_column.dtype.kind not in "iu":
        raise DataError(
            f"truth must hold {n} integers, the true column of each row; it has shape "
            f"{true_column.shape} and type {true_column.dtype}."
        )
    outside = (true_column < 0) | (true_column >= m)
    if np.any(outside):
        row = int(np.argmax(outside))
        raise DataError(
            f"truth sends row {row} to column {true_column[row]}. Columns are numbered 0 to "
            f"{m - 1}."
        )
    # Shuffled: on a constant matrix the solver returns the identity, which is often the truth.
    shuffle = np.random.default_rng(0)
    rows, columns = shuffle.permutation(n), shuffle.permutation(m)
    found_rows, found_columns = linear_sum_assignment(C[np.ix_(rows, columns)])
    hits = true_column[rows[found_rows]] == columns[found_columns]
    return float(np.sum(hits) / n)


def map_plan_gap(estimator: BaseEstimator | EntropicMap) -> float:
    """How far the map is from the mean of its plan, in the latent space.

    sqrt(Σ_i a_i ‖Φν(T(x_i)) − Σ_j P_ij v_j / a_i‖²) over the fitted source, in common units, where
    1 is the spread of the data. It is zero for quadratic h; for others the map takes the mean of
    ∇h(u − v_j) where a barycentric projection takes the mean of v_j.

    Parameters
    ----------
    estimator
        A fitted `MongeMap` or another estimator with a ``map_``, or an `EntropicMap`.
    """
    fitted: Any = estimator
    if isinstance(estimator, BaseEstimator):
        check_is_fitted(estimator)
        fitted = getattr(estimator, "map_", None)
    if not isinstance(fitted, EntropicMap):
        raise DataError(
            "map_plan_gap needs an EntropicMap or a fitted estimator with one, such as MongeMap, "
            f"got {type(estimator).__name__}. Others have no plan behind their map."
        )
    # In blocks, because the map holds every displacement u − v_j at a time.
    size = max(2**20 // len(fitted.y), 1)
    with double_precision():
        blocks = [
            _squared_gaps(fitted, fitted.x[start : start + size], fitted.f[start : start + size])
            for start in range(0, len(fitted.x), size)
        ]
        squared, converged = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        gap = float(np.sqrt(np.asarray(fitted.a) @ squared))
    if unsolved := np.sum(~converged):
        warn_user(
            f"The inverse gradient did not converge at {unsolved} of {len(converged)} source "
            "points; the gap holds their error too. A larger alpha helps.",
            ConvergenceWarning,
        )
    return gap


@eqx.filter_jit
def _squared_gaps(
    entropic_map: EntropicMap, x: Float[Array, "N d"], f: Float[Array, " N"]
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """‖Φν(T(x_i)) − Σ_j P_ij v_j / Σ_j P_ij‖² for a block, and where T was found."""
    cost, y = entropic_map.cost, entropic_map.y
    inside = eqx.tree_at(lambda found: found.units, entropic_map, Units.none(x.shape[1]))
    moved = inside.transport(x)
    # With weight 1 in the place of a_i, so that there are rows where a_i is zero too.
    ones = jnp.ones(len(x), x.dtype)
    problem = DualProblem(cost.matrix(x, y), ones, entropic_map.b, eps=entropic_map.eps)
    rows = problem.plan(f, entropic_map.g)
    mean = (rows @ cost.latent_target(y)) / jnp.sum(rows, axis=1, keepdims=True)
    gap = cost.latent_target(moved.points) - mean
    return jnp.sum(gap**2, axis=1), moved.converged


def _known_pairs(pairs: ArrayLike, n: int, m: int) -> NDArray[np.int64]:
    with one_pair_will_do():
        known, _ = check_pairs(pairs, n, m, many_to_many=True)
    if known is None:
        raise DataError("pairs is empty: without known pairs no mass is known to be incorrect.")
    return known


@contextlib.contextmanager
def one_pair_will_do() -> Iterator[None]:
    """Without the warning that one pair is little to learn from: here nothing is learned."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Only one pair is known")
        yield
