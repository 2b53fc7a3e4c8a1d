"""Pictures of a convex function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.errors import DataError
from mongefit.plotting._figures import BLUE, VERMILLION, check_table, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    displacements
        Displacements z that the map uses, [n, 2], drawn as points.
    ax, title
        As for `plot_map`.
    """
    from matplotlib.patheffects import withStroke

    h = check_table(h_values, "h_values")
    left, right, bottom, top = extent
    if min(h.shape) < 2 or not (left < right and bottom < top):
        raise DataError(
            "plot_convex needs a grid of at least 2 × 2 values over an extent (z1 min, z1 max, "
            f"z2 min, z2 max); got the shape {h.shape} over {tuple(extent)}."
        )
    ax = new_axes((4.5, 4.5)) if ax is None else ax
    levels = _levels(h)
    if len(levels):
        grid = np.linspace(left, right, h.shape[1]), np.linspace(bottom, top, h.shape[0])
        lines = ax.contour(*grid, h, levels=levels, colors=BLUE, linewidths=0.9)
        for text in ax.clabel(lines, levels[2::2], fmt="%.2g", fontsize="x-small", zorder=4):
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        ax.plot([], [], color=BLUE, linewidth=0.9, label="levels of $h$")
    if displacements is not None:
        z = check_table(displacements, "displacements")
        if z.shape[1] != 2:
            raise DataError(f"displacements has {z.shape[1]} columns, a plane needs 2.")
        z1, z2 = z.T
        inside = (left <= z1) & (z1 <= right) & (bottom <= z2) & (z2 <= top)
        hidden = "" if inside.all() else f" ({np.sum(~inside)} outside)"
        name = f"displacements used{hidden}"
        ax.scatter(
            z1, z2, s=16, color=VERMILLION, edgecolors="white", linewidths=0.3, zorder=3, label=name
        )
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.locator_params(nbins=7)
    ax.set(xlabel="displacement $z_1$", ylabel="displacement $z_2$")
    finish(ax, title)
    return ax


def _levels(h: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = h[np.isfinite(h)]
    if not finite.size or finite.min() == finite.max():
        return np.empty(0)
    above = np.sort(finite - finite.min())
    # The grid does not resolve a line around fewer than about a dozen of its points.
    first = np.clip(above[min(12, len(above) - 1)] / above[-1], 1e-3, 0.1)
    levels: NDArray[np.float64] = finite.min() + above[-1] * np.geomspace(first, 1.0, 10)[:-1]
    return levels
