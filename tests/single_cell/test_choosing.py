"""Choosing by clones of an AnnData, and ensembles that tell how sure they are."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import EnsembleMap, MongeMap, MongeMapCV, single_cell
from mongefit.errors import DataError
from mongefit.losses import Likelihood

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 24
KEYS = {"time_key": "day", "source": 2, "target": 4, "pair_key": "clone"}
SMALL = {"hidden_layer_sizes": (4,), "epsilon": 0.2, "max_iter": 6, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def cells():
    """Two days of cells that move to the right; half of them are in clones of two cells."""
    rng = np.random.default_rng(0)
    early = rng.normal(size=(N, 2))
    states = np.concatenate([early, early + [3.0, 0.0] + 0.1 * rng.normal(size=(N, 2))])
    clone = [f"clone {i}" if i % 2 else None for i in range(N)] * 2
    obs = pandas.DataFrame({"day": np.repeat([2, 4], N), "clone": clone})
    obs.index = [f"c{i}" for i in range(2 * N)]
    adata = anndata.AnnData(np.zeros((2 * N, 1)), obs=obs)
    adata.obsm["X_pca"] = states
    return adata


def test_a_choice_knows_where_its_cells_came_from(cells, tmp_path):
    model, report = single_cell.select(cells, **KEYS, candidates=MongeMap(**SMALL))
    assert model.times.source == "2"
    assert model.model.n_iter_ == report.choice.steps
    assert {row["name"] for row in report.table.rows} >= {"MongeMap", "identity", "target mean"}
    model.save(tmp_path / "model.mongefit")
    again = single_cell.load(tmp_path / "model.mongefit")
    states = cells.obsm["X_pca"][:N]
    np.testing.assert_array_equal(again.model.transform(states), model.model.transform(states))


def test_clones_are_cross_validated(cells):
    report = single_cell.cross_validate(cells, **KEYS, candidates=MongeMap(**SMALL), n_folds=2)
    assert len(report.choices) == 2
    assert report.rmse() < report.rmse("identity")


def test_there_must_be_something_to_choose_by(cells):
    with pytest.raises(DataError, match="give pair_key or pairs"):
        single_cell.select(cells, **(KEYS | {"pair_key": None}))


def test_without_a_model_one_is_chosen(cells, tmp_path):
    fitted = single_cell.fit(cells, **KEYS)
    assert isinstance(fitted.model, MongeMapCV)
    assert {row["kind"] for row in fitted.model.report_.rows} == {"candidate", "simple"}
    fitted.save(tmp_path / "model.mongefit")
    again = single_cell.load(tmp_path / "model.mongefit")
    assert str(again.model.report_) == str(fitted.model.report_)
    assert again.model.best_params_ == fitted.model.best_params_
    first, second = (single_cell.transport(each, cells, copy=True) for each in (fitted, again))
    np.testing.assert_array_equal(first.obsm["X_mongefit"], second.obsm["X_mongefit"])


class TestEnsembles:
    @pytest.fixture(scope="class")
    @classmethod
    def ensemble(cls, cells):
        model = EnsembleMap(MongeMap(**SMALL), n_members=4)
        return single_cell.fit(cells, **KEYS, model=model)

    def test_cells_are_told_how_sure_they_are(self, cells, ensemble, tmp_path):
        result = single_cell.transport(ensemble, cells, copy=True)
        early = result.obs["day"] == 2
        assert np.all(result.obs["mongefit_spread"][early] >= 0)
        assert np.all(np.isnan(result.obs["mongefit_spread"][~early]))
        assert result.obs["mongefit_informed"][early].any()
        assert not result.obs["mongefit_informed"][~early].any()
        assert result.uns["mongefit"]["radius_80"] > 0
        result.write_h5ad(tmp_path / "cells.h5ad")
        again = anndata.read_h5ad(tmp_path / "cells.h5ad")
        assert again.uns["mongefit"]["n_members"] == 4

    def test_the_way_back(self, cells, ensemble):
        back = single_cell.transport(ensemble, cells, inverse=True, copy=True)
        assert "mongefit_spread" not in back.obs
        assert np.isfinite(back.obsm["X_mongefit"][N:]).all()

    def test_an_ensemble_comes_back_from_its_file(self, cells, ensemble, tmp_path):
        ensemble.save(tmp_path / "model.mongefit")
        again = single_cell.load(tmp_path / "model.mongefit")
        expected, found = (
            single_cell.transport(each, cells, copy=True) for each in (ensemble, again)
        )
        np.testing.assert_array_equal(found.obsm["X_mongefit"], expected.obsm["X_mongefit"])
        for key in ("mongefit_spread", "mongefit_informed"):
            np.testing.assert_array_equal(found.obs[key], expected.obs[key])
        assert found.uns["mongefit"]["radius_80"] == expected.uns["mongefit"]["radius_80"]

    def test_without_clones_there_is_nothing_to_resample(self, cells):
        with pytest.raises(DataError, match="resamples clones"):
            single_cell.fit(cells, **(KEYS | {"pair_key": None}), model=EnsembleMap())


def test_clones_may_have_several_fates(cells):
    """With `Likelihood` pairs by name may name several targets of a source."""
    likelihood = MongeMap(**SMALL, losses=[Likelihood()])
    fitted = single_cell.fit(cells, **KEYS, model=likelihood)
    assert not fitted.model.many_to_many and fitted.model.n_iter_ > 0
    points = fitted.coordinates(cells, fitted.times.rows(cells, target=False))
    assert fitted.model.conditional(points).shape == (N, N)
    keys = {name: key for name, key in KEYS.items() if name != "pair_key"}
    named = [("c0", f"c{N}"), ("c0", f"c{N + 1}"), ("c2", f"c{N + 2}")]
    assert single_cell.fit(cells, **keys, pairs=named, model=likelihood).model.n_iter_ > 0
    with pytest.raises(DataError, match="many_to_many"):
        single_cell.fit(cells, **keys, pairs=named, model=MongeMap(**SMALL))
