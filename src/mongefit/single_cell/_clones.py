"""Clones of cells, from a column of obs or a matrix of cells and barcodes, and their pairs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from mongefit.errors import DataError, Option, Suggestion, warn_user, wrong_option
from mongefit.single_cell._columns import listed, obs_labels

if TYPE_CHECKING:
    from anndata import AnnData

Rows = NDArray[np.int64]

MAX_PAIRS = 1_000_000
"""More pairs than this out of clones are refused: such sets are groups."""


class KnownPairs(NamedTuple):
    """Pairs of rows of the source and of the target, [k, 2], and how much each counts.

    ``clone`` is the number of the clone that each pair is of; None where pairs were given by name.
    """

    pairs: NDArray[np.int64]
    weight: NDArray[np.float64]
    clone: NDArray[np.int64] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Clones:
    """Which cells are in which clones: one entry for each cell and clone.

    Attributes
    ----------
    key
        The column of obs or the array of obsm.
    where
        What messages call it.
    cell, clone
        The row of a cell in the AnnData, and the number of a clone.
    names
        The clones by number.
    """

    key: str
    where: str
    cell: Rows
    clone: Rows
    names: list[str]

    @classmethod
    def of(cls, adata: AnnData, key: Any, rows: Rows) -> Clones:
        """The clones of some cells. A column of obs comes before an array of obsm."""
        if isinstance(key, str) and key not in adata.obs and key in adata.obsm:
            return cls._of_matrix(adata, key, rows)
        if isinstance(key, str) and key not in adata.obs:
            raise DataError(
                "{key!r} found neither in obs nor in obsm. Columns of obs: {columns}. Keys of "
                "obsm: {keys}.{hint}",
                key=key, columns=listed(adata.obs), keys=listed(adata.obsm),
                hint=Suggestion.of("pair_key", key, [*adata.obs, *adata.obsm]),
            )  # fmt: skip
        if not isinstance(key, str):
            raise wrong_option("pair_key", "the name of one column of obs or array of obsm", key)
        labels = obs_labels(adata, key, "pair_key", rows)
        names: dict[str, int] = {}
        known = [place for place, label in enumerate(labels) if label is not None]
        numbers = [names.setdefault(labels[place], len(names)) for place in known]
        return cls(key, f"obs[{key!r}]", rows[known], np.asarray(numbers, np.int64), list(names))

    @classmethod
    def _of_matrix(cls, adata: AnnData, key: str, rows: Rows) -> Clones:
        """Of a matrix of cells and barcodes: a cell is in the clone of every barcode it has."""
        where = f"obsm[{key!r}]"
        array = adata.obsm[key]
        names = None
        if hasattr(array, "columns"):
            names, array = list(map(str, array.columns)), array.to_numpy()
        if len(array.shape) != 2:
            raise DataError(f"{where} has shape {array.shape}; cells × clones are needed.")
        part = array[rows]
        values = np.asarray(part.data if scipy.sparse.issparse(part) else part)
        _check_memberships(adata, rows, part, values, where)
        entries = scipy.sparse.csr_array(part)
        entries.eliminate_zeros()
        cell, clone = entries.nonzero()
        names = names or [str(number) for number in range(array.shape[1])]
        return cls(key, where, rows[cell], np.asarray(clone, np.int64), names)

    def within(self, batch: NDArray[np.object_], key: str) -> Clones:
        """Clones told apart by batch; ``batch`` has that of every cell of the AnnData.

        A warning says which clones span several.
        """
        both = [(batch[cell], clone) for cell, clone in zip(self.cell, self.clone, strict=True)]
        numbers: dict[tuple[str, int], int] = {}
        found = np.asarray([numbers.setdefault(each, len(numbers)) for each in both], np.int64)
        clones = [clone for _, clone in numbers]
        spanning = sorted(clone for clone, count in Counter(clones).items() if count > 1)
        if spanning:
            shown = listed([self.names[clone] for clone in spanning], 5)
            warn_user(
                f"{len(spanning)} of the {len(set(clones))} clones of {self.where} are in several "
                f"batches of obs[{key!r}] ({shown}): each counts as one clone in each batch."
            )
        names = [self.names[clone] for clone in clones]
        return dataclasses.replace(self, clone=found, names=names)

    def pairs(self, source: Rows, target: Rows) -> KnownPairs:
        """Every source of a clone with every target of it, each with weight 1/(sources · targets).

        ``source`` and ``target`` are rows of the AnnData; the pairs are of places among these. A
        pair of several clones comes once, with the sum of its weights. Clones that share a cell
        have one number: they are to be held out together.
        """
        sources, targets = self._members(source), self._members(target)
        shared = [clone for clone in sources if clone in targets]
        if not shared:
            return KnownPairs(np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0, np.int64))
        total = sum(len(sources[clone]) * len(targets[clone]) for clone in shared)
        if total > MAX_PAIRS:
            self._refuse(total, len(shared))
        grids = [np.meshgrid(sources[clone], targets[clone], indexing="ij") for clone in shared]
        tables = [np.stack(grid, axis=-1).reshape(-1, 2) for grid in grids]
        sizes = [len(table) for table in tables]
        weight = np.repeat([1 / size for size in sizes], sizes)
        table, clone = np.concatenate(tables), np.repeat(shared, sizes)
        distinct, first, place = np.unique(table, axis=0, return_index=True, return_inverse=True)
        if len(distinct) == len(table):
            return KnownPairs(table, weight, clone)
        order = np.argsort(first)
        summed = np.bincount(place.ravel(), weight)[order].astype(np.float64)
        return KnownPairs(distinct[order], summed, clone[first[order]])

    def joined(self, known: Sequence[KnownPairs]) -> list[KnownPairs]:
        """Known pairs with one number for all clones that share a cell, from 0 on."""
        used = np.unique(np.concatenate([each.clone for each in known]))
        counts = np.isin(self.clone, used)
        cells = np.unique(self.cell[counts], return_inverse=True)[1]
        n = cells.max(initial=-1) + 1
        graph = scipy.sparse.coo_array(
            (np.ones(len(cells)), (cells, n + self.clone[counts])),
            shape=(n + len(self.names), n + len(self.names)),
        )
        part = connected_components(graph, directed=False)[1][n:]
        sizes = np.bincount(part[used])
        if len(used) > 1 and sizes.max() > max(1, len(used) / 2):
            warn_user(
                f"{sizes.max()} of the {len(used)} clones of {self.where} share cells with one "
                "another, and count as one where clones are held out. Leave out cells with many "
                "barcodes, or barcodes that many cells carry."
            )
        # In the order in which they are met.
        met: dict[int, int] = {}
        for clone in np.concatenate([each.clone for each in known]):
            met.setdefault(int(part[clone]), len(met))
        return [
            each._replace(clone=np.asarray([met[int(part[c])] for c in each.clone], np.int64))  # type: ignore[union-attr]
            for each in known
        ]

    def warn_of_one(self, known: Sequence[KnownPairs]) -> None:
        """Warn where all that is known is of one clone."""
        used = np.unique(np.concatenate([each.clone for each in known]))
        if len(used) == 1:
            warn_user(
                "All cells with a known clone at both times are in one clone, "
                f"{self.names[used[0]]!r}. Every source is paired with every target of it, which "
                "says little about which goes where."
            )

    def shown(self, rows: Rows) -> str:
        """Some of the clones of some cells."""
        return listed([self.names[clone] for clone in self._members(rows)], 5)

    def _members(self, rows: Rows) -> dict[int, list[int]]:
        """The places, among some rows, of the cells of each clone; clones as they are met."""
        places = np.full(max(rows.max(initial=-1), self.cell.max(initial=-1)) + 1, -1)
        places[rows] = np.arange(len(rows))
        here = places[self.cell]
        members: dict[int, list[int]] = {}
        for place, clone in sorted(zip(here[here >= 0], self.clone[here >= 0], strict=True)):
            members.setdefault(int(clone), []).append(int(place))
        return members

    def _refuse(self, total: int, count: int) -> None:
        if self.where.startswith("obsm"):
            raise DataError(
                f"{self.where} gives {total} pairs in {count} clones, too many to be clones. Leave "
                "out barcodes that many cells carry."
            )
        raise DataError(
            "{where} gives {total} pairs in {count} sets, too many to be clones. Use "
            "{groups_key} for sets of many cells.",
            where=self.where, total=total, count=count, groups_key=Option("groups_key", self.key),
        )  # fmt: skip


def _check_memberships(
    adata: AnnData, rows: Rows, part: Any, values: NDArray[Any], where: str
) -> None:
    """Refuse what is no matrix of cells and barcodes."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where} holds values of type {values.dtype}; 0 and 1 are needed.")

    def first(bad: NDArray[np.bool_]) -> str:
        if scipy.sparse.issparse(part):
            places = scipy.sparse.coo_array(part)
            row = rows[places.row[np.flatnonzero(bad)[0]]]
        else:
            row = rows[np.argwhere(bad)[0][0]]
        return f"{int(np.sum(bad))} entries (first: cell {str(adata.obs_names[row])!r})"

    numbers = values.astype(np.float64)
    if np.any(bad := ~np.isfinite(numbers)):
        raise DataError(f"{where} is NaN or infinite in {first(bad)}. Put 0 where no barcode is.")
    if np.any(bad := numbers < 0):
        raise DataError(
            f"{where} is negative in {first(bad)}. It must be 1, or a count, where a cell carries "
            "a barcode, and 0 elsewhere."
        )
    if np.any(bad := numbers != np.rint(numbers)):
        raise DataError(
            f"{where} holds fractions in {first(bad)}, and is no matrix of cells × clones: that "
            "has 1, or a count, where a cell carries a barcode, and 0 elsewhere. Set a threshold "
            "if these are probabilities."
        )
