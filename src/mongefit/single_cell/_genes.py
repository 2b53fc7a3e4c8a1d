"""Displacements in components, predicted moves, and directions of the cost, as changes of genes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_count, check_switch
from mongefit.errors import DataError
from mongefit.explain import CostExplanation, explain_cost
from mongefit.single_cell._columns import listed
from mongefit.single_cell._labels import Labels, fitted_rows
from mongefit.single_cell._model import SingleCellMap, check_model
from mongefit.single_cell._representation import DEFAULT, LOADINGS
from mongefit.single_cell._transitions import source_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from pandas import DataFrame


def pull_back_genes(
    model: SingleCellMap, adata: AnnData, displacement: ArrayLike, n_top: int | None = None
) -> DataFrame:
    """Turn displacements in components into changes of genes: loadings · displacement.

    The loadings are those that `fit` computed for ``pca=``, else ``varm["PCs"]``, where scanpy puts
    those of ``obsm["X_pca"]``. Changes are in the units of the matrix that the components are of;
    what the components leave out is not there.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells, for the names of genes and the loadings.
    displacement
        One displacement [d] or several [n, d] in the representation of the model. The rows of a
        DataFrame name the columns of the result.
    n_top
        Keep the genes that change most in any of them.

    Returns
    -------
    DataFrame
        A row for each gene, those that change most first, and a column for each displacement.
    """
    import pandas as pd

    check_model(model, adata)
    genes, loadings = _loadings(model, adata)
    try:
        moves = np.atleast_2d(np.asarray(displacement, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise DataError(f"displacement must hold numbers: {error}.") from error
    if not np.all(np.isfinite(moves)):
        raise DataError(
            f"displacement is NaN or infinite in {np.sum(~np.isfinite(moves).all(axis=-1))} of "
            f"{len(moves)} rows. transport leaves NaN at cells of other times: take the rows of "
            "the source."
        )
    if moves.ndim != 2 or moves.shape[1] != loadings.shape[1]:
        raise DataError(
            f"displacement has the shape {np.shape(displacement)}; the model has "
            f"{loadings.shape[1]} components."
        )
    changes = loadings @ moves.T
    names = displacement.index if isinstance(displacement, pd.DataFrame) else None
    return _gene_table(changes, genes, _largest(changes, n_top), names)


@overload
def move_genes(
    model: SingleCellMap, adata: AnnData, *, by: str | None = ..., source: Any = ...,
    target: Any = ..., n_top: int | None = ..., return_error: Literal[False] = ...,
) -> DataFrame: ...  # fmt: skip


@overload
def move_genes(
    model: SingleCellMap, adata: AnnData, *, by: str | None = ..., source: Any = ...,
    target: Any = ..., n_top: int | None = ..., return_error: Literal[True],
) -> tuple[DataFrame, DataFrame]: ...  # fmt: skip


def move_genes(
    model: SingleCellMap,
    adata: AnnData,
    *,
    by: str | None = None,
    source: Any = None,
    target: Any = None,
    n_top: int | None = None,
    return_error: bool = False,
) -> DataFrame | tuple[DataFrame, DataFrame]:
    """Find the genes that change along the predicted moves of the cells of the source.

    It is the mean of loadings · (T(x) − x) over the cells of each label. Cells count by their mass:
    by weight and growth. Loadings are those of `pull_back_genes`.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells of the fit, in any order and possibly with others.
    by
        Column of obs with labels of the source cells, such as cell types; cells without a label are
        left out. By default all cells are taken together.
    source, target
        Two times of a model over several; by default the first and the last.
    n_top
        Keep the genes that change most in any label.
    return_error
        Return also the standard errors of these means.

    Returns
    -------
    DataFrame or tuple
        A row for each gene, those that change most in any label first, and a column for each label,
        or ``all``. Changes are in the units of the matrix that the components are of. Then the
        standard errors, if asked for: how sure the mean is, given how much the moves of the cells
        of a label differ. They say nothing of how good the map is, and are infinite for a label
        with one cell.
    """
    import pandas as pd

    check_model(model, adata)
    check_switch(return_error, "return_error")
    way = model.between(source, target)
    genes, loadings = _loadings(way, adata)
    rows = fitted_rows(way, adata, target=False)
    names: Sequence[str] = ("all",)
    member = np.ones((len(rows), 1))
    if by is not None:
        labels = Labels.of(adata, by, rows, "by")
        names, member = labels.names, labels.indicator
    points = way.coordinates(adata, rows)
    moves = way.model.transform(points) - points
    weight = member * source_weight(way)[:, None]
    if np.any(weight.sum(axis=0) <= 0):
        empty = names[int(np.argmin(weight.sum(axis=0)))]
        raise DataError(f"The cells of {empty!r} have no mass: their weights are 0.")
    weight /= weight.sum(axis=0)
    means = weight.T @ moves
    changes = loadings @ means.T
    columns = pd.Index(names, name=by)
    order = _largest(changes, n_top)
    found = _gene_table(changes, genes, order, columns)
    if not return_error:
        return found
    each = zip(weight.T, means, strict=True)
    errors = np.stack([_error_of_mean(moves, w, mean, loadings) for w, mean in each], axis=1)
    return found, _gene_table(errors, genes, order, columns)


def _error_of_mean(
    moves: NDArray[np.float64],
    weight: NDArray[np.float64],
    mean: NDArray[np.float64],
    loadings: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The standard error of a weighted mean of moves, for every gene; weights have sum 1."""
    count = np.count_nonzero(weight)
    if count < 2:
        return np.full(len(loadings), np.inf)
    apart = (moves - mean) * weight[:, None]
    covariance = apart.T @ apart * (count / (count - 1))
    variance = np.einsum("gd,de,ge->g", loadings, covariance, loadings, optimize=True)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def _largest(changes: NDArray[np.float64], n_top: int | None) -> NDArray[np.int64]:
    """Genes by their largest change in any column, all or the first few."""
    order = np.argsort(-np.abs(changes).max(axis=1), kind="stable")
    return order if n_top is None else order[: check_count(n_top, "n_top", minimum=1)]


