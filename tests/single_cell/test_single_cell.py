"""AnnData in and out: which cells, which coordinates, what is known, what is written."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from sklearn.decomposition import PCA

import mongefit
from mongefit import MongeMap, single_cell
from mongefit._cli import cli
from mongefit._storage import models as storage
from mongefit.errors import DataError, MissingPackageError, ModelFileError, OptionError
from mongefit.explain import explain_cost
from mongefit.plotting._figures import GREY
from mongefit.single_cell import (
    cost_genes,
    fit,
    load,
    plot_transport,
    pull_back_genes,
    transport,
)
from mongefit.single_cell._cells import take_cells
from mongefit.single_cell._columns import Times

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

REAL = Path(__file__).parents[3] / "shared/data/moscot_temporal_tests.h5ad"
DAYS = np.repeat([2.0, 4.0, 6.0], [8, 6, 4])
GENES = 12
EUCLIDEAN = {"cost": "sqeuclidean", "epsilon": 0.1}
SMALL_NETWORK = {"hidden_layer_sizes": (4,), "max_iter": 1, "epsilon": 0.3}
KEYS = {"time_key": "day", "source": 2, "target": 4}


def cells(*, days=DAYS, X=None, **columns):
    """Eight cells of day 2, six of day 4 and four of day 6, with components and a plane."""
    rng = np.random.default_rng(0)
    n = len(days)
    X = rng.gamma(1.0, size=(n, GENES)) * (rng.uniform(size=(n, GENES)) < 0.6) if X is None else X
    obs = pandas.DataFrame({"day": days, **columns}, index=[f"c{i}" for i in range(n)])
    adata = anndata.AnnData(X, obs=obs)
    adata.var_names = [f"g{i}" for i in range(GENES)]
    adata.obsm["X_pca"] = rng.normal(size=(n, 3))
    adata.obsm["X_umap"] = rng.normal(size=(n, 2))
    adata.varm["PCs"] = rng.normal(size=(GENES, 3))
    return adata


def chosen(adata, *, source=2, target=4, time_key="day", **options):
    return take_cells(adata, time_key=time_key, source=source, target=target, **options)


@pytest.fixture(scope="module")
def model():
    """The squared Euclidean map from day 2 to day 4 in X_pca."""
    return fit(cells(), **KEYS, model=MongeMap(**EUCLIDEAN))


class TestTimes:
    @pytest.mark.parametrize(
        "convert",
        [
            lambda days: days,
            lambda days: days.astype(int),
            lambda days: days.astype("f4"),
            lambda days: days.astype(str),
            lambda days: days.astype(int).astype(str),
            lambda days: pandas.Categorical(days),
            lambda days: pandas.Categorical(days.astype(int).astype(str)),
            lambda days: pandas.array(days.astype(int), dtype="Int64"),
        ],
    )
    @pytest.mark.parametrize("value", [2, 2.0, "2", "2.0", np.float32(2)])
    def test_numbers_are_found_in_every_form(self, convert, value):
        adata = cells(days=convert(DAYS))
        rows = Times.of("day", value, 4).rows(adata, target=False)
        np.testing.assert_array_equal(rows, np.arange(8))

    def test_numbers_without_an_exact_form(self):
        adata = cells(days=np.where(DAYS == 2, 10.1, DAYS).astype("f4"))
        assert len(Times.of("day", 10.1, 4).rows(adata, target=False)) == 8

    def test_words_and_missing_values(self):
        days = np.where(DAYS == 2, "early", "late").astype(object)
        days[0] = None
        rows = Times.of("day", "early", "late").rows(cells(days=days), target=False)
        np.testing.assert_array_equal(rows, np.arange(1, 8))

    def test_unknown_value(self):
        with pytest.raises(DataError, match=r"obs\['day'\] has no value 3. Values: 2.0, 4.0, 6.0."):
            chosen(cells(), target=3)
        adata = cells(days=np.where(DAYS == 2, "early", "late"))
        with pytest.raises(DataError, match="Did you mean early"):
            chosen(adata, source="earyl", target="late")

    def test_the_same_value_twice(self):
        with pytest.raises(OptionError, match="both 2"):
            Times.of("day", 2, "2.0")

    @pytest.mark.parametrize("key", ["days", "time"])
    def test_missing_column(self, key):
        # The second has no near match: it is the column that holds both values.
        with pytest.raises(DataError) as caught:
            chosen(cells(batch=np.arange(18)), time_key=key)
        assert str(caught.value) == (
            f"obs['{key}'] not found. Columns: day, batch. Did you mean time_key='day'?"
        )


class TestRepresentation:
    def test_default(self):
        adata = cells()
        found = chosen(adata)
        np.testing.assert_array_equal(found.x, adata.obsm["X_pca"][:8])
        np.testing.assert_array_equal(found.y, adata.obsm["X_pca"][8:14])

    def test_rows_in_any_order(self):
        adata = cells()[::-1].copy()
        np.testing.assert_array_equal(chosen(adata).x, adata.obsm["X_pca"][-8:])

    def test_first_columns(self):
        adata = cells()
        np.testing.assert_array_equal(
            chosen(adata, n_components=2).y, adata.obsm["X_pca"][8:14, :2]
        )
        with pytest.raises(DataError, match="has 3 columns; n_components=4"):
            chosen(adata, n_components=4)

    def test_frame_and_sparse_array(self):
        adata = cells()
        adata.obsm["frame"] = pandas.DataFrame(adata.obsm["X_pca"], index=adata.obs_names)
        adata.obsm["sparse"] = scipy.sparse.csr_matrix(adata.obsm["X_pca"])
        for name in ("frame", "sparse"):
            np.testing.assert_array_equal(chosen(adata, use_rep=name).x, adata.obsm["X_pca"][:8])

    def test_missing(self):
        adata = cells()
        with pytest.raises(DataError) as caught:
            chosen(adata, use_rep="X_pac")
        assert str(caught.value) == (
            "obsm['X_pac'] not found. Keys: X_pca, X_umap. Did you mean use_rep='X_pca'? With "
            "pca=10 "
            "components are computed from X."
        )
        del adata.obsm
        with pytest.raises(DataError, match=r"Keys: none. With pca=10"):
            chosen(adata)

    def test_nan(self):
        adata = cells()
        adata.obsm["X_pca"][[3, 9, 16]] = np.nan
        with pytest.raises(DataError, match=r"in 1 cells: rows 3 \(first: 'c3'\)"):
            chosen(adata)
        adata.X[9, 2] = np.inf
        with pytest.raises(DataError, match=r"X is NaN or infinite in 1 cells: rows 9"):
            chosen(adata, pca=2)

    @pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csc_array])
    @pytest.mark.parametrize("backed", [False, True])
    def test_components_are_those_of_scikit_learn(self, kind, backed, tmp_path):
        dense = cells().X
        adata = cells(X=kind(dense.astype("f4")))
        if backed:
            adata.write_h5ad(tmp_path / "cells.h5ad")
            adata = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
        found = chosen(adata, pca=2)
        expected = PCA(2, svd_solver="full").fit(dense[:14].astype("f4").astype("f8"))
        both = np.concatenate([found.x, found.y])
        np.testing.assert_allclose(both, expected.transform(dense[:14].astype("f4")), atol=1e-6)
        if backed:
            adata.file.close()

    def test_x_itself(self):
        adata = cells()
        np.testing.assert_array_equal(chosen(adata, use_rep="X").x, adata.X[:8])

    @pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix])
    def test_raw_counts_are_refused(self, kind):
        adata = cells(X=kind(np.random.default_rng(0).poisson(3, size=(18, GENES)).astype("f4")))
        with pytest.raises(DataError, match=r"looks like raw counts.*log1p.*use_rep='X_pca'"):
            chosen(adata, pca=2)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"pca": 12}, "below the numbers of cells and of genes, 14 and 12, got 12"),
            ({"pca": 0}, "pca must be a whole number >= 1"),
            ({"pca": 2, "use_rep": "X_pca"}, "leave out use_rep"),
            ({"n_components": 0}, "n_components must be a whole number >= 1"),
        ],
    )
    def test_bad_options(self, options, words):
        with pytest.raises(OptionError, match=words):
            chosen(cells(), **options)

    def test_what_is_no_anndata(self):
        with pytest.raises(OptionError, match=r"got str. Read the file with anndata.read_h5ad"):
            chosen("cells.h5ad")
        with pytest.raises(DataError, match="no X"):
            chosen(anndata.AnnData(obs=cells().obs), pca=2)

    def test_anndata_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "anndata", None)
        with pytest.raises(MissingPackageError, match=r"pip install mongefit\[anndata\]"):
            chosen(None)


class TestClones:
    CLONES = ("a", "a", "b", "c", None, "a", "", "b", "a", "b", "b", "d", np.nan, "a", *"abcd")

    def test_every_clone_counts_the_same(self):
        clone = np.array(self.CLONES, dtype=object)
        with pytest.warns(UserWarning, match="is '' in 1 cells: taken for not known"):
            found = chosen(cells(clone=clone), pair_key="clone")
        expected = {
            **{(i, j): 1 / 6 for i in (0, 1, 5) for j in (0, 5)},
            **{(i, j): 1 / 4 for i in (2, 7) for j in (1, 2)},
        }
        pairs = dict(zip(map(tuple, found.known.pairs.tolist()), found.known.weight, strict=True))
        assert pairs == expected
        assert [pairs[0] in (0, 1, 5) for pairs in found.known.pairs] == (
            found.known.clone == 0
        ).tolist()
        assert found.warnings == ["obs['clone'] is '' in 1 cells: taken for not known there."]

    @pytest.mark.parametrize(
        ("missing", "present"), [(-1, 7), (-1.0, 7.0), (np.nan, 7.0), ("-1", "7")]
    )
    def test_numbers(self, missing, present):
        clone = np.array([present if row in (0, 8, 9) else missing for row in range(18)])
        found = chosen(cells(clone=clone), pair_key="clone")
        assert found.known.pairs.tolist() == [[0, 0], [0, 1]]

    def test_none_shared(self):
        with pytest.raises(
            DataError, match="occurs in both the source and the target: 0, 1, 2, 3,"
        ):
            chosen(cells(clone=np.arange(18)), pair_key="clone")

    def test_sets_that_are_no_clones(self, monkeypatch):
        monkeypatch.setattr(single_cell._clones, "MAX_PAIRS", 40)
        with pytest.raises(DataError, match=r"48 pairs in 1 sets.*Use groups_key='clone'"):
            chosen(cells(clone="a"), pair_key="clone")

    def test_missing_column(self):
        with pytest.raises(DataError, match="Did you mean pair_key='clone'"):
            chosen(cells(clone="a"), pair_key="clones")


class TestPairs:
    def test_by_name(self):
        frame = pandas.DataFrame({"from": ["c3", "c0"], "to": ["c9", "c13"], "weight": [1, 0.5]})
        for pairs in (frame, [("c3", "c9", 1), ("c0", "c13", 0.5)]):
            known = chosen(cells(), pairs=pairs).known
            assert known.pairs.tolist() == [[3, 1], [0, 5]]
            assert known.weight.tolist() == [1, 0.5]
            assert known.clone is None
        assert chosen(cells(), pairs=[["c3", "c9"]]).known.weight.tolist() == [1]

    @pytest.mark.parametrize(
        ("pairs", "words"),
        [
            ([("c1", "c9"), ("c2", "c99"), ("c3", "d")],
             r"2 of 3 pair names are not in the target \(first: 'c99'\). Did you mean c9"),
            ([("c9", "c1")],
             r"1 of 1 pair names are not in the source \(first: 'c9'\). It is a cell"),
            ([("c1", "c9"), ("c1", "c8")], "'c1' is paired with several targets: 'c8', 'c9'"),
            ([("c1",)], "two columns"),
            ([("c1", "c9", 1, 2)], "two columns"),
            ([("c1", None)], "no name in row 0"),
            ([("c1", "c9", "x")], "must be numbers"),
            ([], "pairs is empty|two columns"),
        ],
    )  # fmt: skip
    def test_refused(self, pairs, words):
        with pytest.raises(DataError, match=words):
            chosen(cells(), pairs=pairs)

    def test_several_targets_on_request(self):
        pairs = [("c1", "c9"), ("c1", "c8")]
        assert len(chosen(cells(), pairs=pairs, many_to_many=True).known.pairs) == 2

    def test_names_that_occur_twice(self):
        adata = cells()
        adata.obs_names = [*adata.obs_names[:-5], "c1", *adata.obs_names[-4:]]
        with pytest.raises(DataError, match=r"1 names.*\(first: 'c1'\).*obs_names_make_unique"):
            chosen(adata, pairs=[("c2", "c9")])

    def test_two_kinds_at_once(self):
        with pytest.raises(OptionError, match="both tell of pairs"):
            chosen(cells(clone="a"), pairs=[("c2", "c9")], pair_key="clone")
        with pytest.raises(OptionError, match="are both 'clone'"):
            chosen(cells(clone="a"), groups_key="clone", pair_key="clone")


class TestGroups:
    def test_labels_of_one_side_and_missing_ones(self):
        label = np.array([*"aabbcc", None, "unknown", *"abbaad", *"abcd"], dtype=object)
        adata = cells(label=pandas.Categorical(label))
        with pytest.warns(UserWarning) as caught:
            found = chosen(adata, groups_key="label")
        assert [str(warning.message) for warning in caught] == found.warnings
        assert found.warnings == [
            "obs['label'] is 'unknown' in 1 cells: taken for not known there.",
            "obs['label']: c, d in the source or in the target only; the 3 cells count as of no "
            "known group.",
        ]
        assert found.groups[0].tolist() == [*"aabb", *[None] * 4]
        assert found.groups[1].tolist() == [*"abbaa", None]

    def test_none_shared(self):
        with pytest.raises(DataError, match=r"occurs in both.*: t0, t1, t2, t3, t4, … "):
            chosen(cells(label=[f"t{i}" for i in range(18)]), groups_key="label")

    def test_near_matches(self):
        label = np.where(DAYS == 2, "Stromal", "stromal").astype(object)
        label[[0, 8]] = "IPS"
        label[9] = "Stromal"
        with pytest.warns(UserWarning, match="Did you mean Stromal"):
            chosen(cells(label=label), groups_key="label")

    def test_batches_hold_what_is_known(self):
        found = chosen(cells(label="a"), groups_key="label", pairs=[("c2", "c9")])
        assert found.suited_options() == {"epsilon": 0.05, "batch_size": 512}
        many = cells(days=np.repeat([2, 4], [300, 200]), label="a")
        options = chosen(many, groups_key="label").suited_options()
        assert options["batch_size"] == 300 + 256


class TestFit:
    def test_what_is_given_to_the_estimator(self, monkeypatch):
        calls = []

        def remember(self, X, Y, **known):
            calls.append((self, X, Y, known))
            self.diagnostics_ = {"input_warnings": ["later"]}
            return self

        monkeypatch.setattr(MongeMap, "fit", remember)
        clone = np.full(18, None, dtype=object)
        clone[[0, 8, 9]] = "a"
        clone[1] = "NA"
        adata = cells(clone=clone)
        before = adata.copy()
        given = MongeMap(max_iter=7, epsilon=0.3)
        with pytest.warns(UserWarning, match="'NA'"):
            fitted = fit(adata, **KEYS, pair_key="clone", model=given)
        ((model, X, Y, known),) = calls
        assert fitted.model is model and model is not given
        assert model.get_params() == {**given.get_params(), "many_to_many": True}
        assert not given.many_to_many
        np.testing.assert_array_equal(X, adata.obsm["X_pca"][:8])
        np.testing.assert_array_equal(Y, adata.obsm["X_pca"][8:14])
        assert known["pairs"].tolist() == [[0, 0], [0, 1]]
        assert known["pair_weight"].tolist() == [0.5, 0.5]
        assert known["groups"] is None
        assert model.diagnostics_["input_warnings"][-1] == "later"
        assert_same(adata, before)

    def test_model_of_another_kind(self):
        with pytest.raises(
            OptionError,
            match="a MongeMapCV or an EnsembleMap, or a TemporalMap for several times, got str",
        ):
            fit(cells(), **KEYS, model="icnn")


def assert_same(adata, other):
    pandas.testing.assert_frame_equal(adata.obs, other.obs)
    np.testing.assert_array_equal(adata.X, other.X)
    assert adata.obsm.keys() == other.obsm.keys()
    assert adata.uns.keys() == other.uns.keys()
    for key in adata.obsm:
        np.testing.assert_array_equal(adata.obsm[key], other.obsm[key])


def assert_equal(found, expected):
    """Nested dictionaries of text, numbers and arrays."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    else:
        np.testing.assert_array_equal(found, expected)


