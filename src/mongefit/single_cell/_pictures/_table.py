"""Tables of transitions between labels, as colours and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mongefit._validation import check_switch
from mongefit.errors import DataError, wrong_option
from mongefit.plotting._figures import check_axes, finish, new_axes, shorten
from mongefit.single_cell._pictures._embedding import check_colors
from mongefit.single_cell._transitions import Intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# What is nearly nothing does not catch the eye.
FAINT = "#909090"
# With more rows or columns numbers are left out by default.
_MOST_NUMBERS = 25
# The smallest letters that are readable, in points.
_SMALLEST = 4.0


def plot_transitions(
    table: DataFrame | Intervals,
    *,
    numbers: bool | None = None,
    cmap: str = "Blues",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a table of transitions between labels: which share of each goes where.

    Parameters
    ----------
    table
        What `transition_table` gave. With its ``level`` the intervals stand below the numbers.
    numbers
        Whether to write the shares into the cells; by default up to 25 rows and columns, where
        there is room.
    cmap
        Matplotlib's name of the colours.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    whole, bounds = _check(table)
    cmap = check_colors(cmap)
    shares = whole.to_numpy(np.float64)
    count = max(shares.shape)
    if numbers is not None:
        check_switch(numbers, "numbers")
    names = [[shorten(str(each)) for each in axis] for axis in (whole.index, whole.columns)]
    ax = _new_table(shares.shape, names, bounds is not None) if ax is None else check_axes(ax)
    drawn = ax.imshow(shares, cmap=cmap, vmin=0, vmax=1, aspect="auto")
    bar = ax.figure.colorbar(drawn, ax=ax, label="share", fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    points = _points_that_fit(ax, shares.shape[1], bounds is not None)
    if numbers or (numbers is None and count <= _MOST_NUMBERS and points >= _SMALLEST):
        _write_numbers(ax, shares, bounds, drawn.to_rgba(shares), points)
    size = "small" if count <= _MOST_NUMBERS else 6
    rotation = 90 if count > _MOST_NUMBERS else 45 if max(map(len, names[1])) > 4 else 0
    ax.set_xticks(
        np.arange(shares.shape[1]), names[1], fontsize=size, rotation=rotation,
        ha="right" if rotation else "center",
        va="center" if rotation == 90 else "top", rotation_mode="anchor", parse_math=False,
    )  # fmt: skip
    ax.set_yticks(np.arange(shares.shape[0]), names[0], fontsize=size, parse_math=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    # Thin lines between the cells.
    ax.set_xticks(np.arange(shares.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(shares.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.0 if count <= _MOST_NUMBERS else 0.3)
    ax.tick_params(which="minor", length=0)
    ax.set_ylabel(str(whole.index.name or "from"))
    ax.set_xlabel(str(whole.columns.name or "to"))
    finish(ax, title, [])
    return ax


def _check(table: Any) -> tuple[DataFrame, tuple[Any, Any] | None]:
    import pandas as pd

    whole, bounds = table, None
    if isinstance(table, Intervals):
        whole, *ends = table
        bounds = (ends[0].to_numpy(np.float64), ends[1].to_numpy(np.float64))
    if not isinstance(whole, pd.DataFrame):
        raise wrong_option(
            "table", "what mongefit.single_cell.transition_table gives", type(table).__name__
        )
    if not whole.size:
        raise DataError(f"The table is empty: it has the shape {whole.shape}.")
    if words := [str(name) for name, kind in whole.dtypes.items() if kind.kind not in "iuf"]:
        raise DataError(
            f"The column {words[0]!r} of the table holds no numbers. Give what "
            "mongefit.single_cell.transition_table gives."
        )
    return whole, bounds


def _new_table(shape: tuple[int, ...], names: list[list[str]], wide: bool) -> Axes:
    """Axes with room for the numbers of each cell and for the labels."""
    across, down = (0.72, 0.46) if wide else (0.5, 0.34)
    if max(shape) > _MOST_NUMBERS:
        across = down = 0.14
    side, foot = (0.085 * min(max(map(len, each)), 40) for each in names)
    width = 1.3 + side + across * shape[1]
    return new_axes((max(width, 3.0), max(0.9 + 0.75 * foot + down * shape[0], 2.0)))


def _points_that_fit(ax: Axes, columns: int, wide: bool) -> float:
    """The size of letters with which a number is no wider than a cell."""
    from matplotlib.font_manager import FontProperties

    letters = 0.62 * (7.6 if wide else 4.4)  # an interval is written smaller
    cell = 0.85 * 72 * ax.bbox.width / ax.figure.dpi / columns
    return min(FontProperties(size="small").get_size_in_points(), cell / letters)


def _write_numbers(
    ax: Axes, shares: Any, bounds: tuple[Any, Any] | None, colors: Any, points: float
) -> None:
    """Write the shares in black on light cells and in white on dark ones."""
    # How light people see a colour.
    light = colors[..., :3] @ [0.2126, 0.7152, 0.0722]
    for (row, column), share in np.ndenumerate(shares):
        color = "black" if light[row, column] > 0.5 else "white"
        if share < 0.005:
            color = FAINT
        place: dict[str, Any] = {"ha": "center", "color": color}
        if bounds is None:
            ax.text(column, row, f"{share:.2f}", va="center", fontsize=points, **place)
            continue
        low, high = (end[row, column] for end in bounds)
        said = f"{low:.2f}–{high:.2f}"
        ax.text(column, row + 0.02, f"{share:.2f}", va="bottom", fontsize=points, **place)
        ax.text(column, row + 0.1, said, va="top", fontsize=0.83 * points, **place)
