"""Displacements in components, and directions of the cost, as changes of genes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_count
from mongefit.errors import DataError
from mongefit.explain import CostExplanation, explain_cost
from mongefit.single_cell._columns import listed
from mongefit.single_cell._model import SingleCellMap, check_model
from mongefit.single_cell._representation import DEFAULT, LOADINGS

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
    moves = np.atleast_2d(np.asarray(displacement, dtype=np.float64))
    if moves.ndim != 2 or moves.shape[1] != loadings.shape[1]:
        raise DataError(
            f"displacement has the shape {np.shape(displacement)}; the model has "
            f"{loadings.shape[1]} components."
        )
    changes = loadings @ moves.T
    order = np.argsort(-np.abs(changes).max(axis=1), kind="stable")
    if n_top is not None:
        order = order[: check_count(n_top, "n_top", minimum=1)]
    index = pd.Index([genes[gene] for gene in order], name="gene")
    names = displacement.index if isinstance(displacement, pd.DataFrame) else None
    return pd.DataFrame(changes[order], index=index, columns=names)


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
