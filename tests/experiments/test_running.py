"""Runs are done once, kept, counted when they fail, and written up."""

from __future__ import annotations

import csv
import json
from typing import ClassVar

import numpy as np
import pytest

from mongefit._estimators.many import Fit
from mongefit._experiments import Experiment, Goal, Outcome, Run, reproduce
from mongefit._experiments.base import group, summarise
from mongefit.baselines import IdentityMap
from mongefit.errors import DataError


class Halves(Experiment):
    """Seeds divided by two; odd seeds fail where this is asked for."""

    name = "halves"
    title = "Halves"
    measures: ClassVar[dict[str, str]] = {
        "half": "half of the seed",
        "never": "what does not exist",
    }

    def __init__(self, *, fails=False, factor=0.5):
        self.fails, self.factor = fails, factor
        self.performed: list[int] = []

    def runs(self):
        return [Run("whole numbers", "division", "default", seed) for seed in range(4)]

    def options(self, run):
        return {"factor": self.factor, "sizes": (1, 2)}

    def fit(self, run):
        return Fit(IdentityMap(), {"X": [[run.seed]], "Y": [[run.seed]]})

    def measure(self, run, model):
        assert model.transform([[2]]) == [[2]]
        self.performed.append(run.seed)
        if self.fails and run.seed % 2:
            raise ValueError(f"{run.seed} is odd")
        return Outcome({"half": self.factor * run.seed, "never": None}, {"drawn": [[run.seed]]})

    def goals(self, results):
        mean = float(np.mean([result.value("half") for result in results]))
        return [Goal("mean half ≤ 1", f"{mean:.2f}", mean <= 1)]

    def notes(self):
        return ("A note.",)

    def draw(self, results):
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot([result.value("half") for result in results])
        return figure


def test_everything_is_written(tmp_path):
    report = reproduce(Halves(), tmp_path / "out")
    assert (tmp_path / "out/figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out/figure.pdf").read_bytes().startswith(b"%PDF")
    table = (tmp_path / "out/table.md").read_text()
    assert "0.75 ± 0.56" in table and "A note." in table and "met: mean half ≤ 1" in table
    with open(tmp_path / "out/runs.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["half"]) for row in rows] == [0.0, 0.5, 1.0, 1.5]
    about = json.loads((tmp_path / "out/report.json").read_text())
    assert about["runs"][3]["options"] == {"factor": 0.5, "sizes": [1, 2]}
    assert {"jax", "mongefit"} <= set(about["versions"]) and about["device"]
    assert about["seconds"] == pytest.approx(report.seconds, abs=0.1)


def test_what_is_done_is_not_done_again(tmp_path):
    first = Halves(fails=True)
    report = reproduce(first, tmp_path)
    assert sum(result.outcome is None for result in report.results) == 2
    again = Halves()
    seen = []
    report = reproduce(again, tmp_path, watch=lambda run, done, total: seen.append((done, total)))
    assert again.performed == [1, 3], "failed runs are tried again, the others are kept"
    assert seen == [(k, 4) for k in range(4)]
    assert report.table.rows[0]["failed"] == "0"
    assert report.results[2].outcome.arrays == {"drawn": [[2]]}


def test_other_options_and_restart_do_all_anew(tmp_path):
    reproduce(Halves(), tmp_path)
    other = Halves(factor=0.25)
    reproduce(other, tmp_path)
    assert other.performed == [0, 1, 2, 3]
    anew = Halves(factor=0.25)
    reproduce(anew, tmp_path, restart=True)
    assert anew.performed == [0, 1, 2, 3]


def test_runs_that_are_alike_are_done_together(tmp_path):
    class Pairs(Halves):
        def alike(self, run):
            return run.seed // 2

    seen = []
    first = Pairs(fails=True)
    report = reproduce(
        first, tmp_path, side_by_side=True, watch=lambda run, done, total: seen.append((run, done))
    )
    assert [(run.seed, done) for run, done in seen] == [(0, 0), (2, 2)]
    assert [result.run.seed for result in report.results] == [0, 1, 2, 3]
    assert [result.outcome is None for result in report.results] == [False, True, False, True]
    again = Pairs()
    reproduce(again, tmp_path, side_by_side=True)
    assert again.performed == [1, 3], "only what is missing"


def test_one_that_cannot_be_fitted_does_not_stop_the_others(tmp_path):
    class Unequal(Halves):
        def fit(self, run):
            return Fit(IdentityMap(), {"X": [[run.seed]], "Y": [[np.nan if run.seed == 1 else 0]]})

    report = reproduce(Unequal(), tmp_path, side_by_side=True)
    assert [result.error[:9] for result in report.results] == ["", "DataError", "", ""]


def test_failures_are_counted_and_shown(tmp_path):
    report = reproduce(Halves(fails=True), tmp_path)
    (row,) = report.table.rows
    assert (row["seeds"], row["failed"]) == ("4", "2")
    assert row["half_mean"] == 0.5 and row["never"] is None
    assert "1 is odd" in str(report.table)
    assert not report.goals[0].met, "a failed run counts as infinitely bad"


def test_a_damaged_run_is_named(tmp_path):
    reproduce(Halves(), tmp_path)
    (path,) = (tmp_path / "runs").glob("*seed_2*")
    path.write_text("{")
    with pytest.raises(DataError, match=r"seed_2\.json is damaged .* Delete it"):
        reproduce(Halves(), tmp_path)


def test_an_interrupt_keeps_what_is_done(tmp_path):
    class Interrupted(Halves):
        def measure(self, run, model):
            if run.seed == 2:
                raise KeyboardInterrupt
            return super().measure(run, model)

    with pytest.raises(KeyboardInterrupt):
        reproduce(Interrupted(), tmp_path)
    rest = Halves()
    reproduce(rest, tmp_path)
    assert rest.performed == [2, 3]


def test_summary_separates_cases_methods_and_presets(tmp_path):
    results = reproduce(Halves(), tmp_path).results
    assert list(group(results, lambda run: run.seed % 2)) == [0, 1]
    table = summarise(results, {"half": "half"}, ())
    assert table.rows[0]["half_median"] == 0.75
