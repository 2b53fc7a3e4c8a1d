"""Choosing settings by clones of an AnnData that were held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mongefit import model_selection
from mongefit.errors import DataError, Option
from mongefit.single_cell._cells import Cells, take_cells
from mongefit.single_cell._mapping import SingleCellMap, with_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._estimators.monge_map import MongeMap
    from mongefit._io import StrPath

    Candidates = MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | None


def select(
    adata: AnnData,
    *,
    time_key: str,
    source: Any,
    target: Any,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    checkpoint: StrPath | None = None,
    resume: bool = False,
    verbose: int = 0,
) -> tuple[SingleCellMap, model_selection.Selection]:
    """Choose settings by clones that were held out, and fit them on all; ``adata`` is left alone.

    Parameters
    ----------
    adata, time_key, source, target, use_rep, pca, n_components, pair_key, pairs, weight_key
        As in `fit`; clones or pairs are needed.
    candidates
        Estimators to choose among; by default `mongefit.model_selection.default_candidates`.
    max_cells
        Cells of each time to choose on, with all that are in clones; None takes all.
    n_folds, random_state, checkpoint, resume, verbose
        As for `mongefit.model_selection.select`.
    """
    cells = _take(
        adata, time_key=time_key, source=source, target=target, use_rep=use_rep, pca=pca,
        n_components=n_components, pair_key=pair_key, pairs=pairs, weight_key=weight_key,
    )  # fmt: skip
    found = model_selection.select(
        candidates, cells.x, cells.y, **cells.known_pairs(), n_folds=n_folds, max_points=max_cells,
        random_state=random_state, checkpoint=checkpoint, resume=resume, verbose=verbose,
    )  # fmt: skip
    return with_origin(found.model, cells), found


def cross_validate(
    adata: AnnData,
    *,
    time_key: str,
    source: Any,
    target: Any,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    verbose: int = 0,
) -> model_selection.CrossValidation:
    """Estimate the error of what `select` would choose, on clones that the choice did not see.

    Parameters are those of `select`.
    """
    cells = _take(
        adata, time_key=time_key, source=source, target=target, use_rep=use_rep, pca=pca,
        n_components=n_components, pair_key=pair_key, pairs=pairs, weight_key=weight_key,
    )  # fmt: skip
    return model_selection.cross_validate(
        candidates, cells.x, cells.y, **cells.known_pairs(), n_folds=n_folds, max_points=max_cells,
        random_state=random_state, verbose=verbose,
    )  # fmt: skip


def _take(adata: AnnData, **options: Any) -> Cells:
    cells = take_cells(adata, **options, many_to_many=True)
    if cells.known is None:
        raise DataError(
            "There is nothing to choose by: give {pair_key} or pairs.", pair_key=Option("pair_key")
        )
    return cells
