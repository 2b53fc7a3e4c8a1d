"""Maps between several times, or under several conditions, that share one cost.

Nothing here imports JAX before it is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.queries import Picklable, Saved
from mongefit._estimators.ways import Way
from mongefit._options import FitOptions
from mongefit.errors import DataError, OptionError, did_you_mean

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from mongefit._fitting import Journey, Record
    from mongefit._io import StrPath
    from mongefit._training import Checkpoint

# What can be known of composed maps, by the names of the arguments of `fit`.
COMPOSED = ("pairs", "pair_weight", "groups", "validation_pairs", "clones")


class TemporalMap(Saved, FitOptions, Picklable):
    """Learn one cost for several legs: between consecutive times, or under several conditions.

    Every leg has its own clouds, weights, plan and knowledge; the convex function h of the cost is
    that of all. So what is known of one leg serves the others, and knowledge between times that are
    not adjacent trains the maps between them: their composition must agree with it.

    Parameters
    ----------
    cost, hidden_layer_sizes, symmetric, alpha, epsilon, debias, tau_a, tau_b, max_iter, \
validation_fraction, batch_size, learning_rate, diffeo_learning_rate, optimizer, losses, \
penalties, dual, differentiate, many_to_many, n_init, normalize_weight, random_state, dtype, \
strict, verbose
        As for `MongeMap`. epsilon is relative to the mean cost of each leg.
    diffeo
        As for `MongeMap`. A source map, "affine" or "kernel", and "shared" are one map for all
        legs; "separate" is one flow for each time, or for the sources and the targets of all
        conditions.

    Attributes
    ----------
    legs_ : dict
        A fitted `MongeMap` for each leg, by (time, next time) or by its name: ``legs_[2, 4]`` has
        everything that a `MongeMap` has.
    times_ : tuple
        The times, in order; empty for conditions.
    history_, losses_, scores_, n_iter_, units_, n_features_in_
        As of `MongeMap`, of the one training.
    diagnostics_ : dict
        Those of every leg.
    data_sha256_ : str
        Hash of all that was fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from mongefit import TemporalMap
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> clouds = [X, X + [1, 0], X + [2, 0]]
    >>> model = TemporalMap(cost="sqeuclidean", epsilon=0.05).fit(clouds, [0, 1, 2])
    >>> model.interpolate(X, at=0.5).shape
    (30, 2)
    """

    def fit(
        self,
        clouds: Sequence[ArrayLike] | None = None,
        times: Sequence[Hashable] | None = None,
        *,
        legs: Mapping[Hashable, tuple[ArrayLike, ArrayLike]] | None = None,
        pairs: Mapping[Any, ArrayLike] | None = None,
        pair_weight: Mapping[Any, ArrayLike] | None = None,
        groups: Mapping[Any, tuple[ArrayLike, ArrayLike]] | None = None,
        validation_pairs: Mapping[Any, ArrayLike] | None = None,
        clones: Mapping[Any, ArrayLike] | None = None,
        source_weight: Mapping[Any, ArrayLike] | None = None,
        target_weight: Mapping[Any, ArrayLike] | None = None,
        checkpoint: StrPath | Checkpoint | None = None,
        resume: bool = False,
        callback: Callable[[Record], Any] | None = None,
    ) -> Self:
        """Learn the cost, build the map of every leg, and return this estimator.

        Parameters
        ----------
        clouds, times
            The points at each time, [n_t, d], and the times, in order; by default 0, 1, 2, …
        legs
            Instead of both: the source and the target points of each condition by its name.
        pairs, pair_weight, groups, validation_pairs, clones
            What is known, as for `MongeMap.fit`, by leg: ``pairs={(2, 4): …, (2, 6): …}``, or by
            the name of the condition. A leg may have none. Between times that are not adjacent it
            is known of the composed map. A clone label means the same clone in every leg; without
            labels, pairs that share a point are one clone.
        source_weight, target_weight
            Weights of the points of a leg; uniform by default.
        checkpoint, resume, callback
            As for `MongeMap.fit`.
        """
        from mongefit import _fitting

        given = {
            "pairs": pairs, "pair_weight": pair_weight, "groups": groups,
            "validation_pairs": validation_pairs, "clones": clones,
            "source_weight": source_weight, "target_weight": target_weight,
        }  # fmt: skip
        keys, _, journey, ordered = journey_of(clouds, times, legs, given)
        kept = _fitting.check_checkpoint(checkpoint, resume)
        options = FitOptions(**self.get_params(deep=False))
        task = _fitting.prepare_legs(options, journey)
        fitted = _fitting.finish_legs(
            task, _fitting.train(task, checkpoint=kept, callback=callback)
        )
        found = {}
        for key, data, each in zip(keys, journey.legs, fitted, strict=True):
            found[key] = MongeMap(**self.get_params(deep=False))._store(data.X, each)
        self._adopt(found, ordered)
        return self

    def _adopt(self, legs: dict[Any, MongeMap], times: tuple[Any, ...]) -> None:
        """Take what was fitted as one's own."""
        first = next(iter(legs.values()))
        self.legs_: dict[Any, MongeMap] = legs
        self.times_: tuple[Any, ...] = times
        self.diagnostics_: dict[Any, Any] = {key: each.diagnostics_ for key, each in legs.items()}
        for name in ("history", "losses", "scores", "n_iter", "units", "n_features_in"):
            setattr(self, f"{name}_", getattr(first, f"{name}_"))
        if hasattr(first, "feature_names_in_"):
            self.feature_names_in_ = first.feature_names_in_
        from mongefit._fitting.data import hash_texts

        self.data_sha256_: str = hash_texts(each.data_sha256_ for each in legs.values())

    def transform(
        self, X: ArrayLike, source: Hashable = None, target: Hashable = None
    ) -> NDArray[np.float64]:
        """Where points of one time are at another, through the map of every leg between.

        Parameters
        ----------
        X
            Points at the time ``source``.
        source, target
            The first and the last time by default. A target before the source is the way back.
        """
        source, target = self._ends(source, target)
        if source == target:
            return np.asarray(X)
        if self._comes_first(source, target):
            return self.between(source, target).transform(X)
        return self.between(target, source).inverse_transform(X)

    def inverse_transform(
        self, Y: ArrayLike, source: Hashable = None, target: Hashable = None
    ) -> NDArray[np.float64]:
        """Where points of the time ``target`` were at the time ``source``."""
        source, target = self._ends(source, target)
        return self.transform(Y, target, source)

    def interpolate(
        self, X: ArrayLike, source: Any = None, target: Any = None, *, at: float
    ) -> NDArray[np.float64]:
        """Where points of the time ``source`` are on their way to ``target`` at a time between.

        Within a leg they move from x to T(x) at a constant rate: along a straight line, or, where
        both clouds share a flow Φ, along Φ⁻¹ of one. Times must be numbers.
        """
        source, target = self._ends(source, target)
        if not all(isinstance(time, Real) for time in self.times_):
            raise OptionError("Only between times that are numbers can be interpolated.")
        low, high = sorted([source, target])
        if isinstance(at, bool) or not isinstance(at, Real) or not low <= at <= high:
            raise OptionError(f"at must be a time from {low} to {high}, got {at!r}.")
        if source == target:
            return np.asarray(X)
        return self.between(low, high).interpolate(X, at=at, reverse=source > target)

    def between(self, source: Hashable = None, target: Hashable = None) -> Way:
        """The map from one time to a later one, with every query of a fitted map.

        By default it goes from the first time to the last. It has `transform`, `conditional`,
        `sample`, `entropy`, `push`, `pull`, `growth`, `coupling_` and so on.
        """
        source, target = self._ends(source, target)
        if not self._comes_first(source, target):
            raise OptionError(
                f"The time {target!r} does not come after {source!r}. The way back is asked for by "
                "reverse=True, inverse_transform and pull."
            )
        way = self.times_[self.times_.index(source) : self.times_.index(target) + 1]
        return Way([self.legs_[pair] for pair in itertools.pairwise(way)], way)

    def conditional(
        self,
        X: ArrayLike,
        source: Hashable = None,
        target: Hashable = None,
        *,
        reverse: bool = False,
        drop: float = 1e-9,
    ) -> csr_array:
        """Where every row of X goes: weights of the points at the time ``target``, rows sum to 1.

        With ``reverse`` X are points at ``target``, and the weights are those of the points at
        ``source`` that they came from. See `MongeMap.conditional`; over several legs distributions
        are composed. More is known by `between`.
        """
        return self.between(source, target).conditional(X, reverse=reverse, drop=drop)

    def growth(
        self, X: ArrayLike, source: Hashable = None, target: Hashable = None
    ) -> NDArray[np.float64]:
        """The mass that a unit of mass at each row of X is at the time ``target``.

        It is 1 unless ``tau_a`` < 1.
        """
        return self.between(source, target).growth(X)

    def coupling(self, source: Hashable = None, target: Hashable = None) -> NDArray[np.float64]:
        """The plan between the clouds of two times, [n, m], composed over the legs between."""
        return self.between(source, target).coupling_

    def score(
        self, X: ArrayLike, Y: ArrayLike, source: Hashable = None, target: Hashable = None
    ) -> float:
        """−RMSE of the map from ``source`` to ``target`` over paired rows: higher is better."""
        return self.between(source, target).score(X, Y)

    def _ends(self, source: Any, target: Any) -> tuple[Any, Any]:
        """Two times, the first and the last where none are given."""
        check_is_fitted(self)
        if not self.times_:
            raise OptionError(
                "The legs of this fit are conditions, and lead nowhere but from their source to "
                "their target: use legs_[name].transform(X) and so on."
            )
        ends = [self.times_[0] if source is None else source]
        ends.append(self.times_[-1] if target is None else target)
        for time in ends:
            if time not in self.times_:
                raise OptionError(
                    f"There is no time {time!r}, only: {', '.join(map(repr, self.times_))}."
                )
        return ends[0], ends[1]

    def _comes_first(self, source: Any, target: Any) -> bool:
        return self.times_.index(source) < self.times_.index(target)


