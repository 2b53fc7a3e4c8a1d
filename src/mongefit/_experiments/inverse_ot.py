"""Figure 1: maps learned from pairs on T-shape, moon and spiral."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit import datasets
from mongefit._estimators.many import Fit
from mongefit._estimators.monge_map import MongeMap
from mongefit._experiments.base import (
    Experiment,
    Goal,
    Outcome,
    Result,
    Run,
    crossed,
    group,
    presets,
)
from mongefit._experiments.panels import map_panels
from mongefit._experiments.settings import Settings, paper
from mongefit.baselines import EuclideanMap
from mongefit.losses import Paired
from mongefit.metrics import recovered_pairs, rmse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOWS = Settings((32, 32), epsilon=0.01, max_iter=500, diffeo="separate")
_DEFAULT = {
    "T-shape": Settings((32, 32), epsilon=(0.05, 0.002), max_iter=500),
    "moon": _FLOWS,
    "spiral": _FLOWS,
}
_MAKE = {"T-shape": datasets.t_shape, "moon": datasets.moon, "spiral": datasets.spiral}
# Mean RMSE on new points that the learned map should reach.
_BARS = {"T-shape": 0.12, "moon": 0.2, "spiral": 0.4}
_RECOVERED = 0.99


class InverseOTExperiment(Experiment):
    """128 pairs to learn from and 32 new points; T-shape with h alone, the others with flows."""

    name: ClassVar[str] = "inverse-ot"
    title: ClassVar[str] = "Inverse optimal transport (figure 1)"
    measures: ClassVar[dict[str, str]] = {
        "rmse": "RMSE, new points",
        "reverse": "RMSE, back",
        "recovered": "pairs recovered",
        "skipped": "skipped steps",
    }

    def __init__(self, *, quick: bool = False):
        self._n, self._new, self._seeds = (32, 16, 1) if quick else (128, 32, 5)
        self._presets = presets(quick=quick)
        changes: dict[str, Any] = {"max_iter": 60, "hidden_layer_sizes": (8, 8)} if quick else {}
        default = {case: dataclasses.replace(s, **changes) for case, s in _DEFAULT.items()}
        self._settings = {
            "default": default,
            "paper": {case: paper(s) for case, s in default.items()},
        }

    def runs(self) -> list[Run]:
        plans = [("squared Euclidean", ""), *(("learned cost", preset) for preset in self._presets)]
        return crossed(plans, _DEFAULT, self._seeds)

    def options(self, run: Run) -> dict[str, Any]:
        data = {"n": self._n, "n_new": self._new, "data_seeds": [run.seed, 1000 + run.seed]}
        if not run.preset:
            return data | {"epsilon": 0.01}
        return data | dataclasses.asdict(self._settings[run.preset][run.case])

    def fit(self, run: Run) -> Fit:
        X, Y = _MAKE[run.case](self._n, seed=run.seed)
        if not run.preset:
            return Fit(EuclideanMap(epsilon=0.01), {"X": X, "Y": Y})
        settings = self._settings[run.preset][run.case]
        pairs = np.stack([np.arange(self._n)] * 2, axis=1)
        model = settings.estimator(MongeMap, 2, run.seed, [Paired()])
        return Fit(model, {"X": X, "Y": Y, "pairs": pairs})

    def measure(self, run: Run, model: Any) -> Outcome:
        X, Y = _MAKE[run.case](self._n, seed=run.seed)
        new_X, new_Y = _MAKE[run.case](self._new, seed=1000 + run.seed)
        mapped = model.transform(new_X)
        values = {
            "rmse": rmse(mapped, new_Y),
            "reverse": rmse(model.inverse_transform(new_Y), new_X),
            "recovered": recovered_pairs(model.cost_matrix(X, Y)),
            "skipped": float(model.diagnostics_["skipped_steps"]) if run.preset else None,
        }
        drawn = {"source": new_X, "target": Y, "truth": new_Y, "mapped": mapped}
        return Outcome(values, {key: array.tolist() for key, array in drawn.items()})

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self._n} pairs, {self._new} new points; mean ± standard deviation over the seeds.",
            "pairs recovered: share of the training pairs in the exact assignment under the cost.",
        )

    def goals(self, results: Sequence[Result]) -> list[Goal]:
        goals = []
        learned = [result for result in results if result.run.preset == "default"]
        for case, those in group(learned, lambda run: run.case).items():
            error = float(np.mean([result.value("rmse") for result in those]))
            share = float(np.mean([result.value("recovered") for result in those]))
            bar = _BARS[case]
            goals += [
                Goal(f"{case}: mean RMSE ≤ {bar}", f"{error:.3f}", error <= bar),
                Goal(
                    f"{case}: pairs recovered ≥ {_RECOVERED:.0%}",
                    f"{share:.1%}",
                    share >= _RECOVERED,
                ),
            ]
        return goals

    def draw(self, results: Sequence[Result]) -> Figure:
        first = [result for result in results if result.run.seed == 0]
        return map_panels(first)
