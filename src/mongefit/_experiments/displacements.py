"""Figure 3: maps that move points in a plane, or in two directions, with nothing paired."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit import datasets
from mongefit._estimators.many import Fit
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run, group, select, values
from mongefit._experiments.methods import learned_cost, method_fit, skipped_steps
from mongefit._experiments.panels import Arrays, panels
from mongefit._experiments.settings import Settings
from mongefit.datasets._toys import Displacements as Kind
from mongefit.losses import Directional, LowRank
from mongefit.metrics import sinkhorn_divergence
from mongefit.plotting import plot_displacements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS: dict[str, Kind] = {"in a plane": "low_rank", "in two directions": "directional"}
_DEFAULT = dict.fromkeys(_KINDS, Settings((64, 64), epsilon=0.01, max_iter=150, target_fit=1.0))
# On new points: share of the third singular value, share of the squared displacements within 15° of
# a learned direction, divergence to the target over that of squared Euclidean.
_THIRD, _WITHIN, _RATIO = 0.02, 0.95, 1.5


class DisplacementsExperiment(Experiment):
    """128 points a side in three dimensions; `LowRank` or `Directional`, with `TargetFit`."""

    name: ClassVar[str] = "displacements"
    title: ClassVar[str] = "Properties of the displacements (figure 3)"
    measures: ClassVar[dict[str, str]] = {
        "third": "third share",
        "within": "within 15°",
        "cosine": "mean cosine",
        "divergence": "divergence",
        "skipped": "skipped steps",
    }

    def __init__(self, *, quick: bool = False):
        self._n, self._seeds = (32, 1) if quick else (128, 5)
        self._plans = learned_cost(
            _DEFAULT, quick=quick, quick_steps=30, max_iter=500, target_fit=1.0
        )

    def runs(self) -> list[Run]:
        return [Run(*plan, seed) for plan in self._plans for seed in range(self._seeds)]

    def options(self, run: Run) -> dict[str, Any]:
        data = {"n": self._n, "data_seeds": [run.seed, 1000 + run.seed]}
        return data | dataclasses.asdict(self._plans[run.plan])

    def fit(self, run: Run) -> Fit:
        kind = _KINDS[run.case]
        X, Y = datasets.displaced(self._n, kind, seed=run.seed)
        motion = LowRank(2) if kind == "low_rank" else _directional(run)
        return method_fit(run, self._plans[run.plan], {"X": X, "Y": Y}, loss=motion)

    def measure(self, run: Run, model: Any) -> Outcome:
        kind = _KINDS[run.case]
        new_X, new_Y = datasets.displaced(self._n, kind, seed=1000 + run.seed)
        mapped = model.transform(new_X)
        moves = mapped - new_X
        energy = np.linalg.svd(moves, compute_uv=False) ** 2
        measures: dict[str, float | None] = {
            "third": float(energy[2] / energy.sum()),
            "within": None,
            "cosine": None,
            "divergence": float(sinkhorn_divergence(mapped, new_Y)),
            "skipped": skipped_steps(run, model),
        }
        drawn = {"source": new_X, "mapped": mapped}
        if kind == "directional":
            # Squared Euclidean is given the two directions that suit its own displacements best.
            found = (
                model.losses_[0]
                if run.preset
                else _directional(run).initialised(moves, np.ones(len(moves)), run.seed)
            )
            drawn["directions"] = directions = np.asarray(found.unit_directions)
            length = np.linalg.norm(moves, axis=1)
            cosine = np.max(moves @ directions.T, axis=1) / length
            close = cosine >= np.cos(np.deg2rad(15))
            measures["within"] = float(np.sum(length[close] ** 2) / np.sum(length**2))
            measures["cosine"] = float(np.mean(cosine))
        return Outcome(measures, {key: array.tolist() for key, array in drawn.items()})

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self._n} points a side and {self._n} new ones, on which all is measured; mean ± "
            "standard deviation over the seeds.",
            "third share: of the squared singular values of the displacements. within 15°: share "
            "of the squared displacements that close to a learned direction.",
        )

    def goals(self, results: Sequence[Result]) -> list[Goal]:
        goals = []
        for case, those in group(select(results, preset="default"), lambda run: run.case).items():
            directional = _KINDS[case] == "directional"
            others = select(results, case=case, preset="")
            shares = values(others, "within" if directional else "third")
            plain = 1 - max(shares) if directional else min(shares)
            euclidean = {other.run.seed: other.value("divergence") for other in others}
            third = max(values(those, "third"))
            ratio = max(result.value("divergence") / euclidean[result.run.seed] for result in those)
            goals += [
                Goal(
                    f"{case}: squared Euclidean does not have the property",
                    f"{plain:.1%} of its motion elsewhere, at least",
                    plain > (1 - _WITHIN if directional else _THIRD),
                ),
                Goal(f"{case}: third share ≤ {_THIRD:.0%}", f"{third:.2%}", third <= _THIRD),
                Goal(
                    f"{case}: divergence ≤ {_RATIO} × squared Euclidean's",
                    f"{ratio:.2f} ×",
                    ratio <= _RATIO,
                ),
            ]
            if directional:
                within = min(values(those, "within"))
                goals.append(
                    Goal(f"{case}: within 15° ≥ {_WITHIN:.0%}", f"{within:.1%}", within >= _WITHIN)
                )
        return goals

    def draw(self, results: Sequence[Result]) -> Figure:
        def panel(ax: Any, result: Result, arrays: Arrays) -> None:
            moves = arrays["mapped"] - arrays["source"]
            singular = np.linalg.svd(moves / np.sqrt(len(moves)), compute_uv=False)
            plot_displacements(
                arrays["source"], arrays["mapped"], directions=arrays.get("directions"), ax=ax
            )
            listed = ", ".join(f"{value:.2g}" for value in singular)
            ax.text2D(
                0.5, 0.9, f"singular values {listed}",
                transform=ax.transAxes, ha="center", fontsize="small",
            )  # fmt: skip

        return panels(select(results, seed=0), panel, size=(3.3, 2.9), projection="3d")


def _directional(run: Run) -> Directional:
    # The paper's loss has no temperature.
    return Directional(2, temperature=1.0 if run.preset == "paper" else 0.1)
