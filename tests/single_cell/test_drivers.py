"""Genes of fates and of moves: formulas against NumPy and SciPy, planted genes, bad input."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from mongefit import MongeMap, single_cell
from mongefit.errors import DataError, OptionError
from mongefit.single_cell import fate_drivers, move_genes
from mongefit.single_cell._association import associate, basis, false_discovery

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

REAL = Path(__file__).parents[3] / "shared/data/larry_days_2_4_6.h5ad"
KEYS = {"time_key": "day", "source": 2, "target": 4}
EUCLIDEAN = MongeMap(cost="sqeuclidean", epsilon=0.1)
SIZES = (40, 30)
GENES = 12


def make_cells(seed=0):
    """Two branches, told apart by the first component and by the gene "planted"."""
    rng = np.random.default_rng(seed)
    n = sum(SIZES)
    side = np.tile([-1.0, 1.0], n // 2)
    late = np.repeat([0.0, 1.0], SIZES)
    X = rng.gamma(1.0, size=(n, GENES)) * (rng.uniform(size=(n, GENES)) < 0.6)
    X[:, 3] = np.maximum(0, 2 * side + 0.5 * rng.normal(size=n))
    X[:, 7] = np.maximum(0, -2 * side + 0.5 * rng.normal(size=n))
    X[:, 5] = 0.4
    obs = pandas.DataFrame(
        {
            "day": np.repeat([2, 4], SIZES),
            "cell_type": np.where(late == 0, "stem", np.where(side < 0, "left", "right")),
            "kind": rng.choice(["a", "b", "c"], n),
            "n_counts": rng.integers(1000, 5000, n),
        },
        index=[f"c{i}" for i in range(n)],
    )
    adata = anndata.AnnData(X, obs=obs)
    adata.var_names = [f"g{i}" for i in range(GENES)]
    adata.var_names = adata.var_names.where(adata.var_names != "g3", "planted")
    adata.obsm["X_pca"] = np.column_stack([side * (1 + late), late, np.zeros(n)])
    adata.obsm["X_pca"] += 0.6 * rng.normal(size=(n, 3))
    adata.varm["PCs"] = rng.normal(size=(GENES, 3))
    return adata


@pytest.fixture(scope="module")
def model():
    return single_cell.fit(make_cells(), **KEYS, model=EUCLIDEAN)


@pytest.fixture(scope="module")
def fated(model):
    """Cells with fates; tests that change them take a copy."""
    adata = make_cells()
    single_cell.fates(model, adata, "cell_type")
    return adata


@pytest.fixture
def adata(fated):
    return fated.copy()


def dense(adata):
    """Expression, probability and log-odds of the cells of day 2."""
    rows = np.flatnonzero(adata.obs["day"] == 2)
    p = adata.obsm["mongefit_fates"][rows, list(adata.uns["mongefit_fates"]["names"]).index("left")]
    clipped = np.clip(p, 1e-3, 1 - 1e-3)
    return np.asarray(adata.X)[rows], p, np.log(clipped / (1 - clipped))


def by_hand(x, z, others):
    """β, its equal-variance and HC3 errors and degrees of freedom, from the whole design."""
    D = np.column_stack([x, np.ones(len(x)), others])
    inverse = np.linalg.inv(D.T @ D)
    beta = inverse @ D.T @ z
    rest, leverage = z - D @ beta, np.einsum("ij,jk,ik->i", D, inverse, D)
    freedom = len(z) - D.shape[1]
    equal = inverse * (rest @ rest) / freedom
    robust = inverse @ (D.T * (rest / (1 - leverage)) ** 2) @ D @ inverse
    return beta[0], np.sqrt(equal[0, 0]), np.sqrt(robust[0, 0]), freedom


class TestCorrelations:
    def test_those_of_scipy(self, model, adata):
        found = fate_drivers(model, adata, "left", level=0.9)
        X, p, _ = dense(adata)
        for gene, row in found.iterrows():
            expected = scipy.stats.pearsonr(X[:, adata.var_names.get_loc(gene)], p)
            low, high = expected.confidence_interval(0.9)
            values = [expected.statistic, expected.pvalue, low, high]
            columns = ["correlation", "p_value", "ci_low", "ci_high"]
            np.testing.assert_allclose(row[columns].to_numpy(), values, rtol=1e-8, atol=1e-12)

    def test_order_and_what_is_left_out(self, model, adata):
        found = fate_drivers(model, adata, "left")
        assert found.index.name == "gene"
        assert "g5" not in found.index  # it is constant
        assert len(found) == GENES - 1
        assert np.isfinite(found.to_numpy()).all()
        assert np.all(np.diff(found["correlation"]) <= 0)
        by_effect = fate_drivers(model, adata, "left", by="effect", n_top=3)
        assert np.all(np.diff(by_effect["effect"]) <= 0)
        pandas.testing.assert_frame_equal(by_effect, found.loc[by_effect.index])

    def test_planted_genes(self, model, adata):
        left, right = (fate_drivers(model, adata, fate) for fate in ("left", "right"))
        assert right.index[0] == "planted"
        assert left.index[0] == "g7"
        for column in ("q_value", "effect_q_value"):
            assert right[column]["planted"] < 0.01
            assert right.drop(["planted", "g7"])[column].min() > 0.01
        # There are two fates, and what is for one is against the other.
        np.testing.assert_allclose(right["correlation"], -left["correlation"][right.index])

    def test_sparse_backed_and_layers(self, model, adata, tmp_path):
        expected = fate_drivers(model, adata, "left", covariates="n_counts")
        X = adata.X
        adata.X = scipy.sparse.csr_matrix(X)
        adata.layers["other"] = scipy.sparse.csc_matrix(X)
        adata.write_h5ad(tmp_path / "cells.h5ad")
        backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
        for each, layer in ((adata, None), (adata, "other"), (backed, None)):
            found = fate_drivers(model, each, "left", covariates="n_counts", layer=layer)
            pandas.testing.assert_frame_equal(found, expected)

    def test_exact_correlation_and_tiny_values(self):
        y = np.linspace(0, 1, 20)
        X = np.column_stack([y, -y, 1e-200 * y, np.where(y > 0.5, 1.0, 0.0)])
        found = associate(X, y, y, basis(np.ones((20, 1))), level=0.95)
        np.testing.assert_allclose(found.correlation[:3], [1, -1, 1])
        np.testing.assert_allclose(found.p_value[:3], 0, atol=1e-100)
        np.testing.assert_allclose(found.ci_low[:3], [1, -1, 1])
        assert all(np.isfinite(each).all() for each in found)


class TestEffects:
    @pytest.mark.parametrize("covariates", [(), ["n_counts"], ["n_counts", "kind"]])
    def test_least_squares_with_hc3(self, model, adata, covariates):
        found = fate_drivers(model, adata, "left", covariates=covariates)
        X, _, z = dense(adata)
        obs = adata.obs[adata.obs["day"] == 2]
        parts = {
            "n_counts": [obs["n_counts"].to_numpy(float)],
            "kind": [(obs["kind"] == k).to_numpy(float) for k in "ab"],
        }
        others = np.column_stack(
            [np.zeros((len(z), 0)), *(each for name in covariates for each in parts[name])]
        )
        larger = set()
        for gene, row in found.iterrows():
            x = X[:, adata.var_names.get_loc(gene)]
            beta, equal, robust, freedom = by_hand(x, z, others)
            larger.add(robust > equal)
            p = 2 * scipy.stats.t.sf(abs(beta) / max(equal, robust), freedom)
            np.testing.assert_allclose(row["effect"], beta * x.std(ddof=1), rtol=1e-8)
            np.testing.assert_allclose(row["effect_p_value"], p, rtol=1e-6)
        assert larger == {True, False}  # both errors are put to the test

    def test_of_a_gene_that_a_covariate_explains(self, model, adata):
        adata.obs["same"] = 3 * np.asarray(adata.X)[:, 3] - 1
        found = fate_drivers(model, adata, "right", covariates="same")
        assert found.loc["planted", "effect"] == 0
        assert found.loc["planted", "effect_p_value"] == 1
        assert found.index[0] == "planted"

    def test_of_a_gene_in_a_single_cell(self, model, adata):
        X = np.array(adata.X)
        X[:, 0] = 0
        X[2, 0] = 1.5
        adata.X = X
        found = fate_drivers(model, adata, "right")
        assert found.loc["g0", "effect_p_value"] == 1
        assert np.isfinite(found.to_numpy()).all()

    def test_of_a_category_with_a_single_cell(self, model, adata):
        adata.obs["batch"] = ["alone", *["other"] * (adata.n_obs - 1)]
        found = fate_drivers(model, adata, "right", covariates="batch")
        keep = fate_drivers(model, adata, "right", restrict=adata.obs["batch"] == "other")
        # A cell with a category of its own says nothing: the others alone give the same test.
        np.testing.assert_allclose(
            found["effect_p_value"][keep.index], keep["effect_p_value"], rtol=1e-8
        )

    def test_log_odds_that_do_not_differ(self):
        X = np.random.default_rng(0).normal(size=(20, 3))
        found = associate(X, np.linspace(0, 1e-4, 20), np.full(20, -6.9), basis(np.ones((20, 1))),
                          level=0.95)  # fmt: skip
        assert not found.effect.any()
        assert np.all(found.effect_p_value == 1)


class TestManyGenes:
    def test_false_discovery(self):
        p = np.random.default_rng(0).uniform(size=50) ** 3
        order = np.argsort(p)
        ranked = p[order] * 50 / np.arange(1, 51)
        expected = np.empty(50)
        expected[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1)
        np.testing.assert_allclose(false_discovery(p), expected)

    @pytest.mark.parametrize("fate", ["smooth", "all or none", "rare"])
    def test_genes_without_a_part_in_a_fate(self, fate):
        """2,000 genes, many of them in few cells: hardly any effect with q < 0.05, p uniform."""
        rng = np.random.default_rng(3)
        n = 300
        u = rng.normal(size=n)
        z = np.clip({"smooth": u, "all or none": 6 * u, "rare": 2 * u - 5}[fate], -6.9, 6.9)
        rate = np.exp(rng.normal(-3, 1.5, 2000))
        X = np.log1p(3.7 * rng.poisson(rate, size=(n, 2000)))
        fixed = basis(np.column_stack([np.ones(n), rng.normal(size=n)]))
        found = associate(scipy.sparse.csr_matrix(X), 1 / (1 + np.exp(-z)), z, fixed, level=0.95)
        assert 1500 < len(found.gene) < 2000
        assert np.sum(false_discovery(found.effect_p_value) < 0.05) <= 2
        assert 0.02 < np.mean(found.effect_p_value < 0.05) < 0.065
        assert 0.035 < np.mean(found.p_value < 0.05) < 0.065
        if fate != "rare":  # where correlations are said not to hold
            assert np.sum(false_discovery(found.p_value) < 0.05) <= 2

    def test_blocks_make_no_difference(self, monkeypatch):
        rng = np.random.default_rng(0)
        X, z = rng.normal(size=(30, 25)), rng.normal(size=30)
        fixed = basis(np.ones((30, 1)))
        whole = associate(X, z, z, fixed, level=0.95)
        monkeypatch.setattr("mongefit.single_cell._association._BLOCK", 100)
        for one, other in zip(associate(X, z, z, fixed, level=0.95), whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:Element .* was written without encoding metadata")
@pytest.mark.skipif(not REAL.exists(), reason="the file is not here")
def test_markers_of_blood_cells():
    """Known markers are among the first genes of their fates, as docs/single-cell.md says."""
    adata = anndata.read_h5ad(REAL)
    days = {"time_key": "time_info", "source": 4, "target": 6}
    model = single_cell.fit(adata, **days, n_components=10, model=EUCLIDEAN)
    single_cell.fates(model, adata, "state_info", exclude="undiff")
    with pytest.warns(UserWarning, match="X holds values up to 2717, so logarithms"):
        fate_drivers(model, adata, "Mast")
    adata.X = adata.X.log1p()
    markers = {
        "Neutrophil": ["Prtn3", "Elane", "Ngp", "Gstm1"],
        "Monocyte": ["Mmp8", "Ctss", "Lyz2", "Mpeg1"],
        "Baso": ["Prss34", "Mcpt8", "Cpa3", "Gata2"],
        "Mast": ["Cma1", "Gzmb", "Tph1", "Tpsb2"],
    }
    for fate, genes in markers.items():
        found = fate_drivers(model, adata, fate, covariates="n_counts")
        assert len(found) == 2004
        assert set(genes) <= set(found.index[:8])
        assert found.loc[genes, "effect_q_value"].max() < 0.01
    early = fate_drivers(
        model,
        adata,
        "Neutrophil",
        covariates="n_counts",
        restrict=adata.obs["state_info"] == "undiff",
    )
    assert list(early.index[:8]) == [
        "Prtn3", "Elane", "Emb", "Mpo", "Ctsg", "Gstm1", "Slpi", "Gsr",
    ]  # fmt: skip


class TestCells:
    def test_restricted(self, model, adata):
        mask = (adata.obs["kind"] != "a").to_numpy()
        found = fate_drivers(model, adata, "left", restrict=mask)
        names = adata.obs_names[mask]
        pandas.testing.assert_frame_equal(fate_drivers(model, adata, "left", restrict=names), found)
        pandas.testing.assert_frame_equal(fate_drivers(model, adata[mask].copy(), "left"), found)
        with pytest.raises(DataError, match="restrict has the shape"):
            fate_drivers(model, adata, "left", restrict=mask[:5])
        with pytest.raises(DataError, match="None of the cells of restrict"):
            fate_drivers(model, adata, "left", restrict=(adata.obs["day"] == 4).to_numpy())
        with pytest.raises(DataError, match="3 cells are too few"):
            fate_drivers(model, adata, "left", restrict=adata.obs_names[:3])

    def test_without_a_fate(self, model, adata):
        adata.obsm["mongefit_fates"][[0, 4]] = np.nan
        with pytest.warns(UserWarning, match="2 of the 40 cells of day 2 have no fate"):
            found = fate_drivers(model, adata, "left")
        others = adata[np.setdiff1d(np.arange(adata.n_obs), [0, 4])].copy()
        pandas.testing.assert_frame_equal(found, fate_drivers(model, others, "left"))
        adata.obsm["mongefit_fates"][:] = np.nan
        with pytest.raises(DataError, match="is NaN for all 40 cells of day 2"):
            fate_drivers(model, adata, "left")

    def test_a_fate_that_all_cells_have(self, model, adata):
        adata.obsm["mongefit_fates"][:, 0] = 1.0
        with pytest.raises(DataError, match="is 1 in all of these 40 cells"):
            fate_drivers(model, adata, "left")

    def test_a_fate_that_is_rare_in_all_cells(self, model, adata):
        adata.obsm["mongefit_fates"][:, 0] *= 1e-5
        with pytest.warns(UserWarning, match="too near to 0 or 1 in all cells to take log-odds"):
            found = fate_drivers(model, adata, "left")
        assert not found["effect"].any()
        assert np.all(found["effect_q_value"] == 1)
        assert found.index[0] == "g7"

    def test_other_names_and_files(self, model, adata, tmp_path):
        single_cell.fates(model, adata, "cell_type", key_added="mine")
        adata.write_h5ad(tmp_path / "cells.h5ad")
        again = anndata.read_h5ad(tmp_path / "cells.h5ad")
        found = fate_drivers(model, again, "left", key_added="mine")
        pandas.testing.assert_frame_equal(found, fate_drivers(model, adata, "left"))


class TestRefused:
    def test_fates_not_there(self, model, adata):
        with pytest.raises(DataError, match=r"Run mongefit.single_cell.fates\(model, adata"):
            fate_drivers(model, make_cells(), "left")
        with pytest.raises(DataError, match="Did you mean key_added='mongefit'"):
            fate_drivers(model, adata, "left", key_added="mongfit")
        del adata.uns["mongefit_fates"]
        with pytest.raises(DataError, match=r"uns\['mongefit_fates'\] not found"):
            fate_drivers(model, adata, "left")

    def test_options(self, model, adata):
        with pytest.raises(OptionError, match=r"one of left, right, got 'lft'\. Did you mean left"):
            fate_drivers(model, adata, "lft")
        with pytest.raises(OptionError, match="by must be one of correlation, effect"):
            fate_drivers(model, adata, "left", by="p")
        with pytest.raises(OptionError, match="level must be"):
            fate_drivers(model, adata, "left", level=0)
        with pytest.raises(OptionError, match="n_top must be a whole number >= 1"):
            fate_drivers(model, adata, "left", n_top=0)
        with pytest.raises(OptionError, match="model must be what"):
            fate_drivers(model.model, adata, "left")

    def test_times(self, model, adata):
        with pytest.raises(OptionError, match="knows nothing of 6"):
            fate_drivers(model, adata, "left", target=6)
        with pytest.raises(DataError, match="has no value 2"):
            fate_drivers(model, adata[adata.obs["day"] == 4].copy(), "left")
        adata.uns["mongefit_fates"]["target"] = "6"
        with pytest.raises(DataError, match="holds fates from day 2 to 6, not from day 2 to 4"):
            fate_drivers(model, adata, "left")

    def test_expression(self, model, adata):
        X = np.array(adata.X)
        with pytest.raises(DataError, match=r"layers\['coun'\] not found. Keys: counts"):
            adata.layers["counts"] = np.rint(5 * X)
            fate_drivers(model, adata, "left", layer="coun")
        with pytest.raises(DataError, match=r"layers\['counts'\] looks like raw counts") as caught:
            fate_drivers(model, adata, "left", layer="counts")
        assert "use_rep" not in str(caught.value)
        with pytest.warns(UserWarning, match="logarithms were probably not taken"):
            adata.layers["large"] = 100 * X
            fate_drivers(model, adata, "left", layer="large")
        adata.X = np.full(X.shape, 2.5)
        with pytest.raises(DataError, match="None of 12 genes varies among these 40 cells"):
            fate_drivers(model, adata, "left")
        adata.X = np.where(np.arange(X.size).reshape(X.shape) == 40, np.nan, X)
        with pytest.raises(DataError, match="X is NaN or infinite in 1 cells"):
            fate_drivers(model, adata, "left")
        adata.X = None
        with pytest.raises(DataError, match="has no X"):
            fate_drivers(model, adata, "left")
        with pytest.raises(DataError, match="has no genes"):
            fate_drivers(model, adata[:, []].copy(), "left")

    def test_names_of_genes_twice(self, model, adata):
        expected = fate_drivers(model, adata, "left")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adata.var_names = ["g0", *adata.var_names[:-1]]
        with pytest.warns(UserWarning, match="1 names of genes occur more than once"):
            found = fate_drivers(model, adata, "left")
        np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())

    def test_covariates(self, model, adata):
        with pytest.raises(DataError, match=r"obs\['n_count'\] not found.*covariates='n_counts'"):
            fate_drivers(model, adata, "left", covariates="n_count")
        with pytest.raises(OptionError, match="covariates must be the name of one column"):
            fate_drivers(model, adata, "left", covariates=[3])
        with pytest.warns(UserWarning, match=r"obs\['day'\] is the same in all 40 cells"):
            found = fate_drivers(model, adata, "left", covariates=["day"])
        pandas.testing.assert_frame_equal(found, fate_drivers(model, adata, "left"))
        adata.obs["name"] = adata.obs_names
        with pytest.raises(DataError, match=r"obs\['name'\] has 40 values in 40 cells"):
            fate_drivers(model, adata, "left", covariates="name")
        adata.obs["kind"] = adata.obs["kind"].where(adata.obs_names != "c3")
        adata.obs["n_counts"] = adata.obs["n_counts"].where(adata.obs_names != "c4")
        for key, cell in (("kind", "c3"), ("n_counts", "c4")):
            with pytest.raises(DataError, match=f"missing or infinite in 1 of .* '{cell}'"):
                fate_drivers(model, adata, "left", covariates=key)


class TestMoves:
    def test_means_by_type(self, model, adata):
        found, error = move_genes(model, adata, by="kind", return_error=True)
        rows = np.flatnonzero(adata.obs["day"] == 2)
        x = adata.obsm["X_pca"][rows]
        changes = (model.model.transform(x) - x) @ adata.varm["PCs"].T
        kinds = adata.obs["kind"].to_numpy()[rows]
        assert list(found.columns) == ["a", "b", "c"]
        for kind in found:
            mine = changes[kinds == kind]
            by_gene = pandas.Series(mine.mean(axis=0), adata.var_names)
            np.testing.assert_allclose(found[kind], by_gene[found.index], rtol=1e-8)
            by_gene = pandas.Series(scipy.stats.sem(mine), adata.var_names)
            np.testing.assert_allclose(error[kind], by_gene[error.index], rtol=1e-8)
        assert np.all(np.diff(found.abs().max(axis=1)) <= 0)
        top = move_genes(model, adata, by="kind", n_top=4)
        pandas.testing.assert_frame_equal(top, found.iloc[:4])

    def test_of_all_cells_with_components_of_the_fit(self):
        """After ``pca=`` nothing but X is needed."""
        adata = make_cells()
        del adata.obsm["X_pca"], adata.varm["PCs"]
        by_pca = single_cell.fit(adata, **KEYS, pca=3, model=EUCLIDEAN)
        found = move_genes(by_pca, adata)
        assert list(found.columns) == ["all"]
        x = by_pca.coordinates(adata, np.arange(SIZES[0]))
        mean = (by_pca.model.transform(x) - x).mean(axis=0)
        pandas.testing.assert_series_equal(
            found["all"], single_cell.pull_back_genes(by_pca, adata, mean)[0], check_names=False
        )

    def test_cells_count_by_their_mass(self, adata):
        adata.obs["weight"] = np.where(np.arange(adata.n_obs) % 3 == 0, 2.0, 0.5)
        weighted = single_cell.fit(adata, **KEYS, weight_key="weight", model=EUCLIDEAN)
        found = move_genes(weighted, adata[::-1].copy())["all"]
        x = adata.obsm["X_pca"][: SIZES[0]]
        moves = weighted.model.transform(x) - x
        mean = np.average(moves, axis=0, weights=adata.obs["weight"].iloc[: SIZES[0]])
        np.testing.assert_allclose(found[adata.var_names], adata.varm["PCs"] @ mean, rtol=1e-8)

    def test_a_type_with_one_cell_and_cells_without_a_type(self, model, adata):
        adata.obs["type"] = ["one", None, *["many"] * (adata.n_obs - 2)]
        found, error = move_genes(model, adata, by="type", return_error=True)
        assert list(found.columns) == ["many", "one"]
        assert np.isinf(error["one"]).all()
        assert np.isfinite(error["many"]).all()

    def test_refused(self, model, adata):
        with pytest.raises(DataError, match=r"obs\['kinds'\] not found.*by='kind'"):
            move_genes(model, adata, by="kinds")
        with pytest.raises(OptionError, match="return_error must be True or False"):
            move_genes(model, adata, return_error="yes")
        with pytest.raises(DataError, match="that were fitted are not among"):
            move_genes(model, adata[5:].copy())
        del adata.varm["PCs"]
        with pytest.raises(DataError, match=r"varm\['PCs'\] not found"):
            move_genes(model, adata)
