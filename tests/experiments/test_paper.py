"""The paper's experiments: what they run, and small versions of them from end to end."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from mongefit._estimators.monge_map import MongeMap
from mongefit._experiments import (
    DisplacementsExperiment,
    InverseOTExperiment,
    LimitedPairsExperiment,
    LiveSeqExperiment,
    Outcome,
    Result,
    reproduce,
)
from mongefit._experiments.live_seq import _DEFAULT
from mongefit._experiments.settings import Settings, paper
from mongefit.baselines import CouplingFit
from mongefit.datasets import LiveSeq, limited_pairs
from mongefit.losses import CorrectMass, Paired


def live_seq(n=24, m=16, k=4):
    problem = limited_pairs(n, m, k, 3, seed=0)
    return LiveSeq(
        source=problem.x, target=problem.y, pairs=problem.pairs,
        source_names=(), target_names=(), genes=(), loadings=np.zeros((3, 0)),
        explained_variance_ratio=np.zeros(3), simulated=True, sha256="0" * 64,
        steps=("The counts are SIMULATED: no cell was measured.",),
    )  # fmt: skip


ALL = {
    "inverse-ot": InverseOTExperiment,
    "limited-pairs": LimitedPairsExperiment,
    "displacements": DisplacementsExperiment,
    "live-seq": lambda **options: LiveSeqExperiment(live_seq(), **options),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("quick", [False, True])
def test_runs_have_names_of_their_own_and_options_that_json_has(name, quick):
    experiment = ALL[name](quick=quick)
    runs = experiment.runs()
    assert len({run.name for run in runs}) == len(runs)
    assert {run.preset for run in runs} == ({"", "default"} if quick else {"", "default", "paper"})
    for run in runs:
        json.dumps(experiment.options(run), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "seeds"), [("inverse-ot", 10), ("limited-pairs", 5), ("displacements", 5)]
)
def test_all_seeds_are_run(name, seeds):
    runs = ALL[name](quick=False).runs()
    plans = {(run.case, run.method, run.preset) for run in runs}
    assert len(runs) == seeds * len(plans)


def test_live_seq_leaves_every_traced_cell_out():
    runs = LiveSeqExperiment(live_seq()).runs()
    methods = {(run.method, run.preset) for run in runs}
    for cell in range(1, 5):
        left = {(run.method, run.preset) for run in runs if run.case == f"without cell {cell}"}
        assert left == methods
    assert sum(run.method == "map" and run.preset == "paper" and "all" in run.case for run in runs)


def test_settings_of_the_paper():
    stated = paper(Settings((4,), epsilon=0.01, max_iter=7, diffeo="shared", dirichlet=1e-3))
    model = stated.estimator(MongeMap, 3, 0, [Paired()])
    assert model.cost.quadratic is None and model.cost.alpha == 0.02 and model.cost.symmetric
    assert (model.learning_rate, model.diffeo_learning_rate) == (3e-3, 1e-3)
    assert len(model.penalties) == 1 and len(model.losses) == 1
    own = Settings((4,), epsilon=0.01, max_iter=7, dirichlet=1e-3, target_fit=0.1)
    model = own.estimator(CouplingFit, 3, 0, [CorrectMass()])
    assert model.cost == "icnn" and len(model.penalties) == 2 and len(model.losses) == 2


def filled(experiment, values):
    """A result for every run, with values that depend on the run."""
    return [
        Result(run, experiment.options(run), Outcome(values(run)), "", 1.0)
        for run in experiment.runs()
    ]


@pytest.mark.parametrize(
    ("rmse", "recovered", "met"), [(0.05, 1.0, True), (0.5, 1.0, False), (0.05, 0.98, False)]
)
def test_goals_of_inverse_ot(rmse, recovered, met):
    experiment = InverseOTExperiment()
    results = filled(experiment, lambda run: {"rmse": rmse, "recovered": recovered})
    assert all(goal.met for goal in experiment.goals(results)) == met


def test_goals_of_limited_pairs_compare_data_set_by_data_set():
    experiment = LimitedPairsExperiment()

    def values(run, worse):
        better = run.method == "map" and run.seed not in worse
        return {"rmse": 1.0 if better else 2.0, "divergence": 1.0 if better else 2.0}

    for worse, met in (((0,), True), ((0, 1), False)):
        goals = experiment.goals(filled(experiment, lambda run, w=worse: values(run, w)))
        assert len(goals) == 6 and all(goal.met == met for goal in goals)


def test_a_failed_run_misses_the_goal():
    experiment = InverseOTExperiment()
    results = filled(experiment, lambda run: {"rmse": 0.05, "recovered": 1.0})
    at = next(i for i, r in enumerate(results) if r.run.preset == "default")
    results[at] = dataclasses.replace(results[at], outcome=None, error="broke")
    assert not experiment.goals(results)[0].met


@pytest.mark.parametrize("name", ALL)
def test_small_version_from_end_to_end(name, tmp_path, monkeypatch):
    # The same methods as for limited pairs: once with a flow is enough, which compiles for long.
    without_flow = dataclasses.replace(_DEFAULT, diffeo=None, dirichlet=0.0)
    monkeypatch.setattr("mongefit._experiments.live_seq._DEFAULT", without_flow)
    experiment = ALL[name](quick=True)
    # One seed and few steps: what is tested is the road, not the numbers.
    runs = [run for run in experiment.runs() if run.seed == 0]
    runs = [run for run in runs if run.case not in ("spiral", "without cell 2")]
    experiment.runs = lambda: runs
    report = reproduce(experiment, tmp_path)
    assert not [result.error for result in report.results if result.outcome is None]
    assert report.goals and report.table.rows
    for measure in experiment.measures:
        assert any(row[measure] is not None for row in report.table.rows)
    text = (tmp_path / "table.md").read_text()
    assert ("SIMULATED" in text) == (name == "live-seq")
    if name == "live-seq":
        assert all(row["left_out"] > 0 for row in report.table.rows)
        assert "simulated" in experiment.draw(report.results).get_suptitle()
