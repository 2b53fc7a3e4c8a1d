"""Two clouds and what is known of them, out of an AnnData."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import (
    DataError,
    Option,
    OptionError,
    did_you_mean,
    noted_warnings,
    warn_user,
    wrong_option,
)
from mongefit.single_cell._clones import Clones, KnownPairs
from mongefit.single_cell._columns import (
    Times,
    check_adata,
    grown_weights,
    listed,
    obs_labels,
    obs_weights,
)
from mongefit.single_cell._representation import Representation, choose_representation

if TYPE_CHECKING:
    from anndata import AnnData

Sides = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows, within an AnnData, of the cells of the source and of the target."""

BATCH = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """What `fit` takes from an AnnData: two clouds, what is known of them, where they come from.

    ``known`` are pairs by rows of ``x`` and ``y``, and ``groups`` the labels of these rows, None
    for cells of no known group. ``warnings`` is what the user was warned of on the way. The weights
    ``a`` and ``b`` come from the columns ``weight_key`` and ``growth_key`` of obs.
    """

    times: Times
    representation: Representation
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    a: NDArray[np.float64] | None
    b: NDArray[np.float64] | None
    known: KnownPairs | None
    groups: tuple[NDArray[np.object_], NDArray[np.object_]] | None
    warnings: list[str]
    weight_key: str | None = None
    growth_key: str | None = None

    @property
    def has_clones(self) -> bool:
        """Whether pairs come from clones, where a source has several targets."""
        return self.known is not None and self.known.clone is not None

    def known_pairs(self) -> dict[str, Any]:
        """Known pairs and weights, as `mongefit.model_selection` and ensembles take them."""
        pairs, weight, clones = (None, None, None) if self.known is None else self.known
        return {
            "pairs": pairs, "pair_weight": weight, "clones": clones,
            "source_weight": self.a, "target_weight": self.b,
        }  # fmt: skip

    def suited_options(self) -> dict[str, Any]:
        """Options of `MongeMap` that suit cells, for those who choose others themselves.

        Cells are noisy, which asks for a larger epsilon, and many, which asks for batches: these
        hold all cells that something is known of, and others.
        """
        known = [set() if self.known is None else set(self.known.pairs[:, k]) for k in (0, 1)]
        for side, labels in zip(known, self.groups or (), strict=False):
            side.update(row for row, label in enumerate(labels) if label is not None)
        return {"epsilon": 0.05, "batch_size": max(BATCH, max(map(len, known)) + BATCH // 2)}


def take_cells(
    adata: AnnData,
    *,
    time_key: Any,
    source: Any,
    target: Any,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    layer: str | None = None,
    diffusion: int | None = None,
    pair_key: str | None = None,
    pairs: Any = None,
    groups_key: str | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    many_to_many: bool = False,
) -> Cells:
    """Take both clouds and what is known of them; see `fit` for the options."""
    times = Times.of(time_key, source, target)
    check_adata(adata)
    check_keys(pair_key=pair_key, pairs=pairs, groups_key=groups_key)
    sides = times.rows(adata, target=False), times.rows(adata, target=True)
    known = None
    with noted_warnings() as notes:
        if pair_key is not None:
            known = clone_pairs(adata, pair_key, sides)
        elif pairs is not None:
            known = named_pairs(adata, pairs, sides, many_to_many=many_to_many)
        groups = None if groups_key is None else shared_groups(adata, groups_key, sides)
        a, b = (obs_weights(adata, weight_key, rows) for rows in sides)
        a = grown_weights(adata, growth_key, sides[0], times, a)
        warn_of_one_cell([(times, sides)])
    rows = np.concatenate(sides)
    representation = choose_representation(
        adata, np.sort(rows), use_rep=use_rep, pca=pca, n_components=n_components, layer=layer,
        diffusion=diffusion,
    )  # fmt: skip
    x, y = (representation.of(adata, side) for side in sides)
    representation = representation.marked(adata, rows, np.concatenate([x, y]))
    return Cells(times, representation, x, y, a, b, known, groups, notes, weight_key, growth_key)


def warn_of_one_cell(legs: Iterable[tuple[Times, Sides]]) -> None:
    """Warn of times with one cell, once of each."""
    alone = {
        (times.key, value, times.batch): None
        for times, sides in legs
        for rows, value in zip(sides, times.values, strict=True)
        if len(rows) == 1
    }
    for key, value, batch in alone:
        where = "" if batch is None else f" in {batch[1]}"
        warn_user(
            f"{key} {value}{where} has one cell: all cells of the time before go to it, and those "
            "of the time after come from it."
        )


def check_keys(*, pair_key: Any, pairs: Any, groups_key: Any) -> None:
    """Refuse two kinds of knowledge where one is expected."""
    names = {name: Option(name) for name in ("pair_key", "pairs", "groups_key")}
    if pair_key is not None and pairs is not None:
        raise OptionError("{pair_key} and {pairs} both tell of pairs. Give one of them.", **names)
    if pair_key is not None and pair_key == groups_key:
        raise OptionError(
            "{pair_key} and {groups_key} are both {key!r}. Give one of them.",
            key=pair_key, **names,
        )  # fmt: skip


def clone_pairs(adata: AnnData, key: str, sides: Sides) -> KnownPairs:
    """Every source of a clone with every target of it, so that each clone counts the same."""
    clones = Clones.of(adata, key, np.concatenate(sides))
    known = clones.pairs(*sides)
    if not len(known.pairs):
        raise DataError(
            f"No value of {clones.where} occurs in both the source and the target: "
            f"{' and '.join(map(clones.shown, sides))}."
        )
    clones.warn_of_one([known])
    return clones.joined([known])[0]


def named_pairs(adata: AnnData, pairs: Any, sides: Sides, *, many_to_many: bool) -> KnownPairs:
    """Pairs given by the names of cells, in a DataFrame or a sequence, with weights or without."""
    names, weight = names_and_weights(pairs)
    if not len(names):
        raise DataError("pairs is empty.")
    require_unique_names(adata, np.concatenate(sides))
    found = [
        _find(adata, column, rows, side)
        for column, rows, side in zip(names.T, sides, ("source", "target"), strict=True)
    ]
    if not many_to_many:
        require_one_target(names)
    return KnownPairs(np.stack(found, axis=1), weight)


def shared_groups(
    adata: AnnData, key: str, sides: Sides
) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Labels of both sides; those that occur on one side only become None, with a warning."""
    labels = obs_labels(adata, key, "groups_key", np.concatenate(sides))
    source, target = np.split(labels, [len(sides[0])])
    found = keep_shared(key, source, target, "the source", "the target")
    if found is None:
        present = [listed(sorted(set(part) - {None}), 5) for part in (source, target)]
        raise DataError(
            f"No value of obs[{key!r}] occurs in both the source and the target: "
            f"{' and '.join(present)}."
        )
    return found


def keep_shared(
    key: str, source: NDArray[np.object_], target: NDArray[np.object_], first: str, last: str
) -> tuple[NDArray[np.object_], NDArray[np.object_]] | None:
    """Labels of two sides without those of one side only; None where they share none."""
    present = [set(part) - {None} for part in (source, target)]
    shared = present[0] & present[1]
    if not shared:
        return None
    alone = sorted((present[0] | present[1]) - shared)
    if not alone:
        return source, target
    kept = source.copy(), target.copy()
    for part in kept:
        part[np.isin(part, alone)] = None
    lost = sum(np.sum(each != part) for each, part in zip((source, target), kept, strict=True))
    near = did_you_mean(alone[0], sorted(shared))
    warn_user(
        f"obs[{key!r}]: {listed(alone, 5)} in {first} or in {last} only; the {lost} cells count as "
        f"of no known group.{near}"
    )
    return kept


def require_unique_names(adata: AnnData, rows: NDArray[np.int64]) -> None:
    """Refuse cells that cannot be told by name."""
    present = adata.obs_names[rows]
    twice = present[present.duplicated()]
    if len(twice):
        raise DataError(
            f"{len(twice.unique())} names of cells occur more than once (first: {twice[0]!r}), so "
            "that pairs cannot be told by name. Make them unique with "
            "adata.obs_names_make_unique()."
        )


def names_and_weights(pairs: Any) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
    import pandas as pd

    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        hint = " Read the file with pandas.read_csv." if isinstance(pairs, str) else ""
        raise wrong_option(
            "pairs", "a DataFrame or a list of (source, target) names of cells", pairs, hint=hint
        )
    frame = pairs if isinstance(pairs, pd.DataFrame) else pd.DataFrame(_as_rows(pairs))
    columns = list(frame.columns)
    if columns == [0, 1, 2]:
        columns[2] = "weight"
    if len(columns) < 2 or columns[2:] not in ([], ["weight"]):
        raise DataError(
            "pairs needs two columns, the names of source and target cells, and may have a third "
            f"called weight; it has {listed(columns)}."
        )
    names = frame.iloc[:, :2]
    absent = np.flatnonzero(names.isna().any(axis=1))
    if len(absent):
        raise DataError(f"pairs has no name in row {absent[0]}. Fill it in, or remove the row.")
    try:
        weight = frame.iloc[:, 2].to_numpy(np.float64) if columns[2:] else np.ones(len(frame))
    except ValueError as error:
        raise DataError(f"The weights of pairs must be numbers: {error}.") from error
    return names.astype(str).to_numpy(dtype=object), weight


def _as_rows(pairs: Iterable[Any]) -> list[Any]:
    rows = list(pairs)
    if rows and isinstance(rows[0], str):
        raise DataError(
            f"pairs must hold two names in each row, and its first is {rows[0]!r}. A single pair "
            "is a list of one: [('a', 'b')]."
        )
    return rows


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


def require_one_target(names: NDArray[np.object_]) -> None:
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
