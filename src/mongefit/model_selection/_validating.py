"""How good a map is on clones that neither its training nor the choice of its settings saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.temporal import TemporalMap
from mongefit._progress import ProgressBar
from mongefit._validation import check_seed
from mongefit.errors import summarised_warnings
from mongefit.metrics import Table
from mongefit.model_selection._folds import Known, Thinned, check_max_points, warn_of_few
from mongefit.model_selection._held_out import LEARNED, CrossValidation
from mongefit.model_selection._legs import validate_legs
from mongefit.model_selection._selecting import (
    HEADERS,
    best_choice,
    check_candidates,
    divergence,
    held_out_path,
    references,
    squared_errors,
    stopped,
)


def cross_validate(
    candidates: MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | TemporalMap | None,
    X: Any,
    Y: Any = None,
    *,
    pairs: Any,
    pair_weight: Any = None,
    clones: Any = None,
    source_weight: Any = None,
    target_weight: Any = None,
    n_folds: int | None = None,
    max_points: int | None = 512,
    random_state: int | np.random.RandomState | None = 0,
    verbose: int = 0,
) -> CrossValidation:
    """Estimate the error of what `select` would choose, on clones that the choice did not see.

    For every fold the settings are chosen as `select` does, on the other folds alone, and fitted on
    these. Squared Euclidean is shown at every epsilon, so that its best can be taken.

    Parameters
    ----------
    candidates, X, Y, pairs, pair_weight, clones, source_weight, target_weight, n_folds, \
random_state, verbose
        As in `select`.
        With a `TemporalMap`, whose settings are not chosen, X are the clouds and Y the times, or X
        is the dictionary of legs, and all that is known is by leg, as for `TemporalMap.fit`. Clones
        are held out with their pairs on every leg, and each leg alone is shown too.
    max_points
        Points of each cloud to choose on and to fit on; None takes all. A `TemporalMap` takes all.
    """
    if isinstance(candidates, TemporalMap):
        given = {
            "pairs": pairs, "pair_weight": pair_weight, "clones": clones,
            "source_weight": source_weight, "target_weight": target_weight,
        }  # fmt: skip
        return validate_legs(
            candidates, X, Y, given, n_folds=n_folds, random_state=random_state, verbose=verbose
        )
    named = check_candidates(candidates)
    known = Known.of(X, Y, pairs, pair_weight, clones, source_weight, target_weight)
    warn_of_few(known)
    seed, size = check_seed(random_state), check_max_points(max_points)
    folds = known.folds(n_folds, seed)
    part = Thinned.of(known, size, seed)
    predicted = np.empty_like(known.truth)
    choices, spread = [], []
    with (
        ProgressBar(int(folds.max()) + 1, enabled=bool(verbose), description="folds") as bar,
        summarised_warnings("fits"),
    ):
        for fold in range(folds.max() + 1):
            held_out = folds == fold
            inner = np.full(len(folds), -1)
            inner[~held_out] = known.without(held_out).folds(None, seed + 1)
            paths = {
                name: held_out_path(estimator, known, inner, size, seed)
                for name, estimator in named.items()
            }
            choices.append(best_choice(paths))
            model = stopped(named[choices[-1].name], choices[-1].steps, batch_size=None)
            model.fit(**part.arguments(np.where(held_out, 0.0, known.weight)))
            predicted[held_out] = model.transform(part.x[part.pairs[held_out, 0]])
            spread.append(divergence(model, part))
            bar.update()
    squares = {LEARNED: squared_errors(predicted, known)}
    divergences = {LEARNED: float(np.mean(spread))}
    for name, moved, fitted in references(known, part, folds):
        squares[name] = squared_errors(moved, known)
        divergences[name] = divergence(fitted, part)
    rows = [
        {"name": name, "rmse": float(np.sqrt(np.mean(square))), "divergence": divergences[name]}
        for name, square in squares.items()
    ]
    notes = (
        f"{len(known.pairs)} pairs in {known.n_clones} clones, held out in {folds.max() + 1} "
        "folds; settings chosen without the fold.",
        "Divergence: Sinkhorn divergence of the mapped source from the target; of the learned map "
        "the mean over folds.",
    )
    table = Table(tuple(rows), {"name": ""} | HEADERS, notes)
    return CrossValidation(table, squares, tuple(choices), known.clone, folds)
