"""How good the maps of several legs are: held-out clones, a time left out, growth of clones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone as unfitted

from mongefit._estimators.temporal import TemporalMap, journey_of
from mongefit._fitting.data import clones_across
from mongefit._fitting.journey import Journey
from mongefit._progress import ProgressBar
from mongefit._validation import check_pairs, check_points, check_seed
from mongefit.baselines._trivial import PairedRidge, TargetMean
from mongefit.errors import DataError, OptionError, ignored_warnings, summarised_warnings
from mongefit.metrics import Table, sinkhorn_divergence
from mongefit.model_selection._folds import folds_of
from mongefit.model_selection._held_out import LEARNED, CrossValidation
from mongefit.model_selection._selecting import EPSILONS, EUCLIDEAN

Points = NDArray[np.float64]
_ALONE = "each leg alone"


class LegPairs(NamedTuple):
    """The pairs that are known of one leg, or of a composed map, and the points that they join."""

    key: Any
    pairs: NDArray[np.int64]
    weight: NDArray[np.float64]
    source: Points
    target: Points


class LegsKnown(NamedTuple):
    """Everything that is known of several legs, by leg, with the clone of every pair."""

    parts: list[LegPairs]
    clone: NDArray[np.int64]

    @classmethod
    def of(cls, keys: Sequence[Any], journey: Journey) -> LegsKnown:
        """The pairs of a fit, checked."""
        parts, labels, joined = [], [], []
        for key, each, end in zip(keys, journey.everything, journey.all_ends, strict=True):
            source = check_points(each.X, f"The source of leg {key!r}")
            target = check_points(each.Y, f"The target of leg {key!r}")
            table, weight = check_pairs(
                each.pairs, len(source), len(target), weight=each.pair_weight, many_to_many=True
            )
            if table is not None and weight is not None:
                parts.append(LegPairs(key, table, weight, source, target))
                labels.append(each.clones)
                joined.append(end)
        if not parts:
            raise DataError("There are no pairs to hold out: give pairs={leg: …}.")
        clone = clones_across(labels, [part.pairs for part in parts], joined)
        return cls(parts, np.concatenate(clone))

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """What is known of every pair, by leg."""
        return np.split(values, np.cumsum([len(part.pairs) for part in self.parts])[:-1])


def validate_legs(
    model: TemporalMap,
    clouds: Any,
    times: Any,
    given: Mapping[str, Any],
    *,
    n_folds: int | None,
    random_state: Any,
    verbose: int,
) -> CrossValidation:
    """Fit to all legs, and to each alone, without the clones of each fold; judge on these."""
    # A dictionary of clouds is that of the legs of conditions.
    legs = clouds if isinstance(clouds, Mapping) else None
    clouds = None if legs is not None else clouds
    keys, composed, journey, _ = journey_of(clouds, times, legs, given)
    known = LegsKnown.of([*keys, *composed], journey)
    if known.clone.max() == 0:
        raise DataError("All pairs belong to one clone, so that none can be held out.")
    folds = folds_of(known.clone, n_folds, check_seed(random_state))
    fixed: dict[str, Any] = {name: given.get(name) for name in ("source_weight", "target_weight")}
    count = int(folds.max()) + 1
    names = [LEARNED, *([_ALONE] if len(keys) > 1 else []), "target mean", "ridge on pairs"]
    predicted = {
        name: [np.empty_like(part.target[part.pairs[:, 1]]) for part in known.parts]
        for name in names
    }
    by_leg = known.split(folds)

    def fit(weights: dict[Any, NDArray[np.float64]]) -> TemporalMap:
        tables = {part.key: part.pairs for part in known.parts if part.key in weights}
        with ignored_warnings():
            return _quiet(model).fit(
                clouds, times, legs=legs, pairs=tables, pair_weight=weights, **fixed
            )

    with (
        ProgressBar(count, enabled=bool(verbose), description="folds") as bar,
        summarised_warnings("fits"),
    ):
        for fold in range(count):
            weights, out = {}, {}
            for part, own in zip(known.parts, by_leg, strict=True):
                out[part.key] = own == fold
                if np.any(part.weight * ~out[part.key] > 0):
                    weights[part.key] = np.where(out[part.key], 0.0, part.weight)
            together = fit(weights)
            alone = {
                key: fit({key: weights[key]}) for key in weights if len(keys) > 1 and key in keys
            }
            for k, part in enumerate(known.parts):
                held_out = out[part.key]
                if not np.any(held_out):
                    continue
                sources = part.source[part.pairs[held_out, 0]]
                predicted[LEARNED][k][held_out] = _move(together, part.key, sources)
                if len(keys) > 1:
                    # Of a composed map, that of legs which were fitted to all that is known.
                    single = alone.get(part.key, together)
                    predicted[_ALONE][k][held_out] = _move(single, part.key, sources)
                for name, kind in (("target mean", TargetMean), ("ridge on pairs", PairedRidge)):
                    guess = _trivial(kind, part, held_out)
                    predicted[name][k][held_out] = guess(sources)
            bar.update()
        for epsilon in EPSILONS:
            fixed_cost = _quiet(model).set_params(cost="sqeuclidean", diffeo=None, epsilon=epsilon)
            with ignored_warnings():
                euclidean = fixed_cost.fit(clouds, times, legs=legs, **fixed)
            predicted[f"{EUCLIDEAN}, epsilon {epsilon:g}"] = [
                _move(euclidean, part.key, part.source[part.pairs[:, 0]]) for part in known.parts
            ]
    truth = [part.target[part.pairs[:, 1]] for part in known.parts]
    squares = {
        name: [
            np.sum((each - there) ** 2, axis=1) for each, there in zip(moved, truth, strict=True)
        ]
        for name, moved in predicted.items()
    }
    headers = {"name": ""} | {str(part.key): f"RMSE {part.key}" for part in known.parts}
    rows = tuple(
        {"name": name}
        | {
            str(part.key): float(np.sqrt(np.average(each, weights=part.weight)))
            for part, each in zip(known.parts, of_name, strict=True)
        }
        for name, of_name in squares.items()
    )
    sizes = ", ".join(f"{len(part.pairs)} of {part.key}" for part in known.parts)
    notes = (
        f"Pairs: {sizes}; {int(known.clone.max()) + 1} clones, held out in {count} folds with all "
        "their pairs.",
    )
    joined = {name: np.concatenate(each) for name, each in squares.items()}
    return CrossValidation(Table(rows, headers, notes), joined, (), known.clone, folds)


def _quiet(model: TemporalMap) -> TemporalMap:
    return unfitted(model).set_params(many_to_many=True, verbose=0)


def _move(model: TemporalMap, key: Any, points: Points) -> Points:
    if model.times_:
        return model.transform(points, *key)
    return model.legs_[key].transform(points)


def _trivial(kind: Any, part: LegPairs, held_out: NDArray[np.bool_]) -> Callable[[Points], Points]:
    """A trivial predictor of one leg; the mean of the target where pairs are too few."""
    if kind is not TargetMean and np.count_nonzero(~held_out) < 2:
        kind = TargetMean
    own = {} if kind is TargetMean else {"many_to_many": True}
    left = {"pairs": part.pairs[~held_out], "pair_weight": part.weight[~held_out]}
    with ignored_warnings():
        fitted = kind(**own).fit(part.source, part.target, **({} if kind is TargetMean else left))
    return fitted.transform


def leave_time_out(
    model: TemporalMap,
    clouds: Sequence[ArrayLike],
    times: Sequence[Hashable],
    *,
    time: Hashable,
    pairs: Mapping[Any, ArrayLike] | None = None,
    pair_weight: Mapping[Any, ArrayLike] | None = None,
    groups: Mapping[Any, tuple[ArrayLike, ArrayLike]] | None = None,
    validation_pairs: Mapping[Any, ArrayLike] | None = None,
    clones: Mapping[Any, ArrayLike] | None = None,
    source_weight: Mapping[Any, ArrayLike] | None = None,
    target_weight: Mapping[Any, ArrayLike] | None = None,
) -> Table:
    """Fit without one time, interpolate to it, and compare with the points that were there.

    Parameters
    ----------
    model
        What to fit.
    clouds, times
        As for `TemporalMap.fit`; three times at least.
    time
        The time to leave out: neither the first nor the last.
    pairs, pair_weight, groups, validation_pairs, clones, source_weight, target_weight
        As for `TemporalMap.fit`. What is known of legs that start or end at this time is not used.

    Returns
    -------
    Table
        The Sinkhorn divergence from the points of this time, of the interpolation of the model, of
        that of squared Euclidean at the same epsilon, of the clouds at the times before and after,
        and of one half of the points from the other, which is what the number of points allows.
        Points are interpolated from both sides; those of the nearer time weigh more.

    Examples
    --------
    >>> import numpy as np
    >>> from mongefit import TemporalMap
    >>> from mongefit.model_selection import leave_time_out
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = TemporalMap(cost="sqeuclidean", epsilon=0.01)
    >>> table = leave_time_out(model, [X, X + 1, X + 2], [2, 4, 6], time=4)
    >>> table.rows[0]["divergence"] < table.rows[2]["divergence"]
    True
    """
    every = list(times)
    if time not in every[1:-1]:
        raise OptionError(
            f"time must be one of {every[1:-1]}, with a time before and after it; got {time!r}."
        )
    place = every.index(time)
    left = [(cloud, at) for cloud, at in zip(clouds, every, strict=True) if at != time]
    points = [check_points(cloud, f"The cloud of time {at!r}") for cloud, at in left]
    truth = check_points(clouds[place], f"The cloud of time {time!r}")
    weights = _apart_from(time, source_weight=source_weight, target_weight=target_weight)
    known = _apart_from(
        time, pairs=pairs, pair_weight=pair_weight, groups=groups,
        validation_pairs=validation_pairs, clones=clones,
    )  # fmt: skip
    remaining = [at for _, at in left]
    before, after = every[place - 1], every[place + 1]
    fitted = unfitted(model).fit(points, remaining, **known, **weights)
    plain = unfitted(model).set_params(cost="sqeuclidean", diffeo=None)
    euclidean = plain.fit(points, remaining, **weights)
    start, end = (points[remaining.index(at)] for at in (before, after))
    ways = {"interpolation": fitted, "squared Euclidean": euclidean}
    # From both sides: each has the details of its own cells.
    moved = {
        name: np.concatenate(
            [
                each.interpolate(start, before, after, at=time),
                each.interpolate(end, after, before, at=time),
            ]
        )
        for name, each in ways.items()
    }
    share = (time - before) / (after - before)  # type: ignore[operator]
    mass = np.concatenate(
        [np.full(len(start), (1 - share) / len(start)), np.full(len(end), share / len(end))]
    )
    weight = dict.fromkeys(moved, mass)
    moved |= {f"cells of {before}": start, f"cells of {after}": end}
    scale: dict[str, Any] = {}
    rows = []
    for name, where in moved.items():
        found = sinkhorn_divergence(where, truth, source_weight=weight.get(name), **scale)
        scale = {"eps": found.eps}
        rows.append({"name": name, "divergence": float(found)})
    halves = np.random.default_rng(0).permutation(len(truth))
    half = len(halves) // 2
    floor = sinkhorn_divergence(truth[halves[:half]], truth[halves[half:]], **scale)
    rows.append({"name": f"half of {time} from the other", "divergence": float(floor)})
    return Table(
        tuple(rows),
        {"name": "", "divergence": f"divergence from {time}"},
        (f"Sinkhorn divergence at eps {scale['eps']:.3g}; {len(truth)} points at {time}.",),
    )


def _apart_from(time: Hashable, **given: Mapping[Any, Any] | None) -> dict[str, Any]:
    """What is known by leg, without the legs that start or end at a time."""
    return {
        name: {key: value for key, value in (by_leg or {}).items() if time not in key}
        for name, by_leg in given.items()
    }


def growth_of_clones(
    growth: ArrayLike, source_clones: ArrayLike, target_clones: ArrayLike
) -> Table:
    """Compare the growth of source points with how the sizes of their clones changed.

    Parameters
    ----------
    growth
        Growth of every source point, such as ``growth_``.
    source_clones, target_clones
        The clone of every source point and of every target point; None or NaN where unknown.

    Returns
    -------
    Table
        A row for each clone that has source points: its sizes, the mean growth of its source
        points, and the ratio of its sizes. The note has Spearman's correlation of both.

    Examples
    --------
    >>> from mongefit.model_selection import growth_of_clones
    >>> table = growth_of_clones([0.5, 2.0], ["a", "b"], ["a", "b", "b", "b"])
    >>> [row["ratio"] for row in table.rows]
    [1.0, 3.0]
    """
    from scipy.stats import spearmanr

    values = np.asarray(growth, np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values)):
        raise DataError("growth must be one finite number for each source point.")
    sides = [_labels(each) for each in (source_clones, target_clones)]
    if len(sides[0]) != len(values):
        raise DataError(
            f"There are {len(values)} values of growth and {len(sides[0])} source_clones."
        )
    here: dict[Any, list[int]] = {}
    for row, label in enumerate(sides[0]):
        if label is not None:
            here.setdefault(label, []).append(row)
    there = {label: sides[1].count(label) for label in here}
    rows = [
        {
            "name": str(label),
            "source": len(members),
            "target": there[label],
            "growth": float(values[members].mean()),
            "ratio": there[label] / len(members),
        }
        for label, members in here.items()
    ]
    if not rows:
        raise DataError("No source point has a clone.")
    correlation = np.nan
    columns = [np.array([row[name] for row in rows]) for name in ("growth", "ratio")]
    if len(rows) > 2 and all(np.ptp(column) > 0 for column in columns):
        correlation = float(spearmanr(*columns).statistic)
    headers = {
        "name": "clone", "source": "source", "target": "target", "growth": "predicted growth",
        "ratio": "ratio of sizes",
    }  # fmt: skip
    note = f"{len(rows)} clones; Spearman's correlation of growth and ratio: {correlation:.3g}."
    return Table(tuple(rows), headers, (note,))


def _labels(clones: ArrayLike) -> list[Any]:
    """Labels, with None for those that are not known."""
    return [
        None if label is None or label != label else label
        for label in np.asarray(clones, dtype=object).tolist()
    ]
