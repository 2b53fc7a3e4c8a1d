"""Pictures of a map between clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.plotting._figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    check_table,
    finish,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ERROR_LINE: dict[str, Any] = {
    "colors": BLACK,
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
    x = check_table(source, "source")
    y = check_table(target, "target", columns=x.shape[1])
    t = check_table(mapped, "mapped", columns=x.shape[1], rows=len(x))
    end = None if truth is None else check_table(truth, "truth", columns=x.shape[1], rows=len(x))
    # Widening the limits keeps flat clouds readable, but is not possible on shared axes.
    adjustable: Literal["datalim", "box"] = "datalim" if ax is None else "box"
    ax = new_axes((4.5, 4.2)) if ax is None else ax
    if x.shape[1] == 1:
        _draw_graph(ax, x[:, 0], y[:, 0], t[:, 0], None if end is None else end[:, 0])
    else:
        _draw_plane(ax, x[:, :2], y[:, :2], t[:, :2], None if end is None else end[:, :2])
        ax.set_aspect("equal", adjustable=adjustable)
        suffix = f" (of {x.shape[1]})" if x.shape[1] > 2 else ""
        ax.set_xlabel(f"component 1{suffix}")
        ax.set_ylabel(f"component 2{suffix}")
    finish(ax, title)
    return ax


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
        color=GREY,
        alpha=0.5,
        linewidths=0,
        zorder=1,
        label="target",
    )
    ax.scatter(
        x[:, 0], x[:, 1], s=9 * _shrink(x), color=BLUE, linewidths=0, zorder=3, label="source"
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
        color=ORANGE,
        alpha=0.6,
        zorder=2,
    )
    # A stand-in for the legend, where arrows would appear as a patch.
    label = "map" if stride == 1 else f"map (1 arrow in {stride})"
    ax.plot([], [], color=ORANGE, linewidth=1.2, label=label)
    _draw_mapped(ax, t[:, 0], t[:, 1])
    if truth is not None:
        segments = list(np.stack([t, truth], axis=1))
        ax.add_collection(LineCollection(segments, **_ERROR_LINE))
        _draw_truth(ax, truth[:, 0], truth[:, 1])


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
        color=GREY,
        marker="_",
        markersize=14,
        linestyle="none",
        transform=ax.get_yaxis_transform(),
        clip_on=True,
        label="target",
    )
    middle = float(np.nanmedian(x))
    ax.axline(
        (middle, middle), slope=1, color=BLACK, linewidth=0.8, linestyle=":", label="no change"
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
        color=VERMILLION,
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
        edgecolors=BLACK,
        linewidths=0.5,
        zorder=6,
        label="truth",
    )


def _shrink(points: NDArray[np.float64]) -> float:
    """Factor for the area of a marker: large clouds are drawn with smaller ones."""
    return float(np.clip(np.sqrt(200 / max(len(points), 1)), 0.2, 1.0))
