"""What all pictures share: colours, tables of points, legends, and how a figure is saved."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._io import StrPath, atomic_write
from mongefit._validation import check_choice, check_positive
from mongefit.errors import DataError, OptionError, wrong_option

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
# Without black, which mixed with grey is grey: that stands for what is not known.
_CATEGORIES = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", VERMILLION, "#F0E442")


LIGHT = "#E2E2E2"
"""Cells in the background."""

# The share of a figure that Axes take at first, and how many rows a legend may have before the
# figure is made wider.
_SHARE, _MOST_ROWS = 0.775, 15
# Millimetres, as journals give them.
_WIDTHS = {"single": 89.0, "double": 183.0}


@functools.cache
def palette(count: int) -> tuple[str, ...]:
    """So many different colours: Okabe and Ito's, then each as far from those before as can be.

    The first colours of a longer palette are those of a shorter one.
    """
    from matplotlib.colors import to_hex

    if count <= len(_CATEGORIES):
        return _CATEGORIES[:count]
    steps = np.linspace(0, 1, 16)
    rgb = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    place = _oklab(rgb)
    # Pale colours vanish on white, dark ones all look black, grey is what is not known, and
    # the most saturated ones outshine the others.
    lightness, chroma = place[:, 0], np.hypot(place[:, 1], place[:, 2])
    fit = (lightness > 0.4) & (lightness < 0.86) & (chroma > 0.06) & (chroma < 0.2)
    rgb, place = rgb[fit], place[fit]
    found = list(_CATEGORIES)
    taken = _oklab(np.array([_from_hex(each) for each in (*found, BLACK, GREY, LIGHT, "#FFFFFF")]))
    distance = np.linalg.norm(place[:, None] - taken, axis=2).min(axis=1)
    while len(found) < count:
        best = int(np.argmax(distance))
        found.append(to_hex(rgb[best]).upper())
        distance = np.minimum(distance, np.linalg.norm(place - place[best], axis=1))
    return tuple(found)


def _from_hex(colour: str) -> list[float]:
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]


def _oklab(rgb: Points) -> Points:
    """Ottosson's Oklab, in which distances are those that people see."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(linear @ _TO_CONES.T)
    return np.asarray(cones @ _TO_LAB.T)


_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def figure_size(
    width: Literal["single", "double"] | float = "single", height: float | None = None
) -> tuple[float, float]:
    """The size of a figure in inches, as Matplotlib takes it.

    Parameters
    ----------
    width
        "single" or "double", the width of one column of a journal (89 mm) or of two (183 mm), or
        millimetres.
    height
        Millimetres; by default three quarters of the width, or 40 % for two columns.
    """
    if isinstance(width, str):
        across = _WIDTHS[check_choice(width, "width", _WIDTHS, others="millimetres")]
    else:
        across = check_positive(width, "width")
    share = 0.4 if width == "double" else 0.75
    down = across * share if height is None else check_positive(height, "height")
    return across / 25.4, down / 25.4


def save_figure(ax_or_figure: Axes | Figure, path: StrPath, *, dpi: int = 150) -> None:
    """Save a picture as PNG, PDF or SVG, trimmed to what is drawn, completely or not at all.

    In PDF and SVG text stays text, which can be searched and edited.

    Parameters
    ----------
    ax_or_figure
        A Figure, or any Axes of it.
    path
        A .png, .pdf or .svg file; replaced when it exists.
    dpi
        Dots per inch of a PNG. Many thousands of cells are dots in a PDF or SVG too, of 300 per
        inch at least.
    """
    import matplotlib
    from matplotlib.figure import Figure

    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in _DATES:
        raise OptionError(
            f"{os.fspath(path)}: pictures are written as .png, .pdf or .svg. Change the extension."
        )
    figure = ax_or_figure if isinstance(ax_or_figure, Figure) else _figure_of(ax_or_figure)
    buffer = io.BytesIO()
    with matplotlib.rc_context(_AS_TEXT):
        figure.savefig(
            buffer,
            format=suffix[1:],
            dpi=dpi if suffix == ".png" else max(dpi, 300),
            bbox_inches="tight",
            pad_inches="layout",
            metadata=_DATES[suffix],
        )
    atomic_write(path, buffer.getvalue())