class TestTransport:
    def test_forward(self, model):
        adata = cells()
        assert transport(model, adata) is None
        x = adata.obsm["X_pca"]
        expected = model.model.transform(x[:8])
        np.testing.assert_array_equal(adata.obsm["X_mongefit"][:8], expected)
        assert np.all(np.isnan(adata.obsm["X_mongefit"][8:]))
        length = adata.obs["mongefit_displacement"].to_numpy()
        np.testing.assert_allclose(length[:8], np.linalg.norm(expected - x[:8], axis=1))
        assert np.all(np.isnan(length[8:]))
        found = adata.uns["mongefit"]
        assert (found["time_key"], found["source"], found["target"]) == ("day", "2", "4")
        assert (found["use_rep"], found["n_components"], found["inverse"]) == ("X_pca", 3, False)
        assert found["options"]["cost"] == "sqeuclidean"
        assert found["versions"]["mongefit"] == mongefit.__version__

    def test_inverse_into_a_copy(self, model):
        adata = cells()
        before = adata.copy()
        copy = transport(model, adata, key_added="origin", inverse=True, copy=True)
        assert_same(adata, before)
        expected = model.model.inverse_transform(adata.obsm["X_pca"][8:14])
        np.testing.assert_array_equal(copy.obsm["X_origin"][8:14], expected)
        assert np.isnan(copy.obs["origin_displacement"]).sum() == 12
        assert copy.uns["origin"]["inverse"]

    def test_everything_is_readable_again(self, model, tmp_path):
        adata = transport(model, cells(), copy=True)
        adata.uns["mongefit"]["history"] = {"loss": np.arange(3.0), "applied": np.ones(3, bool)}
        adata.write_h5ad(tmp_path / "out.h5ad")
        again = anndata.read_h5ad(tmp_path / "out.h5ad")
        assert_same(again, adata)
        assert_equal(again.uns["mongefit"], adata.uns["mongefit"])

    def test_other_cells_of_a_backed_file(self, model, tmp_path):
        cells()[[9, 3, 16]].write_h5ad(tmp_path / "few.h5ad")
        adata = anndata.read_h5ad(tmp_path / "few.h5ad", backed="r")
        copy = transport(model, adata, copy=True)
        assert "X_mongefit" not in adata.obsm
        expected = model.model.transform(cells().obsm["X_pca"][3:4])
        np.testing.assert_allclose(copy.obsm["X_mongefit"][1:2], expected)
        transport(model, adata)
        assert "X_mongefit" in adata.obsm
        adata.file.close()

    def test_losses_and_layers_among_the_options(self, model, tmp_path):
        # Not fitted with them: only what is written matters here.
        changed = MongeMap(
            **EUCLIDEAN, hidden_layer_sizes=(8, 4), penalties=[mongefit.penalties.CostSize()]
        )
        for name, value in vars(model.model).items():
            vars(changed).setdefault(name, value)
        adata = transport(
            single_cell.SingleCellMap(changed, model.times, model.representation),
            cells(),
            copy=True,
        )
        adata.write_h5ad(tmp_path / "out.h5ad")
        found = anndata.read_h5ad(tmp_path / "out.h5ad").uns["mongefit"]["options"]
        assert found["hidden_layer_sizes"].tolist() == [8, 4]
        assert "CostSize" in found["penalties"]
        assert "diffeo" not in found

    def test_refused(self, model):
        adata = cells()
        with pytest.raises(OptionError, match="got MongeMap"):
            transport(model.model, adata)
        with pytest.raises(OptionError, match="without '/'"):
            transport(model, adata, key_added="a/b")
        adata.obsm["X_pca"] = np.zeros((18, 5))
        with pytest.raises(DataError, match="expects 3 features, got 5"):
            transport(model, adata)
        with pytest.raises(DataError, match=r"has no value 2. Values: 6.0"):
            transport(model, cells()[-4:])
        assert set(adata.obsm) == {"X_pca", "X_umap"}


