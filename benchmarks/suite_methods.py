"""The methods of `suite.py`: today's and tomorrow's default map, and what they must beat.

A method is a function of a `Draw`; what it returns has `transform`. Simple predictors see known
pairs in common units, one centre and one scale of both clouds. Pairs of one source are merged into
their mean, which changes no squared error. What they have to choose has the least error in five
folds over the clones of known pairs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning
from scipy.spatial.distance import cdist, pdist
from scipy.special import softmax
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from suite_problems import Draw, Points, Rows

from mongefit import MongeMap
from mongefit.baselines import IdentityMap, NearestPair, TargetMean

FOLDS = 5
EPSILONS = (0.4, 0.2, 0.1, 0.05, 0.02)
STRENGTHS = np.logspace(-8, 4, 25)
NEIGHBOURS = (1, 2, 3, 5, 8, 12, 20, 30)
# Relative to the median distance between paired sources.
WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
# All points of larger clouds in every step of training would take hours.
LARGE = 2000
BATCH = 512


class Unavailable(Exception):
    """The installed mongefit does not have this method."""


# Simple predictors


class Known(NamedTuple):
    """Known pairs in common units, one for each source."""

    x: Points
    y: Points
    weight: Points
    clone: Rows
    centre: Points
    scale: float

    @classmethod
    def of(cls, draw: Draw) -> Known:
        centre = (draw.X.mean(axis=0) + draw.Y.mean(axis=0)) / 2
        squares = ((draw.X - centre) ** 2).mean() + ((draw.Y - centre) ** 2).mean()
        scale = float(np.sqrt(squares / 2))
        sources, first, which = np.unique(
            draw.pairs[:, 0], return_index=True, return_inverse=True
        )  # fmt: skip
        weight = np.bincount(which, draw.pair_weight)
        y = np.zeros((len(sources), draw.Y.shape[1]))
        np.add.at(y, which, draw.pair_weight[:, None] * draw.Y[draw.pairs[:, 1]])
        label = np.arange(len(sources)) if draw.clones is None else draw.clones[first]
        return cls(
            (draw.X[sources] - centre) / scale, (y / weight[:, None] - centre) / scale,
            weight / weight.mean(), np.unique(label, return_inverse=True)[1], centre, scale,
        )  # fmt: skip

    def folds(self) -> list[NDArray[np.bool_]]:
        """What is held out in every fold: whole clones."""
        count = int(self.clone.max()) + 1
        order = np.random.default_rng(0).permutation(count)
        return [order[self.clone] % FOLDS == fold for fold in range(min(FOLDS, count))]


class Tuned:
    """The candidate with the least cross-validated error, fitted to all known pairs."""

    def __init__(self, draw: Draw, candidates: Callable[[Known], Iterable[RegressorMixin]]):
        known = Known.of(draw)
        self.known = known
        options = list(candidates(known))
        errors = [self._error(each) for each in options]
        self.regressor = options[int(np.argmin(errors))].fit(
            known.x, known.y, sample_weight=known.weight
        )

    def _error(self, candidate: RegressorMixin) -> float:
        x, y, weight = self.known[:3]
        total = 0.0
        for held_out in self.known.folds():
            fitted = clone(candidate).fit(
                x[~held_out], y[~held_out], sample_weight=weight[~held_out]
            )
            squares = np.sum((fitted.predict(x[held_out]) - y[held_out]) ** 2, axis=1)
            total += weight[held_out] @ squares
        return total

    def transform(self, X: Points) -> Points:
        centre, scale = self.known.centre, self.known.scale
        mapped: Points = self.regressor.predict((X - centre) / scale) * scale + centre
        return mapped

    @property
    def chosen(self) -> dict[str, Any]:
        shown = ("alpha", "gamma", "k", "by_distance")
        options = self.regressor.get_params()
        return {name: options[name] for name in shown if name in options}


class Centred(KernelRidge):
    """Kernel ridge regression of what is above the mean, as ridge regression has an intercept."""

    def fit(self, X: Points, y: Points, sample_weight: Points | None = None) -> Self:
        self.mean_ = np.average(y, axis=0, weights=sample_weight)
        fitted: Self = super().fit(X, y - self.mean_, sample_weight)
        return fitted

    def predict(self, X: Points) -> Points:
        predicted: Points = super().predict(X) + self.mean_
        return predicted


class Neighbours(RegressorMixin, BaseEstimator):
    """The mean target of the k nearest sources; scikit-learn's takes no weights of samples."""

    def __init__(self, k: int = 1, by_distance: bool = False):
        self.k, self.by_distance = k, by_distance

    def fit(self, X: Points, y: Points, sample_weight: Points) -> Self:
        self.x_, self.y_, self.weight_ = X, y, sample_weight
        return self

    def predict(self, X: Points) -> Points:
        distance = cdist(X, self.x_)
        nearest = np.argsort(distance, axis=1)[:, : self.k]
        weight = self.weight_[nearest]
        if self.by_distance:
            weight = weight / np.maximum(np.take_along_axis(distance, nearest, axis=1), 1e-12)
        weight = weight / weight.sum(axis=1, keepdims=True)
        predicted: Points = np.einsum("Nk,Nkd->Nd", weight, self.y_[nearest])
        return predicted