# Text as text; no date and no random names inside, so that the same picture gives the same bytes.
_AS_TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "mongefit"}
_DATES: dict[str, dict[str, Any] | None] = {
    ".png": None,
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


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


def new_axes(
    size: tuple[float, float], projection: str | None = None, *, labels: Sequence[str] = ()
) -> Axes:
    """Axes on a Figure of their own, which is larger where a legend with many labels follows."""
    from matplotlib.figure import Figure

    width, height = size
    if legend_rows(labels, _SHARE * width) > _MOST_ROWS:
        width = max(width, figure_size("double")[0])
    more = max(0.0, legend_height(labels, _SHARE * width) - 0.5)
    figure = Figure(figsize=(width, height + more), layout="constrained")
    return figure.add_subplot(projection=projection)


def check_axes(ax: Any) -> Axes:
    """Refuse what cannot be drawn on, such as the array that subplots gives."""
    from matplotlib.axes import Axes

    if isinstance(ax, Axes):
        return ax
    hint = " Give one of them, as in axes[0]." if isinstance(ax, np.ndarray) else ""
    raise wrong_option("ax", "Axes of Matplotlib", type(ax).__name__, hint=hint)


def _figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    if figure is None:
        raise OptionError("these Axes were removed from their figure.")
    return figure


def finish(
    ax: Axes,
    title: str | None = None,
    handles: Sequence[Artist | Container] | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> None:
    """Add the title, and a legend below the axis label, by default of everything with a label.

    ``labels`` are names from data: they are shown as they are, whatever signs they hold.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import ScaledTranslation

    if title is not None:
        ax.set_title(title)
    handles = ax.get_legend_handles_labels()[0] if handles is None else handles
    if not handles:
        return
    shown = (
        [str(handle.get_label()) for handle in handles]
        if labels is None
        else [*map(shorten, labels)]
    )
    # Outside the data, below the axis label: in points, so that it holds for Axes of any height.
    down = ScaledTranslation(0, -legend_offset(ax) / 72, _figure_of(ax).dpi_scale_trans)
    width = ax.bbox.width / _figure_of(ax).dpi
    legend = ax.legend(
        handles=handles,
        labels=[str(k) for k in range(len(shown))],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + down,
        borderaxespad=0,
        ncols=legend_columns(shown, width),
        frameon=False,
        fontsize="small",
        handletextpad=0.4,
        columnspacing=1.2,
    )
    for text, label in zip(legend.get_texts(), shown, strict=True):
        text.set_text(label)
        text.set_parse_math(labels is None)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([20])


def legend_offset(ax: Axes) -> float:
    """How far below the Axes a legend begins, in points: below the ticks and the axis label."""
    from matplotlib.font_manager import FontProperties

    line = 1.2 * FontProperties(size="medium").get_size_in_points()
    ticks = 7 + line if len(ax.get_xticks()) else 0.0
    return ticks + (4 + line if ax.get_xlabel() else 0.0) + 1


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many columns a legend has below Axes that are so many inches wide."""
    from matplotlib.font_manager import FontProperties

    size = FontProperties(size="small").get_size_in_points() / 72
    most = 2 if len(labels) == 4 else 3 if len(labels) <= 9 else 6
    lengths = [len(label) for label in labels]
    for columns in range(min(most, len(labels)), 1, -1):
        # Signs, gaps and letters; a legend may be a little wider than its Axes.
        letters = sum(max(each) for each in np.array_split(lengths, columns))
        if (4.4 * columns + 0.56 * letters) * size <= 1.15 * width:
            return columns
    return 1


def legend_rows(labels: Sequence[str], width: float) -> int:
    """How many rows a legend has below Axes that are so many inches wide."""
    shown = [shorten(label) for label in labels]
    return -(-len(shown) // legend_columns(shown, width)) if shown else 0


def legend_height(labels: Sequence[str], width: float) -> float:
    """Inches that a legend takes below Axes of such a width."""
    from matplotlib.font_manager import FontProperties

    line = 1.7 * FontProperties(size="small").get_size_in_points() / 72
    return legend_rows(labels, width) * line


def shorten(label: str, most: int = 40) -> str:
    """A long name without its middle."""
    if len(label) <= most:
        return label
    return f"{label[: most // 2].rstrip()}…{label[-(most // 2 - 1) :].lstrip()}"
