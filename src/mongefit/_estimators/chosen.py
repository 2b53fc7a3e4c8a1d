"""A map whose options are chosen by known pairs that were held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from mongefit._estimators.queries import EntropicQueries, Saved

if TYPE_CHECKING:
    from mongefit._estimators.monge_map import MongeMap
    from mongefit._io import StrPath
    from mongefit.metrics import Table
    from mongefit.model_selection._choosing import Loss, Scoring

_FITTED = (
    "map", "units", "history", "diagnostics", "data_sha256", "n_iter", "losses", "scores",
    "n_features_in",
)  # fmt: skip


@dataclasses.dataclass(eq=False, repr=False)
class MongeMapCV(Saved, EntropicQueries):
    """A `MongeMap` whose options are chosen by cross-validation: the map to begin with.

    Families of costs, from squared Euclidean through learned matrices to affine and kernel maps of
    the source, epsilon, debiasing and the number of training steps are judged on known pairs that
    were held out, whole clones together. Of the candidates that cannot be told from the best the
    simplest is fitted on everything.

    Parameters
    ----------
    candidates : MongeMap, list or dict of MongeMap, default=None
        What to choose among, each with up to its ``max_iter`` training steps; by default the
        families above.
    cv : int, default=None
        Number of folds; by default 5, and with fewer than 10 clones as many as there are.
    scoring : {"energy", "rmse", "likelihood", "fate"} or function, default="energy"
        What held-out pairs are judged by: the energy score of the predicted distribution, the RMSE
        of the predicted point, −log of the plan's density at the pair, −log of the predicted
        probability of the target's label, or a function of (truth, predicted), in the units of
        the data, that gives the loss of every row. By the energy score
        and by the likelihood only candidates are taken whose RMSE cannot be told from the least.
    tau_a, tau_b : float or sequence of float, default=1.0
        How strictly the plan keeps the weights of the source and of the target, as for `MongeMap`:
        a number for every candidate, or several to choose among, ``tau_a=[1, 0.9, 0.7]``. The
        largest is taken where it cannot be told from the best, else the least that cannot.
        Where they are not 1 they replace those of ``candidates``. The choice takes as many times
        longer as there are of them.
    max_points : int or None, default=512
        Points of each cloud to choose on: all in pairs, and others drawn at random. None takes all.
        The map is that of all points.
    n_jobs : int, default=None
        Folds that are judged at the same time, by joblib.
    normalize_weight : bool, default=False
        Divide weights by their sum instead of refusing a sum other than 1.
    random_state : int, RandomState or None, default=0
        Seed of the folds, the draws and the training.
    strict : bool, default=False
        Raise `ConvergenceError` where a solve did not converge, instead of warning.
    verbose : int, default=0
        With 1, a progress bar on stderr.

    Attributes
    ----------
    best_estimator_ : MongeMap
        The fitted map. Everything that a fitted `MongeMap` has is here too: ``map_``,
        ``diagnostics_``, ``history_`` and so on.
    best_params_ : dict
        Its options: ``MongeMap(**best_params_)``.
    best_score_ : float
        Its score on held-out pairs, negative so that more is better. It is the best of many, so a
        little too good.
    cv_results_ : dict of arrays
        For every candidate its options, ``mean_test_score``, ``rank_test_score``, and the RMSE and
        the energy score on held-out pairs.
    report_ : Table
        The best candidate of each family, and what no map should lose to, on the same folds.

    Examples
    --------
    >>> from mongefit import MongeMapCV, datasets
    >>> X, Y = datasets.moon(40, seed=0)
    >>> model = MongeMapCV().fit(X, Y, pairs=[[i, i] for i in range(40)])
    >>> new_X, new_Y = datasets.moon(20, seed=1)
    >>> -model.score(new_X, new_Y) < 0.1
    True
    """

    candidates: MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | None = None
    _: dataclasses.KW_ONLY
    cv: int | None = None
    scoring: Scoring | Loss = "energy"
    tau_a: float | Sequence[float] = 1.0
    tau_b: float | Sequence[float] = 1.0
    max_points: int | None = 512
    n_jobs: int | None = None
    normalize_weight: bool = False
    random_state: int | np.random.RandomState | None = 0
    strict: bool = False
    verbose: int = 0

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        clones: ArrayLike | None = None,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
        labels: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
        checkpoint: StrPath | None = None,
        resume: bool = False,
    ) -> Self:
        """Choose the options, fit the map on everything, and return this estimator.

        Parameters
        ----------
        X, Y
            Source and target points, [n, d] and [m, d].
        pairs
            Known pairs, integers [k, 2]: row of X, row of Y; a source may have several targets.
        pair_weight
            How much each pair counts, relative to the others, in training and in the error.
        clones
            A label for each pair: pairs with the same one are held out together. By default pairs
            that share a point are.
        groups
            Labels of the rows of X and of Y, as for `MongeMap.fit`: training looks at them.
        labels
            A label for each row of Y, such as cell types; None where there is none. They are only
            judged by: ``report_`` then says how well the labels of held-out targets were
            predicted, beside class shares, logistic regression and nearest pairs.
        source_weight, target_weight
            Weights of the points, non-negative with sum 1; uniform by default.
        checkpoint, resume
            A folder in which what was judged and the last fit are kept, and whether to go on with
            what is there.
        """
        from mongefit.model_selection._best import fit_best

        found = fit_best(
            self, X, Y, pairs=pairs, pair_weight=pair_weight, clones=clones, groups=groups,
            labels=labels, source_weight=source_weight, target_weight=target_weight,
            checkpoint=checkpoint, resume=resume,
        )  # fmt: skip
        self._adopt(found.model)
        self.best_score_: float = found.score
        self.cv_results_: dict[str, Any] = found.results
        self.report_: Table | None = found.report
        return self

    def _adopt(self, model: MongeMap) -> None:
        """Take what was fitted as one's own."""
        self.best_estimator_: MongeMap = model
        self.best_params_: dict[str, Any] = changed_options(model)
        for name in _FITTED:
            setattr(self, f"{name}_", getattr(model, f"{name}_"))
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_


def changed_options(model: MongeMap) -> dict[str, Any]:
    """Those options of an estimator that are not the default."""
    from mongefit._estimators.monge_map import MongeMap

    default = MongeMap().get_params(deep=False)
    options = model.get_params(deep=False)
    return {
        name: value
        for name, value in options.items()
        if not (
            value is default[name]
            or (isinstance(value, type(default[name])) and value == default[name])
        )
    }
