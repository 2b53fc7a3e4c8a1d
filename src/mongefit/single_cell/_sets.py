"""Descendants and ancestors of sets of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_switch
from mongefit.errors import DataError, did_you_mean, wrong_option
from mongefit.single_cell._average import CellMap, check_cell_map
from mongefit.single_cell._columns import among_all, check_name, in_memory
from mongefit.single_cell._labels import fitted_rows

if TYPE_CHECKING:
    from anndata import AnnData


def push(
    model: CellMap,
    adata: AnnData,
    cells: Any,
    *,
    source: Any = None,
    target: Any = None,
    key_added: str = "mongefit_push",
    copy: bool = False,
) -> AnnData | None:
    """Find the descendants of a set of cells of the source.

    Writes ``obs[key_added]``: how the mass of the set is spread over the cells of the target. It
    sums to 1, and is NaN for cells of other times.

    Parameters
    ----------
    model, adata, source, target, copy
        As for `fates`; ``adata`` holds the cells of the fit.
    cells
        The set: True and False for every cell of ``adata``, such as
        ``adata.obs["cell_type"] == "HSC"``, or names of cells. Only cells of the source count.
    key_added
        Name of the column.
    """
    return _carry(model, adata, cells, source, target, key_added, reverse=False, copy=copy)


def pull(
    model: CellMap,
    adata: AnnData,
    cells: Any,
    *,
    source: Any = None,
    target: Any = None,
    key_added: str = "mongefit_pull",
    copy: bool = False,
) -> AnnData | None:
    """Find the ancestors of a set of cells of the target: `push` in reverse."""
    return _carry(model, adata, cells, source, target, key_added, reverse=True, copy=copy)


def _carry(
    model: CellMap,
    adata: AnnData,
    cells: Any,
    source: Any,
    target: Any,
    key_added: str,
    *,
    reverse: bool,
    copy: bool,
) -> AnnData | None:
    check_cell_map(model, adata)
    check_switch(copy, "copy")
    check_name(key_added)
    found = carry_mass(model.between(source, target), adata, cells, reverse=reverse)
    if copy:
        adata = in_memory(adata)
    adata.obs[key_added] = among_all(adata, found.reached, found.mass)
    return adata if copy else None


class Carried(NamedTuple):
    """Rows of a set of cells, those of all cells of the other time, and the mass these receive."""

    cells: NDArray[np.int64]
    reached: NDArray[np.int64]
    mass: NDArray[np.float64]


def carry_mass(way: CellMap, adata: AnnData, cells: Any, *, reverse: bool = False) -> Carried:
    """Where the mass of a set of cells goes, or came from; it sums to 1."""
    time = way.times.target if reverse else way.times.source
    mask, shares = as_mask(adata, cells, "cells"), np.zeros(adata.n_obs)
    for view in way.maps:
        here, there = (fitted_rows(view, adata, target=side) for side in (reverse, not reverse))
        if not mask[here].any():
            other, end = ("push", "source") if reverse else ("pull", "target")
            raise DataError(
                f"None of these cells is one of {way.times.key} {time}. Give some of these; sets "
                f"of the {end} are for {other}."
            )
        mass = (view.model.pull if reverse else view.model.push)(mask[here])
        if not mass.sum() > 0:
            raise DataError(f"No mass is left of these cells of {way.times.key} {time}.")
        shares[there] += mass / mass.sum() / len(way.maps)
    return Carried(here[mask[here]], there, shares[there])


def as_mask(adata: AnnData, cells: Any, option: str) -> NDArray[np.bool_]:
    """A set of cells as True and False for every cell."""
    given = _as_array(adata, cells, option)
    if given.dtype == bool:
        if given.shape != (adata.n_obs,):
            raise DataError(
                f"{option} has the shape {given.shape}; there are {adata.n_obs} cells. Give True "
                "or False for each, or their names."
            )
        return given
    names = [str(name) for name in np.atleast_1d(given).ravel()]
    if not names:
        raise DataError(f"{option} is empty. Give names of cells, or True or False for each cell.")
    found = adata.obs_names.isin(names)
    if missing := [name for name in names if name not in adata.obs_names]:
        hint = _hint(adata, missing[0])
        if given.dtype.kind in "iuf":
            hint = " Cells are told by name, obs_names[numbers], or by True and False."
        raise DataError(
            f"{len(missing)} of {len(names)} names in {option} are not among the cells (first: "
            f"{missing[0]!r}).{hint}"
        )
    return np.asarray(found, bool)


def _as_array(adata: AnnData, cells: Any, option: str) -> NDArray[Any]:
    """What was given, a column of True and False in the order of the cells."""
    import pandas as pd

    if cells is None:
        raise wrong_option(option, "True or False for each cell, or names of cells", cells)
    if not isinstance(cells, pd.Series) or not pd.api.types.is_bool_dtype(cells.dtype):
        return np.asarray(cells)
    if len(cells) == adata.n_obs and not cells.index.equals(adata.obs_names):
        if not cells.index.is_unique or set(cells.index) != set(adata.obs_names):
            raise DataError(
                f"{option} is a column of other cells: its index has {cells.index[0]!r} first, and "
                f"obs_names has {adata.obs_names[0]!r}. Take it from adata.obs."
            )
        cells = cells[adata.obs_names]
    return np.asarray(cells.to_numpy(dtype=bool, na_value=False))


def _hint(adata: AnnData, word: str) -> str:
    """What was probably meant by a name that no cell has."""
    for key in adata.obs:
        column = adata.obs[key]
        if getattr(column.dtype, "kind", "O") == "O" and (column.astype(str) == word).any():
            return f" Cells with this label are adata.obs[{key!r}] == {word!r}."
    near = did_you_mean(word, adata.obs_names[:10_000])
    return near or " Give names out of obs_names, or True or False for each cell."
