"""Cells in the colours of their fates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_switch
from mongefit.errors import DataError, OptionError, Suggestion, did_you_mean
from mongefit.plotting._figures import check_axes, finish, new_axes, palette
from mongefit.single_cell._columns import Times, check_adata, check_name, listed
from mongefit.single_cell._pictures._embedding import (
    LIGHT,
    Points,
    basis_name,
    check_alpha,
    check_colors,
    dot,
    marker_area,
    name_axes,
    plane_of,
    scatter,
    scatter_others,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from matplotlib.axes import Axes

UNCERTAIN = "#A6A6A6"


class Written(NamedTuple):
    """What `fates` or `origins` wrote: probabilities [cells, labels], names, colours."""

    probability: NDArray[np.float64]
    names: list[str]
    colors: Sequence[Any]
    rows: NDArray[np.int64]
    others: str
    lost: str


def plot_fates(
    adata: AnnData,
    *,
    basis: str = "umap",
    fate: str | None = None,
    inverse: bool = False,
    key_added: str = "mongefit",
    cmap: str = "viridis",
    size: float | None = None,
    alpha: float = 1.0,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the cells of the source in the colours of the fates that `fates` predicted.

    A cell has the colour of its most probable fate. The more uncertain it is, the more grey is in
    it: a cell for which all fates are equally probable is grey. Cells of other times are light.

    Parameters
    ----------
    adata
        The cells, with what `fates` wrote; it is left alone.
    basis
        Array of obsm to draw in, with or without its "X_".
    fate
        Draw the probability of this fate instead, with a colour bar.
    inverse
        Draw the cells of the target by what `origins` wrote.
    key_added
        As it was for `fates`.
    cmap
        Colours for the probability of one fate.
    size, alpha
        Area of a cell in points squared, by default smaller for more cells, and how opaque it is.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    check_adata(adata)
    check_switch(inverse, "inverse")
    found = _written(adata, key_added, inverse=inverse)
    name = basis_name(adata, basis)
    alpha, cmap = check_alpha(alpha), check_colors(cmap)
    points = plane_of(adata, name)
    known = np.isfinite(found.probability[found.rows]).all(axis=1)
    cells, lost = found.rows[known], found.rows[~known]
    if not len(cells):
        raise DataError(f"No cell has a probability in obsm['{key_added}_…']: all are NaN.")
    others = np.setdiff1d(np.arange(adata.n_obs), found.rows)
    # The same random order each time, so that no fate hides the others.
    cells = np.random.default_rng(0).permutation(cells)
    probability = found.probability[cells]
    entries = {}
    if fate is None:
        best = probability.argmax(axis=1)
        entries = {found.names[k]: found.colors[k] for k in np.unique(best)}
        if len(found.names) > 1:
            entries["uncertain"] = UNCERTAIN
    if len(others):
        entries[found.others] = LIGHT
    legend = [*entries, found.lost] if len(lost) else list(entries)
    ax = new_axes((5.0, 4.6), labels=legend) if ax is None else check_axes(ax)
    size = marker_area(size, adata.n_obs, ax)
    scatter_others(ax, points[others], size=size)
    x, y = points[lost].T
    ax.scatter(x, y, s=2 * size, color=UNCERTAIN, marker="x", linewidths=0.7, zorder=1)
    if fate is None:
        scatter(ax, points[cells], fate_colors(probability, found.colors), size=size, alpha=alpha)
    else:
        p = probability[:, _number(found.names, fate)]
        drawn = scatter(
            ax, points[cells], p, size=size, alpha=alpha, cmap=cmap, vmin=0, vmax=_round_up(p)
        )
        bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.7)
        bar.set_label(f"probability of {fate}", parse_math=False)
    name_axes(ax, name)
    handles = [dot(colour) for colour in entries.values()]
    if len(lost):
        handles.append(dot(UNCERTAIN, marker="x", markeredgewidth=1))
    finish(ax, title, handles, labels=legend)
    return ax


def fate_colors(probability: Points, colors: Sequence[Any]) -> Points:
    """The colour of the most probable fate, mixed with grey: all of it where fates are equal."""
    from matplotlib.colors import to_rgb

    count = len(colors)
    pure = np.array([to_rgb(color) for color in colors])[probability.argmax(axis=1)]
    even = 1 / count if count > 1 else 0.0
    share = np.clip((probability.max(axis=1) - even) / (1 - even), 0, 1)[:, None]
    return np.asarray(share * pure + (1 - share) * np.array(to_rgb(UNCERTAIN)))


def _round_up(p: Points) -> float:
    """The end of the colour bar: 1, or less where no probability comes near it."""
    highest = float(p.max(initial=0))
    return next((end for end in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if highest <= end), 1.0)


def _number(names: list[str], fate: Any) -> int:
    if fate not in names:
        raise OptionError(
            f"There is no fate {fate!r}. Fates: {listed(names)}.{did_you_mean(str(fate), names)}"
        )
    return names.index(fate)


def _written(adata: AnnData, key_added: Any, *, inverse: bool) -> Written:
    """What was written under a name; the error says how to write it."""
    check_name(key_added)
    word = "origin" if inverse else "fate"
    key = f"{key_added}_{word}s"
    if key not in adata.obsm or key not in adata.uns:
        ends = [
            each.removesuffix(f"_{word}s")
            for each in adata.obsm
            if each in adata.uns and each.endswith(f"_{word}s")
        ]
        raise DataError(
            "obsm[{key!r}] not found: {word}s have to be computed first, with "
            "mongefit.single_cell.{word}s(model, adata, key).{hint}",
            key=key, word=word, hint=Suggestion.of("key_added", key_added, ends),
        )  # fmt: skip
    about = adata.uns[key]
    names = [str(name) for name in about["names"]]
    probability = np.asarray(adata.obsm[key], np.float64)
    if probability.ndim != 2 or probability.shape[1] != len(names):
        raise DataError(
            f"obsm[{key!r}] has the shape {probability.shape}, and uns[{key!r}] has {len(names)} "
            f"names. Compute them again: mongefit.single_cell.{word}s."
        )
    colors = list(adata.uns.get(f"{key_added}_{word}_colors", ()))
    if len(colors) != len(names):
        colors = list(palette(len(names)))
    times = Times(*(str(about[name]) for name in ("time_key", "source", "target")))
    time = times.target if inverse else times.source
    if times.key in adata.obs:
        rows = times.rows(adata, target=inverse)
    else:
        rows = np.flatnonzero(np.isfinite(probability).any(axis=1))
    lost = f"{times.key} {time}, no {word}"
    return Written(probability, names, colors, rows, "other cells", lost)
