"""The command line on AnnData: fit and transform, what is said, and what is left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import mongefit
from mongefit import single_cell
from tests.command_line import run

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

REAL = Path(__file__).parents[3] / "shared/data/moscot_temporal_tests.h5ad"
TIMES = ("--time-key", "day", "--source", "2", "--target", "4")
FIXED = ("--cost", "sqeuclidean", "--epsilon", "0.1")
# Nothing is trained here but on the real file, which is where compiling pays.
UNTRAINED = ("--hidden-layer-sizes", "4", "--max-iter", "0", "--epsilon", "0.1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an h5ad file, which is the current one: 25 clones of two and two cells."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 100
    clone = np.tile(np.arange(25.0), 4)
    clone[[0, 99]] = np.nan
    obs = pandas.DataFrame(
        {"day": np.repeat([2, 4], 50), "clone": clone, "kind": np.tile(["a", "b"], 50)},
        index=[f"c{i}" for i in range(n)],
    )
    adata = anndata.AnnData(rng.gamma(1.0, size=(n, 6)), obs=obs)
    adata.obsm["X_pca"] = rng.normal(size=(n, 3))
    adata.write_h5ad("cells.h5ad")
    Path("pairs.csv").write_text("source,target,weight\nc0,c50,1\nc1,c51,0.5\nc2,c52,1\n")
    return tmp_path


def test_clones_are_held_out_as_a_whole(folder):
    base = ("fit", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "m")
    result = run(*base, *UNTRAINED, "--pictures", "p")
    assert result.stdout.splitlines()[:3] == [
        "Source: 50 cells of day 2, 3 columns of obsm['X_pca'] (cells.h5ad)",
        "Target: 50 cells of day 4",
        "Clones: 25 seen at both times, 96 pairs, 5 held out",
    ]
    assert "held-out pairs" in result.stdout
    assert {path.name for path in Path("p").iterdir()} == {"map.png", "cost.png"}
    model = single_cell.load("m")
    assert model.times == single_cell.Times("day", "2", "4")
    assert model.model.many_to_many
    # What the command line does not say suits cells; what it says, holds.
    assert (model.model.epsilon, model.model.batch_size) == (0.1, 512)
    assert "  cells           day 2 to 4, in X_pca\n" in run("info", "m").stdout


def test_pairs_by_name(folder):
    found = json.loads(
        run(
            "fit", "cells.h5ad", *TIMES, "--pairs", "pairs.csv", "--groups-key", "kind",
            "--n-components", "2", "-o", "m", *FIXED, "--json",
        ).stdout
    )  # fmt: skip
    assert (found["n_pairs"], found["n_features"]) == (3, 2)
    adata = anndata.read_h5ad("cells.h5ad")
    x, y = adata.obsm["X_pca"][:3, :2], adata.obsm["X_pca"][50:53, :2]
    squares = np.sum((x - y) ** 2, axis=1)
    expected = np.sqrt(np.average(squares, weights=[1, 0.5, 1]))
    assert found["rmse"]["identity"]["known"] == pytest.approx(expected)


def test_weights_of_cells(folder):
    """Cells without weight are as good as absent."""
    adata = anndata.read_h5ad("cells.h5ad")
    adata.obs["weight"] = np.where(np.arange(100) % 50 < 40, 2.0, 0.0)
    adata.write_h5ad("weighted.h5ad")
    rows = adata.obs["weight"].to_numpy() > 0
    adata[rows].copy().write_h5ad("fewer.h5ad")
    run("fit", "weighted.h5ad", *TIMES, "--weight-key", "weight", "-o", "m", *FIXED)
    run("fit", "fewer.h5ad", *TIMES, "-o", "fewer", *FIXED)
    points = adata.obsm["X_pca"]
    expected, found = (single_cell.load(name).model.transform(points) for name in ("fewer", "m"))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_growth_rates_of_cells(folder):
    """Rates per day over two days, as weights."""
    adata = anndata.read_h5ad("cells.h5ad")
    rate = np.linspace(-0.3, 0.3, 100)
    adata.obs["rate"], adata.obs["factor"] = (
        rate,
        np.where(np.arange(100) < 50, np.exp(2 * rate), 1),
    )
    adata.write_h5ad("growing.h5ad")
    run("fit", "growing.h5ad", *TIMES, "--growth-key", "rate", "-o", "m", *FIXED)
    run("fit", "growing.h5ad", *TIMES, "--weight-key", "factor", "-o", "same", *FIXED)
    expected, found = (single_cell.load(name).model.coupling_ for name in ("same", "m"))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert "  weights         obs: rate as growth rates\n" in run("info", "m").stdout
    assert "  weights         obs: factor\n" in run("info", "same").stdout
    refused = run(
        "fit", "growing.h5ad", *TIMES, "--growth-key", "rat", "-o", "n", *FIXED, code=3
    ).stderr
    assert "Did you mean --growth-key rate?" in refused
    assert not Path("n").exists()
    refused = run("fit", "a.csv", "b.csv", "--growth-key", "rate", "-o", "n", *FIXED, code=2)
    assert "--growth-key is for .h5ad files" in refused.stderr


def test_transform_there_and_back(folder):
    run("fit", "cells.h5ad", *TIMES, "--pca", "2", "-o", "m", *FIXED)
    result = run("transform", "m", "cells.h5ad", "-o", "there.h5ad")
    assert result.stdout == "Mapped 50 cells.\nWrote there.h5ad\n"
    run("transform", "m", "there.h5ad", "-o", "both.h5ad", "--inverse", "--key-added", "origin")
    adata = anndata.read_h5ad("both.h5ad")
    model = single_cell.load("m")
    for key, rows in (("mongefit", slice(0, 50)), ("origin", slice(50, 100))):
        inverse = key == "origin"
        expected = single_cell.transport(model, adata, inverse=inverse, copy=True)
        found = adata.obsm[f"X_{key}"]
        np.testing.assert_allclose(found, expected.obsm["X_mongefit"])
        assert np.isfinite(found[rows]).all() and np.isnan(found).sum() == 100
    # The map of components takes tables as well.
    np.save("points.npy", np.zeros((1, 2)))
    run("transform", "m", "points.npy", "-o", "mapped.npy")
    assert np.load("mapped.npy").shape == (1, 2)
    assert {path.name for path in folder.iterdir()} == {
        "cells.h5ad", "pairs.csv", "m", "there.h5ad", "both.h5ad", "points.npy", "mapped.npy",
    }  # fmt: skip


def test_options_from_a_file(folder):
    Path("fit.toml").write_text(
        'time-key = "day"\nsource = 2\ntarget = 4\ncost = "sqeuclidean"\noutput = "m"\n'
    )
    run("fit", "cells.h5ad", "--config", "fit.toml")
    assert single_cell.load("m").model.epsilon == 0.05


FIT = ("fit", "cells.h5ad", *TIMES, "-o", "m")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (FIT, 2, "give --pair-key COLUMN, --pairs FILE or --groups-key COLUMN"),
        (("fit", "cells.h5ad", "cells.h5ad", "-o", "m"), 2, "One .h5ad file holds both clouds"),
        (("fit", "cells.h5ad", "--source", "2", "-o", "m"), 2,
         "also need --time-key COLUMN, --target TIME."),
        (("fit", "x.csv", "-o", "m"), 2, "Missing argument 'TARGET'"),
        (("fit", "x.csv", "y.csv", "--source", "2", "-o", "m"), 2, "--source is for .h5ad files"),
        ((*FIT, *FIXED, "--source-weight", "w.csv"), 2, "not for .h5ad files"),
        ((*FIT, *FIXED, "--time-key", "time"), 3,
         "obs['time'] not found. Columns: day, clone, kind. Did you mean --time-key day?"),
        ((*FIT, *FIXED, "--target", "5"), 3, "obs['day'] has no value 5. Values: 2, 4."),
        ((*FIT, *FIXED, "--use-rep", "X_pac"), 3, "Did you mean --use-rep X_pca? With --pca 10"),
        ((*FIT, *FIXED, "--pca", "2", "--use-rep", "X"), 2, "leave out --use-rep and"),
        ((*FIT, "--pair-key", "clones"), 3, "Did you mean --pair-key clone?"),
        ((*FIT, "--pairs", "rows.csv"), 3, "rows.csv, line 1: pairs of cells need the header"),
        ((*FIT, "--pairs", "far.csv"), 3, "1 of 2 pair names are not in the target (first: 'x')."),
        ((*FIT, "--pairs", "fork.csv", "--max-iter", "1"), 3,
         "or set --many-to-many to fit their mean"),
        ((*FIT, "--pairs", "no.csv"), 3, "no.csv not found"),
        (("fit", "counts.h5ad", *FIT[2:], *FIXED, "--pca", "2"), 3, "use --use-rep X_pca"),
        (("fit", "no.h5ad", *FIT[2:], *FIXED), 3, "no.h5ad not found"),
        (("fit", "cut.h5ad", *FIT[2:], *FIXED), 3, "cut.h5ad is not an .h5ad file, or is damaged"),
        (("transform", "points", "cells.h5ad", "-o", "t.h5ad"), 3, "not fitted on an AnnData"),
        (("transform", "points", "cells.h5ad", "-o", "t.csv"), 2, "Known: .h5ad"),
        (("transform", "points", "x.csv", "-o", "t.csv", "--key-added", "k"), 2, "--key-added is"),
    ],
)  # fmt: skip
def test_failures(folder, arguments, code, expected):
    for name, text in {
        "rows.csv": "0,1\n2,3\n",
        "far.csv": "source,target\nc1,c51\nc2,x\n",
        "fork.csv": "source,target\nc1,c51\nc1,c52\n",
        "x.csv": "0,0\n1,1\n",
    }.items():
        (folder / name).write_text(text)
    content = (folder / "cells.h5ad").read_bytes()
    (folder / "cut.h5ad").write_bytes(content[: len(content) // 2])
    counts = anndata.read_h5ad("cells.h5ad")
    counts.X = np.arange(600.0).reshape(100, 6)
    counts.write_h5ad("counts.h5ad")
    points = np.random.default_rng(0).normal(size=(4, 2))
    mongefit.MongeMap("sqeuclidean").fit(points, points + 1).save("points")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert expected in " ".join(result.stderr.split())
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_anndata_is_not_installed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    assert "pip install mongefit[anndata]" in run(*FIT, *FIXED, code=1).stderr


def test_a_write_that_fails_leaves_nothing(folder, monkeypatch):
    def fail(self, path):
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    run(*FIT, *FIXED)
    monkeypatch.setattr(anndata.AnnData, "write_h5ad", fail)
    before = {path.name for path in folder.iterdir()}
    result = run("transform", "m", "cells.h5ad", "-o", "out.h5ad", code=1)
    assert "could not write out.h5ad (No space left on device)" in result.stderr
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
def test_the_real_file_goes_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--hidden-layer-sizes", "4", "--max-iter", "2", "--epsilon", "0.1")
    result = run(
        "fit", REAL, "--time-key", "day", "--source", "10", "--target", "11", "--pca", "10",
        "--groups-key", "cell_type", "-o", "m", *small,
    )  # fmt: skip
    assert "Source: 85 cells of day 10, 10 components of X" in result.stdout
    assert "Groups: Epithelial, Stromal\n" in result.stdout
    assert "warning: obs['cell_type'] is 'unknown' in 70 cells" in result.stderr
    assert "(components of 1479 genes)" in " ".join(run("info", "m").stdout.split())
    assert "Mapped 85 cells." in run("transform", "m", REAL, "-o", "out.h5ad").stdout
    found, given = anndata.read_h5ad("out.h5ad"), anndata.read_h5ad(REAL)
    assert set(given.uns) < set(found.uns)
    pandas.testing.assert_frame_equal(found.obs[given.obs.columns], given.obs)
    assert found.uns["mongefit"]["history"]["loss"].shape == (3,)


class TestSelect:
    BASE = ("select", "cells.h5ad", *TIMES, "--pair-key", "clone", "-o", "m")

    @pytest.fixture
    def small(self, monkeypatch):
        """One small candidate instead of the usual ones."""
        from mongefit.model_selection import _selecting as selecting

        candidate = mongefit.MongeMap(hidden_layer_sizes=(4,), epsilon=0.2, max_iter=2)
        monkeypatch.setattr(selecting, "default_candidates", lambda: {"small": candidate})

    def test_the_choice_is_shown_and_fitted(self, folder, small):
        result = run(*self.BASE, "--folds", "2", "--max-cells", "60")
        assert "Clones: 25 seen at both times, 96 pairs" in result.stdout
        assert "squared Euclidean, epsilon 0.1" in result.stdout
        assert "Chosen: small" in result.stdout
        assert single_cell.load("m").times.target == "4"

    def test_a_choice_is_kept_and_gone_on_with(self, folder, small, monkeypatch):
        from mongefit.model_selection import _selecting as selecting

        kept = (*self.BASE, "--folds", "2", "--max-cells", "60", "--checkpoint", "kept")
        whole = run(*kept, "--json")
        assert "Go on with it (--resume)" in run(*kept, "--force", code=3).stderr
        monkeypatch.setattr(selecting, "held_out_path", None)  # nothing is judged again
        again = run(*kept, "--resume", "--force", "--json")
        for name in ("choice", "rows", "data_sha256"):
            assert json.loads(again.stdout)[name] == json.loads(whole.stdout)[name]
        assert "--resume needs --checkpoint" in run(*self.BASE, "--resume", code=2).stderr

    def test_progress_is_written_in_lines(self, folder, small, monkeypatch):
        """The tests have no terminal."""
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        monkeypatch.setattr("mongefit._progress.SECONDS", 0.0)
        lines = run(*self.BASE, "--folds", "2", "--max-cells", "60").stderr.splitlines()
        told = [line.partition(",")[0] for line in lines if " left" in line]
        assert told == ["small 1/3", "small 2/3", "fitting 3/3"]

    def test_json_has_the_rows_of_both_tables(self, folder, small):
        result = run(*self.BASE, "--folds", "2", "--max-cells", "60", "--nested", "--json")
        found = json.loads(result.stdout)
        assert found["choice"]["name"] == "small"
        assert {row["name"] for row in found["nested_rows"]} >= {"learned", "identity"}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("select", "x.csv", "-o", "m"), "works on .h5ad files"),
            ((*BASE, "--groups-key", "kind"), "leave out --groups-key"),
            (("select", "cells.h5ad", *TIMES, "-o", "m"), "give --pair-key"),
        ],
    )
    def test_what_cannot_be_chosen_by(self, folder, arguments, said):
        result = run(*arguments, code=2)
        assert said in result.stderr
        assert not Path("m").exists()
