"""The tutorial runs on a small file, and its page shows what its script holds."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from mongefit import MongeMap, single_cell

anndata = pytest.importorskip("anndata")

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE = ROOT / "examples" / "larry_cost.py", ROOT / "docs" / "tutorial.md"


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


def test_the_page_shows_the_script_and_leads_somewhere():
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        assert block in SCRIPT.read_text(encoding="utf-8"), block
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (PAGE.parent / target).exists(), target
