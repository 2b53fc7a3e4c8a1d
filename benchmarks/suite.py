"""Is the map that needs no options better than a simple predictor? Many problems, five draws each.

    python benchmarks/suite.py                                      # all that is not yet in the log
    python benchmarks/suite.py --only storms 'true cost*' --method ridge 'MongeMap*' --draws 0,1
    python benchmarks/suite.py --table                              # what the log holds
    python benchmarks/suite.py --markdown --figure suite.png

Every fit adds a line of JSON to the log, build/suite.jsonl by default. What is there is not run
again, failures included, unless `--again` says so or the data have changed; the last line counts.
Several processes may write to one log. Problems are those of `suite_problems.py`, methods those of
`suite_methods.py`, which say what is known and what is judged.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from suite_methods import METHODS, SIMPLE, Unavailable, energy_of, rmse_of
from suite_problems import DRAWS, PROBLEMS, Draw

import mongefit
from mongefit.metrics import Table, sinkhorn_divergence

LOG = Path(__file__).resolve().parents[1] / "build" / "suite.jsonl"
MEASURES = {"rmse": "RMSE", "energy": "energy score"}
# A predictor with less error than this share of the spread of the new targets has no ratio.
EXACT = 1e-6

Record = dict[str, Any]


# Running


def run(
    problems: list[str], methods: list[str], draws: list[int], log: Path, *, again: bool
) -> None:
    """Fit and judge what the log does not hold."""
    log.parent.mkdir(parents=True, exist_ok=True)
    done = {} if again else {key(each): each["data"] for each in read(log)}
    missing: dict[str, str] = {}
    for problem in problems:
        for number in draws:
            draw = PROBLEMS[problem](number)
            data = fingerprint(draw)
            for method in methods:
                if method in missing or done.get((problem, number, method)) == data:
                    continue
                where: Record = {"problem": problem, "draw": number, "method": method, "data": data}
                try:
                    record: Record = where | judge(method, draw)
                except Unavailable as reason:
                    missing[method] = str(reason)
                    continue
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(
                    f"{problem:<26} {number}  {method:<28} RMSE {_shown(record['rmse']):>9}  "
                    f"energy {_shown(record['energy']):>9}  {record['seconds']:7.1f} s",
                    flush=True,
                )
    for method, why in missing.items():
        print(f"{method} was left out. {why}")


def judge(method: str, draw: Draw) -> Record:
    """Fit a method to a draw, and judge it on the new points; a fit that fails is a result too."""
    centred = draw.new_Y - np.average(draw.new_Y, axis=0, weights=draw.new_weight)
    squares = np.average(np.sum(centred**2, axis=1), weights=draw.new_weight)
    record: Record = {"spread": float(np.sqrt(squares)), "version": mongefit.__version__}
    record |= dict.fromkeys([*MEASURES, "divergence", "seconds", "chosen", "failed"])
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = METHODS[method](draw)
            record["seconds"] = time.perf_counter() - started
            record["rmse"], record["energy"] = rmse_of(model, draw), energy_of(model, draw)
            mapped = model.transform(draw.new_X)
            record["divergence"] = float(sinkhorn_divergence(mapped, draw.new_Y))
        record["chosen"] = _chosen(model)
    except Unavailable:
        raise
    except Exception as error:
        traceback.print_exc()
        record |= dict.fromkeys(MEASURES)
        record["failed"] = f"{type(error).__name__}: {error}"[:300]
        record["seconds"] = time.perf_counter() - started
    return record


def _chosen(model: Any) -> Any:
    """What a method chose, as far as it says so."""
    found = getattr(model, "best_params_", None) or getattr(model, "chosen", None)
    if found is None:
        found = {"epsilon": getattr(model, "epsilon", None)}
    return {str(name): value if _plain(value) else str(value) for name, value in found.items()}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def fingerprint(draw: Draw) -> str:
    """A hash of all that is known and judged, to six digits."""
    digest = hashlib.sha256()
    for array in draw:
        if array is not None:
            rounded = np.asarray(array, float)
            digest.update(np.char.mod("%.6g", rounded).tobytes())
    return digest.hexdigest()[:12]


def key(record: Record) -> tuple[str, int, str]:
    return record["problem"], record["draw"], record["method"]


def read(log: Path) -> list[Record]:
    """The last line of every problem, draw and method."""
    if not log.exists():
        return []
    with log.open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file if line.strip()]
    return list({key(record): record for record in records}.values())


# Reporting


class Compared(NamedTuple):
    """A method against the best simple predictor on one problem, by one measure.

    ``ratio`` is that of the means over draws and ``ratios`` that of every draw, against the same
    predictor; None where a simple predictor has no error at all.
    """

    problem: str
    best: str
    ratio: float | None
    ratios: list[float]


class Results:
    """What a log holds."""

    def __init__(self, records: Iterable[Record]):
        self.of = {key(record): record for record in records}
        self.problems = [name for name in PROBLEMS if any(k[0] == name for k in self.of)]
        self.methods = [name for name in METHODS if any(k[2] == name for k in self.of)]

    def draws(self, problem: str, method: str) -> list[int]:
        return sorted(k[1] for k in self.of if (k[0], k[2]) == (problem, method))

    def values(
        self, problem: str, method: str, measure: str, draws: Iterable[int] | None = None
    ) -> np.ndarray:
        """Of every draw; infinite where the fit failed."""
        chosen = self.draws(problem, method) if draws is None else draws
        found = [self.of[problem, draw, method][measure] for draw in chosen]
        return np.array([np.inf if each is None else each for each in found], float)

    def compare(self, problem: str, method: str, measure: str) -> Compared | None:
        """None where the log does not hold the method or all draws of any simple predictor."""
        draws = self.draws(problem, method)
        rivals = [
            name
            for name in SIMPLE
            if name != method and set(draws) <= set(self.draws(problem, name))
        ]
        if not draws or not rivals:
            return None
        means = {name: self.values(problem, name, measure, draws).mean() for name in rivals}
        best = min(means, key=lambda name: means[name])
        spread = np.mean([self.of[problem, draw, best]["spread"] for draw in draws])
        if means[best] < EXACT * spread:
            return Compared(problem, best, None, [])
        own = self.values(problem, method, measure, draws)
        with np.errstate(divide="ignore"):  # a draw that the best solves exactly
            each = own / self.values(problem, best, measure, draws)
        return Compared(problem, best, float(own.mean() / means[best]), each.tolist())

    def all_compared(self, method: str, measure: str) -> dict[str, Compared]:
        found = {name: self.compare(name, method, measure) for name in self.problems}
        return {name: each for name, each in found.items() if each is not None}

    def gaps(self, method: str) -> list[str]:
        """What is missing from a full comparison, or does not belong together."""
        absent = [name for name in PROBLEMS if name not in self.problems]
        partial = [
            name
            for name in self.problems
            if min(len(self.draws(name, each)) for each in [*SIMPLE, method]) < DRAWS
        ]
        mixed = [
            name
            for name in self.problems
            if len({(k[1], each["data"]) for k, each in self.of.items() if k[0] == name})
            > len({k[1] for k in self.of if k[0] == name})
        ]
        said = {
            "Not in the log": absent,
            f"Fewer than {DRAWS} draws of some methods": partial,
            "Different data for different methods, run again": mixed,
        }
        return [f"{text}: {'; '.join(names)}." for text, names in said.items() if names]


def tables(results: Results, method: str) -> list[tuple[str, Table]]:
    """Errors of all methods by every measure, and the ratio of one to the best simple predictor."""
    found = []
    for measure, title in MEASURES.items():
        rows = []
        for problem in results.problems:
            row: Record = {"problem": problem}
            for name in results.methods:
                row[name] = _mean_and_spread(results.values(problem, name, measure))
            rows.append(row)
        headers = {name: name for name in ("problem", *results.methods)}
        notes = ("Mean ± standard deviation over the draws; of new points.",)
        found.append((title, Table(tuple(rows), headers, notes)))
    found.append((f"{method} over the best simple predictor", ratios(results, method)))
    return found


def ratios(results: Results, method: str) -> Table:
    compared = {measure: results.all_compared(method, measure) for measure in MEASURES}
    shown = {measure: found for measure, found in compared.items() if found}
    rows = []
    for problem in results.problems:
        cells: Record = {"problem": problem}
        for measure in MEASURES:
            each = compared[measure].get(problem)
            cells[f"best, {measure}"] = None if each is None else each.best
            cells[measure] = None if each is None else _ratio(each)
        seconds = results.values(problem, method, "seconds")
        cells["draws"] = str(len(seconds))
        cells["seconds"] = float(seconds.mean()) if len(seconds) else None
        rows.append(cells)
    headers = {"problem": "problem"}
    for measure, title in MEASURES.items():
        headers |= {f"best, {measure}": f"best simple, {title}", measure: f"ratio, {title}"}
    headers |= {"draws": "draws", "seconds": "seconds of a fit"}
    notes = [
        "Ratio of the means over the draws [least, greatest of a draw]. The best simple predictor "
        "is that with the least mean; MLP is not among them.",
    ]
    for measure, found in shown.items():
        notes += _summary(MEASURES[measure], list(found.values()))
    for name in ("MLP", "MongeMap"):
        if name in results.methods and name != method:
            notes += _beside(results, name)
    notes += results.gaps(method)
    return Table(tuple(rows), headers, tuple(notes))


def _summary(title: str, compared: list[Compared]) -> list[str]:
    """Median and worst, and the problems that have no ratio."""
    notes = []
    rated = [(each.ratio, each.problem) for each in compared if each.ratio is not None]
    if rated:
        worst, where = max(rated)
        median = float(np.median([ratio for ratio, _ in rated]))
        notes.append(
            f"{title}: median {median:.3f}, worst {worst:.3f} ({where}), of {len(rated)} problems."
        )
    exact = [f"{each.problem} ({each.best})" for each in compared if each.ratio is None]
    if exact:
        notes.append(
            f"{title}: solved exactly by a simple predictor, which leaves no ratio, and left "
            f"out of the median and the worst: {'; '.join(exact)}."
        )
    return notes


def _beside(results: Results, method: str) -> list[str]:
    notes = []
    for measure, title in MEASURES.items():
        every = results.all_compared(method, measure).values()
        rated = [each.ratio for each in every if each.ratio is not None]
        if rated:
            notes.append(
                f"{method} beside it, {title}: median {np.median(rated):.3f}, worst "
                f"{max(rated):.3f}, of {len(rated)} problems."
            )
    return notes


def _ratio(compared: Compared) -> str:
    if compared.ratio is None:
        return "solved exactly"
    if not np.isfinite(compared.ratio):
        return "failed"
    least, greatest = min(compared.ratios), max(compared.ratios)
    return f"{compared.ratio:.3f} [{least:.2f}, {greatest:.2f}]"


def _mean_and_spread(values: np.ndarray) -> str | None:
    if not len(values):
        return None
    failed = int(np.sum(~np.isfinite(values)))
    if failed:
        return f"failed, {failed} of {len(values)}"
    spread = np.std(values, ddof=1) if len(values) > 1 else np.nan
    # What is zero but for rounding.
    if values.mean() < 1e-8:
        return "0"
    return f"{values.mean():.3g}" + (f" ± {spread:.2g}" if np.isfinite(spread) else "")


def _shown(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"


def draw_figure(results: Results, method: str, path: str) -> None:
    """The ratio on every problem, with a small dot for each draw."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullFormatter

    from mongefit.plotting import save_figure
    from mongefit.plotting._figures import BLACK, BLUE, GREY, ORANGE

    problems = [
        name
        for name in results.problems
        if any(results.compare(name, method, measure) for measure in MEASURES)
    ]
    figure = Figure(figsize=(9.0, 0.27 * len(problems) + 1.6), layout="constrained")
    axes = figure.subplots(1, len(MEASURES), sharey=True)
    for ax, (measure, title) in zip(axes, MEASURES.items(), strict=True):
        found = results.all_compared(method, measure)
        other = results.all_compared("MongeMap", measure) if method != "MongeMap" else {}
        labels = {"today": "MongeMap, today", "draw": "each draw", "mean": f"{method}, mean"}
        for row, problem in enumerate(problems):
            each = found[problem]
            if each.ratio is None:
                ax.annotate(
                    f"solved exactly by {each.best}", (0.03, row),
                    xycoords=("axes fraction", "data"), va="center", fontsize=7, color="0.45",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
                continue
            today = other.get(problem)
            if today is not None and today.ratio is not None:
                ax.plot(
                    today.ratio, row, "D", markerfacecolor="none", color=ORANGE, markersize=5,
                    label=labels.pop("today", None),
                )  # fmt: skip
            ax.plot(
                each.ratios, [row] * len(each.ratios), "o", color=BLUE, alpha=0.4, markersize=3,
                markeredgewidth=0, label=labels.pop("draw", None),
            )  # fmt: skip
            ax.plot(each.ratio, row, "o", color=BLUE, markersize=7, label=labels.pop("mean", None))
        ax.axvline(1, color=BLACK, linewidth=0.8)
        rated = [each.ratio for each in found.values() if each.ratio is not None]
        if rated:
            median = float(np.median(rated))
            ax.axvline(
                median, color=BLUE, linewidth=0.8, linestyle="--", label=f"median {median:.2f}"
            )
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        leading = (1, 2, 5) if high / low > 8 else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
        ticks = [digit * 10.0**power for power in range(-6, 7) for digit in leading]
        ax.xaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(f"{title} over best simple predictor")
        ax.grid(axis="y", color=GREY, alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize="x-small", loc="lower center", ncols=2,
                  bbox_to_anchor=(0.5, 1.0))  # fmt: skip
    axes[0].set_yticks(range(len(problems)), labels=problems)
    axes[0].invert_yaxis()
    save_figure(figure, path)


# Command line


def _matching(patterns: list[str] | None, names: Iterable[str], what: str) -> list[str]:
    """The names that a pattern matches, in their own order."""
    every = list(names)
    if patterns is None:
        return every
    for pattern in patterns:
        if not fnmatch.filter(every, pattern):
            raise SystemExit(f"No {what} is {pattern!r}. There are: {', '.join(every)}.")
    return [name for name in every if any(fnmatch.fnmatch(name, each) for each in patterns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PROBLEM", help="names or patterns")
    parser.add_argument("--method", nargs="+", metavar="METHOD", help="names or patterns")
    parser.add_argument("--draws", default=",".join(map(str, range(DRAWS))), help="such as 0,1")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--again", action="store_true", help="run what the log holds already")
    parser.add_argument("--table", action="store_true", help="print what the log holds")
    parser.add_argument("--markdown", action="store_true", help="the same as Markdown")
    parser.add_argument("--figure", metavar="FILE", help="PNG or PDF of what the log holds")
    parser.add_argument("--of", default="MongeMapCV", metavar="METHOD", help="whose ratio to show")
    options = parser.parse_args()
    problems = _matching(options.only, PROBLEMS, "problem")
    methods = _matching(options.method, METHODS, "method")
    if not (options.table or options.markdown or options.figure):
        draws = [int(number) for number in options.draws.split(",")]
        run(problems, methods, draws, options.log, again=options.again)
        return
    kept = [
        record
        for record in read(options.log)
        if record["problem"] in problems and record["method"] in methods
    ]
    results = Results(kept)
    if not results.problems:
        raise SystemExit(f"{options.log} holds none of that.")
    if options.table or options.markdown:
        for title, table in tables(results, options.of):
            text = table.to_markdown() if options.markdown else str(table)
            print(f"### {title[:1].upper()}{title[1:]}\n\n{text}\n")
    if options.figure:
        draw_figure(results, options.of, options.figure)


if __name__ == "__main__":
    main()
