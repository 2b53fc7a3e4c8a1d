"""Trivial predictors: what a map must beat before its numbers mean anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree
from sklearn.linear_model import RidgeCV

from mongefit._validation import Knowledge
from mongefit.baselines._base import Baseline
from mongefit.baselines._plans import Matrix, Points, Weights, squared_euclidean
from mongefit.errors import DataError

# Ridge strengths relative to the total spread of the paired sources.
_STRENGTHS = np.logspace(-8, 2, 21)


class TrivialPredictor(Baseline):
    """A baseline with nothing to tune, and the cost ½‖T(x) − y‖² under which T(x) is nearest."""

    def _cost(self, x: Points, y: Points) -> Matrix:
        return squared_euclidean(self._move(x), y)


class IdentityMap(TrivialPredictor):
    """T(x) = x: nothing moves.

    Parameters
    ----------
    epsilon : float, default=0.01
        Entropic regularisation of ``coupling_``, relative to the mean cost.
    many_to_many, normalize_weight
        As for `MongeMap`.

    Examples
    --------
    >>> from mongefit.baselines import IdentityMap
    >>> IdentityMap().fit([[0.0], [1.0]], [[2.0], [3.0]]).transform([[5.0]])
    array([[5.]])
    """

    def _learn(self, x, y, a, b, known) -> None:
        pass

    def _move(self, x: Points) -> Points:
        return x.copy()


class TargetMean(TrivialPredictor):
    """T(x) = Σ_j b_j y_j: every point goes to the mean of the target.

    The constant with the smallest RMSE. It can beat good maps on RMSE, and it loses the whole
    spread of the target, which the Sinkhorn divergence sees. Parameters are those of `IdentityMap`.

    Attributes
    ----------
    mean_ : array [d]
        The mean.

    Examples
    --------
    >>> from mongefit.baselines import TargetMean
    >>> TargetMean().fit([[0.0], [1.0]], [[2.0], [3.0]]).transform([[5.0]])
    array([[2.5]])
    """

    def _learn(self, x, y, a, b, known) -> None:
        self.mean_: NDArray[np.float64] = b @ y

    def _move(self, x: Points) -> Points:
        return np.tile(self.mean_, (len(x), 1))


class PairedRidge(TrivialPredictor):
    """T(x) = W x + w by ridge regression on the known pairs, which are at least two.

    The strength is the one with the smallest leave-one-out error, from 1e-8 to 100 times the total
    spread Σ_k w_k ‖x_k − x̄‖² of the paired sources, where w_k is ``pair_weight`` with mean 1.
    Parameters are those of `IdentityMap`.

    Attributes
    ----------
    coefficient_ : array [d, d]
        W.
    intercept_ : array [d]
        w.
    strength_ : float
        The chosen strength, relative to the spread.

    Examples
    --------
    >>> from mongefit.baselines import PairedRidge
    >>> X, Y = [[0.0], [1.0], [2.0]], [[1.0], [3.0], [5.0]]
    >>> ridge = PairedRidge().fit(X, Y, pairs=[[0, 0], [1, 1], [2, 2]])
    >>> ridge.transform([[10.0]]).round(3)
    array([[21.]])
    """

    def _learn(self, x, y, a, b, known) -> None:
        pairs, weight = _counted(known)
        if len(pairs) < 2:
            raise DataError(
                f"Ridge regression needs at least 2 known pairs, and {len(pairs)} are given. Give "
                "more, or use NearestPair (from one pair on) or TargetMean (no pairs)."
            )
        source, target = x[pairs[:, 0]], y[pairs[:, 1]]
        # In units of their own spread, so that strengths mean the same for data of any size.
        centre, middle = (np.average(points, axis=0, weights=weight) for points in (source, target))
        width = _spread(source - centre, weight)
        height = _spread(target - middle, weight)
        ridge = RidgeCV(_STRENGTHS, fit_intercept=True)
        ridge.fit((source - centre) / width, (target - middle) / height, sample_weight=weight)
        self.coefficient_: Points = np.reshape(ridge.coef_, (y.shape[1], -1)) * (height / width)
        self.intercept_: NDArray[np.float64] = middle - self.coefficient_ @ centre
        self.strength_ = float(ridge.alpha_)

    def _move(self, x: Points) -> Points:
        return x @ self.coefficient_.T + self.intercept_


class NearestPair(TrivialPredictor):
    """T(x) = x + (y_k − x_k), k the known pair whose source is nearest to x.

    Where that source has several targets their mean is taken, weighted by ``pair_weight``.
    Parameters are those of `IdentityMap`.

    Attributes
    ----------
    anchor_ : array [k, d]
        Paired sources.
    displacement_ : array [k, d]
        The displacement of each.

    Examples
    --------
    >>> from mongefit.baselines import NearestPair
    >>> nearest = NearestPair().fit([[0.0], [9.0]], [[1.0], [7.0]], pairs=[[0, 0], [1, 1]])
    >>> nearest.transform([[2.0], [8.0]])
    array([[3.],
           [6.]])
    """

    def _learn(self, x, y, a, b, known) -> None:
        pairs, weight = _counted(known)
        if len(pairs) == 0:
            raise DataError(
                "NearestPair follows the nearest known pair, and no pairs are given. Give at least "
                "one, or use IdentityMap or TargetMean (no pairs)."
            )
        rows, which = np.unique(pairs[:, 0], return_inverse=True)
        share = weight / np.bincount(which, weight)[which]
        displacement = np.zeros((len(rows), x.shape[1]))
        np.add.at(displacement, which, share[:, None] * (y[pairs[:, 1]] - x[pairs[:, 0]]))
        self.anchor_: Points = x[rows]
        self.displacement_: Points = displacement

    def _move(self, x: Points) -> Points:
        _, nearest = KDTree(self.anchor_).query(x)
        return x + self.displacement_[nearest]


def _counted(known: Knowledge) -> tuple[NDArray[np.int64], Weights]:
    """Pairs with a weight above zero, and their weights; none where no pairs are known."""
    if known.pairs is None or known.pair_weight is None:
        return np.zeros((0, 2), np.int64), np.zeros(0)
    counts = known.pair_weight > 0
    return known.pairs[counts], known.pair_weight[counts]


def _spread(centred: Points, weight: Weights) -> float:
    """Root of the total weighted square of centred points, or 1 where they do not differ."""
    return float(np.linalg.norm(np.sqrt(weight)[:, None] * centred)) or 1.0