def _ridges(known: Known) -> Iterable[RegressorMixin]:
    return (Ridge(strength) for strength in STRENGTHS)


def _neighbours(known: Known) -> Iterable[RegressorMixin]:
    counts = [k for k in NEIGHBOURS if k <= len(known.x)]
    return (Neighbours(k, by_distance) for k in counts for by_distance in (False, True))


def _kernel_ridges(known: Known) -> Iterable[RegressorMixin]:
    distance = np.median(pdist(known.x))
    return (
        Centred(alpha=strength, kernel="rbf", gamma=0.5 / (width * distance) ** 2)
        for width in WIDTHS
        for strength in STRENGTHS[::2]
    )


def _networks(known: Known) -> Iterable[RegressorMixin]:
    return (
        MLPRegressor(
            hidden_layer_sizes=(64, 64), alpha=penalty, solver="lbfgs", max_iter=300, random_state=0
        )
        for penalty in PENALTIES
    )


def _trivial(kind: type[Any]) -> Callable[[Draw], Any]:
    def fit(draw: Draw) -> Any:
        model = kind(many_to_many=True)
        return model.fit(draw.X, draw.Y, pairs=draw.pairs, pair_weight=draw.pair_weight)

    return fit


def _tuned(candidates: Callable[[Known], Iterable[RegressorMixin]]) -> Callable[[Draw], Tuned]:
    def fit(draw: Draw) -> Tuned:
        with warnings.catch_warnings():
            # Ridge with next to no strength, and networks that are stopped.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", LinAlgWarning)
            return Tuned(draw, candidates)

    return fit


# Maps


# Of the last clouds: those of blood cells are the same in every draw.
_euclidean: dict[bytes, list[MongeMap]] = {}


def _squared_euclidean(score: Callable[[Any, Draw], float]) -> Callable[[Draw], MongeMap]:
    """Squared Euclidean at the epsilon that is best on known pairs.

    Nothing is trained and no pair is used, so that the error on known pairs is the cross-validated
    one. The seconds are those of the first time that a process maps these clouds.
    """

    def fit(draw: Draw) -> MongeMap:
        key = draw.X.tobytes() + draw.Y.tobytes()
        if key not in _euclidean:
            _euclidean.clear()
            _euclidean[key] = [
                MongeMap(cost="sqeuclidean", max_iter=0, epsilon=epsilon).fit(draw.X, draw.Y)
                for epsilon in EPSILONS
            ]
        known = draw._replace(
            new_X=draw.X[draw.pairs[:, 0]], new_Y=draw.Y[draw.pairs[:, 1]],
            new_weight=draw.pair_weight,
        )  # fmt: skip
        return min(_euclidean[key], key=lambda model: score(model, known))

    return fit