@pytest.fixture(scope="module")
def by_pca():
    """The same in two components of X that fit computes."""
    return fit(cells(), **KEYS, pca=2, model=MongeMap(**EUCLIDEAN))


class TestFile:
    def test_comes_back(self, by_pca, tmp_path):
        by_pca.save(tmp_path / "m")
        loaded = load(tmp_path / "m")
        assert loaded.times == by_pca.times
        assert loaded.representation.pca.genes == tuple(cells().var_names)
        # Genes in another order, and more of them.
        adata = cells()[:, ::-1].copy()
        expected = transport(by_pca, cells(), copy=True).obsm["X_mongefit"]
        np.testing.assert_allclose(
            transport(loaded, adata, copy=True).obsm["X_mongefit"], expected, atol=1e-12
        )
        with pytest.raises(FileExistsError):
            by_pca.save(tmp_path / "m")

    def test_is_a_model_of_points_too(self, by_pca, model, tmp_path):
        by_pca.save(tmp_path / "m")
        points = np.zeros((1, 2))
        np.testing.assert_array_equal(
            mongefit.load(tmp_path / "m").transform(points), by_pca.model.transform(points)
        )
        model.model.save(tmp_path / "plain")
        with pytest.raises(ModelFileError, match="was not fitted on an AnnData"):
            load(tmp_path / "plain")

    def test_columns_come_back(self, tmp_path):
        adata = cells()
        few = fit(adata, **KEYS, n_components=2, model=MongeMap(**EUCLIDEAN))
        few.save(tmp_path / "m")
        found = load(tmp_path / "m").representation
        assert (found.name, found.n_components, found.pca) == ("X_pca", 2, None)

    def test_missing_and_repeated_genes(self, by_pca):
        adata = cells()[:, 2:].copy()
        with pytest.raises(DataError, match=r"2 of 12 genes.*missing \(first: 'g0'\)"):
            transport(by_pca, adata)
        adata.var_names = ["g9", *adata.var_names[1:]]
        with pytest.raises(DataError, match="var_names_make_unique"):
            transport(by_pca, adata)

    @pytest.mark.parametrize(
        "change",
        [
            lambda header, tensors: header.update(key=3),
            lambda header, tensors: header.pop("source"),
            lambda header, tensors: header.update(genes=["g0"]),
            lambda header, tensors: header.pop("genes"),
            lambda header, tensors: header.update(n_components=3),
            lambda header, tensors: tensors.pop("mean"),
            lambda header, tensors: tensors.update(other=np.zeros(1)),
            lambda header, tensors: tensors.update(mean=np.full(GENES, np.nan)),
            lambda header, tensors: tensors.update(loadings=np.zeros((GENES, 3))),
        ],
    )
    def test_forged(self, by_pca, tmp_path, change):
        by_pca.save(tmp_path / "m")
        model, section = storage.load_with_cells(tmp_path / "m")
        change(section.header, section.tensors)
        storage.save(model, tmp_path / "m", overwrite=True, single_cell=section)
        with pytest.raises(ModelFileError, match="what it says of cells"):
            load(tmp_path / "m")
        assert mongefit.load(tmp_path / "m").n_features_in_ == 2

    def test_tensors_without_a_section(self, model, tmp_path):
        storage.save(
            model.model, tmp_path / "m", single_cell=storage.Section({}, {"mean": np.zeros(1)})
        )
        assert mongefit.load(tmp_path / "m").n_features_in_ == 3
        with pytest.raises(ModelFileError, match="what it says of cells"):
            load(tmp_path / "m")