def journey_of(
    clouds: Any, times: Any, legs: Any, given: Mapping[str, Any]
) -> tuple[list[Any], list[Any], Journey, tuple[Any, ...]]:
    """The keys of the legs and of the composed maps, what the fit is given, the times in order."""
    from mongefit._fitting import FitData, Journey

    if legs is not None:
        if clouds is not None or times is not None:
            raise DataError("Give clouds and times, or legs, and not both.")
        keys, chains = _conditions(legs), {}
        sides = [legs[key] for key in keys]
        roles = [(0, 1)] * len(keys)
        ends = [(2 * k, 2 * k + 1) for k in range(len(keys))]
        ordered: tuple[Any, ...] = ()
    else:
        points, ordered = _times(clouds, times)
        keys = list(itertools.pairwise(ordered))
        sides = list(itertools.pairwise(points))
        roles = ends = [(k, k + 1) for k in range(len(keys))]
        chains = {
            (ordered[i], ordered[j]): tuple(range(i, j))
            for i in range(len(ordered))
            for j in range(i + 2, len(ordered))
        }
    known: dict[Any, dict[str, Any]] = {}
    for name, by_leg in given.items():
        for key, value in _by_leg(by_leg, name, keys, chains).items():
            known.setdefault(key, {})[name] = value
    data = [FitData(*side, **known.get(key, {})) for key, side in zip(keys, sides, strict=True)]
    composed = [key for key in chains if key in known]
    through = [
        (chain, FitData(data[chain[0]].X, data[chain[-1]].Y, **known[key]))
        for key, chain in ((key, chains[key]) for key in composed)
    ]
    names = [f"Leg {key!r}" for key in [*keys, *composed]]
    return keys, composed, Journey(data, ends, roles, through, names), ordered


