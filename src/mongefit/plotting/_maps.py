"""Pictures of a map between clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from mongefit.plotting._figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Points,
    check_table,
    finish,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The area of a marker and how it is drawn.
_POINTS: dict[str, tuple[float, dict[str, Any]]] = {
    "target": (40, {"color": GREY, "alpha": 0.5, "linewidths": 0, "zorder": 1}),
    "source": (9, {"color": BLUE, "linewidths": 0, "zorder": 3}),
    "mapped": (10, {"color": VERMILLION, "marker": "D", "linewidths": 0, "zorder": 5}),
    "truth": (20, {"facecolors": "none", "edgecolors": BLACK, "linewidths": 0.5, "zorder": 6}),
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
    """
    from matplotlib.collections import LineCollection

    x = check_table(source, "source")
    dim = x.shape[1]
    y = check_table(target, "target", columns=dim)
    t = check_table(mapped, "mapped", columns=dim, rows=len(x))
    end = None if truth is None else check_table(truth, "truth", columns=dim, rows=len(x))
    # Widening the limits keeps flat clouds readable, but is not possible on shared axes.
    adjustable: Literal["datalim", "box"] = "datalim" if ax is None else "box"
    ax = new_axes((4.5, 4.2)) if ax is None else ax
    if dim == 1:
        _draw_graph(ax, x[:, 0], y[:, 0])
        ax.set(xlabel="source $x$", ylabel="mapped $T(x)$")
        t, end = np.hstack([x, t]), None if end is None else np.hstack([x, end])
    else:
        _draw_plane(ax, x, y, t)
        ax.set_aspect("equal", adjustable=adjustable)
        suffix = f" (of {dim})" if dim > 2 else ""
        ax.set(xlabel=f"component 1{suffix}", ylabel=f"component 2{suffix}")
    _draw_points(ax, t, "mapped")
    if end is not None:
        segments = list(np.stack([t, end], axis=1)[..., :2])
        lines = LineCollection(
            segments, colors=BLACK, linewidths=0.4, alpha=0.3, zorder=4, label="error"
        )
        ax.add_collection(lines)
        _draw_points(ax, end, "truth")
    finish(ax, title)
    return ax


def _draw_plane(ax: Axes, x: Points, y: Points, t: Points) -> None:
    """Both clouds, and arrows between source and mapped points."""
    _draw_points(ax, y, "target")
    _draw_points(ax, x, "source")
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


def _draw_graph(ax: Axes, x: Points, y: Points) -> None:
    """The target along the vertical axis, and the graph of the identity."""
    edge = ax.get_yaxis_transform()
    ax.plot(np.zeros(len(y)), y, "_", color=GREY, markersize=14, transform=edge, label="target")
    middle = float(np.nanmedian(x))
    ax.axline(
        (middle, middle), slope=1, color=BLACK, linewidth=0.8, linestyle=":", label="no change"
    )


def _draw_points(ax: Axes, points: Points, kind: str) -> None:
    """The first two components of points; large clouds are drawn with smaller markers."""
    area, style = _POINTS[kind]
    area *= float(np.clip(np.sqrt(200 / len(points)), 0.2, 1.0))
    ax.scatter(points[:, 0], points[:, 1], s=area, **style, label=kind)
