"""What all pictures share: colours, tables of points, legends, and how a figure is saved."""

from __future__ import annotations

import colorsys
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._io import StrPath, atomic_write
from mongefit.errors import DataError, OptionError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure

Points = NDArray[np.float64]

# Okabe and Ito's palette, apart from the grey.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
ORANGE = "#E69F00"
BLACK = "#000000"
GREY = "#B8B8B8"
_CATEGORIES = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", VERMILLION, "#F0E442", BLACK)


def palette(count: int) -> list[str]:
    """So many different colours: Okabe and Ito's, or for many evenly spaced hues."""
    from matplotlib.colors import to_hex

    if count <= len(_CATEGORIES):
        return list(_CATEGORIES[:count])
    # Neighbours on the colour circle differ in lightness too.
    lightness = (0.32, 0.52, 0.7)
    colours = [colorsys.hls_to_rgb(k / count, lightness[k % 3], 0.75) for k in range(count)]
    return [to_hex(colour).upper() for colour in colours]


def save_figure(ax_or_figure: Axes | Figure, path: StrPath, *, dpi: int = 150) -> None:
    """Save a picture as PNG or PDF, trimmed to what is drawn, completely or not at all.

    Parameters
    ----------
    ax_or_figure
        A Figure, or any Axes of it.
    path
        A .png or .pdf file; replaced when it exists.
    dpi
        Dots per inch of a PNG.
    """
    from matplotlib.figure import Figure

    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in (".png", ".pdf"):
        raise OptionError(
            f"{os.fspath(path)}: pictures are written as .png or .pdf. Change the extension."
        )
    figure = ax_or_figure if isinstance(ax_or_figure, Figure) else _figure_of(ax_or_figure)
    buffer = io.BytesIO()
    # No date inside, so that the same picture gives the same bytes.
    metadata = {"CreationDate": None} if suffix == ".pdf" else None
    figure.savefig(buffer, format=suffix[1:], dpi=dpi, bbox_inches="tight", metadata=metadata)
    atomic_write(path, buffer.getvalue())


def check_table(
    values: ArrayLike, name: str, *, columns: int | None = None, rows: int | None = None
) -> Points:
    """A table as float64, [n, d], with the columns and rows of the source where these are given."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise DataError(
            f"{name} must be a two-dimensional array with at least one row and one column, "
            f"got the shape {array.shape}."
        )
    if columns is not None and array.shape[1] != columns:
        raise DataError(f"{name} has {array.shape[1]} columns, source has {columns}.")
    if rows is not None and len(array) != rows:
        raise DataError(f"{name} has {len(array)} rows, source has {rows}.")
    return array


def new_axes(size: tuple[float, float], projection: str | None = None) -> Axes:
    """Axes on a Figure of their own."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").add_subplot(projection=projection)


def _figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    if figure is None:
        raise OptionError("these Axes were removed from their figure.")
    return figure


def finish(
    ax: Axes, title: str | None = None, handles: Sequence[Artist | Container] | None = None
) -> None:
    """Add the title, and a legend below the axis label, by default of everything with a label."""
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import ScaledTranslation

    if title is not None:
        ax.set_title(title)
    handles = ax.get_legend_handles_labels()[0] if handles is None else handles
    if not handles:
        return
    # Outside the data, below the axis label: in points, so that it holds for Axes of any height.
    down = ScaledTranslation(0, -34 / 72, _figure_of(ax).dpi_scale_trans)
    legend = ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + down,
        borderaxespad=0,
        ncols=2 if len(handles) == 4 else 3,
        frameon=False,
        fontsize="small",
        handletextpad=0.4,
        columnspacing=1.2,
    )
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([20])
