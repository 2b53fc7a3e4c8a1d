"""Pictures of what a cost has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mongefit.plotting._figures import BLACK, BLUE, VERMILLION, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mongefit.explain import CostExplanation


def plot_curvature(
    explanation: CostExplanation, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw how expensive each direction is, and how much of the motion goes along it.

    Parameters
    ----------
    explanation
        What `mongefit.explain.explain_cost` gave.
    ax
        Axes to draw the curvature on, which get a twin for the motion; a new Figure by default.
    title
        Title of the Axes.
    """
    from matplotlib.ticker import MaxNLocator

    ax = new_axes((4.5, 3.4)) if ax is None else ax
    twin = ax.twinx()
    number = np.arange(1, len(explanation.curvature) + 1)
    bars = ax.bar(number, explanation.curvature, color=BLUE, width=0.7, label="curvature")
    line = ax.axhline(1, color=BLACK, linewidth=0.8, linestyle=":", label="squared Euclidean")
    label = "share of motion"
    points = twin.plot(
        number, explanation.motion, "D", color=VERMILLION, markersize=5, clip_on=False, label=label
    )
    ax.set_xlim(0.4, len(number) + 0.6)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    ax.set_xlabel("direction, the most expensive first")
    ax.set_ylabel("curvature", color=BLUE)
    twin.set_ylim(0, 1)
    twin.set_ylabel(label, color=VERMILLION)
    finish(ax, title, [bars, line, *points])
    return ax


def plot_directions(
    explanation: CostExplanation, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the part that each feature has in each direction, as a table of colours.

    Parameters
    ----------
    explanation, ax, title
        As for `plot_curvature`.
    """
    ax = new_axes((4.5, 3.8)) if ax is None else ax
    drawn = ax.imshow(explanation.directions, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    ax.figure.colorbar(drawn, ax=ax, label="part in the direction")
    places = np.arange(len(explanation.curvature))
    names = [f"{k + 1} ({value:.2g})" for k, value in enumerate(explanation.curvature)]
    ax.set_yticks(places, names, fontsize="small")
    rotation, ha = (45, "right") if max(map(len, explanation.features)) > 3 else (0, "center")
    ax.set_xticks(places, explanation.features, fontsize="small", rotation=rotation, ha=ha)
    ax.set_ylabel("direction (curvature)")
    finish(ax, title)
    return ax