def _gene_table(
    values: NDArray[np.float64], genes: Sequence[str], order: NDArray[np.int64], columns: Any
) -> DataFrame:
    import pandas as pd

    index = pd.Index([genes[gene] for gene in order], name="gene")
    return pd.DataFrame(values[order], index=index, columns=columns)


def cost_genes(
    model: SingleCellMap,
    adata: AnnData,
    explanation: CostExplanation | None = None,
    *,
    n_top: int = 10,
) -> DataFrame:
    """The genes with the largest part in each direction of the cost, cheap or expensive.

    Parameters
    ----------
    model, adata
        As for `pull_back_genes`.
    explanation
        What `mongefit.explain.explain_cost` gave for ``model.model``, at the cells of your choice;
        by default at all cells of the source.
    n_top
        How many genes for each direction.

    Returns
    -------
    DataFrame
        Columns ``direction`` (1 is the most expensive), ``curvature``, ``gene``, and ``change`` of
        the gene over a move of length 1 along the direction; the largest changes first.
    """
    import pandas as pd

    check_model(model, adata)
    check_count(n_top, "n_top", minimum=1)
    found = explain_cost(model.model) if explanation is None else explanation
    if found.euclidean > 1 - 1e-9:
        raise DataError(
            "This cost is squared Euclidean: all directions cost the same, and no genes stand out."
        )
    changes = pull_back_genes(model, adata, found.directions)
    parts = []
    for k, curvature in enumerate(found.curvature):
        top = changes[k].iloc[np.argsort(-np.abs(changes[k]), kind="stable")[:n_top]]
        columns = {"direction": k + 1, "curvature": curvature, "gene": top.index, "change": top}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def _loadings(model: SingleCellMap, adata: AnnData) -> tuple[Sequence[str], NDArray[np.float64]]:
    representation, dim = model.representation, model.model.n_features_in_
    if representation.diffusion is not None:
        raise DataError(
            "This model works in diffusion components, and there are no loadings from these to "
            "genes. Ask a model in principal components, or fate_drivers."
        )
    if representation.pca is not None:
        return representation.pca.genes, representation.pca.loadings
    if representation.name != DEFAULT:
        raise DataError(
            f"There are no loadings from {representation.where} to genes. They are known for "
            f"{DEFAULT} and for models that were fitted with pca=."
        )
    if LOADINGS not in adata.varm:
        raise DataError(
            f"varm[{LOADINGS!r}] not found. Keys: {listed(adata.varm)}. It holds the loadings of "
            f"{representation.where}, and scanpy.pp.pca writes both."
        )
    loadings = np.asarray(adata.varm[LOADINGS], dtype=np.float64)
    if loadings.shape[1] < dim:
        raise DataError(
            f"varm[{LOADINGS!r}] has {loadings.shape[1]} columns; the model has {dim} components."
        )
    return list(adata.var_names), loadings[:, :dim]