class TestGenes:
    def test_loadings_of_scanpy(self, model):
        adata = cells()
        moves = pandas.DataFrame(np.eye(3)[:2], index=["first", "second"])
        found = pull_back_genes(model, adata, moves)
        assert list(found.columns) == ["first", "second"]
        np.testing.assert_allclose(found.loc[adata.var_names], adata.varm["PCs"][:, :2])
        size = found.abs().max(axis=1).to_numpy()
        assert np.all(np.diff(size) <= 0)

    def test_loadings_that_fit_computed(self, by_pca):
        adata = cells()
        x = by_pca.coordinates(adata, np.arange(2))
        found = pull_back_genes(by_pca, adata, x[1] - x[0], n_top=3)
        assert found.shape == (3, 1)
        # Projecting the change of genes gives the displacement again.
        full = pull_back_genes(by_pca, adata, x[1] - x[0]).loc[adata.var_names, 0]
        np.testing.assert_allclose(full @ by_pca.representation.pca.loadings, x[1] - x[0])
        assert found.index.tolist() == full.abs().nlargest(3).index.tolist()

    def test_refused(self, model):
        adata = cells()
        with pytest.raises(DataError, match=r"shape \(2,\); the model has 3 components"):
            pull_back_genes(model, adata, np.zeros(2))
        adata.varm["PCs"] = np.zeros((GENES, 2))
        with pytest.raises(DataError, match="has 2 columns"):
            pull_back_genes(model, adata, np.zeros(3))
        del adata.varm["PCs"]
        with pytest.raises(DataError, match=r"varm\['PCs'\] not found. Keys: none"):
            pull_back_genes(model, adata, np.zeros(3))
        other = fit(adata, **KEYS, use_rep="X_umap", model=MongeMap(**EUCLIDEAN))
        with pytest.raises(DataError, match="no loadings"):
            pull_back_genes(other, adata, np.zeros(2))


