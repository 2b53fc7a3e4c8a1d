"""Plans and costs for other packages: shapes, names, mass, what is left out, and faults.

tests/interop runs the packages themselves.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from mongefit import EnsembleMap, MongeMap
from mongefit.errors import DataError, MissingPackageError, OptionError
from mongefit.single_cell import cost_matrices, fit, to_anndata_map, to_cellrank, to_moscot
from tests.single_cell.test_single_cell import DAYS, EUCLIDEAN, KEYS, cells

anndata = pytest.importorskip("anndata")
ot = pytest.importorskip("ot")

LEG = (2.0, 4.0)
ALL = [to_cellrank, to_anndata_map, cost_matrices]


def two_days(**columns):
    """The cells of days 2 and 4, the target first, with weights for both."""
    adata = cells(weight=1.0 + np.arange(18) % 3, **columns)
    return adata[np.r_[8:14, 0:8]].copy()


@pytest.fixture(scope="module")
def adata():
    return two_days()


@pytest.fixture(scope="module")
def model(adata):
    """A plan that need not keep weights, which are not even."""
    return fit(adata, **KEYS, weight_key="weight", model=MongeMap(**EUCLIDEAN, tau_a=0.7))


@pytest.fixture(scope="module")
def plain(adata):
    return fit(adata, **KEYS, model=MongeMap(**EUCLIDEAN))


class TestPlan:
    def test_cells_are_named_and_the_rows_have_the_mass_of_the_plan(self, model, adata):
        before = adata.copy()
        found = to_cellrank(model, adata)
        assert list(found) == [LEG]
        plan = found[LEG]
        assert list(plan.obs_names) == [f"c{i}" for i in range(8)]
        assert list(plan.var_names) == [f"c{i}" for i in range(8, 14)]
        assert plan.X.format == "csr"
        P = model.model.coupling_
        np.testing.assert_allclose(plan.X.toarray(), P, atol=1e-9)
        mass = plan.obs["mongefit_weight"] * plan.obs["mongefit_growth"]
        np.testing.assert_allclose(plan.X.sum(axis=1).A1, mass, rtol=1e-12)
        np.testing.assert_allclose(mass, P.sum(axis=1), rtol=1e-6)
        np.testing.assert_allclose(plan.obs["mongefit_growth"], model.model.growth_)
        weight = adata.obs["weight"].to_numpy()[6:]
        np.testing.assert_allclose(plan.obs["mongefit_weight"], weight / weight.sum())
        assert before.obs.equals(adata.obs) and before.uns == adata.uns

    def test_what_is_left_out_is_stated(self, model, adata):
        whole, thin = (to_cellrank(model, adata, drop=drop)[LEG] for drop in (0, 0.2))
        assert whole.X.nnz == 48 and thin.X.nnz < 48
        np.testing.assert_allclose(whole.obs["mongefit_dropped"], 0, atol=1e-12)
        np.testing.assert_allclose(thin.X.sum(axis=1), whole.X.sum(axis=1))
        kept = whole.X.toarray() * (thin.X.toarray() > 0)
        mass = whole.X.sum(axis=1).A1
        np.testing.assert_allclose(thin.obs["mongefit_dropped"], 1 - kept.sum(axis=1) / mass)
        record = thin.uns["mongefit"]
        assert record["dropped"] == pytest.approx(1 - kept.sum() / mass.sum())
        assert record["drop"] == 0.2
        assert (record["time_key"], record["source"], record["target"]) == ("day", "2", "4")

    def test_it_can_be_written(self, model, adata, tmp_path):
        path = tmp_path / "plan.h5ad"
        for plan in (to_cellrank(model, adata)[LEG], to_anndata_map(model, adata)):
            plan.write_h5ad(path)
            read = anndata.read_h5ad(path)
            np.testing.assert_array_equal(read.X.toarray(), plan.X.toarray())
            assert read.uns["mongefit"] == plan.uns["mongefit"]

    def test_of_an_ensemble(self):
        adata = two_days(clone=[f"k{i % 3}" for i in range(18)])
        estimator = EnsembleMap(MongeMap(**EUCLIDEAN), n_members=2)
        model = fit(adata, **KEYS, pair_key="clone", model=estimator)
        plan = to_cellrank(model, adata, drop=0)[LEG]
        ours = model.model.conditional(model.coordinates(adata, np.arange(6, 14)), drop=0)
        np.testing.assert_allclose(plan.X.toarray(), ours.toarray() / 8, atol=1e-12)
        with pytest.raises(OptionError, match=r"members_\[0\]"):
            cost_matrices(model, adata)


class TestCellRank:
    def test_times_of_other_types(self, plain, adata):
        changed = adata.copy()
        changed.obs["day"] = changed.obs["day"].astype(int).astype(str).astype("category")
        assert list(to_cellrank(plain, changed)) == [("2", "4")]

    def test_cells_of_other_times(self, plain):
        with pytest.warns(UserWarning, match=r"day 6.0. CellRank's .*\.isin\(\[2.0, 4.0\]\)"):
            to_cellrank(plain, cells())

    def test_times_that_it_sorts_as_text(self):
        adata = two_days()
        adata.obs["day"] = np.where(adata.obs["day"] == 2, "9", "10")
        keys = {"time_key": "day", "source": 9, "target": 10}
        model = fit(adata, **keys, model=MongeMap(**EUCLIDEAN))
        with pytest.warns(UserWarning, match="takes '9' for the last time, not '10'"):
            to_cellrank(model, adata)

    def test_cells_without_mass(self):
        adata = two_days()
        adata.obs.loc["c3", "weight"] = 0.0
        model = fit(adata, **KEYS, weight_key="weight", model=MongeMap(**EUCLIDEAN))
        with pytest.warns(UserWarning, match="1 cells of day 2 have no mass"):
            plan = to_cellrank(model, adata)[LEG]
        assert plan["c3"].X.nnz == 0

    def test_nothing_to_warn_of(self, model, adata):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            to_cellrank(model, adata)


class TestTransportMap:
    def test_rows_sum_to_growth(self, model, adata):
        found = to_anndata_map(model, adata)
        np.testing.assert_allclose(found.X.toarray(), 8 * model.model.coupling_, atol=1e-8)
        # Waddington-OT states growth per unit of time, and two days lie between.
        growth = found.X.sum(axis=1).A1
        np.testing.assert_allclose(found.obs["g1"] ** 2, growth)
        np.testing.assert_allclose(found.obs["g0"] ** 2, 8 * found.obs["mongefit_weight"])
        assert found.obs["g0"].pow(2).mean() == pytest.approx(1)

    def test_times_that_are_no_numbers(self):
        adata = two_days()
        adata.obs["day"] = np.where(adata.obs["day"] == 2, "early", "late")
        keys = {"time_key": "day", "source": "early", "target": "late"}
        model = fit(adata, **keys, weight_key="weight", model=MongeMap(**EUCLIDEAN))
        found = to_anndata_map(model, adata, source="early")
        np.testing.assert_allclose(found.obs["g1"], found.X.sum(axis=1).A1)

    def test_times_that_the_model_does_not_have(self, plain, adata):
        with pytest.raises(OptionError, match="knows nothing of 6"):
            to_anndata_map(plain, adata, target=6)


class TestCosts:
    def test_names_units_and_what_the_plan_was_computed_with(self, model, adata):
        costs = cost_matrices(model, adata)[LEG]
        assert list(costs.index) == [f"c{i}" for i in range(8)]
        assert list(costs.columns) == [f"c{i}" for i in range(8, 14)]
        x, y = (model.coordinates(adata, rows) for rows in (np.arange(6, 14), np.arange(6)))
        np.testing.assert_allclose(costs, model.model.cost_matrix(x, y))
        a, b = np.asarray(model.model.map_.a), np.asarray(model.model.map_.b)
        assert costs.attrs["epsilon"] == pytest.approx(0.1 * (a @ costs.to_numpy() @ b))
        assert (costs.attrs["tau_a"], costs.attrs["tau_b"]) == (0.7, 1.0)

    def test_another_library_finds_the_plan_from_them(self, plain, adata):
        costs = cost_matrices(plain, adata)[LEG]
        even = [np.full(size, 1 / size) for size in costs.shape]
        found = ot.sinkhorn(
            *even, costs.to_numpy(), costs.attrs["epsilon"], method="sinkhorn_log", stopThr=1e-12
        )
        np.testing.assert_allclose(found, plain.model.coupling_, atol=1e-9)

    def test_more_than_memory_holds(self, plain, adata, monkeypatch):
        from mongefit._runtime import memory

        monkeypatch.setattr(memory, "available_memory", lambda: 100)
        with pytest.raises(DataError, match="The costs between 8 and 6 cells need about"):
            cost_matrices(plain, adata)


@pytest.mark.parametrize("hand_over", ALL)
class TestFaults:
    def test_names_that_occur_twice(self, hand_over, plain, adata):
        changed = adata.copy()
        changed.obs_names = ["c1", *changed.obs_names[1:]]
        with pytest.raises(DataError, match=r"first: 'c1'\), .*obs_names_make_unique"):
            hand_over(plain, changed)

    def test_fewer_cells(self, hand_over, plain, adata):
        with pytest.raises(DataError, match="5 cells of day 4, and the model was fitted to 6"):
            hand_over(plain, adata[1:].copy())

    def test_another_order(self, hand_over, plain, adata):
        changed = adata[[1, 0, *range(2, 14)]].copy()
        with pytest.raises(DataError, match=r"2 of 6 cells of day 4 .*'c9'.* same order"):
            hand_over(plain, changed)

    def test_other_cells(self, hand_over, plain, adata):
        changed = adata.copy()
        changed.obs_names = [f"other {name}" for name in changed.obs_names]
        changed.obsm["X_pca"] = changed.obsm["X_pca"] + 1
        with pytest.raises(DataError, match=r"8 of 8 cells of day 2 .* not where the fit"):
            hand_over(plain, changed)

    def test_what_is_no_model(self, hand_over, plain, adata):
        with pytest.raises(OptionError, match=r"single_cell.fit .* got MongeMap"):
            hand_over(plain.model, adata)
        with pytest.raises(OptionError, match="must be an AnnData, got ndarray"):
            hand_over(plain, DAYS)


@pytest.mark.parametrize("hand_over", [to_cellrank, to_anndata_map])
@pytest.mark.parametrize("drop", [-1, 1, "small"])
def test_drop_is_a_share(hand_over, drop, plain, adata):
    with pytest.raises(OptionError, match="drop must be"):
        hand_over(plain, adata, drop=drop)


def test_moscot_is_asked_for_when_it_is_needed(plain, adata, monkeypatch):
    monkeypatch.setitem(sys.modules, "moscot.base.output", None)
    monkeypatch.setitem(sys.modules, "moscot", None)
    with pytest.raises(MissingPackageError, match="pip install moscot"):
        to_moscot(plain, adata)
    with pytest.raises(OptionError, match="must be an AnnData"):
        to_moscot(plain, "cells.h5ad")
