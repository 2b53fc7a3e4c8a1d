"""Appendix: few pairs among many points, made by random diffeomorphisms."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit._estimators.many import Fit
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
from mongefit._experiments.methods import (
    COUPLING,
    EUCLIDEAN,
    GAP,
    LEARNED,
    MAP,
    method_fit,
    method_settings,
    skipped_steps,
)
from mongefit._experiments.settings import Settings
from mongefit.datasets import LimitedPairs, limited_pairs
from mongefit.metrics import incorrect_mass, incorrect_mass_floor, rmse, sinkhorn_divergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES = {2: (32, 40), 4: (128, 160), 6: (256, 320)}
_SHARES = (1 / 8, 1 / 4, 1 / 2)
_FEW_POINTS = Settings(
    (64, 64),
    epsilon=0.03,
    max_iter=300,
    learning_rate=(0.02, 0.001),
    diffeo_learning_rate=(0.01, 0.0005),
    diffeo="shared",
    dirichlet=1e-3,
    target_fit=1.0,
    dtype="mixed",
)
# The fewer points there are, the more it helps to be told where they end, and the less sharp a map
# they bear.
_DEFAULT = {
    2: dataclasses.replace(_FEW_POINTS, target_fit=3.0),
    4: _FEW_POINTS,
    6: dataclasses.replace(_FEW_POINTS, epsilon=0.01, target_fit=0.0),
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
        self._quick = quick
        self._sizes = {2: _SIZES[2]} if quick else _SIZES
        self._shares = (1 / 4,) if quick else _SHARES
        self._seeds, self._new = (2, 64) if quick else (5, 256)
        self._presets = presets(quick=quick)
        self._settings = {
            (dim, *plan): settings
            for dim in self._sizes
            for plan, settings in method_settings(_DEFAULT[dim], quick=quick).items()
        }

    def runs(self) -> list[Run]:
        plans = [(EUCLIDEAN, ""), *((m, preset) for preset in self._presets for m in LEARNED)]
        cases = [
            _case(dim, round(share * n))
            for dim, (n, _) in self._sizes.items()
            for share in self._shares
        ]
        return crossed(plans, cases, self._seeds)

    def options(self, run: Run) -> dict[str, Any]:
        dim, k = _parse(run.case)
        n, m = self._sizes[dim]
        data = {
            "dim": dim, "n": n, "m": m, "pairs": k, "n_new": self._new,
            "data_seeds": [run.seed, 1000 + run.seed],
        }  # fmt: skip
        settings = self._settings.get((dim, run.method, run.preset))
        return data | ({"epsilon": 0.01} if settings is None else dataclasses.asdict(settings))

    def fit(self, run: Run) -> Fit:
        dim, k = _parse(run.case)
        problem = _problem(*self._sizes[dim], k, dim, run.seed)
        settings = self._settings.get((dim, run.method, run.preset))
        return method_fit(run.method, settings, (problem.x, problem.y, problem.pairs), run.seed)

    def measure(self, run: Run, model: Any) -> Outcome:
        dim, k = _parse(run.case)
        problem = _problem(*self._sizes[dim], k, dim, run.seed)
        X, Y, pairs = problem.x, problem.y, problem.pairs
        new_X, new_Y = problem.sample(self._new, seed=1000 + run.seed)
        mapped = model.transform(new_X)
        return Outcome(
            {
                "incorrect": incorrect_mass(model.coupling_, pairs),
                "floor": incorrect_mass_floor(len(X), len(Y), pairs),
                "train": rmse(model.transform(X[:k]), Y[:k]),
                "rmse": rmse(mapped, new_Y),
                "divergence": float(sinkhorn_divergence(mapped, new_Y)),
                "skipped": skipped_steps(model) if run.preset else None,
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
        chosen = [result for result in results if result.run.preset == "default"]
        for dim, those in group(chosen, lambda run: _parse(run.case)[0]).items():
            for measure, words in (("rmse", "RMSE of new points"), ("divergence", "divergence")):
                ours, theirs = (
                    np.array(
                        [
                            np.median([result.value(measure) for result in of_seed])
                            for of_seed in group(
                                [r for r in those if r.run.method == method],
                                lambda run: run.seed,
                            ).values()
                        ]
                    )
                    for method in (MAP, COUPLING)
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
        figure = Figure(figsize=(2.5 * len(self._sizes) + 0.6, 7.6), layout="constrained")
        grid = figure.subplots(
            len(shown), len(self._sizes), squeeze=False, sharex="col", sharey="row"
        )
        for column, dim in enumerate(self._sizes):
            those = [r for r in results if _parse(r.run.case)[0] == dim]
            for row, (measure, title) in enumerate(shown.items()):
                ax = grid[row, column]
                for (method, preset), of_line in group(
                    those, lambda run: (run.method, run.preset)
                ).items():
                    _draw_line(ax, of_line, measure, method, preset)
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                ax.yaxis.set_major_formatter("{x:g}")
                ax.yaxis.set_minor_formatter(NullFormatter())
                ax.grid(alpha=0.3)
                ax.set_xscale("log", base=2)
                ax.set_xticks([round(share * self._sizes[dim][0]) for share in self._shares])
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


@functools.lru_cache(maxsize=5)
def _problem(n: int, m: int, n_pairs: int, dim: int, seed: int) -> LimitedPairs:
    return limited_pairs(n, m, n_pairs, dim, seed=seed)


def _case(dim: int, n_pairs: int) -> str:
    return f"d = {dim}, {n_pairs} pairs"


def _parse(case: str) -> tuple[int, int]:
    """Dimension and number of pairs of a case."""
    words = case.replace(",", "").split()
    return int(words[2]), int(words[3])


def _draw_line(ax: Any, results: Sequence[Result], measure: str, method: str, preset: str) -> None:
    """Medians over the data sets, with a dot for each of them."""
    groups = group(results, lambda run: _parse(run.case)[1])
    pairs = list(groups)
    values = [[result.value(measure) for result in groups[k]] for k in pairs]
    style = {"color": _COLOURS[method], "marker": _MARKERS[method]}
    ax.plot(
        pairs,
        [np.nanmedian(each) for each in values],
        linestyle="--" if preset == "paper" else "-",
        markerfacecolor="none" if preset == "paper" else style["color"],
        markersize=4,
        linewidth=1.2,
        label=f"{method} ({preset})" if preset else method,
        **style,
    )
    if preset != "paper":
        for k, each in zip(pairs, values, strict=True):
            ax.plot([k] * len(each), each, linestyle="none", alpha=0.3, markersize=2, **style)
