"""``mongefit fates``: from a file to fates, with a fit or a model that exists."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mongefit
from mongefit import single_cell
from mongefit._cli import cli
from mongefit.single_cell._fate_fitting import DIFFUSION, N_COMPONENTS
from tests.command_line import run

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 40
TIMES = ("--time-key", "day", "--source", "2", "--target", "4")
KEY = ("--key", "cell_type", "--exclude", "undifferentiated")
FEW = ("--n-components", "2,3", "--no-diffusion")
BASE = ("fates", "cells.h5ad", *TIMES, *KEY, "--pair-key", "clone", "-o", "out.h5ad")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an h5ad file, which is the current one: two branches, twelve clones."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    day, side = np.repeat([2, 4], N), np.tile([-1.0, 1.0], N)
    points = np.column_stack([day, side * day, *rng.normal(size=(2, 2 * N))])
    points += 0.3 * rng.normal(size=points.shape)
    kind = np.where(day == 2, "undifferentiated", np.where(side < 0, "mono", "neutro"))
    kind[-4:] = "undifferentiated"
    clone = np.tile(np.where(np.arange(N) < 12, np.arange(N), np.nan), 2)
    obs = pandas.DataFrame({"day": day, "cell_type": kind, "clone": clone})
    obs.index = [f"c{i}" for i in range(2 * N)]
    adata = anndata.AnnData(rng.gamma(1.0, size=(2 * N, 5)), obs=obs)
    adata.obsm["X_pca"] = points
    adata.write_h5ad("cells.h5ad")
    return tmp_path


def save_average(name="fates.mongefit"):
    """A model that exists, of two maps that nothing was trained for."""
    adata = anndata.read_h5ad("cells.h5ad")
    keys = {"time_key": "day", "source": 2, "target": 4}
    estimator = mongefit.MongeMap(cost="sqeuclidean", epsilon=0.1)
    views = ({"n_components": 2}, {"diffusion": 3})
    maps = [single_cell.fit(adata, **keys, **view, model=estimator) for view in views]
    single_cell.average(maps).save(name)
    return single_cell.average(maps), adata


@pytest.fixture
def judged(monkeypatch):
    """What --validate asks for; nothing is fitted for it, and probabilities are drawn."""
    asked = {}

    def validate(adata, **options):
        asked.update(options)
        rng = np.random.default_rng(0)
        names = (
            "fates", "20 diffusion components", "squared Euclidean, epsilon 0.4",
            "squared Euclidean, epsilon 0.05", "class shares", "logistic regression",
            "nearest pairs",
        )  # fmt: skip
        p = {name: rng.dirichlet([2.0, 2.0], 24) for name in names}
        truth, clone = rng.integers(0, 2, 24), np.repeat(np.arange(12), 2)
        return single_cell.FateValidation(("mono", "neutro"), p, truth, np.ones(24), clone)

    monkeypatch.setattr(single_cell, "cross_validate_fates", validate)
    return asked


def test_from_a_file_to_fates(folder, few_families, judged, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    result = run(*BASE, *FEW, "--model", "fates.mongefit", "--pictures", "p", "--validate")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[:4] == [
        "Source: 40 cells of day 2 (cells.h5ad)",
        "Target: 40 cells of day 4",
        "Clones: 12 seen at both times, 12 pairs",
        "Maps in: 2 components, 3 components",
    ]
    assert "Of 40 cells of day 2." in lines
    assert "A cell of a known clone is near" in result.stdout
    starts = [line.split("  ")[0] for line in lines]
    for name in ("2 components", "3 components", "class shares", "logistic regression"):
        assert name in starts
    chosen = next(line for line in lines if line.startswith("  3 components "))
    assert "epsilon" in chosen
    assert any(line.startswith("  squared Euclidean   log-loss ") for line in lines)
    assert "24 pairs in 12 clones, held out" in result.stdout
    assert lines[-5:] == [
        "Wrote fates.mongefit", "Wrote out.h5ad", "Wrote p/fates.png", "Wrote p/transitions.png",
        "Wrote p/calibration.png",
    ]  # fmt: skip
    # Judged is what was fitted.
    assert (judged["n_components"], judged["diffusion"]) == ((2, 3), None)
    assert (judged["pair_key"], judged["exclude"]) == ("clone", ("undifferentiated",))
    given, found = anndata.read_h5ad("cells.h5ad"), anndata.read_h5ad("out.h5ad")
    pandas.testing.assert_frame_equal(found.obs[given.obs.columns], given.obs)
    model = single_cell.load("fates.mongefit")
    expected = single_cell.fates(model, given, "cell_type", exclude="undifferentiated", copy=True)
    fates = found.obsm["mongefit_fates"]
    np.testing.assert_array_equal(fates, expected.obsm["mongefit_fates"])
    mean = fates[:N].mean(axis=0)[0]
    most = (fates[:N].argmax(axis=1) == 0).sum()
    line = next(line for line in lines if line.startswith("mono "))
    assert line.split() == ["mono", str(most), f"({most / N:.0%})", f"{mean:.4g}"]
    assert "2 maps" in run("info", "fates.mongefit").stdout


def test_json_and_pairs(folder, few_families):
    Path("pairs.csv").write_text("source,target\n" + "".join(f"c{i},c{N + i}\n" for i in range(12)))
    by_pairs = (*BASE[:-4], "--pairs", "pairs.csv", "-o", "out.h5ad", "--n-components", "2")
    found = json.loads(run(*by_pairs, "--no-diffusion", "--model", "one", "--json").stdout)
    assert [row["name"] for row in found["fates"]] == ["mono", "neutro"]
    assert sum(row["cells"] for row in found["fates"]) == N
    assert sum(row["mean"] for row in found["fates"]) == pytest.approx(1)
    names = [row["name"] for row in found["chosen"] if row["kind"] == "map"]
    assert names == ["2 components"]
    assert (found["validation"], found["files"]) == (None, ["one", "out.h5ad"])
    # A single map is read again too.
    assert len(single_cell.load("one").maps) == 1
    assert "1 map\n" in run("info", "one").stdout


@pytest.mark.filterwarnings("ignore:The neighbours of the cells fall")
def test_with_a_model_that_exists(folder):
    model, adata = save_average()
    result = run("fates", "cells.h5ad", "--from", "fates.mongefit", *KEY, "-o", "out.h5ad")
    assert result.stderr == ""
    assert "Of 40 cells of day 2." in result.stdout
    expected = single_cell.fates(model, adata, "cell_type", exclude="undifferentiated", copy=True)
    found = anndata.read_h5ad("out.h5ad").obsm["mongefit_fates"]
    np.testing.assert_allclose(found, expected.obsm["mongefit_fates"])
    # Other cells, whose labels are in the file of the fit.
    adata[: N // 2].copy().write_h5ad("some.h5ad")
    some = ("fates", "some.h5ad", "--from", "fates.mongefit", *KEY, "-o", "some-out.h5ad")
    assert "give it as --reference." in run(*some, code=3).stderr
    run(*some, "--reference", "cells.h5ad", "--key-added", "mine", "--pictures", "p")
    again = anndata.read_h5ad("some-out.h5ad").obsm["mine_fates"]
    np.testing.assert_allclose(again, found[: N // 2])
    assert {path.name for path in Path("p").iterdir()} == {"fates.png", "transitions.png"}


@pytest.mark.filterwarnings("ignore:The neighbours of the cells fall")
def test_pictures_that_cannot_be_drawn_are_told(folder):
    """Source cells have no labels here, which the table of transitions needs."""
    _, adata = save_average()
    adata.obs.loc[adata.obs["day"] == 2, "cell_type"] = None
    adata.write_h5ad("unlabelled.h5ad")
    result = run(
        "fates", "unlabelled.h5ad", "--from", "fates.mongefit", *KEY, "-o", "out.h5ad",
        "--pictures", "p",
    )  # fmt: skip
    assert "warning: transitions.png was not drawn: obs['cell_type'] has no label" in result.stderr
    assert {path.name for path in Path("p").iterdir()} == {"fates.png"}


@pytest.mark.filterwarnings("ignore:The neighbours of the cells fall")
def test_info_and_transform_of_an_average(folder):
    save_average()
    text = run("info", "fates.mongefit").stdout
    assert "  average         2 maps\n  cells           day 2 to 4\n" in text
    assert "map 1           2 features of X_pca; cost SquaredEuclidean" in text
    assert "map 2           3 diffusion components of X_pca; cost" in text
    found = json.loads(run("info", "fates.mongefit", "--json", "--cost").stdout)
    assert len(found["parts"]) == len(found["learned_costs"]) == 2
    refused = run("transform", "fates.mongefit", "cells.h5ad", "-o", "there.h5ad", code=3).stderr
    assert "average of 2 maps" in refused
    assert "mongefit fates cells.h5ad --from fates.mongefit --key COLUMN" in refused
    np.save("points.npy", np.zeros((1, 2)))
    refused = run("transform", "fates.mongefit", "points.npy", "-o", "there.npy", code=3).stderr
    assert "'mongefit fates --from'" in refused
    assert not list(folder.glob("there*"))


def test_fit_in_diffusion_components(folder):
    fixed = ("--cost", "sqeuclidean", "--epsilon", "0.1", "--diffusion", "3")
    result = run("fit", "cells.h5ad", *TIMES, *fixed, "-o", "m")
    assert "day 2, 3 diffusion components of obsm['X_pca'] (cells.h5ad)" in result.stdout
    assert single_cell.load("m").representation.diffusion is not None
    assert "3 diffusion components of X_pca" in run("info", "m").stdout
    refused = run(
        "select", "cells.h5ad", *TIMES, "--pair-key", "clone", "--diffusion", "3", "-o", "n", code=2
    )
    assert "leave out --diffusion" in refused.stderr


def test_defaults_are_those_of_the_library():
    help_of = {
        param.name: param.help for param in cli.commands["fates"].params if param.name != "cells"
    }
    assert help_of["n_components"].endswith(f"[default: {','.join(map(str, N_COMPONENTS))}]")
    assert help_of["diffusion"].endswith(f"[default: {DIFFUSION}]")


EXISTING = ("fates", "cells.h5ad", "--from", "fates.mongefit", *KEY, "-o", "out.h5ad")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("fates",), 2, "Missing argument 'CELLS'"),
        (("fates", "cells.h5ad"), 2, "Missing option '-o'"),
        (("fates", "cells.h5ad", "-o", "o.h5ad"), 2, "Missing option '--key'"),
        (("fates", "cells.h5ad", "-o", "o.h5ad", *KEY), 2,
         "To fit give also --time-key COLUMN, --source TIME, --target TIME; or give --from MODEL"),
        (("fates", "cells.h5ad", "-o", "o.h5ad", *KEY, *TIMES), 2, "give --pair-key COLUMN"),
        (("fates", "cells.csv", *BASE[2:]), 2, "works on .h5ad files; cells.csv is none"),
        (("fates", "no.h5ad", *BASE[2:]), 3, "no.h5ad not found"),
        ((*BASE[:-1], "out.csv"), 2, "Known: .h5ad"),
        ((*BASE[:-1], "cells.h5ad"), 2, "is also an input"),
        ((*BASE[:-1], "old.h5ad"), 1, "--force"),
        ((*BASE, "--model", "old.h5ad"), 1, "--force"),
        ((*BASE, "--model", "out.h5ad"), 2, "--model out.h5ad is also an input"),
        ((*BASE, "--key", "celltype"), 3, "Did you mean --key cell_type?"),
        ((*BASE, "--exclude", "mon"), 2, "Did you mean --exclude mono?"),
        ((*BASE, "--pair-key", "clones"), 3, "Did you mean --pair-key clone?"),
        ((*BASE, "--time-key", "days"), 3, "Did you mean --time-key day?"),
        ((*BASE, "--target", "6"), 3, "obs['day'] has no value 6. Values: 2, 4."),
        ((*BASE, "--use-rep", "X_pac"), 3, "Did you mean --use-rep X_pca? scanpy.pp.pca writes"),
        ((*BASE, "--n-components", "a"), 2, "'a' is not a list of whole numbers"),
        ((*BASE, "--n-components", "0"), 2, "--n-components must be a whole number >= 1"),
        ((*BASE, "--diffusion", "500"), 3, "500 diffusion components of 80 cells"),
        ((*BASE, "--diffusion", "5", "--no-diffusion"), 2, "give one of them"),
        ((*BASE, "--reference", "cells.h5ad"), 2, "--reference goes with --from"),
        ((*BASE, "--key-added", "a/b"), 2, "--key-added must be a name"),
        ((*EXISTING, *TIMES, "--validate"), 2, "leave out --time-key, --validate"),
        (EXISTING, 3, "fates.mongefit not found"),
        ((*EXISTING, "--from", "plain"), 3, "was not fitted on an AnnData"),
        ((*EXISTING, "--from", "cells.h5ad"), 3, "is not a mongefit model"),
    ],
)  # fmt: skip
def test_failures(folder, arguments, code, expected):
    Path("old.h5ad").write_text("kept")
    points = np.random.default_rng(0).normal(size=(4, 2))
    mongefit.MongeMap("sqeuclidean").fit(points, points + 1).save("plain")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert expected in " ".join(result.stderr.split())
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