def _times(clouds: Any, times: Any) -> tuple[list[Any], tuple[Any, ...]]:
    if clouds is None:
        raise DataError("fit needs clouds, a list of the points at each time, or legs.")
    points = list(clouds)
    if len(points) < 2:
        raise DataError(f"At least two clouds are needed, got {len(points)}.")
    ordered = tuple(range(len(points)) if times is None else map(_label, times))
    if len(ordered) != len(points):
        raise DataError(
            f"There are {len(points)} clouds and {len(ordered)} times: one time for each cloud is "
            "needed."
        )
    if len(set(ordered)) < len(ordered):
        raise DataError(f"Times must differ, got {list(ordered)}.")
    if all(isinstance(time, Real) for time in ordered):
        if not np.all(np.isfinite(np.asarray(ordered, float))):
            raise DataError(f"Times must be finite, got {list(ordered)}.")
        if list(ordered) != sorted(ordered):
            raise DataError(f"Times must increase, with their clouds, got {list(ordered)}.")
    return points, ordered


def _conditions(legs: Any) -> list[Any]:
    if not isinstance(legs, Mapping) or not legs:
        raise DataError("legs must be a dictionary of (source points, target points) by name.")
    for name, sides in legs.items():
        if not isinstance(sides, tuple | list) or len(sides) != 2:
            raise DataError(f"Leg {name!r} must be a pair: its source points and target points.")
    return [_label(name) for name in legs]


def _label(value: Any) -> Any:
    """A time or a name: a number or a text."""
    label = value.item() if isinstance(value, np.generic) else value
    if isinstance(label, bool) or not isinstance(label, Real | str):
        raise DataError(f"Times and names of legs are numbers or texts, got {value!r}.")
    return label


def _by_leg(
    by_leg: Any, name: str, keys: Sequence[Any], chains: Mapping[Any, Any]
) -> Mapping[Any, Any]:
    """What is known by leg, with every key that of a leg or of a composed map."""
    if by_leg is None:
        return {}
    if not isinstance(by_leg, Mapping):
        raise DataError(
            f"{name} must be a dictionary by leg, such as {{{keys[0]!r}: …}}, got "
            f"{type(by_leg).__name__}."
        )
    possible = [*keys, *chains] if name in COMPOSED else list(keys)
    for key in by_leg:
        if key not in possible:
            near = did_you_mean(str(key), map(str, possible))
            raise DataError(
                f"{name} has {key!r}, and there is no such leg, only: "
                f"{', '.join(map(repr, possible))}.{near}"
            )
    return {key: value for key, value in by_leg.items() if value is not None}
