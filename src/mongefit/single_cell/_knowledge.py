"""What is known of cells, by the rows of two clouds: pairs of names, clones, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import DataError, Option, did_you_mean, warn_user
from mongefit.single_cell._columns import listed, obs_labels

if TYPE_CHECKING:
    from anndata import AnnData

MAX_PAIRS = 1_000_000
"""More pairs than this out of clones are refused: such sets are groups."""


class KnownPairs(NamedTuple):
    """Pairs of rows of the source and of the target.

    Attributes
    ----------
    pairs, weight
        Rows [k, 2] and how much each pair counts.
    clone
        Number of the clone that each pair is of; None where pairs were given one by one.
    """

    pairs: NDArray[np.int64]
    weight: NDArray[np.float64]
    clone: NDArray[np.int64] | None = None


class Sides(NamedTuple):
    """Rows, within ``adata``, of the cells of the source and of the target."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


def clone_pairs(adata: AnnData, key: str, sides: Sides) -> KnownPairs:
    """Every source of a clone with every target of it, each with weight 1/(sources · targets)."""
    labels, split = obs_labels(adata, key, "pair_key", np.concatenate(sides)), len(sides.source)
    members = [_members(part) for part in (labels[:split], labels[split:])]
    shared = [label for label in members[0] if label in members[1]]
    if not shared:
        raise DataError(
            f"No value of obs[{key!r}] occurs in both the source and the target: "
            f"{listed(members[0], 5)} and {listed(members[1], 5)}."
        )
    total = sum(len(members[0][label]) * len(members[1][label]) for label in shared)
    if total > MAX_PAIRS:
        raise DataError(
            "obs[{key!r}] gives {total} pairs in {count} sets, too many to be clones. Use "
            "{groups_key} for sets of many cells.",
            key=key, total=total, count=len(shared), groups_key=Option("groups_key", key),
        )  # fmt: skip
    if len(shared) == 1:
        warn_user(
            f"All cells with a known clone at both times are in one clone, {shared[0]!r}. Every "
            "source is paired with every target of it, which says little about which goes where."
        )
    tables = [_all_pairs(members[0][label], members[1][label]) for label in shared]
    sizes = [len(table) for table in tables]
    return KnownPairs(
        np.concatenate(tables),
        np.repeat([1 / size for size in sizes], sizes),
        np.repeat(np.arange(len(shared)), sizes),
    )


def named_pairs(adata: AnnData, pairs: Any, sides: Sides, *, many_to_many: bool) -> KnownPairs:
    """Pairs given by the names of cells, in a DataFrame or a sequence, with weights or without."""
    names, weight = _names_and_weights(pairs)
    if not len(names):
        raise DataError("pairs is empty.")
    _require_unique_names(adata, np.concatenate(sides))
    table = np.stack(
        [
            _find(adata, names[:, column], rows, side)
            for column, (rows, side) in enumerate(zip(sides, ("source", "target"), strict=True))
        ],
        axis=1,
    )
    if not many_to_many:
        _require_one_target(names)
    return KnownPairs(table, weight)


def shared_groups(
    adata: AnnData, key: str, sides: Sides
) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Labels of both sides; those that occur on one side only become None, with a warning."""
    labels, split = obs_labels(adata, key, "groups_key", np.concatenate(sides)), len(sides.source)
    present = [set(part) - {None} for part in (labels[:split], labels[split:])]
    shared = present[0] & present[1]
    if not shared:
        raise DataError(
            f"No value of obs[{key!r}] occurs in both the source and the target: "
            f"{listed(sorted(present[0]), 5)} and {listed(sorted(present[1]), 5)}."
        )
    alone = sorted((present[0] | present[1]) - shared)
    if alone:
        left_out = np.isin(labels, alone)
        near = did_you_mean(alone[0], shared)
        warn_user(
            f"obs[{key!r}]: {listed(alone, 5)} in the source or in the target only; the "
            f"{left_out.sum()} cells count as of no known group.{near}"
        )
        labels[left_out] = None
    return labels[:split], labels[split:]


def _members(labels: NDArray[np.object_]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        if label is not None:
            members.setdefault(label, []).append(row)
    return members


def _all_pairs(sources: Sequence[int], targets: Sequence[int]) -> NDArray[np.int64]:
    return np.stack(np.meshgrid(sources, targets, indexing="ij"), axis=-1).reshape(-1, 2)


def _names_and_weights(pairs: Any) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
    import pandas as pd

    frame = pairs if isinstance(pairs, pd.DataFrame) else pd.DataFrame(list(pairs))
    columns = list(frame.columns)
    if columns == [0, 1, 2]:
        columns[2] = "weight"
    if len(columns) not in (2, 3) or (len(columns) == 3 and columns[2] != "weight"):
        raise DataError(
            "pairs needs two columns, the names of source and target cells, and may have a third "
            f"called weight; it has {listed(columns)}."
        )
    names = frame.iloc[:, :2]
    if names.isna().to_numpy().any():
        row = int(names.isna().any(axis=1).to_numpy().argmax())
        raise DataError(f"pairs has no name in row {row}. Fill it in, or remove the row.")
    weight = np.ones(len(frame))
    if len(columns) == 3:
        try:
            weight = frame.iloc[:, 2].to_numpy(dtype=np.float64)
        except ValueError as error:
            raise DataError(f"The weights of pairs must be numbers: {error}.") from error
    return names.astype(str).to_numpy(dtype=object), weight


def _require_unique_names(adata: AnnData, rows: NDArray[np.int64]) -> None:
    names = adata.obs_names[rows]
    twice = names[names.duplicated()]
    if len(twice):
        raise DataError(
            f"{len(twice.unique())} names of cells occur more than once (first: {twice[0]!r}), so "
            "that pairs cannot be told by name. Make them unique with "
            "adata.obs_names_make_unique()."
        )


def _find(
    adata: AnnData, names: NDArray[np.object_], rows: NDArray[np.int64], side: str
) -> NDArray[np.int64]:
    """Where names are among the cells of one side."""
    cells = adata.obs_names[rows]
    found = cells.get_indexer(names)
    if np.any(found < 0):
        first = names[int(np.argmax(found < 0))]
        hint = " It is a cell of another time." if first in adata.obs_names else ""
        raise DataError(
            f"{np.sum(found < 0)} of {len(names)} pair names are not in the {side} (first: "
            f"{first!r}).{hint or did_you_mean(first, cells)}"
        )
    return np.asarray(found, np.int64)


def _require_one_target(names: NDArray[np.object_]) -> None:
    targets: dict[str, set[str]] = {}
    for source, target in names:
        targets.setdefault(source, set()).add(target)
        if len(targets[source]) > 1:
            raise DataError(
                "Cell {source!r} is paired with several targets: {targets}. A map sends a cell to "
                "one place. Keep one of them, or set {many_to_many} to fit their mean.",
                source=source, targets=", ".join(map(repr, sorted(targets[source]))),
                many_to_many=Option("many_to_many", True),
            )  # fmt: skip
