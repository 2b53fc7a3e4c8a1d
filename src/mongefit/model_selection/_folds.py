"""Known pairs in folds, whole clones together, and clouds thinned to what a fold needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._fitting.data import check_clones
from mongefit._validation import (
    check_count,
    check_pairs,
    check_points,
    check_same_features,
    check_weights,
)
from mongefit.errors import DataError, OptionError, warn_user

FEW_CLONES = 10
"""With fewer clones each is left out alone."""


class Known(NamedTuple):
    """Two clouds, their weights, and the pairs that are known of them, checked.

    Pairs of one ``clone``, numbered from 0 on, are held out together. Without ``a`` or ``b`` all
    points of that cloud weigh the same.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    pairs: NDArray[np.int64]
    weight: NDArray[np.float64]
    clone: NDArray[np.int64]
    a: NDArray[np.float64] | None = None
    b: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        X: ArrayLike,
        Y: ArrayLike,
        pairs: ArrayLike,
        pair_weight: ArrayLike | None,
        clones: ArrayLike | None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
        *,
        several: bool = True,
        normalize: bool = False,
    ) -> Known:
        """Check all of it. Without clones, pairs that share a point belong together.

        There must be several clones unless ``several`` is False.
        """
        x, y = check_points(X, "X"), check_points(Y, "Y")
        check_same_features(X, Y, x, y)
        a, b = (
            None if given is None else check_weights(given, len(points), name, normalize=normalize)
            for given, points, name in (
                (source_weight, x, "source_weight"),
                (target_weight, y, "target_weight"),
            )
        )
        table, weight = check_pairs(pairs, len(x), len(y), weight=pair_weight, many_to_many=True)
        if table is None or weight is None:
            raise DataError("There are no pairs to choose by: give pairs=…, integers [k, 2].")
        clone = check_clones(clones, table)
        if several and clone.max() == 0:
            raise DataError(
                "All pairs belong to one clone, so that none can be held out. Cross-validation "
                "needs at least two."
            )
        return cls(x, y, table, weight, clone, a, b)

    @property
    def n_clones(self) -> int:
        return int(self.clone.max()) + 1

    @property
    def truth(self) -> NDArray[np.float64]:
        """The target of every pair, [k, d]."""
        return self.y[self.pairs[:, 1]]

    def without(self, held_out: NDArray[np.bool_]) -> Known:
        """The same clouds, with fewer pairs known."""
        left = ~held_out
        clone = _numbered(self.clone[left])
        return self._replace(pairs=self.pairs[left], weight=self.weight[left], clone=clone)

    def folds(self, n_folds: int | None, seed: int) -> NDArray[np.int64]:
        """The fold of every pair: clones in random order, or each by itself where they are few."""
        return folds_of(self.clone, n_folds, seed)


def folds_of(clone: NDArray[np.int64], n_folds: int | None, seed: int) -> NDArray[np.int64]:
    """The fold of every pair, from the numbers of their clones."""
    count = int(clone.max()) + 1
    if n_folds is None:
        n_folds = 5 if count >= FEW_CLONES else count
    elif check_count(n_folds, "n_folds", minimum=2) > count:
        raise OptionError(f"n_folds is {n_folds}, and there are {count} clones only.")
    order = np.random.default_rng(seed).permutation(count)
    return (order % n_folds)[clone]


class Thinned(NamedTuple):
    """A part of both clouds that holds all points in pairs, and stands for the whole.

    Points in pairs keep their weight, and those drawn share that of all others: the part is a fair
    sample of the clouds whichever pairs are held out. ``pairs`` are by rows of the part.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    pairs: NDArray[np.int64]

    @classmethod
    def of(cls, known: Known, max_points: int | None, seed: int) -> Thinned:
        """At most ``max_points`` of each cloud; all where that is None."""
        generator = np.random.default_rng(seed)
        source, target = known.pairs.T
        rows, a = _draw(len(known.x), source, known.a, max_points, generator)
        columns, b = _draw(len(known.y), target, known.b, max_points, generator)
        places = [np.searchsorted(rows, source), np.searchsorted(columns, target)]
        pairs = np.stack(places, axis=1)
        return cls(known.x[rows], known.y[columns], a, b, pairs, rows, columns)

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def groups(self, labels: Any) -> Any:
        """The labels of both clouds that are left; None where there are none."""
        if labels is None:
            return None
        return tuple(np.asarray(each)[kept] for each, kept in zip(labels, self[-2:], strict=True))

    def arguments(self, pair_weight: NDArray[np.float64] | None) -> dict[str, Any]:
        """Arguments of ``fit``; without weights of pairs there are no pairs."""
        return {
            "X": self.x, "Y": self.y, "source_weight": self.a, "target_weight": self.b,
            "pairs": None if pair_weight is None else self.pairs, "pair_weight": pair_weight,
        }  # fmt: skip


def warn_of_few(known: Known) -> None:
    """Warn of what a handful of pairs cannot tell."""
    if known.n_clones < FEW_CLONES:
        warn_user(
            f"Only {known.n_clones} clones are known. Each is left out in turn: that can tell a "
            "map that fails on new points from one that does not, but not small differences, and "
            "the settings that win may win by luck."
        )


def check_max_points(max_points: Any, name: str = "max_points") -> int | None:
    """A number of points of each cloud, or None for all."""
    return None if max_points is None else check_count(max_points, name, minimum=2)


def _draw(
    size: int,
    known: NDArray[np.int64],
    weight: NDArray[np.float64] | None,
    max_points: int | None,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    fixed = np.unique(known)
    free = np.setdiff1d(np.arange(size), fixed)
    # Half as many others as there are points in pairs, at least: they are what pairs compete with.
    drawn = len(free) if max_points is None else max(max_points - len(fixed), len(fixed) // 2)
    if drawn >= len(free):
        return np.arange(size), np.full(size, 1 / size) if weight is None else weight
    rows = np.sort(np.concatenate([fixed, generator.choice(free, drawn, replace=False)]))
    is_fixed = np.isin(rows, fixed)
    if weight is None:
        return rows, np.where(is_fixed, 1 / size, (1 - len(fixed) / size) / drawn)
    # Those drawn share the weight of all that could be.
    others = weight[rows[~is_fixed]].sum()
    scale = weight[free].sum() / others if others > 0 else 0.0
    part = weight[rows] * np.where(is_fixed, 1.0, scale)
    return rows, part / part.sum()


def _numbered(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The labels as numbers from 0 on, in their order."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
