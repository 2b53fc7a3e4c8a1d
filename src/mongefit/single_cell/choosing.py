"""Choosing settings by clones of an AnnData that were held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mongefit import model_selection
from mongefit.errors import DataError
from mongefit.single_cell.mapping import SingleCellMap, with_origin
from mongefit.single_cell.selection import Selection, take
from mongefit.single_cell.times import Times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData
    from pandas import DataFrame

    from mongefit.estimator import MongeMap

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
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    verbose: int = 0,
) -> tuple[SingleCellMap, model_selection.Selection]:
    """Choose settings by clones that were held out, and fit them on all; ``adata`` is left alone.

    Parameters
    ----------
    adata, time_key, source, target, use_rep, pca, n_components, pair_key, pairs
        As in `fit`; clones or pairs are needed.
    candidates
        Estimators to choose among; by default `mongefit.model_selection.default_candidates`.
    n_folds
        Number of folds; by default 5, and with fewer than 10 clones as many as there are.
    max_cells
        Cells of each time to choose on, with all that are in clones; None takes all.
    random_state
        Seed of the folds.
    verbose
        With 1, a progress bar on stderr.

    Returns
    -------
    SingleCellMap
        The chosen settings, fitted on all cells and all clones.
    Selection
        What was chosen, and the table with what no map should lose to.
    """
    taken = _taken(adata, time_key, source, target, use_rep, pca, n_components, pair_key, pairs)
    found = model_selection.select(
        candidates, taken.x, taken.y, **taken.known_pairs(), n_folds=n_folds, max_points=max_cells,
        random_state=random_state, verbose=verbose,
    )  # fmt: skip
    return with_origin(found.model, taken), found


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
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    verbose: int = 0,
) -> model_selection.CrossValidation:
    """Estimate the error of what `select` would choose, on clones that the choice did not see.

    Parameters are those of `select`.
    """
    taken = _taken(adata, time_key, source, target, use_rep, pca, n_components, pair_key, pairs)
    return model_selection.cross_validate(
        candidates, taken.x, taken.y, **taken.known_pairs(), n_folds=n_folds, max_points=max_cells,
        random_state=random_state, verbose=verbose,
    )  # fmt: skip


def _taken(
    adata: AnnData,
    time_key: str,
    source: Any,
    target: Any,
    use_rep: str | None,
    pca: int | None,
    n_components: int | None,
    pair_key: str | None,
    pairs: Any,
) -> Selection:
    taken = take(
        adata,
        times=Times.of(time_key, source, target),
        use_rep=use_rep,
        pca=pca,
        n_components=n_components,
        pair_key=pair_key,
        pairs=pairs,
        many_to_many=True,
    )
    if taken.known is None:
        raise DataError("There is nothing to choose by: give pair_key or pairs.")
    return taken
