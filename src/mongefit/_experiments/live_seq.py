"""Figure 2 and table 1: cells that were sampled before and after they differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit._estimators.many import Fit
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run, select, values
from mongefit._experiments.methods import (
    COUPLING,
    EUCLIDEAN,
    MAP,
    method_fit,
    method_settings,
    skipped_steps,
)
from mongefit._experiments.panels import map_panels
from mongefit._experiments.settings import SHARED_FLOW
from mongefit.baselines import IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.datasets import LiveSeq
from mongefit.metrics import Table, incorrect_mass, incorrect_mass_floor, rmse, sinkhorn_divergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALL = "all traced cells"
_TRIVIAL: dict[str, Any] = {
    "ridge on the pairs": PairedRidge,
    "nearest pair": NearestPair,
    "target mean": TargetMean,
    "identity": IdentityMap,
}
_DEFAULT = dataclasses.replace(SHARED_FLOW, hidden_layer_sizes=(64, 64, 64))
_RATIO = 0.25


class LiveSeqExperiment(Experiment):
    """The three methods of table 1 on ten principal components, and each traced cell left out.

    In the small version only two of the cells are left out.
    """

    name: ClassVar[str] = "live-seq"
    title: ClassVar[str] = "Live-seq (figure 2, table 1)"
    measures: ClassVar[dict[str, str]] = {
        "incorrect": "I.M.",
        "rmse": "RMSE, traced",
        "divergence": "divergence",
        "skipped": "skipped steps",
    }

    def __init__(self, data: LiveSeq, *, quick: bool = False):
        self._data = data
        self._seeds, left_out = (1, 2) if quick else (10, len(data.pairs))
        self._left_out = {f"without cell {k + 1}": k for k in range(left_out)}
        self._settings = method_settings(_DEFAULT, quick=quick)

    def runs(self) -> list[Run]:
        fixed = [(method, "") for method in (EUCLIDEAN, *_TRIVIAL)]
        learned = [plan for plan in self._settings if plan[1]]
        together = [(_ALL, *plan, 0) for plan in fixed]
        together += [(_ALL, *plan, seed) for plan in learned for seed in range(self._seeds)]
        apart = [(cell, *plan, 0) for plan in fixed + learned for cell in self._left_out]
        return [Run(*each) for each in together + apart]

    def options(self, run: Run) -> dict[str, Any]:
        data = {"counts_sha256": self._data.sha256, "simulated": self._data.simulated}
        if run.method in _TRIVIAL:
            return data
        return data | dataclasses.asdict(self._settings[run.method, run.preset])

    def fit(self, run: Run) -> Fit:
        pairs = self._data.pairs
        clouds = {"X": self._data.source, "Y": self._data.target}
        weight = np.ones(len(pairs))
        if run.case != _ALL:
            weight[self._left_out[run.case]] = 0
        if run.method in _TRIVIAL:
            return Fit(_TRIVIAL[run.method](), clouds | {"pairs": pairs[weight > 0]})
        # A pair is left out by its weight: one pair less would be compiled anew.
        known = {"pairs": pairs, "pair_weight": weight}
        return method_fit(run, self._settings[run.method, run.preset], clouds | known)

    def alike(self, run: Run) -> Hashable:
        return run.case == _ALL, run.method, run.preset

    def measure(self, run: Run, model: Any) -> Outcome:
        X, Y, pairs = self._data.source, self._data.target, self._data.pairs
        if run.case != _ALL:
            row, column = pairs[self._left_out[run.case]]
            return Outcome({"left_out": rmse(model.transform(X[[row]]), Y[[column]])})
        mapped, traced = model.transform(X), pairs[:, 0]
        measures = {
            "incorrect": None,
            "rmse": rmse(mapped[traced], Y[pairs[:, 1]]),
            "divergence": float(sinkhorn_divergence(mapped, Y)),
            "skipped": skipped_steps(run, model),
        }
        if run.method not in _TRIVIAL:
            measures["incorrect"] = incorrect_mass(model.coupling_, pairs)
        drawn = {
            "source": X[traced], "target": Y, "truth": Y[pairs[:, 1]], "mapped": mapped[traced],
        }  # fmt: skip
        return Outcome(measures, {key: array.tolist() for key, array in drawn.items()})

    def table(self, results: Sequence[Result]) -> Table:
        """The rows of table 1, with the error on traced cells that were left out beside them."""
        table = super().table(results)
        apart = [result for result in results if result.run.case != _ALL]
        rows = []
        for row in table.rows:
            if row["case"] == _ALL:
                those = select(apart, method=row["method"], preset=row["preset"] or "")
                squares = [error**2 for error in values(those, "left_out")]
                error = float(np.sqrt(np.mean(squares))) if squares else None
                rows.append(row | {"left_out": error})
        headers = {}
        for key, title in table.headers.items():
            if key == "divergence":
                headers["left_out"] = "RMSE, left out"
            if key != "case":
                headers[key] = title
        return Table(tuple(rows), headers, table.notes)

    def notes(self) -> tuple[str, ...]:
        data = self._data
        floor = incorrect_mass_floor(len(data.source), len(data.target), data.pairs)
        kind = "SIMULATED COUNTS, not measured ones. " if data.simulated else ""
        return (
            f"{kind}{len(data.source)} cells before, {len(data.target)} after, {len(data.pairs)} "
            f"traced; {data.source.shape[1]} principal components.",
            f"I.M.: share of the mass that goes from or to a traced cell and not along a pair; no "
            f"coupling has less than {floor:.3f}.",
            "RMSE, left out: over the traced cells, each predicted by a fit that was not told of "
            "it (seed 0). Nine cells cannot tell small differences apart.",
            *data.steps,
        )

    def goals(self, results: Sequence[Result]) -> list[Goal]:
        learned = select(results, case=_ALL, preset="default")
        ours, theirs = (
            float(np.mean(values(select(learned, method=method), "rmse")))
            for method in (MAP, COUPLING)
        )
        ratio = ours / theirs
        return [
            Goal(
                f"RMSE of the map on traced cells ≤ {_RATIO} × the coupling's",
                f"{ours:.3g} against {theirs:.3g}, {ratio:.2f} ×",
                ratio <= _RATIO,
            )
        ]

    def draw(self, results: Sequence[Result]) -> Figure:
        first = select(results, case=_ALL, seed=0)
        chosen = [result for result in first if result.run.method not in _TRIVIAL]
        figure = map_panels(chosen, wrap=4)
        kind = "simulated counts" if self._data.simulated else "measured counts"
        figure.suptitle(f"Live-seq, {kind}: the traced cells", fontsize="medium")
        return figure
