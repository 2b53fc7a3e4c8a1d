"""Errors of mapped points against known ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mongefit._validation import check_points, check_weights
from mongefit.baselines._plans import Points, Weights
from mongefit.errors import DataError


def rmse(mapped: ArrayLike, truth: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Root mean square error sqrt(Σ_k w_k ‖T(x_k) − y_k‖² / Σ_k w_k) over paired rows.

    It is in the units of the data. It does not see the shape of the mapped cloud, and a constant
    predictor can win on it: read it beside `sinkhorn_divergence` and the trivial predictors, as
    `evaluate` prints it.

    Parameters
    ----------
    mapped, truth
        T(x_k) and y_k, [k, d] each.
    weight
        Non-negative weights of the rows, of any sum; equal by default.
    """
    found, expected = check_rows(mapped, truth, "mapped", "truth")
    a = check_weights(weight, len(found), "weight", normalize=True)
    return _root_mean_square(found - expected, a)


def l2_uvp(
    mapped: ArrayLike,
    truth: ArrayLike,
    target: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    target_weight: ArrayLike | None = None,
) -> float:
    """Unexplained variance percentage 100 · mean ‖T(x) − T*(x)‖² / Var(ν).

    0 is the true map, and 100 that of the constant predictor at the mean of ν.

    Parameters
    ----------
    mapped, truth
        T(x) and T*(x) at the same points, [n, d] each.
    target
        Points of ν, [m, d]; Var(ν) is their total variance Σ_j b_j ‖y_j − ȳ‖².
    weight, target_weight
        Non-negative weights of the rows, of any sum; equal by default.
    """
    found, expected = check_rows(mapped, truth, "mapped", "truth")
    y = check_points(target, "target")
    check_same_dimension(found, y, "mapped", "target")
    a = check_weights(weight, len(found), "weight", normalize=True)
    b = check_weights(target_weight, len(y), "target_weight", normalize=True)
    deviation = _root_mean_square(y - b @ y, b)
    if deviation == 0:
        raise DataError(
            "All points of target are the same: there is no variance to explain. Use rmse instead."
        )
    return 100 * (_root_mean_square(found - expected, a) / deviation) ** 2


def _root_mean_square(difference: Points, weight: Weights) -> float:
    largest = np.abs(difference).max()
    if largest == 0:
        return 0.0
    # Divided by the largest first: squares of 1e170 would overflow, of 1e-170 vanish.
    return float(largest * np.sqrt(weight @ np.sum((difference / largest) ** 2, axis=1)))


def check_same_dimension(first: Points, second: Points, first_name: str, second_name: str) -> None:
    """Refuse clouds with different numbers of features."""
    if first.shape[1] != second.shape[1]:
        raise DataError(
            f"{first_name} has {first.shape[1]} features and {second_name} has {second.shape[1]}; "
            "both must have the same."
        )


def check_rows(
    first: ArrayLike, second: ArrayLike, first_name: str, second_name: str
) -> tuple[Points, Points]:
    """Two arrays of points of one shape, to be compared row by row."""
    one, other = check_points(first, first_name), check_points(second, second_name)
    check_same_dimension(one, other, first_name, second_name)
    if len(one) != len(other):
        raise DataError(
            f"{first_name} and {second_name} are compared row by row: they have {len(one)} and "
            f"{len(other)} rows. Select the paired rows of both."
        )
    return one, other
