"""The map for fates: the average of the best of several representations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.chosen import MongeMapCV
from mongefit._validation import check_count, check_seed
from mongefit.errors import DataError, Option, OptionError, Suggestion, wrong_option
from mongefit.model_selection._folds import check_max_points
from mongefit.single_cell._average import AveragedMap, average
from mongefit.single_cell._cells import Cells, take_cells
from mongefit.single_cell._columns import check_adata, listed
from mongefit.single_cell._mapping import fit_cells, target_labels
from mongefit.single_cell._model import with_origin
from mongefit.single_cell._representation import DEFAULT

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
    check_max_points(max_cells, "max_cells")
    check_seed(random_state)
    views = take_views(
        adata, time_key=time_key, source=source, target=target, key=key, exclude=exclude,
        use_rep=use_rep, n_components=n_components, diffusion=diffusion, pair_key=pair_key,
        pairs=pairs, weight_key=weight_key, growth_key=growth_key,
    )  # fmt: skip
    return fit_views(views, max_cells=max_cells, random_state=random_state, verbose=verbose)


class Views(NamedTuple):
    """The cells of a fit in each representation, and the labels of the target cells, to judge by.

    Labels are None where there are none, or where they are no fate.
    """

    cells: list[Cells]
    labels: NDArray[np.object_]


def take_views(
    adata: AnnData,
    *,
    key: str,
    exclude: str | Iterable[str],
    use_rep: str | None,
    n_components: Sequence[int],
    diffusion: int | None,
    **options: Any,
) -> Views:
    """Take the cells in every representation before anything is fitted in the first."""
    check_label_key(key, options["pair_key"])
    taken = [
        take_cells(adata, use_rep=use_rep, **options, **view, many_to_many=True)
        for view in choose_views(adata, use_rep, n_components, diffusion)
    ]
    if taken[0].known is None:
        raise DataError(
            "fates are learned from clones: give {pair_key} or pairs. Without any, "
            "mongefit.single_cell.fit with a MongeMap('sqeuclidean') gives a map.",
            pair_key=Option("pair_key"),
        )
    rows = taken[0].times.rows(adata, target=True)
    return Views(taken, target_labels(adata, key, rows, exclude, "key"))


def fit_views(
    views: Views, *, max_cells: int | None, random_state: int | None, verbose: int
) -> AveragedMap:
    """Choose and fit a map in every representation, and average them."""
    maps = []
    for cells in views.cells:
        model = MongeMapCV(
            scoring="fate", max_points=max_cells, random_state=random_state, verbose=verbose
        )
        maps.append(with_origin(fit_cells(cells, model, views.labels), cells))
    return average(maps) if len(maps) > 1 else AveragedMap(tuple(maps))


def check_label_key(key: Any, pair_key: Any) -> None:
    """Refuse clones for labels."""
    if key is not None and key == pair_key:
        raise OptionError(
            "{key} and {pair_key} are both {name!r}. Give {key} a column with labels of the target "
            "cells, such as cell types.",
            key=Option("key"), pair_key=Option("pair_key"), name=key,
        )  # fmt: skip


def choose_views(
    adata: AnnData, use_rep: str | None, n_components: Sequence[int], diffusion: int | None
) -> list[dict[str, Any]]:
    """Options of `fit` for each representation."""
    check_adata(adata)
    if isinstance(n_components, str | dict) or not isinstance(n_components, Iterable | Integral):
        raise wrong_option("n_components", "a list of whole numbers such as [10, 20]", n_components)
    several = n_components if isinstance(n_components, Iterable) else [n_components]
    sizes = [check_count(size, "n_components", minimum=1) for size in several]
    if diffusion is not None:
        check_count(diffusion, "diffusion", minimum=1)
    if not isinstance(use_rep, str | None):
        raise wrong_option("use_rep", "the name of one array of obsm", use_rep)
    name = DEFAULT if use_rep is None else use_rep
    if name != "X":
        if name not in adata.obsm:
            raise DataError(
                "obsm[{name!r}] not found. Keys: {keys}.{hint} scanpy.pp.pca writes {default!r}.",
                name=name, keys=listed(adata.obsm), default=DEFAULT,
                hint=Suggestion.of("use_rep", name, adata.obsm),
            )  # fmt: skip
        sizes = sorted({min(size, adata.obsm[name].shape[1]) for size in sizes})
    views: list[dict[str, Any]] = [{"n_components": size} for size in sizes]
    if diffusion is not None:
        views.append({"diffusion": diffusion})
    if not views:
        raise OptionError(
            "{n_components} is empty and {diffusion} is None: there is nothing to fit. Give one of "
            "them.",
            n_components=Option("n_components"), diffusion=Option("diffusion"),
        )  # fmt: skip
    return views
