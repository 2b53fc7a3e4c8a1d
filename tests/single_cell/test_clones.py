"""Clones out of matrices of cells and barcodes, and layers for X."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from mongefit.errors import DataError, OptionError
from mongefit.single_cell import fit, load, transport
from mongefit.single_cell._cells import take_cells
from mongefit.single_cell._columns import Times
from mongefit.single_cell._legs import take_legs
from tests.single_cell.three_days import DAYS, EUCLIDEAN, N, cells

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

KEYS = {"time_key": "day", "source": 2, "target": 4}


def with_matrix(entries, *, kind=scipy.sparse.csr_matrix, clones=6):
    """Cells with a matrix that has these entries (cell, clone): by default none known."""
    matrix = np.zeros((3 * N, clones))
    for cell, clone in entries:
        matrix[cell, clone] = 1
    adata = cells()
    adata.obsm["X_clone"] = kind(matrix)
    return adata


def known(adata, **options):
    return take_cells(adata, **(KEYS | {"pair_key": "X_clone"} | options)).known


class TestMatrices:
    @pytest.mark.parametrize(
        "kind",
        [
            np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csc_matrix, scipy.sparse.csr_array,
            lambda matrix: scipy.sparse.csr_matrix(matrix.astype(bool)),
            lambda matrix: matrix.astype(int) * 7,
            lambda matrix: pandas.DataFrame(matrix, index=[f"c{i}" for i in range(3 * N)]),
        ],
    )  # fmt: skip
    def test_one_barcode_a_cell_is_a_column_of_labels(self, kind):
        adata = with_matrix([(i, i % N) for i in range(3 * N) if i % N > 2], clones=N, kind=kind)
        label = adata.obs["clone"].where(adata.obs["clone"].astype(int) > 2)
        adata.obs["label"] = label
        found, expected = known(adata), known(adata, pair_key="label")
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_stored_zeros_are_no_clones(self):
        adata = with_matrix([(0, 0), (N, 0), (1, 0)])
        adata.obsm["X_clone"].data[1] = 0
        found = known(adata).pairs.tolist()
        assert found == [[0, 0]]

    def test_several_barcodes_a_cell(self):
        """Cells 0 and 12 share two clones; cell 1 shares one of them."""
        adata = with_matrix([(0, 0), (0, 1), (1, 1), (N, 0), (N, 1), (2, 4), (N + 1, 4)])
        found = known(adata)
        weights = dict(zip(map(tuple, found.pairs.tolist()), found.weight, strict=True))
        assert weights == {(0, 0): 1 + 1 / 2, (1, 0): 1 / 2, (2, 1): 1}
        # Every clone counts the same, and those that share a cell are held out together.
        assert found.weight.sum() == 3
        assert found.clone.tolist() == [0, 0, 1]

    def test_clones_that_share_cells_of_any_day(self):
        entries = [(0, 0), (N, 0), (N, 1), (2 * N, 1), (3, 2), (N + 3, 2)]
        adata = with_matrix([*entries, (5, 3), (N + 5, 3), (7, 4), (N + 7, 4)])
        given = take_legs(adata, Times("day", "2", "4", "6"), pair_key="X_clone").given
        assert [clone.tolist() for clone in given["clones"].values()] == [[0, 1, 2, 3], [0]]

    def test_most_clones_in_one_is_warned_of(self):
        chain = [(i, i) for i in range(5)] + [(N + i, i) for i in range(5)]
        adata = with_matrix([*chain, *((i, i + 1) for i in range(4)), (N + 4, 5), (9, 5)])
        with pytest.warns(UserWarning, match=r"6 of the 6 clones of obsm\['X_clone'\] share cells"):
            assert set(known(adata).clone) == {0}

    def test_a_column_comes_before_an_array(self):
        adata = with_matrix([(0, 0), (N, 0)])
        adata.obs["X_clone"] = adata.obs["clone"]
        assert len(known(adata).pairs) == N

    def test_backed(self, tmp_path):
        entries = [(i, i % N) for i in range(3 * N)]
        with_matrix(entries, clones=N).write_h5ad(tmp_path / "cells.h5ad")
        adata = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
        assert len(known(adata).pairs) == N
        adata.file.close()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda m: m - 0.5, "is negative in"),
            (
                lambda m: m * 0.3,
                r"holds fractions in 2 entries \(first: cell 'c0'\), and is no mat",
            ),
            (lambda m: np.where(m, np.nan, 0), r"is NaN or infinite in 2 entries \(first: cell 'c"),
            (lambda m: m[:, :, None], r"has shape \(36, 6, 1\); cells × clones are needed"),
            (lambda m: scipy.sparse.csr_matrix(-m), r"negative in 2 entries \(first: cell 'c0'\)"),
            (lambda m: np.where(m, "a", ""), "holds values of type"),
            (lambda m: m * 0, r"No value of obsm\['X_clone'\] occurs in both.*: none and none"),
        ],
    )
    def test_refused(self, change, words):
        adata = with_matrix([(0, 0), (N, 0)], kind=np.asarray)
        adata.obsm["X_clone"] = change(adata.obsm["X_clone"])
        with pytest.raises(DataError, match=words):
            known(adata)

    def test_a_representation_is_no_matrix_of_clones(self):
        with pytest.raises(DataError, match=r"obsm\['X_pca'\] is negative"):
            known(cells(), pair_key="X_pca")

    def test_missing_key(self):
        with pytest.raises(DataError) as caught:
            known(with_matrix([]), pair_key="X_clnoe")
        assert str(caught.value) == (
            "'X_clnoe' found neither in obs nor in obsm. Columns of obs: day, clone. Keys of obsm: "
            "X_pca, X_clone. Did you mean pair_key='X_clone' or pair_key='clone'?"
        )

    def test_sets_that_are_no_clones(self, monkeypatch):
        from mongefit.single_cell import _clones

        monkeypatch.setattr(_clones, "MAX_PAIRS", 5)
        adata = with_matrix([(i, 0) for i in range(2 * N)])
        with pytest.raises(DataError, match=r"144 pairs in 1 clones, too many.*many cells carry"):
            known(adata)


class TestLayers:
    @pytest.fixture
    def adata(self):
        found = cells()
        found.layers["log"] = np.log1p(found.X)
        found.X = np.rint(10 * found.X)
        return found

    @pytest.mark.parametrize("options", [{"pca": 2}, {"use_rep": "X"}])
    def test_a_layer_stands_for_x(self, adata, options, tmp_path):
        same = adata.copy()
        same.X = same.layers["log"]
        expected = fit(same, **KEYS, **options, model=EUCLIDEAN)
        found = fit(adata, **KEYS, **options, layer="log", model=EUCLIDEAN)
        points = found.coordinates(adata, np.arange(N))
        np.testing.assert_allclose(points, expected.coordinates(same, np.arange(N)), atol=1e-9)
        found.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert again.representation.layer == "log"
        result = transport(again, adata, copy=True)
        assert result.uns["mongefit"]["layer"] == "log"
        result.write_h5ad(tmp_path / "out.h5ad")

    def test_backed_sparse(self, adata, tmp_path):
        expected = fit(adata, **KEYS, pca=2, layer="log", model=EUCLIDEAN)
        adata.layers["log"] = scipy.sparse.csr_matrix(adata.layers["log"])
        adata.write_h5ad(tmp_path / "cells.h5ad")
        backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
        found = fit(backed, **KEYS, pca=2, layer="log", model=EUCLIDEAN)
        kept = [np.abs(each.representation.pca.loadings) for each in (found, expected)]
        np.testing.assert_allclose(*kept, atol=1e-9)
        backed.file.close()

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"pca": 2}, DataError, r"X looks like raw counts"),
            ({"pca": 2, "layer": "lgo"}, DataError, r"\['lgo'\] not found. Keys: log. Did you"),
            ({"pca": 2, "layer": "nan"}, DataError, r"layers\['nan'\] is NaN or infinite in 1 cel"),
            ({"layer": "log"}, OptionError, "layer='log' stands for X, which is not used: give"),
            ({"pca": 2, "layer": ["log"]}, OptionError, "layer must be the name of one layer"),
        ],
    )  # fmt: skip
    def test_refused(self, adata, options, error, words):
        if options.get("layer") == "nan":
            adata.layers["nan"] = np.where(np.arange(5) + np.arange(3 * N)[:, None], 0.5, np.nan)
        with pytest.raises(error, match=words):
            fit(adata, **KEYS, **options, model=EUCLIDEAN)
        assert len(DAYS) == adata.n_obs
