"""Figure 2 and table 1: cells that were sampled before and after they differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit._estimators.many import Fit
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run, group, presets
from mongefit._experiments.methods import (
    COUPLING,
    EUCLIDEAN,
    LEARNED,
    MAP,
    method_fit,
    method_settings,
    skipped_steps,
)
from mongefit._experiments.panels import map_panels
from mongefit._experiments.settings import Settings
from mongefit.baselines import IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.datasets import LiveSeq
from mongefit.metrics import (
    Table,
    incorrect_mass,
    incorrect_mass_floor,
    rmse,
    sinkhorn_divergence,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALL = "all traced cells"
_LEFT_OUT = "without cell"
_TRIVIAL: dict[str, Any] = {
    "ridge on the pairs": PairedRidge,
    "nearest pair": NearestPair,
    "target mean": TargetMean,
    "identity": IdentityMap,
}
_DEFAULT = Settings(
    (64, 64, 64),
    epsilon=0.01,
    max_iter=300,
    learning_rate=(0.02, 0.001),
    diffeo_learning_rate=(0.01, 0.0005),
    diffeo="shared",
    dirichlet=1e-3,
    dtype="mixed",
)
_RATIO = 0.25


class LiveSeqExperiment(Experiment):
    """The three methods of table 1 on ten principal components, and each traced cell left out.

    Parameters
    ----------
    data
        Both clouds and the traced cells.
    quick
        One seed, one preset and few steps; only two cells are left out.
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
        self._seeds, self._left_out = (1, 2) if quick else (10, len(data.pairs))
        self._presets = presets(quick=quick)
        self._settings = method_settings(_DEFAULT, quick=quick)

    def runs(self) -> list[Run]:
        learned = [(method, preset) for preset in self._presets for method in LEARNED]
        fixed = [(method, "") for method in (EUCLIDEAN, *_TRIVIAL)]
        cells = [f"{_LEFT_OUT} {k + 1}" for k in range(self._left_out)]
        plans = [
            *((_ALL, *plan, range(1)) for plan in fixed),
            *((_ALL, *plan, range(self._seeds)) for plan in learned),
            *((cell, *plan, range(1)) for plan in (*fixed, *learned) for cell in cells),
        ]
        return [
            Run(case, method, preset, seed)
            for case, method, preset, seeds in plans
            for seed in seeds
        ]

    def options(self, run: Run) -> dict[str, Any]:
        data = {"counts_sha256": self._data.sha256, "simulated": self._data.simulated}
        settings = self._settings.get((run.method, run.preset))
        if settings is not None:
            return data | dataclasses.asdict(settings)
        return data | ({"epsilon": 0.01} if run.method == EUCLIDEAN else {})

    def fit(self, run: Run) -> Fit:
        X, Y, pairs = self._data.source, self._data.target, self._data.pairs
        told = np.ones(len(pairs), bool)
        if run.case != _ALL:
            told[_left_out(run)] = False
        if run.method in _TRIVIAL:
            return Fit(_TRIVIAL[run.method](), {"X": X, "Y": Y, "pairs": pairs[told]})
        settings = self._settings.get((run.method, run.preset))
        # By its weight: one pair less would be compiled anew.
        weight = told.astype(float)
        return method_fit(run.method, settings, (X, Y, pairs), run.seed, pair_weight=weight)

    def alike(self, run: Run) -> Hashable:
        return run.case == _ALL, run.method, run.preset

    def measure(self, run: Run, model: Any) -> Outcome:
        X, Y, pairs = self._data.source, self._data.target, self._data.pairs
        if run.case != _ALL:
            row, column = pairs[_left_out(run)]
            return Outcome({"left_out": rmse(model.transform(X[[row]]), Y[[column]])})
        mapped, traced = model.transform(X), pairs[:, 0]
        values = {
            "incorrect": None,
            "rmse": rmse(mapped[traced], Y[pairs[:, 1]]),
            "divergence": float(sinkhorn_divergence(mapped, Y)),
            "skipped": skipped_steps(model) if run.preset else None,
        }
        if run.method not in _TRIVIAL:
            values["incorrect"] = incorrect_mass(model.coupling_, pairs)
        drawn = {
            "source": X[traced], "target": Y, "truth": Y[pairs[:, 1]], "mapped": mapped[traced],
        }  # fmt: skip
        return Outcome(values, {key: array.tolist() for key, array in drawn.items()})

    def table(self, results: Sequence[Result]) -> Table:
        """The rows of table 1, with the error on traced cells that were left out beside them."""
        together = super().table([result for result in results if result.run.case == _ALL])
        errors = self._left_out_errors(results)
        rows = tuple(
            row | {"left_out": errors.get((row["method"], row["preset"] or ""))}
            for row in together.rows
        )
        headers = dict(together.headers)
        del headers["case"]
        at = list(headers).index("divergence")
        items = list(headers.items())
        items.insert(at, ("left_out", "RMSE, left out"))
        failed = tuple(
            f"Failed: {r.run.name}: {r.error}"
            for r in results
            if r.outcome is None and r.run.case != _ALL
        )
        return Table(rows, dict(items), together.notes + failed)

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
        found = {
            method: float(np.mean([result.value("rmse") for result in those]))
            for method, those in group(
                [r for r in results if r.run.case == _ALL and r.run.preset == "default"],
                lambda run: run.method,
            ).items()
        }
        ratio = found[MAP] / found[COUPLING]
        return [
            Goal(
                f"RMSE of the map on traced cells ≤ {_RATIO} × the coupling's",
                f"{found[MAP]:.3g} against {found[COUPLING]:.3g}, {ratio:.2f} ×",
                ratio <= _RATIO,
            )
        ]

    def draw(self, results: Sequence[Result]) -> Figure:
        chosen = [
            result
            for result in results
            if result.run.case == _ALL
            and result.run.seed == 0
            and (result.run.preset or result.run.method == EUCLIDEAN)
        ]
        figure = map_panels(chosen, wrap=4)
        kind = "simulated counts" if self._data.simulated else "measured counts"
        figure.suptitle(f"Live-seq, {kind}: the traced cells", fontsize="medium")
        return figure

    def _left_out_errors(self, results: Sequence[Result]) -> dict[tuple[str, str], float]:
        those = [result for result in results if result.run.case != _ALL]
        return {
            key: float(np.sqrt(np.mean([result.value("left_out") ** 2 for result in of_method])))
            for key, of_method in group(those, lambda run: (run.method, run.preset)).items()
        }


def _left_out(run: Run) -> int:
    """Which pair a run is not told of."""
    return int(run.case.split()[-1]) - 1
