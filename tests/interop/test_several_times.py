"""Plans of two legs that follow one another, from day 2 to day 4 and on to day 6."""

from __future__ import annotations

import anndata
import numpy as np
import pytest

from mongefit import MongeMap, single_cell
from mongefit.single_cell import _handover, to_anndata_map, to_cellrank, to_moscot

DAYS = {2.0: 20, 4.0: 16, 6.0: 18}


@pytest.fixture(scope="module")
def adata():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    days = np.repeat(list(DAYS), list(DAYS.values()))
    index = [f"cell {row}" for row in range(len(days))]
    found = anndata.AnnData(
        rng.normal(size=(len(days), 2)).astype("f4"),
        obs=pandas.DataFrame({"day": pandas.Categorical(days)}, index=index),
    )
    found.obsm["X_pca"] = rng.normal(size=(len(days), 3)) + days[:, None] / 4
    return found[rng.permutation(len(days))].copy()


@pytest.fixture(scope="module")
def models(adata):
    estimator = MongeMap(cost="sqeuclidean", epsilon=0.1)
    return [
        single_cell.fit(adata, time_key="day", source=t0, target=t1, model=estimator)
        for t0, t1 in ((2, 4), (4, 6))
    ]


@pytest.fixture
def plans(models, monkeypatch):
    """The plans of both legs, which pass for those of one model."""
    leg = _handover._leg
    monkeypatch.setattr(_handover, "_legs", lambda _, adata: [leg(each, adata) for each in models])
    return [each.model.coupling_ for each in models]


@pytest.fixture
def composed(plans):
    """Where each cell of day 2 is on day 6, rows with sum 1."""
    first, second = (P / P.sum(axis=1, keepdims=True) for P in plans)
    return first @ second


def test_cellrank(adata, models, composed):
    cellrank = pytest.importorskip("cellrank")
    couplings = to_cellrank(models[0], adata)
    assert list(couplings) == [(2.0, 4.0), (4.0, 6.0)]
    kernel = cellrank.kernels.RealTimeKernel(adata.copy(), "day", couplings=couplings)
    kernel.compute_transition_matrix(self_transitions="diagonal")
    early, late = (np.flatnonzero(adata.obs["day"] == day) for day in (2, 6))
    found = (kernel.transition_matrix @ kernel.transition_matrix)[early][:, late]
    np.testing.assert_allclose(np.asarray(found.todense()), composed, atol=1e-6)


def test_moscot(adata, models, plans, composed):
    pytest.importorskip("moscot")
    problem = to_moscot(models[0], adata)
    assert list(problem.solutions) == [(2.0, 4.0), (4.0, 6.0)]
    assert list(problem.adata.uns["mongefit"]) == ["2 to 4", "4 to 6"]
    mass = np.zeros(DAYS[2.0])
    mass[3] = 1.0
    found = problem.push(2.0, 6.0, data=mass, normalize=False, key_added=None)
    np.testing.assert_allclose(found[:, 0], composed[3], rtol=1e-5)
    problem[4.0, 6.0].solve(
        epsilon=problem.adata.uns["mongefit"]["4 to 6"]["epsilon"], scale_cost=1.0
    )
    again = np.asarray(problem[4.0, 6.0].solution.transport_matrix)
    np.testing.assert_allclose(again, plans[1], atol=0.01 * plans[1].max())


def test_waddington_ot(adata, models, composed, tmp_path, monkeypatch):
    wot = pytest.importorskip("wot")
    monkeypatch.setattr(anndata, "read", anndata.read_h5ad, raising=False)
    for model in models:
        found = to_anndata_map(model, adata)
        ends = model.times.source, model.times.target
        found.write_h5ad(tmp_path / "tmaps_{}_{}.h5ad".format(*ends))
    maps = wot.tmap.TransportMapModel.from_directory(str(tmp_path / "tmaps"))
    name = adata.obs_names[adata.obs["day"] == 2][3]
    (population,) = maps.population_from_ids([name], at_time=2.0)
    found = maps.push_forward(population, to_time=6.0)
    np.testing.assert_allclose(found.p, composed[3], atol=1e-6)
    chained = maps.get_coupling(2.0, 6.0).X
    assert chained.shape == (DAYS[2.0], DAYS[6.0])
