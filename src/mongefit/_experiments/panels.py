"""Pictures that several experiments draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._experiments.base import Result
from mongefit.plotting import plot_map

Arrays = dict[str, NDArray[np.float64]]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def map_panels(results: Sequence[Result], *, wrap: int | None = None) -> Figure:
    """Maps of the plane, as `panels` arranges them."""

    def draw(ax: Axes, result: Result, arrays: Arrays) -> None:
        plot_map(arrays["source"], arrays["target"], arrays["mapped"], truth=arrays["truth"], ax=ax)
        ax.text(
            0.02, 0.98, f"RMSE {result.value('rmse'):.3g}",
            transform=ax.transAxes, va="top", fontsize="small", zorder=7,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )  # fmt: skip

    return panels(results, draw, size=(2.6, 2.5), wrap=wrap)


def panels(
    results: Sequence[Result],
    draw: Callable[[Any, Result, Arrays], None],
    *,
    size: tuple[float, float],
    projection: str | None = None,
    wrap: int | None = None,
) -> Figure:
    """A panel for each result, one of each case, method and preset, and one legend below all.

    ``draw`` draws a result with its arrays on Axes of the projection. ``size`` is the width and the
    height of a panel in inches, ``wrap`` the number of columns. By default there is a column for
    each method and preset, and a row for each case.
    """
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(result.run.case for result in results))
    width = wrap or len(results) // len(cases)
    height = -(-len(results) // width)
    ordered = sorted(results, key=lambda result: cases.index(result.run.case))
    figure = Figure(figsize=(size[0] * width, size[1] * height + 0.6))
    # Panels of the plane keep their proportions; the layout reckons with the height that they had
    # before, and needs some more between the rows.
    figure.set_layout_engine(
        "constrained" if projection else "compressed", h_pad=0.04 if projection else 0.12
    )
    grid = figure.subplots(height, width, squeeze=False, subplot_kw={"projection": projection})
    handles: dict[str, Any] = {}
    for ax in grid.flat[len(ordered) :]:
        ax.set_axis_off()
    for place, (ax, result) in enumerate(zip(grid.flat, ordered, strict=False)):
        run, title = result.run, ""
        if wrap or place < width:
            title = f"{run.method}\n{run.preset} settings" if run.preset else run.method
        ax.set_title(title, fontsize="medium")
        if result.outcome is None:
            ax.set_axis_off()
            (ax.text2D if projection else ax.text)(0.5, 0.5, "failed", transform=ax.transAxes)
            continue
        arrays = {key: np.asarray(value) for key, value in result.outcome.arrays.items()}
        draw(ax, result, arrays)
        ax.patch.set_visible(False)  # or it would hide labels of its neighbour
        ax.set_title(title, fontsize="medium")
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label.split(" (")[0], handle)
        if len(cases) > 1 and place % width == 0:
            if projection:
                ax.text2D(-0.08, 0.5, run.case, transform=ax.transAxes, rotation=90, va="center")
            else:
                ax.set_ylabel(f"{run.case}\n{ax.get_ylabel()}")
        elif projection is None and place % width:
            ax.set_ylabel("")
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles),
        frameon=False, fontsize="small",
    )  # fmt: skip
    return figure