def arrows(ax):
    (found,) = [artist for artist in ax.collections if isinstance(artist, Quiver)]
    return found.XY, found.XY + np.stack([found.U, found.V], axis=1)


class TestCostGenes:
    def test_directions_of_the_cost_as_genes(self):
        """With one dear component the genes of the first direction are those of its loadings."""
        adata = cells()
        dear = fit(adata, **KEYS, model=MongeMap(mongefit.Mahalanobis(np.diag([1.0, 9.0, 4.0]))))
        found = cost_genes(dear, adata, n_top=4)
        assert found["direction"].tolist() == np.repeat([1, 2, 3], 4).tolist()
        np.testing.assert_allclose(found["curvature"][::4], [27 / 14, 12 / 14, 3 / 14])
        for direction, component in ((1, 1), (2, 2), (3, 0)):
            part = found[found["direction"] == direction]
            loadings = pandas.Series(adata.varm["PCs"][:, component], index=adata.var_names)
            expected = loadings.reindex(loadings.abs().sort_values(ascending=False).index)[:4]
            assert part["gene"].tolist() == list(expected.index)
            np.testing.assert_allclose(part["change"].abs(), expected.abs(), rtol=1e-6)

    def test_chosen_cells(self, model):
        adata = cells()
        curved = fit(adata, **KEYS, model=MongeMap(mongefit.PowerNorm(1.5, 0.1), epsilon=0.1))
        some = explain_cost(curved.model, adata.obsm["X_pca"][:3])
        found = cost_genes(curved, adata, some, n_top=1)
        expected = np.abs(adata.varm["PCs"] @ some.directions.T).max(axis=0)
        np.testing.assert_allclose(found["change"].abs(), expected)
        with pytest.raises(OptionError, match="n_top"):
            cost_genes(curved, adata, n_top=0)

    def test_squared_euclidean_ranks_no_genes(self, model):
        with pytest.raises(DataError, match="squared Euclidean: all directions cost the same"):
            cost_genes(model, cells())


