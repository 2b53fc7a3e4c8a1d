"""Pictures of maps, of convex functions and of training, in colours that everybody can tell apart.

Every function draws on the Axes it is given, or on a Figure of its own, and returns the Axes;
pyplot and its state are never touched.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.files import StrPath, atomic_write

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, apart from the grey.
_BLUE = "#0072B2"
_VERMILLION = "#D55E00"
_ORANGE = "#E69F00"
_BLACK = "#000000"
_GREY = "#B8B8B8"

_ERROR_LINE: dict[str, Any] = {
    "colors": _BLACK,
    "linewidths": 0.4,
    "alpha": 0.3,
    "zorder": 4,
    "label": "error",
}

# With more arrows than this the arrows hide the points they join.
_MAX_ARROWS = 48


def plot_map(
    source: ArrayLike,
    target: ArrayLike,
    mapped: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw where a map sends the source points.

    Parameters
    ----------
    source
        Source points x, [n, d]. For d > 2 the first two components are drawn; for d = 1 the map is
        drawn as the graph of T(x) against x.
    target
        Target points y, [m, d].
    mapped
        Mapped points T(x), [n, d].
    truth
        True end points of the source points, [n, d]; each is joined to its mapped point.
    ax
        Axes to draw on; a new Figure by default.
    title
        Title of the Axes.

    Returns
    -------
    Axes
        The Axes drawn on.
    """
    x = _points(source, "source")
    y = _points(target, "target", columns=x.shape[1])
    t = _points(mapped, "mapped", columns=x.shape[1], rows=len(x))
    end = None if truth is None else _points(truth, "truth", columns=x.shape[1], rows=len(x))
    # Widening the limits keeps flat clouds readable, but is not possible on shared axes.
    adjustable: Literal["datalim", "box"] = "datalim" if ax is None else "box"
    ax = _axes((4.5, 4.2)) if ax is None else ax
    if x.shape[1] == 1:
        _draw_graph(ax, x[:, 0], y[:, 0], t[:, 0], None if end is None else end[:, 0])
    else:
        _draw_plane(ax, x[:, :2], y[:, :2], t[:, :2], None if end is None else end[:, :2])
        ax.set_aspect("equal", adjustable=adjustable)
        suffix = f" (of {x.shape[1]})" if x.shape[1] > 2 else ""
        ax.set_xlabel(f"component 1{suffix}")
        ax.set_ylabel(f"component 2{suffix}")
    _finish(ax, title)
    return ax


