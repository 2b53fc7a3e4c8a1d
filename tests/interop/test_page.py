"""The code of docs/coming-from.md runs, and says what the page says of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from tests.interop.conftest import PACKAGES, make_cells

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
CODE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
QUICK = 'model=MongeMap(cost="matrix", max_iter=5, epsilon=0.1))'


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The names of the page's program, without CoSpar's part, with a quick fit."""
    import os

    for package in PACKAGES:
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("page")
    adata = make_cells()
    clones = [int(name.split()[1]) if isinstance(name, str) else -1 for name in adata.obs["clone"]]
    members = np.asarray(clones)[:, None] == np.arange(12)
    adata.obsm["X_clone"] = scipy.sparse.csr_matrix(members.astype(float))
    adata.write_h5ad(folder / "cells.h5ad")
    code = "".join(block for block in CODE if "import cospar" not in block)
    code, count = re.subn(r'(pair_key="\w+")\)', rf"\1, {QUICK}", code)
    assert count == 2
    code = code.replace("import single_cell", "import MongeMap, single_cell")
    (folder / "page.py").write_text(code, encoding="utf-8")
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield runpy.run_path("page.py")
    finally:
        os.chdir(before)


def test_their_plans_from_our_costs_are_ours(names):
    ours = names["our_plan"]
    np.testing.assert_allclose(names["pot_plan"], ours, atol=1e-6 * ours.max())
    np.testing.assert_allclose(names["ott_plan"], ours, atol=0.01 * ours.max())


def test_fates_are_those_of_cellrank_and_waddington_ot(names):
    adata, estimator = names["adata"], names["estimator"]
    early = (adata.obs["day"] == 2).to_numpy()
    assert list(adata.uns["mongefit_fates"]["names"]) == ["monocyte", "neutrophil"]
    found = adata.obsm["mongefit_fates"][early]
    # Both are of the first model of the page, whose clones are those of the second.
    np.testing.assert_allclose(np.asarray(estimator.fate_probabilities.X)[early], found, atol=1e-5)
    np.testing.assert_allclose(names["fates"][adata.obs_names[early]].X, found, atol=1e-6)