class TestFingerprint:
    """Cells in other components than those of the fit are refused."""

    @pytest.fixture(scope="class", params=["fitted", "from a file"])
    def kept(self, model, request, tmp_path_factory):
        if request.param == "fitted":
            return model
        path = tmp_path_factory.mktemp("fingerprint") / "model.mongefit"
        model.save(path)
        return load(path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda points: points * [1, -1, 1],
            lambda points: points @ np.linalg.qr(np.eye(3) + 0.3)[0],
            lambda points: points[:, [1, 0, 2]],
            lambda points: 1.1 * points,
        ],
        ids=["sign", "rotation", "order", "scale"],
    )
    def test_the_same_cells_elsewhere(self, kept, change):
        adata = cells()
        adata.obsm["X_pca"] = change(adata.obsm["X_pca"])
        with pytest.raises(DataError, match=r"obsm\['X_pca'\] is not that of the fit: cell 'c"):
            transport(kept, adata)
        with pytest.raises(DataError, match="is not that of the fit"):
            plot_transport(kept, adata)

    def test_new_cells_are_known_by_their_loadings(self, kept):
        adata = cells()
        adata.obs_names = [f"new {name}" for name in adata.obs_names]
        transport(kept, adata)
        adata.varm["PCs"] = adata.varm["PCs"] * [1, -1, 1]
        with pytest.raises(DataError, match=r"varm\['PCs'\] is not that of the fit"):
            transport(kept, adata)

    def test_what_cannot_be_checked_is_said(self, kept):
        adata = cells()
        adata.obs_names = [f"new {name}" for name in adata.obs_names]
        del adata.varm["PCs"]
        with pytest.warns(UserWarning, match="could not be checked"):
            transport(kept, adata)

    def test_rounding_in_a_file_is_no_difference(self, kept):
        adata = cells()
        adata.obsm["X_pca"] = adata.obsm["X_pca"].astype(np.float32)
        transport(kept, adata[:9].copy())


class TestWeights:
    def test_weights_of_cells_are_those_of_points(self):
        adata = cells()
        adata.obs["weight"] = np.linspace(0.0, 2.0, adata.n_obs)
        weighted = fit(adata, **KEYS, weight_key="weight", model=MongeMap(**EUCLIDEAN)).model
        early, late = (adata.obs["day"] == day for day in (2, 4))
        points, weight = adata.obsm["X_pca"], adata.obs["weight"].to_numpy()
        direct = MongeMap(**EUCLIDEAN, normalize_weight=True).fit(
            points[early], points[late], source_weight=weight[early], target_weight=weight[late]
        )
        np.testing.assert_array_equal(weighted.coupling_, direct.coupling_)

    def test_weights_reach_what_is_chosen(self):
        adata = cells(days=np.repeat([2, 4], 24), clone=np.tile(np.arange(12), 4))
        adata.obs["weight"] = np.where(np.arange(48) % 24 < 20, 1.0, 0.0)
        small = MongeMap(hidden_layer_sizes=(4,), max_iter=1, epsilon=0.3)
        found, _ = single_cell.select(
            adata, **KEYS, pair_key="clone", weight_key="weight", candidates=small
        )
        np.testing.assert_array_equal(found.model.coupling_[20:], 0)
        assert np.all(found.model.coupling_.sum(axis=1)[:20] > 0)

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            (["x"] * 18, "must hold numbers"),
            ([-1.0] * 18, "negative at row 0"),
            ([np.nan] * 18, "NaN or infinite"),
            ([0.0] * 18, "zero everywhere"),
        ],
    )
    def test_refused(self, column, words):
        adata = cells()
        adata.obs["weight"] = column
        with pytest.raises(DataError, match=words):
            fit(adata, **KEYS, weight_key="weight", model=MongeMap(**EUCLIDEAN))
        with pytest.raises(DataError, match="Did you mean weight_key='weight'"):
            fit(adata, **KEYS, weight_key="weights", model=MongeMap(**EUCLIDEAN))


