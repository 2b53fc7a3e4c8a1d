"""``mongefit reproduce``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.console import Console, Failed, command, count, start_jax
from mongefit._cli.interrupts import interruptible

if TYPE_CHECKING:
    from mongefit._experiments import Experiment, Report, Run

_NAMES = ("inverse-ot", "limited-pairs", "live-seq", "displacements")


@click.command()
@click.argument("experiment", type=click.Choice([*_NAMES, "all"]))
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default="mongefit-reproduce",
    help="Folder to leave a folder for each experiment in.",
)
@click.option(
    "--quick", is_flag=True, help="A small version with default settings, for a first look."
)
@click.option("--force", is_flag=True, help="Do all runs anew instead of going on.")
@click.option("--counts", metavar="FILE", help="live-seq: GSE141064_count.final.csv.gz.")
@click.option("--samples", metavar="FILE", help="live-seq: the sample table.")
@click.option(
    "--simulate", is_flag=True, help="live-seq: simulate the counts of the samples in the table."
)
@command
def reproduce(
    console: Console,
    experiment: str,
    output: str,
    quick: bool,
    force: bool,
    counts: str | None,
    samples: str | None,
    simulate: bool,
) -> None:
    """Run an experiment of the paper; draw its figure and write its table.

    Every run is kept as soon as it is done: the same command goes on where it stopped.
    """
    if simulate and counts:
        raise click.UsageError("--simulate makes the counts: leave out --counts.")
    start_jax(console)
    from mongefit.errors import DataError

    names = _NAMES if experiment == "all" else (experiment,)
    reports: dict[str, Any] = {}
    missing = ""
    for name in names:
        folder = os.path.join(output, f"{name}-quick" if quick else name)
        try:
            chosen = _experiment(name, folder, quick, counts, samples, simulate)
        except DataError as error:
            if experiment != "all":
                raise
            missing = f"{name} was not run: {error}"
            continue
        report = _run(console, chosen, folder, restart=force)
        reports[name] = _show(console, chosen, report)
    console.result(**reports)
    if missing:
        raise Failed(missing)


def _experiment(
    name: str, folder: str, quick: bool, counts: str | None, samples: str | None, simulate: bool
) -> Experiment:
    from mongefit import _experiments as experiments
    from mongefit import datasets

    if name != "live-seq":
        kinds: dict[str, Callable[..., Experiment]] = {
            "inverse-ot": experiments.InverseOTExperiment,
            "limited-pairs": experiments.LimitedPairsExperiment,
            "displacements": experiments.DisplacementsExperiment,
        }
        return kinds[name](quick=quick)
    counts_file: str | os.PathLike[str]
    if simulate:
        table = datasets.find_live_seq_samples(samples)
        os.makedirs(folder, exist_ok=True)
        counts_file = os.path.join(folder, "simulated_counts.csv.gz")
        datasets.simulate_live_seq(table, counts_file, overwrite=True)
    else:
        counts_file, table = datasets.find_live_seq(counts, samples)
    return experiments.LiveSeqExperiment(datasets.read_live_seq(counts_file, table), quick=quick)


def _run(console: Console, experiment: Experiment, folder: str, *, restart: bool) -> Report:
    from mongefit._experiments import reproduce as run_all
    from mongefit._progress import ProgressBar

    runs = experiment.runs()
    console.note(f"{experiment.title}: {count(len(runs), 'run')} in {folder}.")
    left = f"runs that are done are kept in {folder}; the same command goes on from there"
    with ProgressBar(len(runs), enabled=console.shows_progress) as bar:

        def watch(run: Run, done: int, total: int) -> None:
            bar.describe(run.name[:28])
            bar.update(done - bar.done)

        # Every file is written completely or not at all, so that it may end at any moment.
        with interruptible(left):
            report = run_all(experiment, folder, restart=restart, watch=watch)
        bar.update(len(runs) - bar.done)
    return report


def _show(console: Console, experiment: Experiment, report: Report) -> dict[str, Any]:
    """Say what came out; give it for JSON."""
    from mongefit._experiments import FILES

    console.say(f"\n{experiment.title}\n\n{report.table}\n")
    for goal in report.goals:
        console.say(str(goal))
    console.say(f"\n{report.seconds:.0f} s of runs. In the folder {report.folder}:")
    for name, what in FILES.items():
        console.item(name, what)
        console.written.append(str(report.folder / name))
    return {
        "folder": str(report.folder),
        "rows": list(report.table.rows),
        "goals": [{"what": g.what, "found": g.found, "met": g.met} for g in report.goals],
        "failed": sum(result.outcome is None for result in report.results),
        "seconds": report.seconds,
    }
