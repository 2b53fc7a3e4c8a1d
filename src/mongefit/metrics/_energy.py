"""How good a predicted distribution is, by one outcome of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_points, check_weights
from mongefit.metrics._points import check_rows


def energy_score(
    model: Any, X: ArrayLike, Y: ArrayLike, *, weight: ArrayLike | None = None
) -> float:
    """The mean energy score E‖Z − y‖ − ½ E‖Z − Z'‖ of predicted distributions, lower is better.

    Z and Z' are drawn from what a model says of x, and y is what became of it. The score is proper:
    no other distribution has a lower one on average than that of y. It is in the units of the data,
    and unlike the RMSE it rewards neither shrinking nor spreading.

    Parameters
    ----------
    model
        A fitted estimator. With ``conditional``, as `MongeMap` has, Z is distributed over target
        points; that of a debiased map is moved as the map is, and that of an ensemble as its
        members are on average. Without, the model predicts a point, and the score is the mean
        distance from it.
    X, Y
        Paired rows, [N, d] each.
    weight
        Non-negative weights of the rows, of any sum; equal by default.
    """
    mapped, truth = check_rows(model.transform(X), Y, "model.transform(X)", "Y")
    share = check_weights(weight, len(truth), "weight", normalize=True)
    if not hasattr(model, "conditional"):
        return float(share @ np.linalg.norm(mapped - truth, axis=1))
    from mongefit._estimators.outcomes import chain_of
    from mongefit._fitting.chains import corrections_over, end_of
    from mongefit._fitting.outcomes import fitted_points

    chain = chain_of(model)
    moved = corrections_over(chain, check_points(X, "X"))
    weights = model.conditional(X).toarray()
    points = fitted_points(end_of(chain, source=False))
    return float(share @ energy_scores(weights, points, truth - moved))


def energy_scores(
    weights: NDArray[np.float64],
    points: NDArray[np.float64],
    truth: NDArray[np.float64],
    between: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """The score of each row of weights on the points by its row of the truth.

    ``between`` are the distances between points, where they are known.
    """
    if between is None:
        used = np.any(weights > 0, axis=0)
        weights, points = weights[:, used], points[used]
        between = distances(points, points)
    missed = np.sum(weights * distances(truth, points), axis=1)
    return missed - 0.5 * np.sum((weights @ between) * weights, axis=1)


def distances(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """‖x_i − y_j‖ for all pairs of rows."""
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
    return np.sqrt(np.maximum(squares, 0))