class TestGrowth:
    """Growth rates that are known before the fit."""

    def test_weights_are_exponentials_of_rates(self, tmp_path):
        # Of the target nothing need be known.
        adata = cells(growth=np.where(DAYS == 2, np.linspace(-0.5, 0.8, 18), np.nan))
        grown = fit(adata, **KEYS, growth_key="growth", model=MongeMap(**EUCLIDEAN))
        early, late = (adata.obs["day"] == day for day in (2, 4))
        points, rate = adata.obsm["X_pca"], adata.obs["growth"].to_numpy()[early]
        # Two days lie between.
        direct = MongeMap(**EUCLIDEAN, normalize_weight=True).fit(
            points[early], points[late], source_weight=np.exp(2 * rate)
        )
        np.testing.assert_allclose(grown.model.coupling_, direct.coupling_, atol=1e-12)
        grown.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert (again.growth_key, again.weight_key) == ("growth", None)
        result = CliRunner().invoke(cli, ["info", str(tmp_path / "m")])
        assert "  weights         obs: growth as growth rates\n" in result.stdout
        assert transport(again, adata, copy=True).uns["mongefit"]["growth_key"] == "growth"

    def test_rates_and_weights_together(self):
        adata = cells(growth=np.linspace(-0.5, 0.5, 18), weight=np.linspace(0, 1, 18))
        found = chosen(adata, growth_key="growth", weight_key="weight")
        early, late = (adata.obs["day"] == day for day in (2, 4))
        expected = (adata.obs["weight"] * np.exp(2 * adata.obs["growth"]))[early]
        np.testing.assert_allclose(found.a, expected / expected.sum())
        expected = adata.obs["weight"][late]
        np.testing.assert_allclose(found.b, expected / expected.sum())

    def test_equal_rates_change_nothing_however_large(self):
        found = chosen(cells(growth=np.full(18, 1e4)), growth_key="growth")
        np.testing.assert_allclose(found.a, np.full(8, 1 / 8))

    def test_back_in_time(self):
        adata = cells(growth=np.linspace(-0.5, 0.5, 18))
        found = chosen(adata, source=4, target=2, growth_key="growth")
        expected = np.exp(-2 * adata.obs["growth"][adata.obs["day"] == 4])
        np.testing.assert_allclose(found.a, expected / expected.sum())

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            (["x"] * 18, "must hold growth rates"),
            ([0.0] + [np.nan] * 17, r"is nan in 7 of 8 cells of day 2 \(first: 'c1'\)"),
            ([np.inf] * 18, r"is inf in 8 of 8 cells"),
        ],
    )
    def test_refused(self, column, words):
        adata = cells(growth=column)
        with pytest.raises(DataError, match=words):
            fit(adata, **KEYS, growth_key="growth", model=MongeMap(**EUCLIDEAN))
        with pytest.raises(DataError, match="Did you mean growth_key='growth'"):
            fit(adata, **KEYS, growth_key="grwoth", model=MongeMap(**EUCLIDEAN))

    def test_times_must_be_numbers(self):
        adata = cells(days=np.where(DAYS == 2, "early", "late"), growth=np.zeros(18))
        with pytest.raises(DataError, match=r"not both numbers\. Give the weights themselves: wei"):
            chosen(adata, source="early", target="late", growth_key="growth")

    def test_scores_that_are_no_rates(self):
        adata = cells(days=np.repeat([2.0, 4.0], [30, 4]), growth=np.linspace(0, 100, 34))
        with pytest.warns(UserWarning, match="the 30 cells of day 2 count as 1: a few are said"):
            found = chosen(adata, growth_key="growth")
        assert len(found.warnings) == 1
        # Cells without weight do not count, whatever their rate.
        adata = cells(growth=np.r_[1e5, np.zeros(17)], weight=np.r_[0.0, np.ones(17)])
        found = chosen(adata, growth_key="growth", weight_key="weight")
        np.testing.assert_allclose(found.a, np.r_[0, np.full(7, 1 / 7)])


@pytest.mark.parametrize("option", ["pair_key", "groups_key", "weight_key", "growth_key"])
def test_a_list_where_one_key_is_expected(option):
    with pytest.raises(OptionError, match=rf"{option} must be the name of one column of obs"):
        fit(cells(), **KEYS, **{option: ["clone"]})


def test_a_list_for_the_time_key():
    with pytest.raises(OptionError, match="time_key must be the name of one column"):
        fit(cells(), **(KEYS | {"time_key": ["day"]}))


def test_all_cells_in_one_clone_is_warned_of():
    adata = cells(clone=np.full(18, "a"))
    with pytest.warns(UserWarning, match="in one clone, 'a'"):
        fit(adata, **KEYS, pair_key="clone", model=MongeMap(**SMALL_NETWORK))


class TestPicture:
    def test_in_the_representation(self, model):
        adata = cells()
        before = adata.copy()
        ax = plot_transport(model, adata, arrows="cells", title="cells")
        tails, heads = arrows(ax)
        np.testing.assert_array_equal(tails, adata.obsm["X_pca"][:8, :2])
        expected = model.model.transform(adata.obsm["X_pca"][:8])[:, :2]
        np.testing.assert_allclose(heads, expected)
        assert {text.get_text() for text in ax.get_legend().get_texts()} == {"day 2", "day 4"}
        assert (ax.get_xlabel(), ax.get_title()) == ("pca 1", "cells")
        assert_same(adata, before)

    @pytest.mark.parametrize("basis", ["umap", "X_umap"])
    def test_in_another_basis_arrows_end_among_neighbours(self, model, basis):
        adata = cells()
        given = Figure().subplots()
        ax = plot_transport(
            model, adata, basis=basis, arrows="cells", n_arrows=3, n_neighbors=2, ax=given
        )
        assert ax is given
        tails, heads = arrows(ax)
        np.testing.assert_array_equal(tails, adata.obsm["X_umap"][[0, 3, 7]])
        mapped = model.model.transform(adata.obsm["X_pca"][[0, 3, 7]])
        y = adata.obsm["X_pca"][8:14]
        distance = np.linalg.norm(mapped[:, None] - y, axis=2)
        near = 8 + np.argsort(distance, axis=1)[:, :2]
        np.testing.assert_allclose(heads, adata.obsm["X_umap"][near].mean(axis=1))

    def test_the_way_back(self, model):
        adata = cells()
        tails, _ = arrows(plot_transport(model, adata, arrows="cells", inverse=True))
        np.testing.assert_array_equal(tails, adata.obsm["X_pca"][8:14, :2])

    def test_colours_of_labels(self, model):
        label = pandas.Categorical([None, *"ab" * 8, "c"], categories=["c", "b", "a"])
        adata = cells(label=label)
        adata.uns["label_colors"] = np.array(["#111111", "#222222", "#333333"])
        ax = plot_transport(model, adata, color="label")
        # The only cell of c is of another day.
        shown = [text.get_text() for text in ax.get_legend().get_texts()]
        assert shown[:-1] == ["not known", "b", "a"]
        dots = ax.collections[0]
        drawn = dict(zip(map(tuple, dots.get_offsets()), dots.get_facecolor(), strict=True))
        for row, each in enumerate(label[:14]):
            color = {"b": "#222222", "a": "#333333"}.get(each, GREY.lower())
            assert to_hex(drawn[tuple(adata.obsm["X_pca"][row, :2])]) == color
        adata.uns["label_colors"] = ["#111111"]
        faces = plot_transport(model, adata, color="label").collections[0].get_facecolor()
        assert len(set(map(to_hex, faces)) - {"#111111"}) == 3

    def test_nine_labels_have_nine_colours(self, model):
        ax = plot_transport(model, cells(label=[*"abcdefghi"] * 2), color="label")
        assert len(set(map(to_hex, ax.collections[0].get_facecolor()))) == 9

    def test_numbers_as_colours(self, model):
        adata = cells(depth=np.arange(18.0))
        ax = plot_transport(model, adata, color="depth")
        dots = ax.collections[0]
        places = adata.obsm["X_pca"][dots.get_array().astype(int), :2]
        np.testing.assert_array_equal(dots.get_offsets(), places)
        assert sorted(dots.get_array()) == list(range(14))
        assert len(ax.figure.axes) == 2

    def test_refused(self, model):
        adata = cells()
        with pytest.raises(DataError, match=r"Keys: X_pca, X_umap. Did you mean basis='X_umap'"):
            plot_transport(model, adata, basis="X_umpa")
        with pytest.raises(DataError, match="Did you mean color='day'"):
            plot_transport(model, adata, color="days")
        adata.obsm["line"] = np.zeros((18, 1))
        with pytest.raises(DataError, match="one column"):
            plot_transport(model, adata, basis="line")


