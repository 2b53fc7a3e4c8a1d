"""Pictures of how points move in three dimensions."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.errors import DataError
from mongefit.plotting._figures import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILLION,
    check_table,
    finish,
    new_axes,
)

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

# With more lines than this the lines hide the points they join.
_MAX_LINES = 64


def plot_displacements(
    source: ArrayLike,
    mapped: ArrayLike,
    *,
    directions: ArrayLike | None = None,
    axes: ArrayLike | None = None,
    ax: Axes3D | None = None,
    title: str | None = None,
) -> Axes3D:
    """Draw in three dimensions how a map displaces points.

    Each axis names its share of the motion: of the squared displacements Σ_i ‖T(x_i) − x_i‖².

    Parameters
    ----------
    source, mapped
        Source points x and mapped points T(x), [n, d] each with d ≥ 3.
    directions
        Directions v_j in which points should move, [k, d], drawn from the middle of the source in
        the mean length of the displacements.
    axes
        What to draw along: three vectors of length 1 at right angles, [3, d], the last one up. By
        default the right singular vectors of the displacements with the largest singular values,
        so that a plane in which points move is seen from its edge. Give the same axes to pictures
        that are compared.
    ax
        Axes to draw on, with projection="3d"; a new Figure by default.
    title
        Title of the Axes.
    """
    from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

    x = check_table(source, "source")
    dim = x.shape[1]
    if dim < 3:
        raise DataError(f"source has {dim} columns, and three are needed. Use plot_map.")
    t = check_table(mapped, "mapped", columns=dim, rows=len(x))
    v = None if directions is None else _check_directions(directions, dim)
    basis = _principal_axes(t - x) if axes is None else _check_axes(axes, dim)
    ax = cast("Axes3D", new_axes((4.5, 4.5), "3d")) if ax is None else ax
    if ax.name != "3d":
        raise DataError(
            'plot_displacements draws on Axes of three dimensions: add_subplot(projection="3d").'
        )
    start, end = x @ basis.T, t @ basis.T
    ax.scatter(*start.T, s=8, color=BLUE, linewidths=0, depthshade=False, label="source")
    stride = -(-len(x) // _MAX_LINES)
    label = "map" if stride == 1 else f"map (1 line in {stride})"
    lines = list(np.stack([start, end], axis=1)[::stride])
    ax.add_collection3d(
        Line3DCollection(lines, colors=ORANGE, linewidths=0.9, alpha=0.7, label=label)
    )
    ax.scatter(
        *end.T, s=8, color=VERMILLION, marker="D", linewidths=0, depthshade=False, label="mapped"
    )
    if v is not None:
        length = float(np.nanmean(np.linalg.norm(t - x, axis=1)))
        tail = np.tile(np.nanmean(x, axis=0) @ basis.T, (len(v), 1))
        v = length * v @ basis.T
        ax.quiver(
            *tail.T, *v.T, color=BLACK, linewidth=2.0, arrow_length_ratio=0.15, label="directions"
        )
    total = max(float(np.nansum((t - x) ** 2)), np.finfo(float).tiny)
    shares = np.nansum(((t - x) @ basis.T) ** 2, axis=0) / total
    names = [f"axis {k} ({share:.1%})" for k, share in enumerate(shares, start=1)]
    ax.set(xlabel=names[0], ylabel=names[1], zlabel=names[2])
    ax.locator_params(nbins=4)
    ax.tick_params(labelsize="small", pad=0)
    ax.set_aspect("equal")
    ax.view_init(elev=12, azim=-70)
    finish(ax, title)
    _lower_legend(ax)
    return ax


def _principal_axes(displacement: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first three right singular vectors, each with its largest entry positive."""
    whole = displacement[np.isfinite(displacement).all(axis=1)]
    _, vectors = np.linalg.eigh(whole.T @ whole)
    basis: NDArray[np.float64] = vectors.T[::-1][:3]
    largest = np.argmax(np.abs(basis), axis=1)
    return basis * np.sign(basis[np.arange(3), largest])[:, None]


def _check_axes(axes: ArrayLike, dim: int) -> NDArray[np.float64]:
    basis = check_table(axes, "axes", columns=dim)
    if len(basis) != 3 or not np.allclose(basis @ basis.T, np.eye(3), atol=1e-6):
        raise DataError("axes must be three vectors of length 1 at right angles, as rows.")
    return basis


def _check_directions(directions: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Directions of length 1."""
    v = check_table(directions, "directions", columns=dim)
    length = np.linalg.norm(v, axis=1)
    if not np.all(length > 0):
        raise DataError(f"row {np.argmin(length > 0)} of directions has no direction.")
    return v / length[:, None]


def _lower_legend(ax: Axes3D) -> None:
    """Put the legend below the labels, which lie below the box, whatever its shape."""
    from matplotlib.transforms import ScaledTranslation
    from mpl_toolkits.mplot3d.proj3d import proj_transform  # type: ignore[import-untyped]

    corners = product(ax.get_xlim(), ax.get_ylim(), ax.get_zlim())
    across, height, _ = proj_transform(*np.transpose(list(corners)), ax.get_proj())
    down = ScaledTranslation(0, -70 / 72, ax.get_figure(root=True).dpi_scale_trans)
    middle = (np.min(across) + np.max(across)) / 2
    ax.get_legend().set_bbox_to_anchor((middle, np.min(height)), ax.transData + down)
