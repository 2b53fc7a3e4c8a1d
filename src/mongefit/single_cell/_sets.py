"""Descendants and ancestors of sets of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_switch
from mongefit.errors import DataError, did_you_mean
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
            raise DataError(f"None of these cells is one of {way.times.key} {time}.")
        mass = (view.model.pull if reverse else view.model.push)(mask[here])
        if not mass.sum() > 0:
            raise DataError(f"No mass is left of these cells of {way.times.key} {time}.")
        shares[there] += mass / mass.sum() / len(way.maps)
    return Carried(here[mask[here]], there, shares[there])


def as_mask(adata: AnnData, cells: Any, option: str) -> NDArray[np.bool_]:
    """A set of cells as True and False for every cell."""
    given = np.asarray(cells)
    if given.dtype == bool:
        if given.shape != (adata.n_obs,):
            raise DataError(
                f"{option} has the shape {given.shape}; there are {adata.n_obs} cells. Give True "
                "or False for each, or their names."
            )
        return given
    names = [str(name) for name in np.atleast_1d(given).ravel()]
    found = adata.obs_names.isin(names)
    if missing := [name for name in names if name not in adata.obs_names]:
        raise DataError(
            f"{len(missing)} of {len(names)} names are not among the cells (first: "
            f"{missing[0]!r})." + did_you_mean(missing[0], adata.obs_names[:10_000])
        )
    return np.asarray(found, bool)
