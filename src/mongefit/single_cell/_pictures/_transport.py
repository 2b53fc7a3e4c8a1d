"""Arrows from cells to where they go, on any basis in obsm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_choice, check_count, check_positive, check_switch
from mongefit.errors import DataError
from mongefit.plotting._figures import BLUE, GREY, check_axes, finish, new_axes
from mongefit.single_cell._columns import distinct, obs_column
from mongefit.single_cell._labels import label_colors
from mongefit.single_cell._model import SingleCellMap, check_model
from mongefit.single_cell._pictures._arrows import Moves, draw_cells, draw_grid, draw_stream
from mongefit.single_cell._pictures._embedding import (
    Plane,
    Rows,
    check_alpha,
    dot,
    marker_area,
    name_axes,
    scatter,
)

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

ARROWS = ("grid", "stream", "cells")
NOT_KNOWN = "not known"
# As long as what the legend says of arrows.
_MOVE = "mean move × 0.12"
# Smooth arrows do not change with more cells than this.
_ENOUGH = 4_000


def plot_transport(
    model: SingleCellMap,
    adata: AnnData,
    *,
    source: Any = None,
    target: Any = None,
    basis: str | None = None,
    color: str | None = None,
    inverse: bool = False,
    arrows: Literal["grid", "stream", "cells"] = "grid",
    density: float = 1.0,
    n_arrows: int = 100,
    n_neighbors: int = 10,
    size: float | None = None,
    alpha: float = 0.8,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw where the cells of the source go, or where those of the target came from.

    In the representation of the model a move ends at the predicted state. In any other basis
    predictions have no place: there a move ends at the mean of the ``n_neighbors`` cells, among
    those of the other time, that are nearest to the prediction in the representation.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells; it is left alone.
    source, target
        Two times of a model over several; by default the first and the last.
    basis
        Array of obsm to draw in, with or without its "X_", of which the first two columns are
        shown; by default the representation of the model.
    color
        Column of obs to colour the cells of both times by. Labels take their colours from
        ``uns["<color>_colors"]`` where it is there. By default source and target differ.
    inverse
        Draw the way back.
    arrows
        "grid": the mean move of the cells near each point of a grid, all shortened by one factor,
        which the legend tells, so that they do not cross. "stream": the same as lines. "cells":
        one arrow in full length for each of some cells.
    density
        Of the grid or the lines: 2 draws twice as many in each direction.
    n_arrows
        With "cells", draw at most so many, at cells evenly spaced in the order of ``adata``.
    n_neighbors
        How many cells stand for a prediction in another basis.
    size, alpha
        Area of a cell in points squared, by default smaller for more cells, and how opaque it is.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    check_model(model, adata)
    check_switch(inverse, "inverse")
    check_choice(arrows, "arrows", ARROWS)
    check_positive(density, "density")
    check_count(n_arrows, "n_arrows", minimum=1)
    check_count(n_neighbors, "n_neighbors", minimum=1)
    alpha = check_alpha(alpha)
    way = model.between(source, target)
    plane = Plane(way, adata, basis)
    start, end = (way.times.rows(adata, target=side) for side in (inverse, not inverse))
    limit = n_arrows if arrows == "cells" else _ENOUGH
    drawn = start[np.unique(np.linspace(0, len(start) - 1, limit).astype(int))]
    mapped = (way.model.inverse_transform if inverse else way.model.transform)(
        way.coordinates(adata, drawn)
    )
    tails = plane.of(drawn)
    moves = Moves(tails, plane.place(mapped, end, n_neighbors) - tails)
    if not np.isfinite(moves.tails + moves.steps).all(axis=1).any():
        raise DataError(f"No cell has a place in {plane.name}: its columns are NaN or infinite.")
    rows = np.concatenate([start, end])
    points = plane.of(rows)
    if color is None:
        times = [f"{way.times.key} {time}" for time in (way.times.source, way.times.target)]
        entries = {times[inverse]: BLUE, times[not inverse]: GREY}
        colors = np.repeat([BLUE, GREY], [len(start), len(end)])
    else:
        entries, colors = _by_column(adata, color, rows)
    ax = new_axes((5.0, 4.6), labels=[*entries, _MOVE]) if ax is None else check_axes(ax)
    size = marker_area(size, len(rows), ax)
    # In one random order, so that no time and no label hides the others.
    order = np.random.default_rng(0).permutation(len(rows))
    shown = scatter(ax, points[order], colors[order], size=size, alpha=alpha)
    if not entries:
        ax.figure.colorbar(shown, ax=ax, label=str(color), shrink=0.7)
    handles: list[Artist] = [dot(colour) for colour in entries.values()]
    labels = list(entries)
    if arrows == "cells":
        draw_cells(ax, moves)
    elif arrows == "stream":
        draw_stream(ax, moves, density)
    else:
        handle, label = draw_grid(ax, moves, density)
        handles.append(handle)
        labels.append(label)
    name_axes(ax, plane.name)
    finish(ax, title, handles, labels=labels)
    return ax


def _by_column(adata: AnnData, key: str, rows: Rows) -> tuple[dict[str, Any], NDArray[Any]]:
    """Labels that some cells have with their colours, none for numbers, and a value for each."""
    from matplotlib.colors import to_rgb

    column = obs_column(adata, key, "color").iloc[rows]
    if getattr(column.dtype, "kind", "O") in "iuf":
        return {}, np.asarray(column, np.float64)
    codes, values = distinct(column)
    colors = label_colors(adata, key)
    present = set(map(str, values))
    entries = {label: colour for label, colour in colors.items() if label in present}
    each = [to_rgb(colors[str(value)]) for value in values]
    if np.any(codes < 0):
        entries = {NOT_KNOWN: GREY} | entries
    # The code −1 of a missing value finds the grey at the end.
    return entries, np.array([*each, to_rgb(GREY)])[codes]
