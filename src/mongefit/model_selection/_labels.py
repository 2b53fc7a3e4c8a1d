"""Labels of target points, and what a sceptic would predict them by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._regression import folds as split
from mongefit.errors import DataError
from mongefit.metrics._energy import distances
from mongefit.metrics._labels import log_losses
from mongefit.model_selection._judging import Fold, HeldOut, Points

FLOOR = 1e-3
"""Mass by which class shares are mixed into every prediction, so that none is certain."""
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
NEIGHBOURS = (3, 5, 10, 20)


class TargetLabels(NamedTuple):
    """1 where a target point has a label, [m, labels], and the names of the labels."""

    indicator: Points
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Any, size: int) -> TargetLabels:
        """Check labels of the rows of Y: None, NaN and −1 mark points without one."""
        if labels is None:
            return cls(np.zeros((size, 0)), ())
        array = np.asarray(labels, dtype=object)
        if array.shape != (size,):
            raise DataError(
                f"labels has the shape {array.shape}; one label for each of the {size} rows of Y "
                "is needed, None where it is not known."
            )
        texts = [None if _missing(label) else str(label) for label in array.tolist()]
        names = sorted({text for text in texts if text is not None})
        if len(names) < 2:
            raise DataError(
                f"labels has {'no label' if not names else f'one label, {names[0]!r}'}: there is "
                "nothing to tell apart. Give labels of two kinds at least."
            )
        column = {name: k for k, name in enumerate(names)}
        indicator = np.zeros((size, len(names)))
        for row, text in enumerate(texts):
            if text is not None:
                indicator[row, column[text]] = 1.0
        return cls(indicator, tuple(names))


def _missing(label: Any) -> bool:
    return label is None or label != label or label in (-1, "-1")


def true_labels(known: HeldOut) -> NDArray[np.int64]:
    """The label of the target of every answer, −1 where it has none."""
    found = known.labels[known.pairs[known.asked, 1]]
    return np.where(found.sum(axis=1) > 0, found.argmax(axis=1), -1) if found.size else _none(known)


def check_labelled(known: HeldOut) -> None:
    """Refuse to judge by labels where too few known pairs end at one."""
    found = true_labels(known)
    count = len(np.unique(known.clone[known.asked[found >= 0]]))
    if count < 2 or len(np.unique(found[found >= 0])) < 2:
        raise DataError(
            f"The targets of {count} clones have a label: too few to choose by, or all the same. "
            "Label more targets of known pairs, or choose by another scoring."
        )


def _none(known: HeldOut) -> NDArray[np.int64]:
    return np.full(len(known.asked), -1)


def mixed(mass: Points, share: NDArray[np.float64]) -> Points:
    """Masses of labels as probabilities, mixed with a little of the class shares."""
    found = mass + FLOOR * share
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def class_shares(known: HeldOut, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each label among the targets of pairs with these weights."""
    # One more of each, as Laplace has it: a label that these pairs lack is rare, not impossible.
    count = len(np.unique(known.clone[weight > 0]))
    found = weight @ known.labels[known.pairs[:, 1]]
    total = found.sum()
    size = known.labels.shape[1]
    return np.asarray((found / (total if total > 0 else 1) * count + 1) / (count + size))


def answered(known: HeldOut, masses: Points) -> Points:
    """Probabilities of labels out of the masses that a plan sends to them, for every answer."""
    found = np.empty_like(masses)
    for fold in known.folds():
        share = class_shares(known, fold.weight)
        found[fold.places] = mixed(masses[fold.places], share)
    return found


Predictor = Callable[[Points], Points]


def label_predictors(known: HeldOut) -> dict[str, Points]:
    """By name, the probabilities of labels that each simple predictor has for every answer."""
    kinds: dict[str, Callable[[Fold], Predictor]] = {
        "class shares": lambda fold: _constant(class_shares(known, fold.weight)),
        "logistic regression": lambda fold: _chosen(known, fold, _logistic, STRENGTHS),
        "nearest pairs": lambda fold: _chosen(known, fold, _nearest, NEIGHBOURS),
    }
    found = {}
    for name, fit in kinds.items():
        predicted = np.empty((len(known.asked), known.labels.shape[1]))
        for fold in known.folds():
            share = class_shares(known, fold.weight)
            said = fit(fold)(known.x[known.pairs[fold.out, 0]])
            predicted[fold.places] = mixed(said, share)
        found[name] = predicted
    return found


def _constant(share: NDArray[np.float64]) -> Predictor:
    return lambda x: np.tile(share, (len(x), 1))


def _chosen(known: HeldOut, fold: Fold, kind: Any, settings: tuple[float, ...]) -> Predictor:
    """A classifier on the pairs of a fold, its setting chosen by clones of the fold held out."""
    rows, columns = known.pairs.T
    code = known.labels[columns].argmax(axis=1)
    use = (fold.weight > 0) & (known.labels[columns].sum(axis=1) > 0)
    share = class_shares(known, fold.weight)
    if len(np.unique(code[use])) < 2:
        return _constant(share)
    x, c, w, clone = known.x[rows[use]], code[use], fold.weight[use], known.clone[use]
    size = known.labels.shape[1]
    losses = np.zeros(len(settings))
    for out in split(clone, 5):
        for k, setting in enumerate(settings):
            said = kind(x[~out], c[~out], w[~out], size, share, setting)(x[out])
            losses[k] += w[out] @ log_losses(mixed(said, share), c[out])
    return kind(x, c, w, size, share, settings[int(np.argmin(losses))])


def _logistic(x: Points, code: Any, weight: Any, size: int, share: Any, C: float) -> Predictor:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(code)) < 2:
        return _constant(share)
    fitted = LogisticRegression(C=C, max_iter=1000).fit(
        x, code, sample_weight=weight / weight.mean()
    )

    def predict(points: Points) -> Points:
        found = np.zeros((len(points), size))
        found[:, fitted.classes_] = fitted.predict_proba(points)
        return found

    return predict


def _nearest(x: Points, code: Any, weight: Any, size: int, share: Any, count: float) -> Predictor:
    if not len(x):
        return _constant(share)

    def predict(points: Points) -> Points:
        nearest = np.argsort(distances(points, x), axis=1)[:, : int(count)]
        found = np.zeros((len(points), size))
        rows = np.repeat(np.arange(len(points)), nearest.shape[1])
        np.add.at(found, (rows, code[nearest].ravel()), weight[nearest].ravel())
        # The class shares count as one neighbour.
        found = found / np.mean(weight) + share
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    return predict
