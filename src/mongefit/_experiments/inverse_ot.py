"""Figure 1: maps learned from pairs on T-shape, moon and spiral."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit import datasets
from mongefit._estimators.many import Fit
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run, group, select, values
from mongefit._experiments.methods import learned_cost, method_fit, skipped_steps
from mongefit._experiments.panels import map_panels
from mongefit._experiments.settings import Settings
from mongefit.metrics import recovered_pairs, rmse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOWS = Settings((32, 32), epsilon=0.01, max_iter=500, diffeo="separate", debias=True)
_DEFAULT = {
    "T-shape": Settings((32, 32), epsilon=(0.05, 0.002), max_iter=500, debias=True),
    "moon": _FLOWS,
    "spiral": _FLOWS,
}
_MAKE = {"T-shape": datasets.t_shape, "moon": datasets.moon, "spiral": datasets.spiral}
# Mean RMSE on new points that the learned map should reach.
_BARS = {"T-shape": 0.09, "moon": 0.12, "spiral": 0.25}
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
        self._n, self._new, self._seeds = (32, 16, 1) if quick else (128, 32, 10)
        self._plans = learned_cost(_DEFAULT, quick=quick, quick_steps=60)

    def runs(self) -> list[Run]:
        return [Run(*plan, seed) for plan in self._plans for seed in range(self._seeds)]

    def options(self, run: Run) -> dict[str, Any]:
        data = {"n": self._n, "n_new": self._new, "data_seeds": [run.seed, 1000 + run.seed]}
        return data | dataclasses.asdict(self._plans[run.plan])

    def fit(self, run: Run) -> Fit:
        X, Y = _MAKE[run.case](self._n, seed=run.seed)
        pairs = np.stack([np.arange(self._n)] * 2, axis=1)
        return method_fit(run, self._plans[run.plan], {"X": X, "Y": Y, "pairs": pairs})

    def measure(self, run: Run, model: Any) -> Outcome:
        X, Y = _MAKE[run.case](self._n, seed=run.seed)
        new_X, new_Y = _MAKE[run.case](self._new, seed=1000 + run.seed)
        mapped = model.transform(new_X)
        measures = {
            "rmse": rmse(mapped, new_Y),
            "reverse": rmse(model.inverse_transform(new_Y), new_X),
            "recovered": recovered_pairs(model.cost_matrix(X, Y)),
            "skipped": skipped_steps(run, model),
        }
        drawn = {"source": new_X, "target": Y, "truth": new_Y, "mapped": mapped}
        return Outcome(measures, {key: array.tolist() for key, array in drawn.items()})

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self._n} pairs, {self._new} new points; mean ± standard deviation over the seeds.",
            "pairs recovered: share of the training pairs in the exact assignment under the cost.",
        )

    def goals(self, results: Sequence[Result]) -> list[Goal]:
        goals = []
        for case, those in group(select(results, preset="default"), lambda run: run.case).items():
            error, share = (float(np.mean(values(those, key))) for key in ("rmse", "recovered"))
            bar = _BARS[case]
            recovered = f"{case}: pairs recovered ≥ {_RECOVERED:.0%}"
            goals += [
                Goal(f"{case}: mean RMSE ≤ {bar}", f"{error:.3f}", error <= bar),
                Goal(recovered, f"{share:.1%}", share >= _RECOVERED),
            ]
        return goals

    def draw(self, results: Sequence[Result]) -> Figure:
        return map_panels(select(results, seed=0))
