"""Appendix: few pairs among many points, made by random diffeomorphisms."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.many import Fit
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run, group, select, values
from mongefit._experiments.methods import (
    COUPLING,
    EUCLIDEAN,
    GAP,
    MAP,
    Plans,
    method_fit,
    method_settings,
    skipped_steps,
)
from mongefit._experiments.settings import SHARED_FLOW
from mongefit.datasets import LimitedPairs, limited_pairs
from mongefit.metrics import incorrect_mass, incorrect_mass_floor, rmse, sinkhorn_divergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES = {2: (32, 40), 4: (128, 160), 6: (256, 320)}
_SHARES = (1 / 8, 1 / 4, 1 / 2)
# With fewer points a fit to the target helps more, and the map must be less sharp.
_DEFAULT = {
    2: dataclasses.replace(SHARED_FLOW, epsilon=0.03, target_fit=3.0),
    4: dataclasses.replace(SHARED_FLOW, epsilon=0.03, target_fit=1.0),
    6: SHARED_FLOW,
}
_COLOURS = {MAP: "#0072B2", COUPLING: "#D55E00", GAP: "#009E73", EUCLIDEAN: "#000000"}
_MARKERS = {MAP: "o", COUPLING: "s", GAP: "^", EUCLIDEAN: "x"}


class LimitedPairsExperiment(Experiment):
    """Three methods, three dimensions, several numbers of pairs, five data sets each."""

    name: ClassVar[str] = "limited-pairs"
    title: ClassVar[str] = "Synthetic limited labelled pairs (appendix)"
    measures: ClassVar[dict[str, str]] = {
        "incorrect": "I.M.",
        "floor": "its floor",
        "train": "RMSE, pairs",
        "rmse": "RMSE, new points",
        "divergence": "divergence, new",
        "skipped": "skipped steps",
    }

    def __init__(self, *, quick: bool = False):
        self._sizes = {2: _SIZES[2]} if quick else _SIZES
        self._seeds, self._new = (2, 64) if quick else (5, 256)
        # Dimension and number of pairs of each case.
        self._cases = {
            f"d = {dim}, {k} pairs": (dim, k)
            for dim, (n, _) in self._sizes.items()
            for k in (round(share * n) for share in ((1 / 4,) if quick else _SHARES))
        }
        settings = {dim: method_settings(_DEFAULT[dim], quick=quick) for dim in self._sizes}
        self._plans: Plans = {
            (case, *method): settings[dim][method]
            for method in settings[2]
            for case, (dim, _) in self._cases.items()
        }

    def runs(self) -> list[Run]:
        return [Run(*plan, seed) for plan in self._plans for seed in range(self._seeds)]

    def options(self, run: Run) -> dict[str, Any]:
        dim, k = self._cases[run.case]
        n, m = self._sizes[dim]
        data = {
            "dim": dim, "n": n, "m": m, "pairs": k, "n_new": self._new,
            "data_seeds": [run.seed, 1000 + run.seed],
        }  # fmt: skip
        return data | dataclasses.asdict(self._plans[run.plan])

    def fit(self, run: Run) -> Fit:
        problem = self._problem(run)
        data = {"X": problem.x, "Y": problem.y, "pairs": problem.pairs}
        return method_fit(run, self._plans[run.plan], data)

    def _problem(self, run: Run) -> LimitedPairs:
        dim, k = self._cases[run.case]
        return _cached_problem(*self._sizes[dim], k, dim, seed=run.seed)

    def measure(self, run: Run, model: Any) -> Outcome:
        problem = self._problem(run)
        X, Y, pairs = problem.x, problem.y, problem.pairs
        new_X, new_Y = problem.sample(self._new, seed=1000 + run.seed)
        mapped = model.transform(new_X)
        return Outcome(
            {
                "incorrect": incorrect_mass(model.coupling_, pairs),
                "floor": incorrect_mass_floor(len(X), len(Y), pairs),
                "train": rmse(model.transform(X[: len(pairs)]), Y[: len(pairs)]),
                "rmse": rmse(mapped, new_Y),
                "divergence": float(sinkhorn_divergence(mapped, new_Y)),
                "skipped": skipped_steps(run, model),
            }
        )

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self._seeds} data sets; mean ± standard deviation. {self._new} new points.",
            "I.M.: share of the mass that goes from or to a paired point and not along a pair; no "
            "coupling has less than its floor. divergence: Sinkhorn divergence between mapped new "
            "points and where they belong.",
        )

    def goals(self, results: Sequence[Result]) -> list[Goal]:
        """Map against coupling, over the numbers of pairs of each data set together."""
        goals = []
        chosen = select(results, preset="default")
        for dim, those in group(chosen, lambda run: self._cases[run.case][0]).items():
            for measure, words in (("rmse", "RMSE of new points"), ("divergence", "divergence")):
                ours, theirs = (
                    _medians(select(those, method=method), measure) for method in (MAP, COUPLING)
                )
                better, least = int(np.sum(ours < theirs)), int(np.ceil(0.8 * len(ours)))
                median = float(np.median(ours)), float(np.median(theirs))
                goals.append(
                    Goal(
                        f"d = {dim}: map below coupling on {words}, by the median and on at least "
                        f"{least} of {len(ours)} data sets",
                        f"{median[0]:.3g} against {median[1]:.3g}, {better} of {len(ours)}",
                        better >= least and median[0] < median[1],
                    )
                )
        return goals

    def draw(self, results: Sequence[Result]) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter

        shown = {key: self.measures[key] for key in ("incorrect", "train", "rmse", "divergence")}
        rows, columns = len(shown), len(self._sizes)
        figure = Figure(figsize=(2.5 * columns + 0.6, 7.6), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
        for column, dim in enumerate(self._sizes):
            those = [r for r in results if self._cases[r.run.case][0] == dim]
            for row, (measure, title) in enumerate(shown.items()):
                ax = grid[row, column]
                lines = group(those, lambda run: (run.method, run.preset))
                for (method, preset), of_line in lines.items():
                    of_pairs = group(of_line, lambda run: self._cases[run.case][1])
                    found = {k: values(each, measure) for k, each in of_pairs.items()}
                    _draw_line(ax, found, method, preset)
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                ax.yaxis.set_major_formatter("{x:g}")
                ax.yaxis.set_minor_formatter(NullFormatter())
                ax.grid(alpha=0.3)
                ax.set_xscale("log", base=2)
                ax.set_xticks([k for of_dim, k in self._cases.values() if of_dim == dim])
                ax.xaxis.set_major_formatter("{x:.0f}")
                if column == 0:
                    ax.set_ylabel(title)
            grid[0, column].set_title(f"d = {dim}")
            grid[-1, column].set_xlabel("known pairs")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
        )
        return figure


_cached_problem = functools.lru_cache(maxsize=5)(limited_pairs)


def _medians(results: Sequence[Result], measure: str) -> NDArray[np.float64]:
    """The median of each data set."""
    data_sets = group(results, lambda run: run.seed).values()
    return np.array([np.median(values(those, measure)) for those in data_sets])


def _draw_line(ax: Any, found: dict[int, list[float]], method: str, preset: str) -> None:
    """Medians over the data sets, with a dot for each of them."""
    style = {"color": _COLOURS[method], "marker": _MARKERS[method]}
    ax.plot(
        list(found),
        [np.nanmedian(each) for each in found.values()],
        linestyle="--" if preset == "paper" else "-",
        markerfacecolor="none" if preset == "paper" else style["color"],
        markersize=4,
        linewidth=1.2,
        label=f"{method} ({preset})" if preset else method,
        **style,
    )
    if preset != "paper":
        for k, each in found.items():
            ax.plot([k] * len(each), each, linestyle="none", alpha=0.3, markersize=2, **style)
