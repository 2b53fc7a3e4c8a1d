"""Judging candidates that are trained, stopped where held-out pairs are predicted best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone as unfitted

from mongefit._estimators.monge_map import MongeMap
from mongefit._fitting import (
    Record,
    conditional,
    corrections,
    growth,
    log_density,
    transport_points,
)
from mongefit._transport import EntropicMap
from mongefit.errors import TrainingError
from mongefit.metrics._energy import energy_scores
from mongefit.model_selection._choosing import Entry
from mongefit.model_selection._folds import Thinned
from mongefit.model_selection._judging import Fold, HeldOut, Judged, Taus, join
from mongefit.model_selection._keeping import KeptPaths
from mongefit.model_selection._selecting import smoothed, stopped

PATIENCE = 2
"""Reports, one every ten steps, without a lower error after which training is hopeless."""
# What the last fit sets for itself.
_SET = ("batch_size", "many_to_many", "normalize_weight", "random_state", "strict", "verbose")


class Trainer(NamedTuple):
    """What trained candidates are judged on, and where the judgements are kept."""

    held: HeldOut
    part: Thinned
    centre: NDArray[np.float64]
    scale: float
    scoring: Any
    kept: KeptPaths
    groups: Any

    def judge(self, name: str, estimator: MongeMap, hopeless: float | None = None) -> list[Entry]:
        """A candidate after the best number of steps; nothing if it could not be trained.

        With ``hopeless`` it is also nothing if the error of the first fold stays above that.
        """
        key = f"{name}\n{estimator.get_params(deep=False)!r}"
        folds = list(self.held.folds())
        if key not in self.kept.paths:
            self.kept.put(key, self._path(estimator, folds, hopeless))
        path = smoothed(self.kept.paths[key])
        steps = int(np.argmin(path))
        if not np.isfinite(path[steps]) or (steps == 0 and hopeless is not None):
            return []
        model = stopped(estimator, steps, batch_size=None)
        found = recall(self.kept, key)
        if found is None:
            try:
                parts = [self._ask(self._fit(model, fold).map_, fold) for fold in folds]
            except TrainingError:
                return []
            found = {(0.0, False): join(parts, folds)}
            keep(self.kept, key, found)
        options = model.get_params(deep=False)
        own = {option: value for option, value in options.items() if option not in _SET}
        title = f"{name}, {steps} steps" if steps else name
        taus = Taus(float(model.tau_a), float(model.tau_b))
        return [Entry(f"{title}{taus}", own, name, next(iter(found.values())), taus)]

    def _fit(
        self, model: MongeMap, fold: Fold, callback: Callable[[Record], Any] | None = None
    ) -> MongeMap:
        """A fit without a fold; with a callback its pairs are for validation."""
        part = self.part
        told: dict[str, Any] = {
            "pairs": part.pairs, "pair_weight": fold.weight, "clones": self.held.clone,
            "groups": part.groups(self.groups),
        }  # fmt: skip
        if model.cost == "sqeuclidean" and model.diffeo is None:
            told = {}
        elif callback is not None:
            told["validation_pairs"] = part.pairs[fold.out]
        return unfitted(model).fit(
            part.x, part.y, source_weight=fold.a, target_weight=fold.b, callback=callback, **told
        )

    def _path(
        self, estimator: MongeMap, folds: list[Fold], hopeless: float | None
    ) -> NDArray[np.float64]:
        """RMSE on held-out pairs after 0, 1, … steps; infinite where a step failed."""
        steps = int(estimator.max_iter)
        if steps == 0:
            return np.zeros(1)
        model = unfitted(estimator).set_params(many_to_many=True, batch_size=None, verbose=0)
        total = np.zeros(steps + 1)
        count = len(self.held.pairs)
        # How many steps it takes shows in one division of the pairs.
        for fold in folds[: len(folds) // len(self.held.fold)]:
            patience = _Patience(np.inf if hopeless is None else PATIENCE)
            try:
                history = self._fit(model, fold, patience).history_
            except TrainingError:
                return np.full(steps + 1, np.inf)
            if "applied" not in history:  # a fixed cost
                return np.zeros(1)
            error = np.where(history["applied"], history["validation_rmse"], np.inf)
            # Where it was stopped it stays as it was.
            error = np.append(error, np.full(steps + 1 - len(error), error[-1]))
            if hopeless is not None and fold is folds[0]:
                smooth = smoothed(error)
                if np.argmin(smooth) == 0 or smooth.min() > hopeless:
                    return np.full(steps + 1, np.inf)
            total += np.sum(fold.out) * error**2 / count
        return np.asarray(np.sqrt(total))

    def _ask(self, fitted: EntropicMap, fold: Fold) -> Judged:
        """What a fitted map says of a fold."""
        rows, columns = self.part.pairs[fold.out].T
        points, truth = self.part.x[rows], self.part.y[columns]
        weights, moved = conditional(fitted, points), corrections(fitted, points)
        image = np.asarray(transport_points(fitted, points, reverse=False).points, np.float64)
        surprise = np.full(len(points), np.nan)
        if self.scoring == "likelihood":
            # Of where mass at a point goes, whatever it grows to.
            surprise = np.log(growth(fitted, points)) - log_density(fitted, points, truth - moved)
        return Judged(
            (image - self.centre) / self.scale,
            energy_scores(weights, self.part.y, truth - moved) / self.scale,
            surprise,
            weights @ self.held.labels,
        )


class _Patience:
    """A callback that ends training when the error on validation pairs has long not been lower."""

    def __init__(self, reports: float):
        self._reports, self._since, self._best = reports, 0, np.inf

    def __call__(self, record: Record) -> None:
        error = np.inf if record.validation_rmse is None else record.validation_rmse
        self._since = 0 if error < self._best else self._since + 1
        self._best = min(self._best, error)
        if self._since >= self._reports:
            raise StopIteration


def keep(kept: KeptPaths, key: str, found: dict[tuple[float, bool], Judged]) -> None:
    """Keep judgements as one array: of each candidate a block, of each answer a row."""
    blocks = []
    for (epsilon, debias), each in found.items():
        first = [epsilon, debias, each.predicted.shape[1]]
        blocks.append(np.column_stack([np.tile(first, (len(each.energy), 1)), *each]))
    kept.put(f"answers {key}", np.asarray(blocks, np.float64))


def recall(kept: KeptPaths, key: str) -> dict[tuple[float, bool], Judged] | None:
    """Judgements that were kept."""
    blocks = kept.paths.get(f"answers {key}")
    if blocks is None:
        return None
    found = {}
    for block in blocks:
        epsilon, debias, dim = block[0, :3]
        predicted, energy, surprise, fates = np.split(
            block[:, 3:], np.cumsum([int(dim), 1, 1]), axis=1
        )
        found[float(epsilon), bool(debias)] = Judged(predicted, energy[:, 0], surprise[:, 0], fates)
    return found
