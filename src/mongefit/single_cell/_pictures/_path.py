"""The predicted path of a set of cells."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mongefit._validation import check_count
from mongefit.plotting._figures import (
    BLACK,
    BLUE,
    LIGHT,
    VERMILLION,
    check_axes,
    finish,
    new_axes,
    palette,
)
from mongefit.single_cell._labels import fitted_rows
from mongefit.single_cell._model import SingleCellMap, check_model
from mongefit.single_cell._pictures._embedding import (
    Plane,
    Points,
    check_alpha,
    dot,
    marker_area,
    name_axes,
    scatter,
    scatter_others,
)
from mongefit.single_cell._sets import Carried, carry_mass
from mongefit.single_cell._transitions import source_weight

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

# Points of a path between two times.
_STEPS = 25
# The mass, relative to that of the cells that receive most, that is drawn in full.
_FULL = 0.99


def plot_path(
    model: SingleCellMap,
    adata: AnnData,
    cells: Any,
    *,
    source: Any = None,
    target: Any = None,
    basis: str | None = None,
    n_neighbors: int = 30,
    size: float | None = None,
    alpha: float = 0.9,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a set of cells, where their mass goes, and their mean path.

    Cells of later times are larger and more opaque the more mass of the set they receive. The path
    goes straight from mean to mean in the representation of the model. In any other basis a state
    on it has no place: there it is drawn at the mean of the ``n_neighbors`` cells of both times
    that are nearest to it in the representation, near ones counting more.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells of the fit; it is left alone.
    cells
        The set: True and False for every cell of ``adata``, or names of cells, as for `push`.
    source, target
        First and last time of the path; by default those of the model. The times of the model
        between them are on it too.
    basis
        Array of obsm to draw in, with or without its "X_"; by default the representation of the
        model.
    n_neighbors
        How many cells stand for a state in another basis.
    size, alpha
        Area of a cell in points squared, by default smaller for more cells, and how opaque cells
        of the set are.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    check_model(model, adata)
    check_count(n_neighbors, "n_neighbors", minimum=1)
    alpha = check_alpha(alpha)
    whole = model.between(source, target)
    times = _times_between(model, whole)
    ways = [model.between(times[0], time) for time in times[1:]]
    found = [carry_mass(way, adata, cells) for way in ways]
    plane = Plane(whole, adata, basis)
    key = whole.times.key
    later = [VERMILLION] if len(found) == 1 else list(palette(len(found) + 1))[1:]
    labels = [f"{key} {times[0]}, the set ({len(found[0].cells)} cells)"]
    labels += [f"{key} {time}, where its mass goes" for time in times[1:]]
    labels += ["mean path", "other cells"]
    ax = new_axes((5.0, 4.6), labels=labels) if ax is None else check_axes(ax)
    drawn = np.concatenate([fitted_rows(ways[0], adata, target=False)] + [f.reached for f in found])
    area = marker_area(size, len(drawn), ax)
    scatter_others(ax, plane.of(drawn), size=area)
    for each, color in zip(found, later, strict=True):
        _scatter_mass(ax, plane.of(each.reached), each.mass, color, area)
    scatter(ax, plane.of(found[0].cells), BLUE, size=1.5 * area, alpha=alpha, zorder=3)
    path = _mean_path(plane, ways[0], found, n_neighbors)
    line = _draw_path(ax, path)
    handles = [dot(color) for color in (BLUE, *later)] + [line, dot(LIGHT)]
    name_axes(ax, plane.name)
    finish(ax, title, handles, labels=labels)
    return ax


def _times_between(model: SingleCellMap, whole: SingleCellMap) -> tuple[str, ...]:
    """The times of a model from the first to the last of a way."""
    times = model.times.values
    return times[times.index(whole.times.source) : times.index(whole.times.target) + 1]


def _scatter_mass(ax: Axes, points: Points, mass: Points, color: str, area: float) -> None:
    """Draw cells by the mass that they receive, those with most of it on top."""
    from matplotlib.colors import to_rgb

    share = np.clip(mass / max(np.quantile(mass, _FULL), 1e-300), 0, 1)
    order = np.argsort(share)
    colors = np.empty((len(points), 4))
    colors[:, :3], colors[:, 3] = to_rgb(color), 0.9 * share
    sizes = area * (0.5 + 2 * share)
    scatter(ax, points[order], colors[order], size=sizes[order], alpha=None, zorder=2)


def _mean_path(
    plane: Plane, way: SingleCellMap, found: list[Carried], n_neighbors: int
) -> list[Points]:
    """From mean to mean, a piece for each step of time, [steps, 2] each."""
    here = fitted_rows(way, plane.adata, target=False)
    weight = source_weight(way)[np.isin(here, found[0].cells)]
    cells = here[np.isin(here, found[0].cells)]
    rows = [here] + [each.reached for each in found]
    states = [np.average(way.coordinates(plane.adata, cells), axis=0, weights=weight)]
    states += [each.mass @ way.coordinates(plane.adata, each.reached) for each in found]
    share = np.linspace(0, 1, _STEPS)[:, None]
    pieces = []
    for k, (start, end) in enumerate(pairwise(states)):
        among = np.concatenate([rows[k], rows[k + 1]])
        line = (1 - share) * start + share * end
        pieces.append(plane.place(line, among, n_neighbors, smooth=True))
    return pieces


def _draw_path(ax: Axes, pieces: list[Points]) -> Any:
    """A line with a white edge, a dot at each time but the last, and an arrow head there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.patheffects import Normal, Stroke

    edge = [Stroke(linewidth=3.6, foreground="white"), Normal()]
    line = np.concatenate(pieces)
    ax.plot(
        line[:, 0],
        line[:, 1],
        color=BLACK,
        linewidth=1.6,
        path_effects=edge,
        zorder=4,
        label="mean path",
    )
    ends = np.array([piece[0] for piece in pieces])
    ax.scatter(
        ends[:, 0], ends[:, 1], s=22, color=BLACK, edgecolors="white", linewidths=0.8, zorder=6
    )
    tip, before = line[-1], line[:-1][np.linalg.norm(line[:-1] - line[-1], axis=1) > 0]
    if len(before):
        ax.add_patch(
            FancyArrowPatch(
                before[-1], tip, arrowstyle="-|>", mutation_scale=13, color=BLACK, linewidth=0,
                shrinkA=0, shrinkB=0, path_effects=edge, zorder=5,
            )
        )  # fmt: skip
    return Line2D([], [], color=BLACK, linewidth=1.6)
