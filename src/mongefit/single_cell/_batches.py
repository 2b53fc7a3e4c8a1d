"""Batches of an AnnData, of which each has cells of all times."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import DataError, Option, OptionError, ignored_warnings, warn_user
from mongefit.single_cell._columns import Times, canonical, listed, obs_column, obs_labels

if TYPE_CHECKING:
    from anndata import AnnData


def rows_of_all(adata: AnnData, span: Times) -> NDArray[np.int64]:
    """Rows of the cells of all times, in order."""
    return np.concatenate([span.rows_at(adata, value) for value in span.values])


def in_batches(
    adata: AnnData, times: Times, key: Any, pair_key: Any, groups_key: Any
) -> tuple[tuple[str, ...], list[Times]]:
    """The batches that have cells at all times, and the times in each; without a key, all cells."""
    if key is None:
        return (), [times]
    obs_column(adata, key, "batch_key")
    for name, other in (
        ("time_key", times.key),
        ("pair_key", pair_key),
        ("groups_key", groups_key),
    ):
        if other == key:
            raise OptionError(
                "{batch_key} and {other} are both {key!r}. Batches are told by a column of their "
                "own.",
                batch_key=Option("batch_key"), other=Option(name), key=key,
            )  # fmt: skip
    batch = batch_of_cells(adata, key)
    rows = rows_of_all(adata, times)
    missing = np.array([label is None for label in batch[rows]])
    if np.any(missing):
        raise DataError(
            f"obs[{key!r}] is missing in {missing.sum()} of {len(rows)} cells (first: "
            f"{str(adata.obs_names[rows[int(np.argmax(missing))]])!r}). Fill it in, or leave these "
            "cells out."
        )
    at = {value: Counter(batch[times.rows_at(adata, value)]) for value in times.values}
    counts = {
        name: {value: found[name] for value, found in at.items()}
        for name in sorted(set(batch[rows]), key=_natural)
    }
    kept = [name for name, found in counts.items() if all(found.values())]
    for name, found in counts.items():
        if name not in kept:
            empty = listed([value for value, count in found.items() if not count])
            warn_user(
                f"obs[{key!r}]: {name} has no cells of {times.key} {empty}; its "
                f"{sum(found.values())} cells are left out."
            )
    if not kept:
        raise DataError(
            f"No value of obs[{key!r}] has cells at all times: {listed(counts)}. Does it tell "
            "batches of which each has all times?"
        )
    return tuple(kept), [times.within(key, name) for name in kept]


def batch_of_cells(adata: AnnData, key: str) -> NDArray[np.object_]:
    """The batch of every cell as text, None where it is missing; 1 and 1.0 are the same."""
    with ignored_warnings():
        labels = obs_labels(adata, key, "batch_key", np.arange(adata.n_obs))
    names: dict[Any, str] = {}
    found = [
        None if label is None else names.setdefault(canonical(label), label) for label in labels
    ]
    return np.asarray(found, dtype=object)


def _natural(name: str) -> tuple[bool, Any]:
    """Numbers by size, before text."""
    found = canonical(name)
    return isinstance(found, str), found