def page_blocks(language):
    text = (Path(__file__).parents[2] / "docs/single-cell.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.usefixtures("untrained")
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adata = cells(
        days=np.repeat([2, 4], 30), clone=np.tile(np.arange(30), 2),
        cell_type=["neutrophil", "monocyte", "undifferentiated"] * 20, n_counts=np.arange(60),
    )  # fmt: skip
    adata.obsm["X_pca"] = np.random.default_rng(1).normal(size=(60, 10))
    adata.varm["PCs"] = np.ones((GENES, 10))
    adata.write_h5ad("cells.h5ad")
    Path("page.py").write_text("".join(page_blocks("python")), encoding="utf-8")
    names = runpy.run_path("page.py", run_name="__main__")
    assert names["drivers"].shape == (GENES, 8)
    assert names["genes"].shape == names["error"].shape == (10, 3)
    assert names["top"].shape == (100, 4)
    assert "X_mongefit" in names["adata"].obsm
    for line in page_blocks("console")[0].splitlines():
        outcome = CliRunner().invoke(cli, line.replace(" --pca 10", " --pca 3").split()[1:])
        assert outcome.exit_code == 0, outcome.output
    found = {path.name for path in tmp_path.iterdir()}
    assert {"mapped.h5ad", "umap.png", "figure.pdf", "model.mongefit", "both.h5ad"} <= found


@pytest.fixture(scope="module")
def result():
    adata = anndata.read_h5ad(REAL)
    small = MongeMap(hidden_layer_sizes=(4,), max_iter=2, epsilon=0.1)
    with pytest.warns(UserWarning, match="Trophoblast.*only|'unknown' in 70 cells"):
        model = fit(
            adata, time_key="day", source=10, target=11, pca=10, groups_key="cell_type",
            model=small,
        )  # fmt: skip
    transport(model, adata)
    transport(model, adata, key_added="origin", inverse=True)
    return model, adata


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
class TestRealFile:
    """A file that nobody here wrote: no obsm, three days, labels that not every day has."""

    def test_all_of_it(self, result):
        model, adata = result
        assert model.model.n_iter_ == 2
        first, last = adata.obs["day"] == 10, adata.obs["day"] == 11
        for key, rows in (("mongefit", first), ("origin", last)):
            present = np.isfinite(adata.obsm[f"X_{key}"]).all(axis=1)
            np.testing.assert_array_equal(present, rows)
        assert adata.uns["mongefit"]["history"]["loss"].shape == (3,)
        assert list(pull_back_genes(model, adata, np.eye(10)[0], n_top=2).columns) == [0]
        assert plot_transport(model, adata, color="cell_type").get_xlabel() == "component 1"

    def test_round_trip(self, result, tmp_path):
        _, adata = result
        adata.write_h5ad(tmp_path / "out.h5ad")
        again = anndata.read_h5ad(tmp_path / "out.h5ad")
        np.testing.assert_array_equal(again.obsm["X_mongefit"], adata.obsm["X_mongefit"])
        pandas.testing.assert_frame_equal(again.obs, adata.obs)
        assert again.uns.keys() == adata.uns.keys()
        for key in ("mongefit", "origin"):
            assert_equal(again.uns[key], adata.uns[key])

    def test_through_scanpy(self, result, tmp_path):
        scanpy = pytest.importorskip("scanpy")
        _, adata = result
        scanpy.write(tmp_path / "out.h5ad", adata)
        again = scanpy.read_h5ad(tmp_path / "out.h5ad")
        assert_equal(again.uns["mongefit"], adata.uns["mongefit"])
        scanpy.pp.pca(again, n_comps=5)
        columns = scanpy.get.obs_df(again, ["mongefit_displacement"], obsm_keys=[("X_mongefit", 0)])
        assert columns.notna().sum().tolist() == [85, 85]
