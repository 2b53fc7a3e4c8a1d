"""The command line on several times and batches of an AnnData."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mongefit import TemporalMap, single_cell
from tests.command_line import run

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 24
TIMES = ("--time-key", "day", "--times", "2,4,6")
FIXED = ("--cost", "sqeuclidean", "--epsilon", "0.1")
SMALL = ("--cost", "matrix", "--max-iter", "2", "--epsilon", "0.1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder, which is the current one, with cells of three days in 24 clones of one a day."""
    monkeypatch.chdir(tmp_path)
    early = np.random.default_rng(0).normal(size=(N, 2))
    obs = pandas.DataFrame(
        {
            "day": np.repeat([2, 4, 6], N),
            "clone": [f"k{i}" for i in range(N)] * 3,
            "well": np.tile(["a", "b"], 3 * N // 2),
        },
        index=[f"c{i}" for i in range(3 * N)],
    )
    adata = anndata.AnnData(np.abs(np.random.default_rng(1).normal(size=(3 * N, 4))), obs=obs)
    adata.obsm["X_pca"] = np.concatenate([early + np.array([k, 0.0]) for k in range(3)])
    adata.obsm["X_clone"] = np.tile(np.eye(N), (3, 1))
    adata.layers["log"] = np.log1p(adata.X)
    adata.write_h5ad("cells.h5ad")
    return tmp_path


def test_several_times(folder):
    result = run("fit", "cells.h5ad", *TIMES, "--pair-key", "X_clone", "-o", "m", *SMALL)
    lines = result.stdout.splitlines()
    assert lines[:7] == [
        "Times: day 2, 4, 6, 2 columns of obsm['X_pca'] (cells.h5ad)",
        "Leg 2 to 4: 24 to 24 cells",
        "Leg 4 to 6: 24 to 24 cells",
        "Known 2 to 4: 24 clones, 24 pairs",
        "Known 2 to 6: 24 clones, 24 pairs",
        "Known 4 to 6: 24 clones, 24 pairs",
        # A fifth of the clones, with all their pairs.
        "Held out: 15 pairs",
    ]
    heading = next(line for line in lines if line.startswith("RMSE"))
    assert heading.split(maxsplit=1)[1] == "2 to 4, held-out 2 to 6, held-out 4 to 6, held-out"
    assert {line.split("  ")[0] for line in lines} >= {"identity", "learned cost"}
    assert "2 steps in" in result.stdout
    model = single_cell.load("m")
    assert model.times == single_cell.Times("day", "2", "4", "6")
    assert model.model.many_to_many and model.model.batch_size == 512
    said = run("info", "m").stdout
    assert "  cells           day 2 to 4 to 6, in X_pca\n" in said
    assert "  leg 4 to 6      24 source, 24 target points\n" in said

    run("transform", "m", "cells.h5ad", "-o", "all.h5ad")
    run("transform", "m", "cells.h5ad", "-o", "back.h5ad", "--source", "4", "--inverse")
    first, last = (anndata.read_h5ad(name) for name in ("all.h5ad", "back.h5ad"))
    points = last.obsm["X_pca"]
    for found, rows, expected in (
        (first, slice(0, N), model.model.transform(points[:N], 2, 6)),
        (last, slice(2 * N, None), model.model.inverse_transform(points[2 * N :], 4, 6)),
    ):
        np.testing.assert_allclose(found.obsm["X_mongefit"][rows], expected)
        assert np.isfinite(found.obsm["X_mongefit"]).all(axis=1).sum() == N


def test_errors_are_those_of_the_held_out_clones(folder):
    found = json.loads(
        run(
            "fit", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "m", *SMALL,
            "--holdout", "0.2", "--json",
        ).stdout
    )  # fmt: skip
    assert found["n_held_out"] == {"2 to 4": 5, "2 to 6": 5, "4 to 6": 5}
    assert found["rmse"]["identity"] == {
        "2 to 4": pytest.approx(1), "4 to 6": pytest.approx(1), "2 to 6": pytest.approx(2)
    }  # fmt: skip
    assert found["legs"]["4 to 6"] == {"n_source": N, "n_target": N}
    assert found["times"] == ["2", "4", "6"] and found["n_iter"] == 2
    assert "leaves no clone" in run(
        "fit", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "n", *SMALL, "--holdout", "0.99",
        code=2,
    ).stderr  # fmt: skip


@pytest.mark.usefixtures("few_families")
def test_settings_are_chosen(folder):
    result = run(
        "fit", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "m", "--checkpoint", "k",
        "--pictures", "p",
    )  # fmt: skip
    assert "held-out pairs" in result.stdout and "families on one leg" in result.stdout
    assert {path.name for path in Path("p").iterdir()} == {
        "map-2-to-4.png", "map-4-to-6.png", "cost.png", "choice.png",
    }  # fmt: skip
    model = single_cell.load("m")
    assert isinstance(model.model, TemporalMap) and model.report is not None
    again = ("fit", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "n", "--checkpoint", "k")
    assert "Go on with it (--resume)" in run(*again, code=3).stderr
    run(*again, "--resume")
    assert single_cell.load("n").model.data_sha256_ == model.model.data_sha256_


def test_batches_and_layers(folder):
    result = run(
        "fit", "cells.h5ad", "--time-key", "day", "--source", "2", "--target", "4", "-o", "m",
        "--batch-key", "well", "--pair-key", "clone", "--pca", "2", "--layer", "log", *FIXED,
    )  # fmt: skip
    assert "Batches: a, b (obs['well']), each with a map of its own\n" in result.stdout
    assert "Known b: 12 clones, 12 pairs\n" in result.stdout
    assert "note: this cost is fixed" in result.stderr
    said = run("info", "m").stdout
    assert "in the layer log (components of 4 genes)\n" in said
    assert "  batches         a, b (obs: well)\n" in said
    assert "Mapped 24 cells." in run("transform", "m", "cells.h5ad", "-o", "out.h5ad").stdout


def test_two_times_of_a_list(folder):
    run("fit", "cells.h5ad", "--time-key", "day", "--times", "2, 6", "-o", "m", *FIXED)
    assert single_cell.load("m").times == single_cell.Times("day", "2", "6")
    Path("fit.toml").write_text(
        'time-key = "day"\ntimes = [2, 4, 6]\ncost = "sqeuclidean"\noutput = "n"\n'
    )
    run("fit", "cells.h5ad", "--config", "fit.toml")
    assert single_cell.load("n").times.labels == (2, 4, 6)


FIT = ("fit", "cells.h5ad", "-o", "m", *FIXED)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((*FIT, *TIMES, "--source", "2"), 2, "leave out --source and --target"),
        ((*FIT, "--times", "2,4,6"), 2, "also need --time-key COLUMN."),
        ((*FIT, "--time-key", "day"), 2,
         "also need --source TIME, --target TIME, or --times TIMES for several."),
        ((*FIT, "--time-key", "day", "--times", "2,5,6"), 3, "has no value 5. Values: 2, 4, 6."),
        ((*FIT, "--time-key", "day", "--times", "2"), 2, "Two times at least are needed, got 2."),
        ((*FIT, "--time-key", "well", "--times", "all"), 2, "first to the last: --times a,b"),
        ((*FIT, *TIMES, "--pair-key", "X_clon"), 3, "Did you mean --pair-key X_clone"),
        ((*FIT, *TIMES, "--batch-key", "wlel"), 3, "Did you mean --batch-key well?"),
        ((*FIT, *TIMES, "--layer", "log"), 2, "--layer log stands for X, which is not used: give"),
        (("fit", "cells.h5ad", *TIMES, "-o", "m"), 2, "give --pair-key COLUMN"),
        (("select", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "m"), 2,
         "select is for two times and no batches: leave out --times"),
        (("transform", "m", "x.csv", "-o", "y.csv", "--source", "2"), 2, "--source is for .h5ad"),
    ],
)  # fmt: skip
def test_failures(folder, arguments, code, expected):
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert expected in " ".join(result.stderr.split())
    assert not Path("m").exists()
