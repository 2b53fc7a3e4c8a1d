"""Fitting several times or batches: one cost, with settings that are chosen on one leg."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone as unfitted

from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.temporal import TemporalMap, journey_of
from mongefit._fitting.journey import check_journey
from mongefit._fitting.starting import kernel_map
from mongefit._options import FitOptions, takes_several
from mongefit._runtime import double_precision
from mongefit.errors import OptionError, warn_user
from mongefit.model_selection._best import SAFE
from mongefit.single_cell._legs import CellLegs

if TYPE_CHECKING:
    from mongefit._flows import Diffeo
    from mongefit._io import StrPath
    from mongefit.metrics import Table
    from mongefit.single_cell._model import Model

FIXED: dict[str, Any] = {"cost": "matrix", "epsilon": 0.1, "max_iter": 60}
"""Where something is known, and nothing to choose by."""


def fit_legs(
    cells: CellLegs, model: Model | TemporalMap | None, *, verbose: int = 0
) -> tuple[TemporalMap, Table | None]:
    """Fit one cost to all legs; also what its settings were chosen from, if they were."""
    if isinstance(model, EnsembleMap):
        raise OptionError(
            "An EnsembleMap is of two times and no batches. For several give a MongeMapCV, or a "
            "TemporalMap with options of its own."
        )
    if model is None or isinstance(model, MongeMapCV):
        options, report = choose_options(cells, model, verbose=verbose)
        return fit_chosen(cells, options), report
    return fit_estimator(cells, TemporalMap(**model.get_params(deep=False))), None


def fit_estimator(cells: CellLegs, estimator: TemporalMap, **settings: Any) -> TemporalMap:
    """Fit an estimator to all legs; ``settings`` are those of `TemporalMap.fit` for checkpoints."""
    estimator = unfitted(estimator)
    if cells.has_clones and not takes_several(estimator.losses):
        estimator.set_params(many_to_many=True)
    given: dict[str, Any] = dict(cells.given)
    if estimator.cost == "sqeuclidean" and estimator.diffeo is None:
        given = {name: given[name] for name in ("source_weight", "target_weight")}
    return estimator.fit(**cells.arguments, **given, **settings)


def fit_chosen(cells: CellLegs, options: dict[str, Any], **settings: Any) -> TemporalMap:
    """`fit_estimator` with options that were chosen."""
    with warnings.catch_warnings():
        # At this very epsilon it predicts what was held out.
        warnings.filterwarnings("ignore", message="The plan falls into")
        return fit_estimator(cells, TemporalMap(**options), **settings)


def choose_options(
    cells: CellLegs,
    model: MongeMapCV | None,
    *,
    verbose: int = 0,
    checkpoint: StrPath | None = None,
    resume: bool = False,
) -> tuple[dict[str, Any], Table | None]:
    """Options of `TemporalMap` that predict held-out clones best on the leg with most of them."""
    chooser = MongeMapCV(verbose=verbose) if model is None else unfitted(model)
    counts = {
        name: len(np.unique(cells.given["clones"][name])) if cells.has_clones else len(pairs)
        for name, pairs in cells.given["pairs"].items()
    }
    legs = [leg for leg in cells.legs if leg.name in counts]
    if not legs:
        return _fixed_options(cells, chooser), None
    leg = max(legs, key=lambda leg: counts[leg.name])
    (X, Y), _ = cells.ends_of(leg.name)
    known = {kind: by_leg[leg.name] for kind, by_leg in cells.given.items() if leg.name in by_leg}
    found = chooser.fit(X, Y, **known, checkpoint=checkpoint, resume=resume)
    options = found.best_params_ | {"verbose": chooser.verbose}
    if options.get("batch_size"):
        options["batch_size"] = max(options["batch_size"], cells.suited_options()["batch_size"])
    if chooser.candidates is None and isinstance(options.get("diffeo"), tuple):
        # A kernel map that starts at the identity has its anchors in the units of one leg.
        options["diffeo"] = (_kernel_map_of_all(cells), None)
    return options, found.report_


def _kernel_map_of_all(cells: CellLegs) -> Diffeo:
    """A kernel map at the identity, with anchors among the known sources of all legs."""
    weights = {name: cells.given[name] for name in ("source_weight", "target_weight")}
    arguments: dict[str, Any] = {"clouds": None, "times": None, "legs": None} | cells.arguments
    journey = journey_of(**arguments, given=weights)[2]
    with double_precision():
        units = check_journey(FitOptions(), journey, [], used=False)[0][0].clouds.units
        known = [
            clouds[0][np.unique(cells.given["pairs"][leg.name][:, 0])]
            for leg, clouds in zip(cells.legs, cells.clouds, strict=True)
            if leg.name in cells.given["pairs"]
        ]
        return kernel_map(np.asarray(units.into(np.concatenate(known)), np.float64))


def _fixed_options(cells: CellLegs, chooser: MongeMapCV) -> dict[str, Any]:
    """What is fitted where no step has pairs to choose by."""
    own = {name: getattr(chooser, name) for name in ("random_state", "strict", "verbose")}
    if cells.given["pairs"]:
        why = "Pairs are known of times that do not follow one another only"
    elif cells.given["groups"]:
        why = "No pairs are known"
    else:
        warn_user(
            "Nothing is known of who became whom: the map is that of the squared Euclidean "
            "distance."
        )
        return SAFE | own
    warn_user(f"{why}, so that nothing can be chosen by them: a matrix is trained.")
    return FIXED | own
