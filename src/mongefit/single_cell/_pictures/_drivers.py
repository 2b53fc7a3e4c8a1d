"""Genes that go with a fate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mongefit._validation import check_count, check_share
from mongefit.errors import DataError, did_you_mean, wrong_option
from mongefit.plotting._figures import BLACK, BLUE, GREY, VERMILLION, check_axes, finish, new_axes
from mongefit.single_cell._columns import listed
from mongefit.single_cell._pictures._embedding import dot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_NEEDED = ("correlation", "q_value")


def plot_drivers(
    drivers: DataFrame,
    *,
    n_top: int = 10,
    level: float = 0.05,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the genes that go with the probability of a fate: upwards and downwards.

    Parameters
    ----------
    drivers
        What `fate_drivers` gave for one fate: genes in rows, with the columns ``correlation`` and
        ``q_value``, and intervals in ``ci_low`` and ``ci_high`` if there are any.
    n_top
        How many genes of each sign are drawn, those with the largest correlations.
    level
        Genes with a ``q_value`` up to this are significant: their dots are full.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    _check(drivers)
    check_count(n_top, "n_top", minimum=1)
    level = check_share(level, "level")
    known = drivers[np.isfinite(drivers["correlation"])]
    ordered = known.sort_values("correlation", ascending=False, kind="stable")
    up = ordered[ordered["correlation"] > 0].iloc[:n_top]
    down = ordered[ordered["correlation"] < 0].iloc[-n_top:]
    genes = [*up.index, *down.index]
    if not genes:
        raise DataError("No gene has a correlation: all are 0 or NaN.")
    # The strongest at the top, and a gap between up and down.
    place = -np.arange(len(genes), dtype=float)
    place[len(up) :] -= 0.6 if len(up) and len(down) else 0.0
    ax = new_axes((4.2, 1.2 + 0.2 * len(genes))) if ax is None else check_axes(ax)
    ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    full = []
    for frame, colour, where in (
        (up, VERMILLION, place[: len(up)]),
        (down, BLUE, place[len(up) :]),
    ):
        if not len(frame):
            continue
        value, sure = (frame[name].to_numpy(np.float64) for name in _NEEDED)
        significant = sure <= level
        full += significant.tolist()
        ax.hlines(where, 0, value, color=colour, linewidth=0.8, alpha=0.35, zorder=1)
        if {"ci_low", "ci_high"} <= set(frame):
            ax.hlines(
                where, frame["ci_low"], frame["ci_high"], color=colour, linewidth=1.6, zorder=2
            )
        faces = np.where(significant, colour, "white")
        ax.scatter(value, where, s=26, c=faces, edgecolors=colour, linewidths=1.1, zorder=3)
    ax.set_yticks(place, [str(gene) for gene in genes], fontsize="small", parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(place[-1] - 0.7, 0.7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("correlation with the probability of the fate")
    entries: dict[str, Any] = {}
    if any(full):
        entries[f"q ≤ {level:g}"] = dot(BLACK)
    if not all(full):
        entries["not significant"] = dot(
            BLACK, markerfacecolor="white", markeredgecolor=BLACK, markeredgewidth=1.1
        )
    finish(ax, title, list(entries.values()), labels=list(entries))
    return ax


def _check(drivers: Any) -> None:
    import pandas as pd

    if not isinstance(drivers, pd.DataFrame):
        raise wrong_option("drivers", "the table that fate_drivers gives", drivers)
    for name in _NEEDED:
        if name not in drivers:
            raise DataError(
                f"The table of genes has no column {name!r}. Columns: {listed(drivers)}."
                + did_you_mean(name, drivers)
            )
    if drivers.index.has_duplicates:
        gene = drivers.index[drivers.index.duplicated()][0]
        raise DataError(f"{gene!r} is in the table more than once: give the table of one fate.")
