"""What pictures of cells in a plane share: where cells are, and dots for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_positive
from mongefit.errors import DataError, Suggestion, did_you_mean, wrong_option
from mongefit.plotting._figures import LIGHT
from mongefit.single_cell._columns import listed
from mongefit.single_cell._model import SingleCellMap

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D

Points = NDArray[np.float64]
Rows = NDArray[np.int64]

# With more cells than this they are drawn as dots of a picture in a PDF or SVG too.
_MANY = 5_000


def basis_name(adata: AnnData, basis: Any) -> str:
    """The array of obsm that is meant, with or without its "X_"."""
    if not isinstance(basis, str):
        raise wrong_option("basis", "the name of an array of obsm", basis)
    for name in (basis, f"X_{basis}"):
        if name in adata.obsm:
            return name
    raise DataError(
        "obsm[{basis!r}] not found. Keys: {keys}.{hint}",
        basis=basis, keys=listed(adata.obsm), hint=Suggestion.of("basis", basis, adata.obsm),
    )  # fmt: skip


def plane_of(adata: AnnData, name: str) -> Points:
    """The first two columns of an array of obsm, for every cell."""
    array = np.asarray(adata.obsm[name], dtype=np.float64)
    return first_two(array, name)


def first_two(array: Points, name: str) -> Points:
    """Two columns to draw."""
    if array.ndim != 2 or array.shape[1] < 2:
        raise DataError(f"{name} has one column; two are needed to draw in.")
    return array[:, :2]


class Plane:
    """Where cells, and states that were predicted, are in a basis."""

    def __init__(self, way: SingleCellMap, adata: AnnData, basis: str | None):
        self.way, self.adata = way, adata
        own = way.representation.name
        self.name = own if basis is None else basis_name(adata, basis)
        self.own = self.name == own

    def of(self, rows: Rows) -> Points:
        """Where some cells are, [n, 2]."""
        if self.own:
            return first_two(self.way.coordinates(self.adata, rows), self.name)
        return plane_of(self.adata, self.name)[rows]

    def place(
        self, states: Points, among: Rows, n_neighbors: int, *, smooth: bool = False
    ) -> Points:
        """Where states are: in another basis the mean of the nearest of some cells, [n, 2].

        With ``smooth`` cells count less the farther they are, so that nearby states are near.
        """
        from sklearn.neighbors import NearestNeighbors

        if self.own:
            return first_two(states, self.name)
        near = NearestNeighbors(n_neighbors=min(n_neighbors, len(among)))
        near.fit(self.way.coordinates(self.adata, among))
        distance, number = near.kneighbors(states)
        where = self.of(among)[number]
        if not smooth:
            return np.asarray(where.mean(axis=1))
        scale = np.maximum(distance[:, -1:], 1e-300)
        weight = np.exp(-2 * (distance / scale) ** 2)
        return np.asarray(np.einsum("nk,nkd->nd", weight / weight.sum(1, keepdims=True), where))


def marker_area(size: float | None, count: int, ax: Axes) -> float:
    """The area of a cell's marker, in points squared: as asked, or by the room that cells have."""
    if size is not None:
        return check_positive(size, "size")
    inches = ax.bbox.width / ax.figure.dpi
    return float(np.clip(20_000 / max(count, 1), 2, 12) * min(1.0, inches / 4) ** 1.5)


def scatter(
    ax: Axes,
    points: Points,
    color: Any,
    *,
    size: Any,
    alpha: float | None,
    zorder: float = 1,
    **options: Any,
) -> PathCollection:
    """Draw cells as dots."""
    return ax.scatter(
        points[:, 0], points[:, 1], s=size, c=color, alpha=alpha, linewidths=0, zorder=zorder,
        rasterized=len(points) > _MANY, **options,
    )  # fmt: skip


def scatter_others(ax: Axes, points: Points, *, size: float) -> None:
    """Draw cells that are not what the picture is about, behind the others."""
    scatter(ax, points, LIGHT, size=0.7 * size, alpha=None, zorder=0)


def dot(color: Any, **options: Any) -> Line2D:
    """A dot for a legend."""
    from matplotlib.lines import Line2D

    shown: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"}
    return Line2D([], [], color=color, **(shown | {"markeredgewidth": 0} | options))


def name_axes(ax: Axes, name: str) -> None:
    """Name the axes, without numbers in a basis whose units mean nothing."""
    shown = "component" if name == "X" else name.removeprefix("X_")
    if "umap" in name.lower() or "tsne" in name.lower():
        ax.set(xticks=[], yticks=[])
    ax.set_xlabel(f"{shown} 1")
    ax.set_ylabel(f"{shown} 2")


def check_colors(cmap: Any) -> Any:
    """The name of a colormap, or one."""
    from matplotlib import colormaps
    from matplotlib.colors import Colormap

    if isinstance(cmap, Colormap) or (isinstance(cmap, str) and cmap in colormaps):
        return cmap
    raise wrong_option(
        "cmap", "one of Matplotlib's colormaps", cmap, hint=did_you_mean(str(cmap), colormaps)
    )


def check_alpha(alpha: Any) -> float:
    """How opaque cells are."""
    if not 0 < check_positive(alpha, "alpha") <= 1:
        raise wrong_option("alpha", "a number above 0 and up to 1", alpha)
    return float(alpha)
