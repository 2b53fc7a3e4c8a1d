"""Maps of resampled clones: how sure a prediction is, and where no known pair bears on it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.base import clone as unfitted
from sklearn.utils.validation import check_is_fitted, validate_data

from mongefit._estimators.many import Fit, fit_many
from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.outcomes import OutcomeQueries
from mongefit._estimators.queries import Saved
from mongefit._progress import ProgressBar
from mongefit._validation import check_count, check_points, check_seed
from mongefit.errors import DataError, OptionError, summarised_warnings
from mongefit.model_selection import default_candidates
from mongefit.model_selection._folds import Known, Thinned, check_max_points

if TYPE_CHECKING:
    from mongefit._fitting.chains import Chain

_REACH = 0.95

CLOUDS = ("source", "target", "source_weight", "target_weight")
"""All points and weights of the fit, of which a member sees a part."""


@dataclasses.dataclass(eq=False, repr=False)
class EnsembleMap(Saved, OneToOneFeatureMixin, TransformerMixin, OutcomeQueries):
    """Several maps, each trained on clones drawn with replacement and on other points.

    Their mean is the prediction and their spread says how much it depends on which clones happened
    to be known. It omits the noise between sisters, which no map can predict; `radius` does not: it
    is calibrated on the clones that a member was not trained on.

    `conditional`, `sample`, `entropy`, `push` and `pull` are of the mean of the members'
    distributions over all points of the other cloud, also those that a member has not seen.

    Parameters
    ----------
    estimator : MongeMap, default=None
        The map to train; by default the first of `mongefit.model_selection.default_candidates`
        with 30 steps. Give it the ``max_iter`` that `mongefit.model_selection.select` found.
    n_members : int, default=10
        Number of maps.
    max_points : int or None, default=512
        Points of each cloud that a member sees: all in pairs, and others drawn for it.
    random_state : int, RandomState or None, default=0
        Seed of the draws and of the members.
    verbose : int, default=0
        With 1, a progress bar on stderr.

    Attributes
    ----------
    members_ : list of MongeMap
        The fitted maps.
    counts_ : array [n_members, n_clones]
        How often each clone was drawn for each member.
    scores_ : array
        For every clone that some member was not trained on, the largest distance of its targets
        from the mean of these members' predictions.
    """

    estimator: MongeMap | None = None
    _: dataclasses.KW_ONLY
    n_members: int = 10
    max_points: int | None = 512
    random_state: int | np.random.RandomState | None = 0
    verbose: int = 0

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike,
        pair_weight: ArrayLike | None = None,
        clones: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the members.

        Parameters
        ----------
        X, Y, pairs, pair_weight, clones, source_weight, target_weight
            As for `mongefit.model_selection.select`; pairs of one clone are drawn together.
        """
        if not isinstance(self.estimator, MongeMap | None):
            raise OptionError(f"estimator must be a MongeMap, got {self.estimator!r}.")
        n_members = check_count(self.n_members, "n_members", minimum=2)
        size, seed = check_max_points(self.max_points), check_seed(self.random_state)
        known = Known.of(X, Y, pairs, pair_weight, clones, source_weight, target_weight)
        each = np.full(known.n_clones, 1 / known.n_clones)
        counts = np.random.default_rng(seed).multinomial(known.n_clones, each, size=n_members)
        template = self.estimator
        if template is None:
            template = next(iter(default_candidates().values())).set_params(max_iter=30)
        fits = []
        for k, drawn in enumerate(counts):
            model = unfitted(template).set_params(
                many_to_many=True, batch_size=None, validation_fraction=0.0, verbose=0
            )
            # Clones that were not drawn have no weight: members differ in numbers, not in shapes.
            weight = known.weight * drawn[known.clone]
            part = Thinned.of(known, size, seed + k)
            fits.append(Fit(model.set_params(random_state=seed + k), part.arguments(weight)))
        sources = known.x[known.pairs[:, 0]]
        with (
            ProgressBar(n_members, enabled=bool(self.verbose), description="members") as bar,
            summarised_warnings("members"),
        ):
            for failure in fit_many(fits, on_fit=bar.update):
                if failure is not None:
                    raise failure
            members = [fit.estimator for fit in fits]
            scores = _scores(known, counts, np.stack([m.transform(sources) for m in members]))
        reach = usual_distance(sources, known.clone)
        calibration = {"counts": counts, "scores": scores, "anchors": sources, "reach": reach}
        uniform = (np.full(len(points), 1 / len(points)) for points in (known.x, known.y))
        weights = (
            even if given is None else given
            for even, given in zip(uniform, (known.a, known.b), strict=True)
        )
        clouds = dict(zip(CLOUDS, (known.x, known.y, *weights), strict=True))
        self._restore(members, calibration | clouds)
        validate_data(self, X, skip_check_array=True)
        return self

    def _restore(self, members: list[MongeMap], calibration: dict[str, Any]) -> None:
        """Set what is learned."""
        self.members_ = members
        self.counts_: NDArray[np.int64] = np.asarray(calibration["counts"])
        self.scores_: NDArray[np.float64] = np.asarray(calibration["scores"])
        self.n_features_in_ = members[0].n_features_in_
        self._anchors = KDTree(calibration["anchors"])
        self._reach = float(calibration["reach"])
        self._clouds = {name: calibration[name] for name in CLOUDS if name in calibration}

    def _calibration(self) -> dict[str, Any]:
        """What is learned beside the members."""
        anchors, reach = self._anchors.data, self._reach
        own = {"counts": self.counts_, "scores": self.scores_, "anchors": anchors, "reach": reach}
        return own | self._clouds

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The mean of the members' predictions for every row of X."""
        return np.asarray(self._predictions(X).mean(axis=0))

    def inverse_transform(self, Y: ArrayLike) -> NDArray[np.float64]:
        """The mean of the members' ways back for every row of Y."""
        check_is_fitted(self)
        return np.asarray(np.mean([member.inverse_transform(Y) for member in self.members_], 0))

    def spread(self, X: ArrayLike) -> NDArray[np.float64]:
        """Root mean square distance of the members' predictions from their mean, for every row."""
        predicted = self._predictions(X)
        away = np.sum((predicted - predicted.mean(axis=0)) ** 2, axis=2)
        return np.asarray(np.sqrt(away.mean(axis=0)))

    def radius(self, level: float = 0.8) -> float:
        """How far from the prediction all targets of a new clone lie, with this probability.

        The quantile of `scores_` of split conformal prediction, one score a clone: it holds on
        average over clones like those known, and for no single cell.
        """
        check_is_fitted(self)
        if not 0 < level < 1:
            raise OptionError(f"level must be between 0 and 1, got {level!r}.")
        size = len(self.scores_)
        rank = int(np.ceil((size + 1) * level))
        if rank > size:
            raise DataError(
                f"{size} clones are too few for a radius at level {level:g}; the largest level is "
                f"{size / (size + 1):.3g}."
            )
        return float(np.sort(self.scores_)[rank - 1])

    def informed(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Which rows of X have a known source near by.

        Near is what 95 % of the known sources have to the nearest one of another clone. Elsewhere
        the prediction rests on what was learned of other cells, and `radius` says nothing.
        """
        check_is_fitted(self)
        distance, _ = self._anchors.query(check_points(X, "X"))
        return np.asarray(distance <= self._reach)

    def _chain(self) -> Chain:
        """The maps of the members, each between all points, whichever it has seen."""
        from mongefit._fitting.outcomes import extend

        maps = [member.map_ for member in self.members_]
        if not self._clouds:
            # A file of an earlier version has the points of the members alone.
            if not all(np.array_equal(maps[0].x, each.x) for each in maps):
                raise DataError(
                    "The members of this ensemble have seen different points, and its file does "
                    "not hold all of them. Fit it again, or ask each of members_."
                )
            return [maps]
        return [[extend(each, **self._clouds) for each in maps]]

    def _predictions(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        return np.stack([member.transform(X) for member in self.members_])


def _scores(
    known: Known, counts: NDArray[np.int64], predicted: NDArray[Any]
) -> NDArray[np.float64]:
    """The farthest target of every clone, by members that did not see it; members × pairs × d."""
    unseen = counts[:, known.clone] == 0
    held_out = np.any(unseen, axis=0)
    weight = unseen[:, held_out] / unseen[:, held_out].sum(axis=0)
    mean = np.einsum("mk,mkd->kd", weight, predicted[:, held_out])
    distance = np.linalg.norm(mean - known.truth[held_out], axis=1)
    clone = known.clone[held_out]
    return np.array([distance[clone == each].max() for each in np.unique(clone)])


def usual_distance(sources: NDArray[np.float64], clone: NDArray[np.int64]) -> float:
    """How far the nearest source of another clone is, for most sources."""
    nearest = [
        np.linalg.norm(sources[clone != own] - point, axis=1).min()
        for point, own in zip(sources, clone, strict=True)
    ]
    return float(np.quantile(nearest, _REACH))
