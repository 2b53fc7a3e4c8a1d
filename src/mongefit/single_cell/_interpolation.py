"""Predicted cells at a time between those of a fit."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.ways import Way
from mongefit._validation import check_switch
from mongefit.errors import DataError, OptionError, warn_user
from mongefit.single_cell._columns import Times, grown_weights, import_anndata, obs_weights
from mongefit.single_cell._model import SingleCellMap, check_model
from mongefit.single_cell._representation import DEFAULT, LOADINGS, Representation
from mongefit.single_cell._transport import describe_fit, described_batches, parts_with_cells

if TYPE_CHECKING:
    from anndata import AnnData

Points = NDArray[np.float64]


def interpolate(
    model: SingleCellMap,
    adata: AnnData,
    at: float,
    *,
    source: Any = None,
    target: Any = None,
    inverse: bool = False,
) -> AnnData:
    """Predict the cells at a time between those of the fit, as an AnnData of their own.

    Cells of the time before are moved on to where they are at the time ``at``. They move at a
    constant rate along straight lines, or along the lines of a flow that both clouds share.

    Parameters
    ----------
    model
        What `fit` or `load` gave, for times that are numbers.
    adata
        The cells; it is left alone.
    at
        The time.
    source, target
        The times to move between; by default those of the fit that are next to ``at``.
    inverse
        Move the cells of the time after back instead.

    Returns
    -------
    AnnData
        A cell for each that was moved, with

        - ``obsm``, its coordinates in the representation of the model,
        - ``obs[time_key]``, the time, and ``obs["mongefit_from"]``, the cell that was moved, and
          the batch if there are batches,
        - ``obs["mongefit_weight"]``, its share of all cells, where cells were given weights or
          growth rates, or where mass grows in the plan,
        - ``X``, where loadings are known: genes, in the units of the matrix that the components
          were computed from. With loadings of ``varm["PCs"]`` the mean of a gene is not known, and
          0 stands for it: ``uns["mongefit"]["centred"]`` says so. What the components leave out is
          not there. Without loadings X is empty.
    """
    check_model(model, adata)
    check_switch(inverse, "inverse")
    source, target = _ends(model.times, at, source, target, inverse=inverse)
    parts = parts_with_cells(model.each_batch(source, target), adata, target=inverse)
    points, columns = [], []
    for each, rows in parts:
        here = each.coordinates(adata, rows)
        points.append(_moved(each, here, at, inverse=inverse))
        column = {"from": adata.obs_names[rows].astype(str).to_numpy()}
        if each.times.batch is not None:
            column[each.times.batch[0]] = np.full(len(rows), each.times.batch[1], object)
        weight = _weights(each, adata, rows, here, at, inverse=inverse)
        # Every cell counts the same, whichever its batch.
        columns.append(column | ({} if weight is None else {"weight": weight * len(rows)}))
    joined = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
    found = _as_anndata(model, adata, np.concatenate(points), joined, at)
    record = describe_fit(parts[0][0]) | {"at": float(at), "inverse": inverse}
    is_centred = found.n_vars > 0 and model.representation.name == DEFAULT
    found.uns["mongefit"] = record | described_batches(model) | {"centred": is_centred}
    return found


def _ends(times: Times, at: Any, source: Any, target: Any, *, inverse: bool) -> tuple[str, str]:
    """The times to move between: those that are given, else those next to ``at``."""
    labels: Any = times.labels
    if not all(isinstance(label, Real) for label in labels):
        raise OptionError(
            "Only between times that are numbers can be interpolated; this model goes "
            f"{times.text}. Write numbers into obs[{times.key!r}] and fit again."
        )
    if isinstance(at, bool) or not isinstance(at, Real) or not labels[0] <= at <= labels[-1]:
        raise OptionError(f"at must be a time from {labels[0]} to {labels[-1]}, got {at!r}.")
    if inverse:
        high = next((k for k, label in enumerate(labels) if label > at), len(labels) - 1)
        low = high - 1
    else:
        before = [k for k, label in enumerate(labels) if label < at]
        low = before[-1] if before else 0
        high = low + 1
    both = times.between(
        times.values[low] if source is None else source,
        times.values[high] if target is None else target,
    )
    ends: Any = both.labels
    if not ends[0] <= at <= ends[1]:
        raise OptionError(f"at must be a time from {ends[0]} to {ends[1]}, got {at!r}.")
    return both.source, both.target


def _moved(model: SingleCellMap, points: Points, at: float, *, inverse: bool) -> Points:
    """Where cells are at a time between, by a map between two times."""
    fitted: Any = model.model
    if isinstance(fitted, Way):
        return fitted.interpolate(points, at=at, reverse=inverse)
    members = fitted.members_ if isinstance(fitted, EnsembleMap) else [fitted]
    ways = [Way([each], model.times.labels) for each in members]
    return np.mean([way.interpolate(points, at=at, reverse=inverse) for way in ways], axis=0)


def _weights(
    model: SingleCellMap,
    adata: AnnData,
    rows: NDArray[np.int64],
    points: Points,
    at: float,
    *,
    inverse: bool,
) -> NDArray[np.float64] | None:
    """The share of each cell at the time, None where all cells count the same."""
    times, keys = model.times, {"weight_key": model.weight_key, "growth_key": model.growth_key}
    if inverse:
        del keys["growth_key"]  # a rate is that of a source
    for name, key in keys.items():
        if key is not None and key not in adata.obs:
            warn_user(f"obs[{key!r}] not found, the {name} of the fit: it is left out here.")
            keys[name] = None
    weight = obs_weights(adata, keys["weight_key"], rows)
    if inverse:
        return weight
    so_far = Times(times.key, times.source, str(at))
    if so_far.span:
        weight = grown_weights(adata, keys["growth_key"], rows, so_far, weight)
    fitted: Any = model.model
    legs = fitted.legs if isinstance(fitted, Way) else [fitted]
    if isinstance(fitted, EnsembleMap) or all(leg.map_.tau_a is None for leg in legs):
        return weight
    start, end = times.labels
    share = (at - start) / (end - start)  # type: ignore[operator]
    base = np.full(len(rows), 1 / len(rows)) if weight is None else weight
    grown = base * fitted.growth(points) ** share
    return np.asarray(grown / grown.sum())


def _as_anndata(
    model: SingleCellMap, adata: AnnData, points: Points, columns: dict[str, Any], at: float
) -> AnnData:
    """Cells with coordinates, and with genes where loadings are known."""
    import pandas as pd

    anndata = import_anndata()
    representation = model.representation
    names = columns.pop("from")
    obs = pd.DataFrame({model.times.key: np.full(len(points), float(at)), "mongefit_from": names})
    if "weight" in columns:
        weight = columns.pop("weight")
        obs["mongefit_weight"] = weight / weight.sum()
    for key, column in columns.items():
        obs[key] = column
    obs.index = pd.Index([f"{name} at {at:g}" for name in names])
    genes, X, loadings = _genes(representation, adata, points)
    found = anndata.AnnData(X, obs=obs, var=pd.DataFrame(index=pd.Index(genes, dtype=str)))
    if representation.name != "X":
        found.obsm[representation.name] = points
    elif representation.pca is not None:
        found.obsm[DEFAULT] = points
    if loadings is not None:
        found.varm[LOADINGS] = loadings
    return found


def _genes(
    representation: Representation, adata: AnnData, points: Points
) -> tuple[list[str], Points | None, Points | None]:
    """Names of genes, their values in each cell, and loadings; none where these are not known."""
    if representation.diffusion is not None:
        return [], None, None
    if (pca := representation.pca) is not None:
        return list(pca.genes), pca.mean + points @ pca.loadings.T, pca.loadings
    if representation.name == "X":
        if representation.n_components is not None:
            return list(map(str, adata.var_names[: points.shape[1]])), points, None
        return list(map(str, adata.var_names)), points, None
    if representation.name != DEFAULT or LOADINGS not in adata.varm:
        return [], None, None
    loadings = np.asarray(adata.varm[LOADINGS], np.float64)
    if loadings.shape[1] < points.shape[1]:
        raise DataError(
            f"varm[{LOADINGS!r}] has {loadings.shape[1]} columns; the model has {points.shape[1]} "
            "components."
        )
    loadings = loadings[:, : points.shape[1]]
    return list(map(str, adata.var_names)), points @ loadings.T, loadings
