"""Doing the runs of an experiment, keeping each as soon as it is done, and writing the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mongefit
from mongefit._estimators.many import Fit, fit_many
from mongefit._experiments.base import Experiment, Goal, Outcome, Result, Run
from mongefit._io import StrPath, atomic_write
from mongefit._runtime import device_summary, on_cpu
from mongefit._versions import recorded_versions
from mongefit.errors import DataError, ignored_warnings
from mongefit.metrics import Table

FILES = {
    "figure.png": "the picture",
    "figure.pdf": "the same, for print",
    "table.md": "the table, and what should be seen in it",
    "table.csv": "the table in full precision",
    "runs.csv": "every run",
    "report.json": "options, versions, seeds, times",
}

_FAILURES = (ArithmeticError, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Report:
    """What is left of an experiment: files, all runs, their summary, and what should be seen.

    The seconds are those of the runs, in this and in earlier sessions.
    """

    folder: Path
    results: tuple[Result, ...]
    table: Table
    goals: tuple[Goal, ...]
    seconds: float


def reproduce(
    experiment: Experiment,
    folder: StrPath,
    *,
    restart: bool = False,
    side_by_side: bool | None = None,
    watch: Callable[[Run, int, int], None] = lambda run, done, total: None,
) -> Report:
    """Do all runs that are not done yet, and write the table, the picture and the report.

    A run is kept in a file of its own as soon as it is done. One that was done before with the same
    options is not done again. One that fails is kept, counted and shown; it is tried again when the
    experiment is run again.

    On an accelerator the runs that are alike, such as the seeds of a problem, are kept when all of
    them are done, and trained side by side where that is faster (`fit_many`).

    ``restart`` does all runs anew, and ``side_by_side`` says whether to train runs that are alike
    side by side, on any device. ``watch`` is called before every run, or the first of several side
    by side, with the run, how many are done, and how many there are.
    """
    place = Path(folder)
    kept = place / "runs"
    if restart and kept.is_dir():
        shutil.rmtree(kept)
    kept.mkdir(parents=True, exist_ok=True)
    runs = experiment.runs()
    together = not on_cpu() if side_by_side is None else side_by_side
    results: list[Result] = []
    for _, alike in itertools.groupby(runs, experiment.alike if together else lambda run: run):
        those = list(alike)
        watch(those[0], len(results), len(runs))
        paths = {run: kept / f"{run.name}.json" for run in those}
        found = {run: _read(path, run, experiment.options(run)) for run, path in paths.items()}
        missing = [run for run in those if found[run] is None]
        for result in _perform(experiment, missing, side_by_side=side_by_side):
            found[result.run] = result
            atomic_write(paths[result.run], _encode(dataclasses.asdict(result)))
        results += [result for result in found.values() if result is not None]
    report = Report(
        folder=place,
        results=tuple(results),
        table=experiment.table(results),
        goals=tuple(experiment.goals(results)),
        seconds=sum(result.seconds for result in results),
    )
    _write(experiment, report)
    return report


def _perform(
    experiment: Experiment, runs: list[Run], *, side_by_side: bool | None
) -> Iterator[Result]:
    """Do some runs, each of which may fail."""
    started = time.perf_counter()
    fits: list[Fit] = []
    failures: Sequence[Exception | None]
    try:
        with ignored_warnings():
            fits = [experiment.fit(run) for run in runs]
            apart = len(runs) > 1 and not all(fit.learns_cost for fit in fits)
            failures = [] if apart else fit_many(fits, side_by_side=side_by_side)
    except _FAILURES as met:
        apart, failures = len(runs) > 1, [met]
    if apart:
        for run in runs:
            yield from _perform(experiment, [run], side_by_side=False)
        return
    fitting = time.perf_counter() - started
    for k, (run, failure) in enumerate(zip(runs, failures, strict=True)):
        started = time.perf_counter()
        outcome, error = None, ""
        try:
            if failure is not None:
                raise failure
            with ignored_warnings():
                outcome = experiment.measure(run, fits[k].estimator)
        except _FAILURES as met:
            error = f"{type(met).__name__}: {met}"
        seconds = round(fitting / len(runs) + time.perf_counter() - started, 2)
        yield Result(run, experiment.options(run), outcome, error, seconds)


def _read(path: Path, run: Run, options: dict[str, Any]) -> Result | None:
    """A run that was done before with the same options, or None."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["options"] != json.loads(_encode(options)) or found["outcome"] is None:
            return None
        return Result(run, options, Outcome(**found["outcome"]), "", found["seconds"])
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({error}). Delete it, and the run is done again."
        ) from error


def _encode(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _write(experiment: Experiment, report: Report) -> None:
    from mongefit.plotting import save_figure

    place, results = report.folder, report.results
    figure = experiment.draw(results)
    for name in ("figure.png", "figure.pdf"):
        save_figure(figure, place / name)
    goals = "\n".join(f"- {goal}" for goal in report.goals)
    text = f"# {experiment.title}\n\n{report.table.to_markdown()}\n\n{goals}\n"
    atomic_write(place / "table.md", text.encode())
    atomic_write(place / "table.csv", report.table.to_csv().encode())
    found = [result.outcome.values if result.outcome else {} for result in results]
    measures = dict.fromkeys(name for values in found for name in values)
    all_runs = tuple(
        dataclasses.asdict(result.run)
        | {name: values.get(name) for name in measures}
        | {"error": result.error, "seconds": result.seconds}
        for result, values in zip(results, found, strict=True)
    )
    atomic_write(place / "runs.csv", Table(all_runs, {}).to_csv().encode())
    about = {
        "experiment": experiment.name,
        "seconds": round(report.seconds, 1),
        "versions": {"mongefit": mongefit.__version__, **recorded_versions()},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "device": device_summary(),
        "goals": [dataclasses.asdict(goal) for goal in report.goals],
        "runs": [
            dataclasses.asdict(result.run)
            | {"options": result.options, "error": result.error, "seconds": result.seconds}
            for result in results
        ],
    }
    atomic_write(place / "report.json", _encode(about))
