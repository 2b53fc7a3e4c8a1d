"""What a cell is to the map: columns of an array in obsm, X itself, or components of X."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mongefit.errors import DataError, OptionError
from mongefit.single_cell.columns import listed, suggestion
from mongefit.validation import check_count, check_points, require_memory

if TYPE_CHECKING:
    from anndata import AnnData

DEFAULT = "X_pca"


@dataclasses.dataclass(frozen=True, eq=False)
class Components:
    """Principal components (X − mean) · loadings.

    Attributes
    ----------
    genes
        Names of the genes, in the order of the arrays.
    mean, loadings
        Mean of X over the cells they were computed from, [g], and loadings, [g, k].
    """

    genes: tuple[str, ...] = dataclasses.field(repr=False)
    mean: NDArray[np.float64] = dataclasses.field(repr=False)
    loadings: NDArray[np.float64] = dataclasses.field(repr=False)

    def project(self, X: Any) -> NDArray[np.float64]:
        """Components of the rows of a matrix, dense or sparse, of the same genes."""
        return np.asarray(X @ self.loadings) - self.mean @ self.loadings


@dataclasses.dataclass(frozen=True, eq=False)
class Representation:
    """Where the coordinates of a cell come from.

    Attributes
    ----------
    name
        Name of an array in obsm, or "X".
    n_components
        How many of its first columns are used; None for all.
    pca
        Components of X that `fit` computed; None where the columns are used as they are.
    """

    name: str
    n_components: int | None = None
    pca: Components | None = None

    @property
    def where(self) -> str:
        """What messages call it."""
        return "X" if self.name == "X" else f"obsm[{self.name!r}]"

    def of(self, adata: AnnData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Coordinates of some cells, [n, d]."""
        if self.name != "X":
            found = check_points(_obsm(adata, self.name, rows), self.where)
        elif self.pca is None:
            found = check_points(_expression(adata, rows), self.where)
        else:
            genes = _gene_rows(adata, self.pca.genes)
            found = self.pca.project(_expression(adata, rows)[:, genes])
        if self.n_components is None:
            return found
        if found.shape[1] < self.n_components:
            raise DataError(
                f"{self.where} has {found.shape[1]} columns; n_components={self.n_components} "
                "needs as many."
            )
        return np.ascontiguousarray(found[:, : self.n_components])


def choose_representation(
    adata: AnnData,
    rows: NDArray[np.int64],
    *,
    use_rep: str | None,
    pca: int | None,
    n_components: int | None,
) -> Representation:
    """The representation that is asked for; components are computed from the cells ``rows``."""
    if n_components is not None:
        check_count(n_components, "n_components", minimum=1)
    if pca is None:
        return Representation(DEFAULT if use_rep is None else use_rep, n_components)
    if use_rep is not None or n_components is not None:
        raise OptionError("pca computes its own components: leave out use_rep and n_components.")
    check_count(pca, "pca", minimum=1)
    return Representation("X", pca=_principal_components(adata, rows, pca))


def _principal_components(adata: AnnData, rows: NDArray[np.int64], size: int) -> Components:
    from sklearn.decomposition import PCA

    X = _expression(adata, rows)
    if size >= min(X.shape):
        raise OptionError(
            f"pca must be below the numbers of cells and of genes, {X.shape[0]} and {X.shape[1]}, "
            f"got {size}."
        )
    # The one solver that takes sparse matrices of any number of genes, without filling them in.
    found = PCA(size, svd_solver="arpack", random_state=0).fit(X)
    genes = tuple(map(str, adata.var_names))
    return Components(genes, found.mean_, np.ascontiguousarray(found.components_.T))


def _obsm(adata: AnnData, name: str, rows: NDArray[np.int64]) -> Any:
    if name not in adata.obsm:
        raise DataError(
            f"obsm[{name!r}] not found. Keys: {listed(adata.obsm)}."
            + suggestion("use_rep", name, adata.obsm)
            + " With pca=10 components are computed from X."
        )
    array = adata.obsm[name]
    array = array.to_numpy() if hasattr(array, "to_numpy") else array
    found = array[rows]
    values = found.data if scipy.sparse.issparse(found) else np.asarray(found)
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        _refuse_nan(adata, rows, found, f"obsm[{name!r}]")
    return found


def _expression(adata: AnnData, rows: NDArray[np.int64]) -> Any:
    """X of some cells, in float64, dense or sparse by rows; raw counts are refused."""
    if adata.X is None:
        raise DataError("This AnnData has no X. Name an array of obsm by use_rep.")
    if not _is_sparse(adata.X):
        require_memory(
            3 * 8 * len(rows) * adata.n_vars, "Components of X need about", "Use fewer genes."
        )
    # Through a view, which reads these rows only where X is backed by a file.
    X = adata[rows].X
    X = scipy.sparse.csr_matrix(X) if scipy.sparse.issparse(X) else np.asarray(X)
    if X.dtype.kind not in "iuf":
        raise DataError(f"X holds values of type {X.dtype}; real numbers are needed.")
    X = X.astype(np.float64)
    values = np.asarray(X.data if scipy.sparse.issparse(X) else X)
    if not np.all(np.isfinite(values)):
        _refuse_nan(adata, rows, X, "X")
    if np.all(values >= 0) and np.all(values == np.rint(values)) and np.any(values > 1):
        raise DataError(
            f"X looks like raw counts (whole numbers up to {values.max():.0f}). Normalise it and "
            f"take logarithms first (scanpy.pp.normalize_total, scanpy.pp.log1p), or use "
            f"use_rep={DEFAULT}."
        )
    return X


def _is_sparse(X: Any) -> bool:
    # Backed sparse matrices are of no class of SciPy's, but have its way to say how they are kept.
    return scipy.sparse.issparse(X) or getattr(X, "format", None) in ("csr", "csc")


def _refuse_nan(adata: AnnData, rows: NDArray[np.int64], found: Any, where: str) -> None:
    dense = found.toarray() if scipy.sparse.issparse(found) else np.asarray(found)
    bad = rows[~np.all(np.isfinite(dense), axis=1)]
    raise DataError(
        f"{where} is NaN or infinite in {len(bad)} cells: rows {listed(bad.tolist(), 5)} (first: "
        f"{adata.obs_names[bad[0]]!r}). Remove these cells or fill them in."
    )


def _gene_rows(adata: AnnData, genes: tuple[str, ...]) -> Any:
    """Where the genes of a model are among those of ``adata``."""
    if tuple(adata.var_names) == genes:
        return slice(None)
    if not adata.var_names.is_unique:
        raise DataError(
            "Names of genes occur twice, and they differ from those of the model. Make them unique "
            "with adata.var_names_make_unique()."
        )
    found = adata.var_names.get_indexer(list(genes))
    if np.any(found < 0):
        first = genes[int(np.argmax(found < 0))]
        raise DataError(
            f"{np.sum(found < 0)} of {len(genes)} genes of the model are missing (first: "
            f"{first!r}). Give the cells with all genes that it was fitted on."
        )
    return found
