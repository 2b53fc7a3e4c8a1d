"""Fates and origins: which labels cells go to, or came from, with what probability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_switch
from mongefit.errors import warn_user
from mongefit.single_cell._average import CellMap, check_cell_map
from mongefit.single_cell._columns import among_all, check_adata, check_name, in_memory
from mongefit.single_cell._labels import Labels, fitted_rows, label_colors
from mongefit.single_cell._probabilities import LEAST_MASS, Fates, check_level, find_fates
from mongefit.single_cell._transport import parts_with_cells

if TYPE_CHECKING:
    from anndata import AnnData
Parts = Sequence[tuple[CellMap, NDArray[np.int64]]]

BLURRED = 0.02
"""Share of the entropy of the labels below which the plan says nothing of a cell."""
_SOME = 256
_NAMES = {False: ("fates", "fate"), True: ("origins", "origin")}


def fates(
    model: CellMap,
    adata: AnnData,
    key: str,
    *,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    reference: AnnData | None = None,
    level: float = 0.9,
    key_added: str = "mongefit",
    copy: bool = False,
) -> AnnData | None:
    """Predict which labels the descendants of the cells of the source will have.

    Writes

    - ``obsm["<key_added>_fates"]``, the probability of each label, a column each; rows sum to 1,
      and are NaN for cells of other times. Names are in ``uns["<key_added>_fates"]["names"]``,
    - ``obs["<key_added>_fate"]``, the most probable label, with its colour in uns,
    - ``obs["<key_added>_fate_entropy"]``, how open the fate is: 0 for one certain label, log k
      for k equal ones,
    - ``obs["<key_added>_fate_mass"]``, the share of the descendants that have one of the labels
      that are kept, and ``obsm["<key_added>_fates_raw"]`` with all labels before that, if some are
      excluded,
    - ``obs["<key_added>_informed"]``, whether a known source is near the cell, of an ensemble,
    - of an ensemble also ``obsm["<key_added>_fates_low"]`` and ``…_fates_high"]``, between which a
      share ``level`` of its members lies. They were trained on clones drawn with replacement.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells; those of the fit or others, with the same time key and representation.
    key
        Column of obs with the labels of the target cells.
    source, target
        Two times of a model over several; by default the first and the last.
    exclude
        Labels that are no fate, such as "undifferentiated". Probabilities are then those of the
        other labels, given that it is one of them.
    reference
        The AnnData with the labelled target cells of the fit, where ``adata`` has other cells.
    level
        Share of the members of an ensemble that an interval holds.
    key_added
        Beginning of the names of what is written.
    copy
        Leave ``adata`` alone and return a copy.
    """
    return _write(
        model, adata, key, reverse=False, source=source, target=target, exclude=exclude,
        reference=reference, level=level, key_added=key_added, copy=copy,
    )  # fmt: skip


def origins(
    model: CellMap,
    adata: AnnData,
    key: str,
    *,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    reference: AnnData | None = None,
    level: float = 0.9,
    key_added: str = "mongefit",
    copy: bool = False,
) -> AnnData | None:
    """Predict which labels the ancestors of the cells of the target had.

    It is `fates` in reverse: ``key`` labels the cells of the source, and what is written is named
    ``<key_added>_origins``, ``<key_added>_origin`` and so on.
    """
    return _write(
        model, adata, key, reverse=True, source=source, target=target, exclude=exclude,
        reference=reference, level=level, key_added=key_added, copy=copy,
    )  # fmt: skip


def _write(
    model: CellMap,
    adata: AnnData,
    key: str,
    *,
    reverse: bool,
    source: Any,
    target: Any,
    exclude: str | Iterable[str],
    reference: AnnData | None,
    level: float,
    key_added: str,
    copy: bool,
) -> AnnData | None:
    import pandas as pd

    check_cell_map(model, adata)
    check_switch(copy, "copy")
    check_name(key_added)
    level = check_level(level)
    if reference is not None:
        check_adata(reference, "reference")
    labelled = adata if reference is None else reference
    ways = model.each_batch(source, target)
    parts = parts_with_cells(ways, adata, target=reverse)
    ends = [fitted_rows(way.maps[0], labelled, target=not reverse) for way in ways]
    among = Labels.of(labelled, key, np.concatenate(ends)).names
    found = Fates.join(
        [
            find_fates(
                way, adata, part, labelled, key, reverse=reverse, exclude=exclude, among=among
            )
            for way, part in parts
        ]
    )
    rows = np.concatenate([part for _, part in parts])
    perplexity = _perplexity(parts, adata, reverse=reverse)
    _warn_of_what_is_wrong(found, perplexity)
    if copy:
        adata = in_memory(adata)
    several, single = (f"{key_added}_{name}" for name in _NAMES[reverse])
    _put(adata.obsm, several, adata, rows, found.probability)
    if len(found.names) < len(found.all_names):
        _put(adata.obsm, f"{several}_raw", adata, rows, found.raw)
    if len(found.members) > 1:
        for end, bound in zip(("low", "high"), found.interval(level), strict=True):
            _put(adata.obsm, f"{several}_{end}", adata, rows, bound)
    _put(adata.obs, f"{single}_entropy", adata, rows, found.entropy)
    _put(adata.obs, f"{single}_mass", adata, rows, found.mass)
    best = np.full(adata.n_obs, -1)
    known = np.isfinite(found.probability).all(axis=1)
    best[rows[known]] = np.argmax(found.probability[known], axis=1)
    adata.obs[single] = pd.Categorical.from_codes(best, list(found.names))
    colors = label_colors(labelled, key)
    adata.uns[f"{single}_colors"] = [str(colors[name]) for name in found.names]
    if not reverse and (informed := _informed(parts, adata)) is not None:
        adata.obs[f"{key_added}_informed"] = among_all(adata, rows, informed)
    times = ways[0].times
    adata.uns[several] = {
        "names": np.asarray(found.names, dtype=str),
        "names_raw": np.asarray(found.all_names, dtype=str),
        "key": key,
        "time_key": times.key,
        "source": times.source,
        "target": times.target,
        "perplexity": perplexity,
        "informative": found.informative,
        **({"level": level} if len(found.members) > 1 else {}),
    }
    return adata if copy else None


def _perplexity(parts: Parts, adata: AnnData, *, reverse: bool) -> float:
    """The number of cells that a cell goes to, in the median over some cells."""
    found = []
    for way, rows in parts:
        some = rows[np.unique(np.linspace(0, len(rows) - 1, _SOME).astype(int))]
        entropy = [
            view.model.entropy(view.coordinates(adata, some), reverse=reverse) for view in way.maps
        ]
        found.append(np.exp(np.mean(entropy, axis=0)))
    return float(np.median(np.concatenate(found)))


def _informed(parts: Parts, adata: AnnData) -> NDArray[np.bool_] | None:
    """Whether a known source is near each cell, in the coordinates of any map that knows."""
    found = []
    for way, rows in parts:
        each = [view.informed(view.coordinates(adata, rows)) for view in way.maps]
        known = [near for near in each if near is not None]
        if not known:
            return None
        found.append(np.any(known, axis=0))
    return np.concatenate(found)


def _warn_of_what_is_wrong(found: Fates, perplexity: float) -> None:
    """Warn of fates that say nothing."""
    count = len(found.mass)
    if lost := int(np.sum(found.mass <= LEAST_MASS)):
        warn_user(
            f"{lost} of {count} cells have no mass on {', '.join(found.names)}: their "
            "probabilities are NaN."
        )
    if len(found.names) > 1 and count > 1 and found.informative < BLURRED:
        warn_user(
            "The plan says nearly the same of every cell: which cell it is tells "
            f"{found.informative:.1%} of what is open about the label. A cell is spread over "
            f"{perplexity:.0f} others (the median). Fit with a smaller epsilon, or with other "
            "components."
        )


def _put(where: Any, name: str, adata: AnnData, rows: NDArray[np.int64], values: Any) -> None:
    where[name] = among_all(adata, rows, values)