def _todays_default(draw: Draw) -> MongeMap:
    """No options, but for accepting clones and for sampling large clouds."""
    batch = BATCH if max(len(draw.X), len(draw.Y)) > LARGE else None
    model = MongeMap(many_to_many=True, batch_size=batch)
    return model.fit(draw.X, draw.Y, pairs=draw.pairs, pair_weight=draw.pair_weight)


def _default(draw: Draw) -> Any:
    """No options."""
    try:
        from mongefit import MongeMapCV
    except ImportError as error:
        raise Unavailable("This mongefit has no MongeMapCV.") from error
    model = MongeMapCV()
    return model.fit(
        draw.X, draw.Y, pairs=draw.pairs, clones=draw.clones, pair_weight=draw.pair_weight
    )  # fmt: skip


# Scores


def rmse_of(model: Any, draw: Draw) -> float:
    """Weighted RMSE on new points."""
    squares = np.sum((model.transform(draw.new_X) - draw.new_Y) ** 2, axis=1)
    return float(np.sqrt(np.average(squares, weights=draw.new_weight)))


def energy_of(model: Any, draw: Draw) -> float:
    """Weighted energy score on new points: E‖Y − y‖ − ½E‖Y − Y'‖, of a point its distance."""
    # Points in several pairs are asked about once.
    X, which = np.unique(draw.new_X, axis=0, return_inverse=True)
    found = conditional(model, X)
    if found is None:
        scores = np.linalg.norm(model.transform(X)[which] - draw.new_Y, axis=1)
    else:
        weights, points, shift = found
        scores = energy_scores(weights[which], points, draw.new_Y, shift[which])
    return float(np.average(scores, weights=draw.new_weight))


def conditional(model: Any, X: Points) -> tuple[Points, Points, Points] | None:
    """Weights over target points for every row of X, these points, and how far they are shifted.

    None for a model that predicts points alone. A debiased map shifts what it predicts.
    """
    fitted = getattr(model, "map_", None)
    if fitted is None:
        return None
    units = fitted.units
    points = np.asarray(fitted.y) * np.asarray(units.scale) + np.asarray(units.centre)
    exponent = (np.asarray(fitted.g) - model.cost_matrix(X, points)) / float(fitted.eps)
    weights: Points = softmax(np.log(np.asarray(fitted.b)) + exponent, axis=1)
    shift = np.zeros_like(X)
    if fitted.own is not None:
        plain = dataclasses.replace(fitted, own=None)
        shift = model.transform(X) - np.asarray(plain.forward(X))
    return weights, points, shift


def energy_scores(weights: Points, points: Points, truth: Points, shift: Points) -> Points:
    """E‖Y − y‖ − ½E‖Y − Y'‖ of every row, with Y among shifted points."""
    # Points without weight in any row are left out.
    used = weights.max(axis=0) > 1e-9
    weights, points = weights[:, used], points[used]
    away = np.sum(weights * cdist(truth - shift, points), axis=1)
    apart = np.sum(weights @ cdist(points, points) * weights, axis=1)
    scores: Points = away - apart / 2
    return scores


# MLP and both defaults are no simple predictors.
SIMPLE: dict[str, Callable[[Draw], Any]] = {
    "target mean": _trivial(TargetMean),
    "identity": _trivial(IdentityMap),
    "ridge": _tuned(_ridges),
    "nearest pair": _trivial(NearestPair),
    "k nearest": _tuned(_neighbours),
    "kernel ridge": _tuned(_kernel_ridges),
    "squared Euclidean": _squared_euclidean(rmse_of),
    "squared Euclidean, by energy": _squared_euclidean(energy_of),
}
METHODS = SIMPLE | {
    "MLP": _tuned(_networks),
    "MongeMap": _todays_default,
    "MongeMapCV": _default,
}
"""Every method by its name."""
