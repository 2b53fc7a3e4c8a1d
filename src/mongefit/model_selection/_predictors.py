"""What a sceptic would predict with: a mean, a regression, the nearest pairs, on given folds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mongefit._runtime import lapack_threads
from mongefit.metrics._energy import distances
from mongefit.model_selection._judging import Fold, HeldOut, Points

NEIGHBOURS = (2, 3, 5, 10, 20)

Predictor = Callable[[Points], Points]


def simple_predictors(known: HeldOut) -> dict[str, tuple[Points, Predictor]]:
    """By name, what each says of held-out pairs, and its fit to all pairs."""
    none = np.zeros(len(known.pairs), bool)
    everything = Fold(known.a, known.b, known.weight, none, np.flatnonzero(none))
    kinds: dict[str, Callable[[Fold], Predictor]] = {
        "identity": lambda fold: lambda x: x,
        "target mean": lambda fold: lambda x: np.tile(fold.b @ known.y, (len(x), 1)),
    }
    for name, kind in (("ridge on pairs", "affine"), ("kernel ridge on pairs", "kernel")):
        kinds[name] = _regression(known, kind)
    kinds["nearest pair"] = _nearest(known, 1)
    count = len(np.unique(known.pairs[:, 0]))
    several = {k: _nearest(known, k) for k in NEIGHBOURS if k <= count // 2}
    with lapack_threads(len(known.pairs) ** 2):
        if several:
            missed = {k: _error(known, _held_out(known, fit)) for k, fit in several.items()}
            best = min(missed, key=lambda k: missed[k])
            kinds[f"{best} nearest pairs"] = several[best]
        return {name: (_held_out(known, fit), fit(everything)) for name, fit in kinds.items()}


def _error(known: HeldOut, predicted: Points) -> float:
    return float(known.weight[known.asked] @ np.sum((predicted - known.truth) ** 2, axis=1))


def _held_out(known: HeldOut, fit: Callable[[Fold], Predictor]) -> Points:
    predicted = np.empty_like(known.truth)
    for fold in known.folds():
        predicted[fold.places] = fit(fold)(known.x[known.pairs[fold.out, 0]])
    return predicted


def _regression(known: HeldOut, kind: str) -> Callable[[Fold], Predictor]:
    knobs = known.shared_knobs(known.regression(kind, known.weight))

    def fit(fold: Fold) -> Predictor:
        return known.regression(kind, fold.weight, knobs).__call__

    return fit


def _nearest(known: HeldOut, k: int) -> Callable[[Fold], Predictor]:
    """x and the mean displacement of the k nearest paired sources."""

    def fit(fold: Fold) -> Predictor:
        counts = fold.weight > 0
        rows, columns = known.pairs[counts].T
        weight: NDArray[Any] = fold.weight[counts]
        sources, which = np.unique(rows, return_inverse=True)
        share = weight / np.bincount(which, weight)[which]
        displacement = np.zeros((len(sources), known.x.shape[1]))
        np.add.at(displacement, which, share[:, None] * (known.y[columns] - known.x[rows]))
        anchors = known.x[sources]

        def predict(x: Points) -> Points:
            nearest = np.argsort(distances(x, anchors), axis=1)[:, :k]
            return x + displacement[nearest].mean(axis=1)

        return predict

    return fit