def plot_convex(
    h_values: ArrayLike,
    extent: tuple[float, float, float, float],
    *,
    ax: Axes | None = None,
    displacements: ArrayLike | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the level lines of a convex function h(z) of two variables.

    The levels above the minimum grow geometrically, so that the shape near it shows too.

    Parameters
    ----------
    h_values
        Values on a regular grid, [k, k]: rows go along z₂, columns along z₁.
    extent
        The ends of the grid: (z₁ min, z₁ max, z₂ min, z₂ max).
    ax
        Axes to draw on; a new Figure by default.
    displacements
        Displacements z that the map uses, [n, 2], drawn as points.
    title
        Title of the Axes.

    Returns
    -------
    Axes
        The Axes drawn on.
    """
    from matplotlib.patheffects import withStroke

    h = _points(h_values, "h_values")
    left, right, bottom, top = extent
    if min(h.shape) < 2 or not (left < right and bottom < top):
        raise ValueError(
            "plot_convex needs a grid of at least 2 × 2 values over an extent (z1 min, z1 max, "
            f"z2 min, z2 max); got the shape {h.shape} over {tuple(extent)}."
        )
    ax = _axes((4.5, 4.5)) if ax is None else ax
    levels = _levels(h)
    if len(levels):
        grid = np.linspace(left, right, h.shape[1]), np.linspace(bottom, top, h.shape[0])
        lines = ax.contour(*grid, h, levels=levels, colors=_BLUE, linewidths=0.9)
        for text in ax.clabel(lines, levels[2::2], fmt="%.2g", fontsize="x-small", zorder=4):
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        ax.plot([], [], color=_BLUE, linewidth=0.9, label="levels of $h$")
    if displacements is not None:
        z = _points(displacements, "displacements")
        if z.shape[1] != 2:
            raise ValueError(f"displacements has {z.shape[1]} columns, a plane needs 2.")
        inside = (left <= z[:, 0]) & (z[:, 0] <= right) & (bottom <= z[:, 1]) & (z[:, 1] <= top)
        hidden = "" if inside.all() else f" ({np.sum(~inside)} outside)"
        ax.scatter(
            z[:, 0],
            z[:, 1],
            s=16,
            color=_VERMILLION,
            edgecolors="white",
            linewidths=0.3,
            zorder=3,
            label=f"displacements used{hidden}",
        )
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.locator_params(nbins=7)
    ax.set_xlabel("displacement $z_1$")
    ax.set_ylabel("displacement $z_2$")
    _finish(ax, title)
    return ax


def plot_history(history: Mapping[str, ArrayLike], *, ax: Axes | None = None) -> Axes:
    """Draw the loss and epsilon against the training step.

    Parameters
    ----------
    history
        Arrays of equal length under ``step``, ``loss`` and ``epsilon``, and optionally ``applied``
        (False where a step was refused, marked at the foot of the picture).
    ax
        Axes to draw on, which gets a twin for epsilon; a new Figure by default.

    Returns
    -------
    Axes
        The Axes of the loss.
    """
    step, loss, epsilon, applied = _history_columns(history)
    ax = _axes((4.5, 3.4)) if ax is None else ax
    twin = ax.twinx()
    lines: list[Artist] = [
        *ax.plot(step, loss, color=_BLUE, linewidth=1.2, label="loss"),
        *twin.plot(
            step, epsilon, color=_VERMILLION, linewidth=1.2, linestyle="--", label="epsilon"
        ),
    ]
    _set_log_scale(ax, loss)
    _set_log_scale(twin, epsilon)
    if not applied.all():
        refused = step[~applied]
        # At the foot of the Axes rather than on the curve: the loss of a refused step may be NaN.
        lines += ax.plot(
            refused,
            np.full(len(refused), 0.03),
            color=_BLACK,
            marker="x",
            markersize=5,
            linestyle="none",
            transform=ax.get_xaxis_transform(),
            label=f"not applied ({len(refused)})",
        )
    ax.set_xlabel("step" if len(step) else "step (untrained)")
    ax.set_ylabel("loss", color=_BLUE)
    twin.set_ylabel("epsilon", color=_VERMILLION)
    _legend_below(ax, lines)
    return ax


def save_figure(ax_or_figure: Axes | Figure, path: StrPath, *, dpi: int = 150) -> None:
    """Save a picture as PNG, trimmed to what is drawn, completely or not at all.

    Parameters
    ----------
    ax_or_figure
        A Figure, or any Axes of it.
    path
        A .png file; replaced when it exists.
    dpi
        Dots per inch.
    """
    from matplotlib.figure import Figure

    if not os.fspath(path).lower().endswith(".png"):
        raise ValueError(f"{os.fspath(path)}: pictures are written as .png. Change the extension.")
    figure = ax_or_figure
    if not isinstance(figure, Figure):
        root = figure.get_figure(root=True)
        if root is None:
            raise ValueError("these Axes were removed from their figure.")
        figure = root
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
    atomic_write(path, buffer.getvalue())


def _points(
    values: ArrayLike, name: str, *, columns: int | None = None, rows: int | None = None
) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(
            f"{name} must be a two-dimensional array with at least one row and one column, "
            f"got the shape {array.shape}."
        )
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f"{name} has {array.shape[1]} columns, source has {columns}.")
    if rows is not None and len(array) != rows:
        raise ValueError(f"{name} has {len(array)} rows, source has {rows}.")
    return array


def _axes(size: tuple[float, float]) -> Axes:
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").subplots()


def _draw_plane(
    ax: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    t: NDArray[np.float64],
    truth: NDArray[np.float64] | None,
) -> None:
    from matplotlib.collections import LineCollection

    ax.scatter(
        y[:, 0],
        y[:, 1],
        s=40 * _shrink(y),
        color=_GREY,
        alpha=0.5,
        linewidths=0,
        zorder=1,
        label="target",
    )
    ax.scatter(
        x[:, 0], x[:, 1], s=9 * _shrink(x), color=_BLUE, linewidths=0, zorder=3, label="source"
    )
    stride = max(1, -(-len(x) // _MAX_ARROWS))
    start, step = x[::stride], (t - x)[::stride]
    ax.quiver(
        start[:, 0],
        start[:, 1],
        step[:, 0],
        step[:, 1],
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.0025,
        headwidth=6,
        headlength=8,
        headaxislength=7,
        color=_ORANGE,
        alpha=0.6,
        zorder=2,
    )
    # A stand-in for the legend, where arrows would appear as a patch.
    label = "map" if stride == 1 else f"map (1 arrow in {stride})"
    ax.plot([], [], color=_ORANGE, linewidth=1.2, label=label)
    _draw_mapped(ax, t[:, 0], t[:, 1])
    if truth is not None:
        segments = list(np.stack([t, truth], axis=1))
        ax.add_collection(LineCollection(segments, **_ERROR_LINE))
        _draw_truth(ax, truth[:, 0], truth[:, 1])


def _shrink(points: NDArray[np.float64]) -> float:
    """Factor for the area of a marker: large clouds are drawn with smaller ones."""
    return float(np.clip(np.sqrt(200 / max(len(points), 1)), 0.2, 1.0))


def _draw_graph(
    ax: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    t: NDArray[np.float64],
    truth: NDArray[np.float64] | None,
) -> None:
    ax.plot(
        np.zeros(len(y)),
        y,
        color=_GREY,
        marker="_",
        markersize=14,
        linestyle="none",
        transform=ax.get_yaxis_transform(),
        clip_on=True,
        label="target",
    )
    middle = float(np.nanmedian(x))
    ax.axline(
        (middle, middle), slope=1, color=_BLACK, linewidth=0.8, linestyle=":", label="no change"
    )
    _draw_mapped(ax, x, t)
    if truth is not None:
        ax.vlines(x, t, truth, **_ERROR_LINE)
        _draw_truth(ax, x, truth)
    ax.set_xlabel("source $x$")
    ax.set_ylabel("mapped $T(x)$")


def _draw_mapped(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    ax.scatter(
        x,
        y,
        s=10 * _shrink(x),
        color=_VERMILLION,
        marker="D",
        linewidths=0,
        zorder=5,
        label="mapped",
    )


def _draw_truth(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    ax.scatter(
        x,
        y,
        s=20 * _shrink(x),
        facecolors="none",
        edgecolors=_BLACK,
        linewidths=0.5,
        zorder=6,
        label="truth",
    )


def _levels(h: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = h[np.isfinite(h)]
    if not finite.size or finite.min() == finite.max():
        return np.empty(0)
    above = np.sort(finite - finite.min())
    # The grid does not resolve a line around fewer than about a dozen of its points.
    first = np.clip(above[min(12, len(above) - 1)] / above[-1], 1e-3, 0.1)
    levels: NDArray[np.float64] = finite.min() + above[-1] * np.geomspace(first, 1.0, 10)[:-1]
    return levels


def _history_columns(
    history: Mapping[str, ArrayLike],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    missing = [key for key in ("step", "loss", "epsilon") if key not in history]
    if missing:
        raise ValueError(
            f"history has no {', '.join(missing)}. It holds: {', '.join(history) or 'nothing'}."
        )
    step, loss, epsilon = (np.asarray(history[key]) for key in ("step", "loss", "epsilon"))
    applied = np.asarray(history.get("applied", np.ones(step.shape)), dtype=bool)
    shapes = {step.shape, loss.shape, epsilon.shape, applied.shape}
    if len(shapes) > 1 or step.ndim != 1:
        raise ValueError(
            "the columns of history must be one-dimensional and of equal length; "
            f"step has the shape {step.shape}, loss {loss.shape}, epsilon {epsilon.shape}, "
            f"applied {applied.shape}."
        )
    return step, loss, epsilon, applied


def _set_log_scale(ax: Axes, values: NDArray[Any]) -> None:
    finite = values[np.isfinite(values)]
    # A loss of one's own may be negative or zero, which a logarithmic axis would hide.
    if finite.size and finite.min() > 0:
        ax.set_yscale("log")


def _finish(ax: Axes, title: str | None) -> None:
    if title is not None:
        ax.set_title(title)
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        _legend_below(ax, handles)


def _legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import ScaledTranslation

    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("these Axes were removed from their figure.")
    # Outside the data, below the axis label: in points, so that it holds for Axes of any height.
    down = ScaledTranslation(0, -34 / 72, figure.dpi_scale_trans)
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
