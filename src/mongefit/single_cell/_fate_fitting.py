"""The map for fates: the average of the best of several representations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mongefit._estimators.chosen import MongeMapCV
from mongefit._validation import check_count
from mongefit.errors import DataError, Option, OptionError
from mongefit.single_cell._average import AveragedMap, average
from mongefit.single_cell._columns import check_adata
from mongefit.single_cell._mapping import fit

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

N_COMPONENTS = (10, 20)
DIFFUSION = 20


def fit_fates(
    adata: AnnData,
    *,
    time_key: str,
    source: Any,
    target: Any,
    key: str,
    exclude: str | Iterable[str] = (),
    use_rep: str | None = None,
    n_components: Sequence[int] = N_COMPONENTS,
    diffusion: int | None = DIFFUSION,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    verbose: int = 0,
) -> AveragedMap:
    """Fit the map that predicts fates best; ``adata`` is left alone.

    It is the average of several maps, each in coordinates of its own: the first columns of
    ``use_rep``, so many and more, and diffusion components of the cells of both times. In each the
    kind of cost, the source map and epsilon are those that predict the labels of held-out clones
    best. Clones say how a cost must differ from squared Euclidean; diffusion components say how
    cells are connected, which no clone is needed for.

    Parameters
    ----------
    adata, time_key, source, target, use_rep, pair_key, pairs, weight_key, growth_key
        As in `fit`; clones or pairs are needed.
    key
        Column of obs with the labels of the target cells.
    exclude
        Labels that are no fate, such as "undifferentiated".
    n_components
        Numbers of columns of ``use_rep``, a map for each; those beyond its width are all of them.
    diffusion
        Number of diffusion components; None for no such map.
    max_cells
        Cells of each time to choose on, with all that are in clones; None takes all.
    random_state
        Seed of the folds and draws.
    verbose
        With 1, a progress bar on stderr for each map.

    Returns
    -------
    AveragedMap
        For `fates`, `transition_table` and so on. ``report`` shows what was chosen and how well
        the labels of held-out clones were predicted, beside class shares, logistic regression and
        nearest pairs; `cross_validate_fates` says how good the whole is.
    """
    require_pairs(pair_key, pairs)
    common = {
        "time_key": time_key, "source": source, "target": target, "use_rep": use_rep,
        "pair_key": pair_key, "pairs": pairs, "weight_key": weight_key, "growth_key": growth_key,
        "fate_key": key, "exclude": exclude,
    }  # fmt: skip
    maps = []
    for view in choose_views(adata, use_rep, n_components, diffusion):
        model = MongeMapCV(
            scoring="fate", max_points=max_cells, random_state=random_state, verbose=verbose
        )
        maps.append(fit(adata, **common, **view, model=model))
    return average(maps) if len(maps) > 1 else AveragedMap(tuple(maps))


def require_pairs(pair_key: Any, pairs: Any) -> None:
    """Refuse to choose by fates where nothing is known of which cell went where."""
    if pair_key is None and pairs is None:
        raise DataError(
            "There are no held-out clones to choose by and to judge: give {pair_key} or pairs.",
            pair_key=Option("pair_key"),
        )


def choose_views(
    adata: AnnData, use_rep: str | None, n_components: Sequence[int], diffusion: int | None
) -> list[dict[str, Any]]:
    """Options of `fit` for each representation."""
    check_adata(adata)
    sizes = [n_components] if isinstance(n_components, int) else list(n_components)
    array = adata.obsm.get("X_pca" if use_rep is None else use_rep)
    if array is not None:
        width = array.shape[1]
        for size in sizes:
            check_count(size, "n_components", minimum=1)
        sizes = list(dict.fromkeys(min(size, width) for size in sizes))
    views: list[dict[str, Any]] = [{"n_components": size} for size in sizes]
    if diffusion is not None:
        views.append({"diffusion": diffusion})
    if not views:
        raise OptionError("n_components is empty and diffusion is None: there is nothing to fit.")
    return views
