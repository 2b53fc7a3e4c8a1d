"""Pictures of where cells go, on any basis in obsm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_count
from mongefit.errors import DataError, Suggestion
from mongefit.plotting._figures import BLACK, BLUE, GREY, finish, new_axes
from mongefit.single_cell._columns import distinct, listed, obs_column
from mongefit.single_cell._labels import label_colors
from mongefit.single_cell._model import SingleCellMap, check_model

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

Points = NDArray[np.float64]


def plot_transport(
    model: SingleCellMap,
    adata: AnnData,
    *,
    basis: str | None = None,
    color: str | None = None,
    inverse: bool = False,
    n_arrows: int = 100,
    n_neighbors: int = 10,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw where the cells of the source go, or where those of the target came from.

    In the representation of the model an arrow ends at the predicted state. In any other basis
    predictions have no place: there an arrow ends at the mean of the ``n_neighbors`` cells, among
    those of the other time, that are nearest to the prediction in the representation.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells; it is left alone.
    basis
        Array of obsm to draw in, with or without its "X_", of which the first two columns are
        shown; by default the representation of the model.
    color
        Column of obs to colour the cells of both times by. Labels take their colours from
        ``uns["<color>_colors"]`` where it is there. By default source and target differ.
    inverse
        Draw the way back.
    n_arrows
        Draw at most so many arrows, at cells evenly spaced in the order of ``adata``.
    n_neighbors
        How many cells stand for a prediction in another basis.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    from sklearn.neighbors import NearestNeighbors

    check_model(model, adata)
    check_count(n_arrows, "n_arrows", minimum=1)
    check_count(n_neighbors, "n_neighbors", minimum=1)
    start, end = (model.times.rows(adata, target=side) for side in (inverse, not inverse))
    drawn = start[np.unique(np.linspace(0, len(start) - 1, n_arrows).astype(int))]
    points = model.coordinates(adata, drawn)
    mapped = (model.model.inverse_transform if inverse else model.model.transform)(points)
    name = model.representation.name if basis is None else _basis_name(adata, basis)
    if name == model.representation.name:
        places = [model.coordinates(adata, rows) for rows in (start, end)]
        tails, heads = points, mapped
    else:
        array = np.asarray(adata.obsm[name], dtype=np.float64)
        places = [array[start], array[end]]
        cells = NearestNeighbors(n_neighbors=min(n_neighbors, len(end)))
        near = cells.fit(model.coordinates(adata, end)).kneighbors(mapped, return_distance=False)
        tails, heads = array[drawn], places[1][near].mean(axis=1)
    if tails.shape[1] < 2:
        raise DataError(f"{name} has one column; two are needed to draw in.")
    ax = new_axes((5.0, 4.6)) if ax is None else ax
    if color is None:
        times = [f"{model.times.key} {time}" for time in (model.times.source, model.times.target)]
        _scatter(ax, places[1], GREY, times[not inverse])
        _scatter(ax, places[0], BLUE, times[inverse])
    else:
        _scatter_by(ax, np.concatenate(places), adata, color, np.concatenate([start, end]))
    ax.quiver(
        *tails[:, :2].T,
        *(heads - tails)[:, :2].T,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.003,
        color=BLACK,
        alpha=0.6,
        zorder=2,
    )
    # A quiver does not widen the limits for the heads of its arrows.
    ax.update_datalim(heads[:, :2])
    ax.autoscale_view()
    axis = "component" if name == "X" else name.removeprefix("X_")
    ax.set_xlabel(f"{axis} 1")
    ax.set_ylabel(f"{axis} 2")
    finish(ax, title)
    return ax


def _basis_name(adata: AnnData, basis: str) -> str:
    for name in (basis, f"X_{basis}"):
        if name in adata.obsm:
            return name
    raise DataError(
        "obsm[{basis!r}] not found. Keys: {keys}.{hint}",
        basis=basis, keys=listed(adata.obsm), hint=Suggestion.of("basis", basis, adata.obsm),
    )  # fmt: skip


def _scatter(ax: Axes, points: Points, color: Any, label: str) -> None:
    x, y, *_ = points.T
    ax.scatter(x, y, s=9, color=color, linewidths=0, alpha=0.8, zorder=1, label=label)


def _scatter_by(
    ax: Axes, points: Points, adata: AnnData, key: str, rows: NDArray[np.int64]
) -> None:
    column = obs_column(adata, key, "color").iloc[rows]
    if getattr(column.dtype, "kind", "O") in "iuf":
        drawn = ax.scatter(points[:, 0], points[:, 1], s=9, c=column, linewidths=0, zorder=1)
        ax.figure.colorbar(drawn, ax=ax, label=key)
        return
    codes, values = distinct(column)
    if np.any(codes < 0):
        _scatter(ax, points[codes < 0], GREY, "not known")
    colors = label_colors(adata, key)
    order = list(colors)
    for code in sorted(range(len(values)), key=lambda code: order.index(str(values[code]))):
        label = str(values[code])
        _scatter(ax, points[codes == code], colors[label], label)
