"""The tutorial runs on a small file, and its page shows what its script holds."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from mongefit import MongeMap, single_cell

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "larry_cost.py"
PAGES = {"tutorial.md": "larry_cost.py", "fates.md": "larry.py", "fates-days.md": "larry_days.py"}
SMALL = {"n_components": (2,), "diffusion": 2}


def made_up():
    """Two days of 60 cells in five components; every third cell is in a clone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    y = x + np.array([2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.normal(size=x.shape)
    clone = np.where(np.arange(60) % 3 == 0, np.arange(60.0), np.nan)
    kind = np.where(x[:, 0] > 0, "Monocyte", "Neutrophil")
    return {"x": x, "y": y, "clone_x": clone, "clone_y": clone, "annotation_x": kind,
            "annotation_y": kind}  # fmt: skip


def test_from_the_file_to_the_figure(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "cells.npz", **made_up())
    small = MongeMap(hidden_layer_sizes=(4,), epsilon=0.2, max_iter=3, many_to_many=True)
    monkeypatch.setattr("mongefit.model_selection.default_candidates", lambda: {"small": small})
    tutorial = runpy.run_path(str(SCRIPT))
    tutorial["main"](tmp_path / "cells.npz", tmp_path / "out", n_components=3, max_cells=50)
    said = capsys.readouterr().out
    assert "ridge on pairs" in said
    assert "80 % of new clones" in said
    model = single_cell.load(tmp_path / "out" / "larry.mongefit")
    assert model.model.n_features_in_ == 3
    cells = anndata.read_h5ad(tmp_path / "out" / "larry.h5ad")
    early = (cells.obs["day"] == 2).to_numpy()
    assert np.isfinite(cells.obsm["X_mongefit"][early]).all()
    assert (tmp_path / "out" / "larry.png").stat().st_size > 0


@pytest.mark.filterwarnings("ignore:On held-out pairs the best map has", "ignore:The neighbours")
def test_from_clones_to_fates(tmp_path, few_families, monkeypatch, capsys):
    quick = functools.partial(single_cell.cross_validate_fates, n_folds=2)
    monkeypatch.setattr(single_cell, "cross_validate_fates", quick)
    cells = made_up() | {"clone_x": np.arange(60.0), "clone_y": np.arange(60.0)}
    cells["annotation_y"] = np.where(
        np.arange(60) % 5 == 0, "undifferentiated", cells["annotation_y"]
    )
    np.savez(tmp_path / "cells.npz", **cells)
    script = runpy.run_path(str(ROOT / "examples" / "larry.py"))
    script["main"](tmp_path / "cells.npz", tmp_path / "out", validate=True, **SMALL)
    said = capsys.readouterr().out
    assert "2 diffusion components: Euclidean" in said and "logistic regression" in said
    model = single_cell.load(tmp_path / "out" / "larry.mongefit")
    found = anndata.read_h5ad(tmp_path / "out" / "larry.h5ad")
    np.testing.assert_allclose(found.obsm["mongefit_fates"][:60].sum(axis=1), 1)
    single_cell.fates(model, found, "cell_type", exclude="undifferentiated", key_added="again")
    np.testing.assert_allclose(found.obsm["again_fates"], found.obsm["mongefit_fates"], atol=1e-12)
    assert len((tmp_path / "out" / "fates.csv").read_text().splitlines()) == 61
    for name in ("fates.png", "calibration.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0


@pytest.mark.filterwarnings("ignore:On held-out pairs the best map has", "ignore:The neighbours")
def test_three_days_with_genes(tmp_path, few_families, capsys):
    rng = np.random.default_rng(0)
    day, side = np.repeat(["2", "4", "6"], 30), np.tile([-1.0, 1.0], 45)
    states = np.column_stack([day.astype(float), side * day.astype(float)])
    states = np.column_stack([states, np.zeros((90, 8))]) + 0.3 * rng.normal(size=(90, 10))
    kind = np.where(day == "2", "undiff", np.where(side < 0, "Neutrophil", "Monocyte"))
    kind[30:38] = "undiff"
    cells = anndata.AnnData(np.exp(rng.normal(size=(90, 6)) + 0.5 * side[:, None]))
    cells.obs["time_info"], cells.obs["state_info"] = pandas.Categorical(day), kind
    cells.obsm["X_pca"], cells.obsm["X_umap"] = states, states[:, :2]
    cells.obsm["X_clone"] = scipy.sparse.csr_matrix(np.tile(np.eye(30), (3, 1)))
    cells.write_h5ad(tmp_path / "cells.h5ad")
    script = runpy.run_path(str(ROOT / "examples" / "larry_days.py"))
    script["main"](tmp_path / "cells.h5ad", tmp_path / "out", **SMALL)
    assert "30 cells predicted for day 5" in capsys.readouterr().out
    assert (tmp_path / "out" / "days.png").stat().st_size > 0


@pytest.mark.parametrize(("name", "script"), PAGES.items())
def test_the_page_shows_the_script_and_leads_somewhere(name, script):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        assert block in (ROOT / "examples" / script).read_text(encoding="utf-8"), block
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page):
        assert (ROOT / "docs" / target).exists(), target
