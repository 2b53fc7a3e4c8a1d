"""Moves of cells in a plane: smoothed over a grid, as lines, or one arrow for each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mongefit.plotting._figures import BLACK
from mongefit.single_cell._pictures._embedding import Points

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Points of a grid in each direction, at density 1, in Axes of so many inches.
_GRID, _STREAM, _ROOM = 18, 40, 3.8
# The width of the Gaussian that weighs the cells near a grid point, as a share of the picture.
_WIDTH = 0.04
# Where the weights sum to less, or to less than this share of the largest sum, nothing is drawn.
_LEAST, _SHARE = 0.5, 0.01
# Lines cover more than arrows: cells are seen through them.
FAINT_BLACK = (0.0, 0.0, 0.0, 0.7)
# How many steps of the grid the longest arrows span.
_LENGTH = 1.2


class Moves(NamedTuple):
    """Where moves begin, and the moves, [n, 2] each."""

    tails: Points
    steps: Points


class Grid(NamedTuple):
    """Mean moves near the points of a grid, [rows, columns, 2], NaN where there are no cells."""

    x: Points
    y: Points
    steps: Points


def smooth_moves(moves: Moves, count: int, width: float = _WIDTH) -> Grid:
    """The means of moves near the points of a grid, weighted by a Gaussian of the distance."""
    finite = np.isfinite(moves.tails).all(axis=1) & np.isfinite(moves.steps).all(axis=1)
    tails, steps = moves.tails[finite], moves.steps[finite]
    x, y = (_ticks(column, count) for column in tails.T)
    # The Gaussian is a product of one in each direction.
    across = np.exp(-0.5 * ((x[:, None] - tails[:, 0]) / (width * np.ptp(x))) ** 2)
    down = np.exp(-0.5 * ((y[:, None] - tails[:, 1]) / (width * np.ptp(y))) ** 2)
    weight = down @ across.T
    sums = np.stack([down @ (step[:, None] * across.T) for step in steps.T], axis=-1)
    shown = weight >= max(min(_LEAST, 0.5 * weight.max()), _SHARE * weight.max())
    blank = np.full_like(sums, np.nan)
    mean = np.divide(sums, weight[..., None], out=blank, where=shown[..., None])
    return Grid(x, y, mean)


def draw_grid(ax: Axes, moves: Moves, density: float) -> tuple[Artist, str]:
    """Draw short arrows on a grid; returns what the legend shows of them."""
    from matplotlib.lines import Line2D

    # Fewer in a small picture, where as many would cover the cells.
    room = np.clip(ax.bbox.width / ax.figure.dpi / _ROOM, 0.65, 1.0)
    count = max(4, round(_GRID * density * room))
    grid = smooth_moves(moves, count, _WIDTH / density)
    rows, columns = np.nonzero(np.isfinite(grid.steps).all(axis=-1))
    steps = grid.steps[rows, columns]
    unit = np.array([grid.x[1] - grid.x[0], grid.y[1] - grid.y[0]])
    longest = float(np.quantile(np.linalg.norm(steps / unit, axis=1), 0.95))
    scale = min(1.0, _LENGTH / longest) if longest > 0 else 1.0
    starts = np.column_stack([grid.x[columns], grid.y[rows]])
    _quiver(ax, starts, scale * steps, width=0.0095, alpha=0.85, pivot="mid")
    shown = "mean move" if scale == 1 else f"mean move × {scale:.2g}"
    handle = Line2D([], [], color=BLACK, linewidth=1, marker=">", markersize=4, markevery=[1])
    return handle, shown


def draw_stream(ax: Axes, moves: Moves, density: float) -> None:
    """Draw the mean moves as lines, thicker where cells move farther."""
    grid = smooth_moves(moves, max(8, round(_STREAM * density)), _WIDTH / density)
    speed = np.linalg.norm(grid.steps, axis=-1)
    fastest = np.nanmax(speed)
    width = 0.8 * np.nan_to_num(speed / fastest if fastest > 0 else speed) + 0.3
    u, v = np.ma.masked_invalid(np.moveaxis(grid.steps, -1, 0))
    ax.streamplot(
        grid.x, grid.y, u, v, color=FAINT_BLACK,
        density=density, linewidth=width, arrowsize=0.9, zorder=2,
    )  # fmt: skip


def draw_cells(ax: Axes, moves: Moves) -> None:
    """Draw an arrow in full length for each move."""
    _quiver(ax, moves.tails, moves.steps, width=0.008, alpha=0.5)
    # A quiver does not widen the limits for the heads of its arrows.
    ax.update_datalim(moves.tails + moves.steps)
    ax.autoscale_view()


def _quiver(
    ax: Axes,
    starts: Points,
    steps: Points,
    *,
    width: float,
    alpha: float,
    pivot: Literal["tail", "mid"] = "tail",
) -> None:
    ax.quiver(
        *starts.T, *steps.T, angles="xy", scale_units="xy", scale=1, units="inches",
        width=width, pivot=pivot,
        headwidth=4.5, headlength=5, headaxislength=4.5, color=BLACK, alpha=alpha, zorder=2,
    )  # fmt: skip


def _ticks(column: Points, count: int) -> Points:
    """Evenly spaced values from the least to the greatest."""
    low, high = float(column.min()), float(column.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, count)
