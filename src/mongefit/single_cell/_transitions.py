"""Tables of transitions between labels, with intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.outcomes import chain_of
from mongefit.errors import DataError, OptionError
from mongefit.single_cell._average import CellMap, check_cell_map
from mongefit.single_cell._labels import Labels, fitted_rows
from mongefit.single_cell._model import SingleCellMap
from mongefit.single_cell._probabilities import Shares, check_level, find_fates

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame


class Intervals(NamedTuple):
    """A table, and between which values a share of the members of an ensemble lies."""

    table: DataFrame
    low: DataFrame
    high: DataFrame


def transition_table(
    model: CellMap,
    adata: AnnData,
    key: str,
    *,
    source_key: str | None = None,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    level: float | None = None,
) -> DataFrame | Intervals:
    """Tabulate which labels the cells of each label go to.

    Parameters
    ----------
    model, adata, key, source, target, exclude
        As for `fates`; ``adata`` holds the cells of the fit.
    source_key
        Column of obs with the labels of the source cells; by default ``key``.
    level
        Return also between which values this share of the members of an ensemble lies. They were
        trained on clones drawn with replacement, so this is a bootstrap interval over clones.

    Returns
    -------
    DataFrame or Intervals
        A row for each label of the source and a column for each of the target; rows sum to 1. Cells
        count by their mass: by weight and growth. With ``level`` three such tables, ``table``,
        ``low`` and ``high``.
    """
    import pandas as pd

    check_cell_map(model, adata)
    way = model.between(source, target)
    if level is not None:
        level = check_level(level)
        if not any(isinstance(view.model, EnsembleMap) for view in way.maps):
            raise OptionError(
                "level needs an ensemble, whose members were trained on clones drawn with "
                "replacement: fit(…, model=EnsembleMap())."
            )
    first = way.maps[0]
    rows = fitted_rows(first, adata, target=False)
    own = ("key", key) if source_key is None else ("source_key", source_key)
    labels = Labels.of(adata, own[1], rows, own[0])
    found = find_fates(way, adata, rows, adata, key, exclude=exclude)
    weight = labels.indicator * (source_weight(first) * found.mass)[:, None]
    total = weight.sum(axis=0)
    if np.any(total <= 0):
        lost = [name for name, mass in zip(labels.names, total, strict=True) if mass <= 0]
        raise DataError(
            f"No mass goes from {lost[0]!r} to any of {', '.join(found.names)}. Exclude fewer "
            "labels, or leave out its cells."
        )
    share = weight / total

    def table(probability: Shares) -> DataFrame:
        index = pd.Index(labels.names, name=f"{way.times.key} {way.times.source}")
        columns = pd.Index(found.names, name=f"{way.times.key} {way.times.target}")
        return pd.DataFrame(share.T @ np.nan_to_num(probability), index=index, columns=columns)

    if level is None:
        return table(found.probability)
    tail = (1 - level) / 2
    each = np.stack([table(member).to_numpy() for member in found.members])
    whole = table(found.probability)
    low, high = (
        pd.DataFrame(np.quantile(each, q, axis=0), index=whole.index, columns=whole.columns)
        for q in (tail, 1 - tail)
    )
    return Intervals(whole, low, high)


def source_weight(way: SingleCellMap) -> NDArray[np.float64]:
    """The mass that each source cell of the fit sends."""
    from mongefit._fitting.chains import end_of, growth_over
    from mongefit._fitting.outcomes import fitted_points

    chain = chain_of(way.model)
    start = end_of(chain, source=True)
    weight = np.asarray(start.a, np.float64)
    return weight * growth_over(chain, fitted_points(start, source=True))
