"""Pictures of how settings were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mongefit.plotting._figures import BLACK, GREY, VERMILLION, finish, new_axes, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mongefit.model_selection import Selection

_REFERENCES = {"squared Euclidean": "--", "ridge on pairs": "-.", "target mean": ":"}


def plot_selection(
    selection: Selection, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the error on held-out pairs after every training step, and what it should be below.

    Parameters
    ----------
    selection
        What `mongefit.model_selection.select` gave.
    ax, title
        As for `plot_map`.
    """
    ax = new_axes((5.0, 3.6)) if ax is None else ax
    colours = palette(len(selection.paths))
    for colour, (name, path) in zip(colours, selection.paths.items(), strict=True):
        ax.plot(np.arange(len(path)), path, color=colour, label=name)
    for name, style in _REFERENCES.items():
        # Squared Euclidean at its best epsilon.
        errors = [row["rmse"] for row in selection.table.rows if row["name"].startswith(name)]
        ax.axhline(min(errors), color=GREY, linestyle=style, label=name, zorder=0)
    choice = selection.choice
    ax.plot(
        choice.steps, choice.rmse, color=VERMILLION, marker="o", markeredgecolor=BLACK,
        linestyle="none", label="chosen", zorder=3,
    )  # fmt: skip
    ax.set_xlabel("training steps")
    ax.set_ylabel("RMSE, held-out pairs")
    finish(ax, title)
    return ax
