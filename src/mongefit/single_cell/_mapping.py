"""Fitting on an AnnData, and choosing settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone as unfitted

from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.temporal import TemporalMap
from mongefit._options import takes_several
from mongefit.errors import DataError, Option, OptionError
from mongefit.model_selection import CrossValidation, Selection
from mongefit.model_selection import cross_validate as validate
from mongefit.model_selection import select as choose
from mongefit.single_cell._cells import Cells, take_cells
from mongefit.single_cell._labels import Labels
from mongefit.single_cell._legs import take_legs
from mongefit.single_cell._model import SingleCellMap, with_origin, with_origin_of_legs
from mongefit.single_cell._several import fit_legs
from mongefit.single_cell._times import choose_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._io import StrPath
    from mongefit.single_cell._model import Model

    Candidates = MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | None


def fit(
    adata: AnnData,
    *,
    time_key: str,
    source: Any = None,
    target: Any = None,
    times: Sequence[Any] | str | None = None,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    layer: str | None = None,
    diffusion: int | None = None,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    groups_key: str | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    batch_key: str | None = None,
    fate_key: str | None = None,
    exclude: str | Iterable[str] = (),
    model: Model | TemporalMap | None = None,
    verbose: int = 0,
) -> SingleCellMap:
    """Learn a map from the cells of one time to those of another; ``adata`` is left alone.

    Parameters
    ----------
    adata
        Cells of all times of the map, and possibly of others; may be backed by a file.
    time_key
        Column of obs that holds the time.
    source, target
        Its values to map from and to. Numbers and text that reads as a number are the same.
    times
        Instead of both: several values in order, ``[2, 4, 6]``, or "all" of the column if they are
        numbers. One cost is learned for the steps from each time to the next, also from clones or
        pairs of times that are not adjacent. Numbers are put in order; text is taken in the order
        given.
    use_rep
        Array of obsm to work in, or "X"; by default "X_pca".
    pca
        Compute this many principal components of X from the cells of both times and work in
        them. X must be normalised, with logarithms taken; raw counts are refused.
    n_components
        Use the first columns of ``use_rep`` only.
    layer
        Layer to take for X, with ``pca`` or ``use_rep="X"``.
    diffusion
        Work in this many diffusion components of the cells of all times, computed from the
        coordinates above: distances then go along the cells, and not across gaps between them.
    pair_key
        Column of obs with clones or the like. Every source cell is paired with every target cell
        of the same value, with weights such that every clone counts the same. Or an array of obsm,
        dense or sparse, cells × clones: a cell is in the clone of every column where it is not 0.
        A pair of two clones is counted once, with the sum of its weights; clones that share a cell
        are held out together.
    pairs
        Known pairs by name: two columns, source cell and target cell, and possibly a third,
        ``weight``.
    groups_key
        Column of obs with labels: cells should land among those of the same label.
    weight_key
        Column of obs with weights of cells, non-negative; those of each time are divided by their
        sum. By default all cells of a time weigh the same.
    growth_key
        Column of obs with the growth rate of the cells of the source, births less deaths per unit
        of time: they weigh exp(rate · Δt), Δt the difference of the two times, times the weights
        of ``weight_key`` if any. What is known of growth otherwise goes into ``weight_key``.
    batch_key
        Column of obs with batches, such as wells or mice. Each has a map of its own, to its own
        cells, and all have one cost. A clone of two batches is two clones.
    fate_key
        Column of obs with labels of the target cells. The report of a `MongeMapCV` then says how
        well the labels of held-out cells were predicted, and ``MongeMapCV(scoring="fate")``
        chooses by it.
    exclude
        Labels of ``fate_key`` that are no fate, such as "undifferentiated".
    model
        What to fit: an estimator with options, which is itself not changed; by default
        ``MongeMapCV()``, whose options are chosen by clones or pairs that were held out. An
        `EnsembleMap` tells how sure it is. Of several times or batches a `TemporalMap` is fitted:
        with its own options or those of a `MongeMap`, or with those that a `MongeMapCV` chose on
        the leg with most clones, as by default.
    verbose
        With 1, a progress bar on stderr; without ``model``, which has its own.

    Notes
    -----
    In ``pair_key`` and ``groups_key`` the missing values of pandas, −1 and words such as "unknown"
    mark cells of which nothing is known.
    """
    if not isinstance(model, MongeMap | MongeMapCV | EnsembleMap | TemporalMap | None):
        raise OptionError(
            "model must be a MongeMap, a MongeMapCV or an EnsembleMap, or a TemporalMap for "
            f"several times, got {type(model).__name__}."
            + (f" Give one with options: {model.__name__}()." if isinstance(model, type) else "")
        )
    judges = isinstance(model, MongeMapCV) and model.scoring == "fate"
    if fate_key is None and (judges or exclude != ()):
        what = "scoring='fate' judges by labels" if judges else "exclude names labels"
        raise OptionError(
            f"{what} of the target cells, and it is not said where these are. Give fate_key, the "
            "name of a column of obs."
        )
    chosen = choose_times(adata, time_key, source, target, times)
    several = True
    if isinstance(model, MongeMap | TemporalMap):
        several = model.many_to_many or takes_several(model.losses)
    options: dict[str, Any] = {
        "use_rep": use_rep, "pca": pca, "n_components": n_components, "layer": layer,
        "diffusion": diffusion, "pair_key": pair_key, "pairs": pairs, "groups_key": groups_key,
        "weight_key": weight_key, "growth_key": growth_key, "many_to_many": several,
    }  # fmt: skip
    if len(chosen.values) > 2 or batch_key is not None or isinstance(model, TemporalMap):
        if fate_key is not None:
            raise OptionError("fate_key judges a MongeMapCV of two times without batches.")
        legs = take_legs(adata, chosen, batch_key=batch_key, **options)
        fitted, report = fit_legs(legs, model, verbose=verbose)
        return with_origin_of_legs(fitted, legs, report)
    options |= {"time_key": chosen.key, "source": chosen.source, "target": chosen.target}
    cells = take_cells(adata, **options)
    model = MongeMapCV(verbose=verbose) if model is None else model
    labels = None
    if fate_key is not None:
        if not isinstance(model, MongeMapCV):
            raise OptionError(
                f"fate_key judges the candidates of a MongeMapCV, and model is a "
                f"{type(model).__name__}."
            )
        labels = target_labels(adata, fate_key, chosen.rows(adata, target=True), exclude)
    return with_origin(fit_cells(cells, model, labels), cells)


def target_labels(
    adata: AnnData,
    key: str,
    rows: NDArray[np.int64],
    exclude: str | Iterable[str],
    option: str = "fate_key",
) -> NDArray[np.object_]:
    """The labels of some cells, None where they have none or one that is no fate."""
    labels = Labels.of(adata, key, rows, option)
    kept = labels.kept(exclude)
    # The code −1 of an unknown label finds the None at the end.
    names = [name if keep else None for name, keep in zip(labels.names, kept, strict=True)]
    if kept.sum() < 2:
        raise DataError(
            "obs[{key!r}] has one label that is a fate, {name!r}, among the target cells: there "
            "is nothing to tell apart. Name another column by {option}, or exclude fewer labels.",
            key=key, name=labels.names[int(np.argmax(kept))], option=Option(option),
        )  # fmt: skip
    return np.array([*names, None], object)[labels.codes]


def fit_cells(cells: Cells, model: Model, labels: NDArray[np.object_] | None = None) -> Model:
    """Fit an estimator to cells; labels are those of the target cells, to judge by."""
    known = cells.known_pairs()
    if isinstance(model, EnsembleMap):
        if cells.groups is not None or cells.known is None:
            raise DataError(
                "An ensemble resamples clones: give {pair_key} or pairs, and no groups.",
                pair_key=Option("pair_key"),
            )
        return unfitted(model).fit(cells.x, cells.y, **known)
    options = model.get_params(deep=False)
    if isinstance(model, MongeMap) and cells.has_clones and not takes_several(model.losses):
        options["many_to_many"] = True
    if labels is not None:
        known["labels"] = labels
    estimator = type(model)(**options)
    return estimator.fit(cells.x, cells.y, groups=cells.groups, **known)


def select(
    adata: AnnData,
    *,
    time_key: str,
    source: Any,
    target: Any,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    layer: str | None = None,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    checkpoint: StrPath | None = None,
    resume: bool = False,
    verbose: int = 0,
) -> tuple[SingleCellMap, Selection]:
    """Choose settings by clones that were held out, and fit them on all; ``adata`` is left alone.

    Parameters
    ----------
    adata, time_key, source, target, use_rep, pca, n_components, layer, pair_key, pairs, \
weight_key, growth_key
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
        n_components=n_components, layer=layer, pair_key=pair_key, pairs=pairs,
        weight_key=weight_key, growth_key=growth_key,
    )  # fmt: skip
    found = choose(
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
    layer: str | None = None,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    candidates: Candidates = None,
    n_folds: int | None = None,
    max_cells: int | None = 512,
    random_state: int | None = 0,
    verbose: int = 0,
) -> CrossValidation:
    """Estimate the error of what `select` would choose, on clones that the choice did not see.

    Parameters are those of `select`.
    """
    cells = _take(
        adata, time_key=time_key, source=source, target=target, use_rep=use_rep, pca=pca,
        n_components=n_components, layer=layer, pair_key=pair_key, pairs=pairs,
        weight_key=weight_key, growth_key=growth_key,
    )  # fmt: skip
    return validate(
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
