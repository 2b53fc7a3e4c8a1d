"""Fitting on an AnnData, choosing settings, and mapping cells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone as unfitted

import mongefit
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.monge_map import MongeMap
from mongefit._options import takes_several
from mongefit._storage import describe_options
from mongefit._versions import recorded_versions
from mongefit.errors import DataError, Option, OptionError
from mongefit.model_selection import CrossValidation, Selection
from mongefit.model_selection import cross_validate as validate
from mongefit.model_selection import select as choose
from mongefit.single_cell._cells import Cells, take_cells
from mongefit.single_cell._columns import among_all, check_name, in_memory
from mongefit.single_cell._model import SingleCellMap, check_model, with_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._io import StrPath
    from mongefit.single_cell._model import Model

    Candidates = MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | None


def fit(
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
    groups_key: str | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    model: Model | None = None,
    verbose: int = 0,
) -> SingleCellMap:
    """Learn a map from the cells of one time to those of another; ``adata`` is left alone.

    Parameters
    ----------
    adata
        Cells of both times, and possibly of others; may be backed by a file.
    time_key
        Column of obs that holds the time.
    source, target
        Its values to map from and to. Numbers and text that reads as a number are the same.
    use_rep
        Array of obsm to work in, or "X"; by default "X_pca".
    pca
        Compute this many principal components of X from the cells of both times and work in
        them. X must be normalised, with logarithms taken; raw counts are refused.
    n_components
        Use the first columns of ``use_rep`` only.
    pair_key
        Column of obs with clones or the like. Every source cell is paired with every target cell
        of the same value, with weights such that every clone counts the same.
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
    model
        What to fit: an estimator with options, which is itself not changed; by default
        ``MongeMapCV()``, whose options are chosen by clones or pairs that were held out. An
        `EnsembleMap` tells how sure it is.
    verbose
        With 1, a progress bar on stderr; without ``model``, which has its own.

    Notes
    -----
    In ``pair_key`` and ``groups_key`` the missing values of pandas, −1 and words such as "unknown"
    mark cells of which nothing is known.
    """
    if not isinstance(model, MongeMap | MongeMapCV | EnsembleMap | None):
        raise OptionError(
            f"model must be a MongeMap, a MongeMapCV or an EnsembleMap, got {type(model).__name__}."
        )
    many_to_many = (
        not isinstance(model, MongeMap) or model.many_to_many or takes_several(model.losses)
    )
    cells = take_cells(
        adata, time_key=time_key, source=source, target=target, use_rep=use_rep, pca=pca,
        n_components=n_components, pair_key=pair_key, pairs=pairs, groups_key=groups_key,
        weight_key=weight_key, growth_key=growth_key, many_to_many=many_to_many,
    )  # fmt: skip
    return with_origin(_fit(cells, MongeMapCV(verbose=verbose) if model is None else model), cells)


def _fit(cells: Cells, model: Model) -> Model:
    """Fit an estimator to cells."""
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
    adata, time_key, source, target, use_rep, pca, n_components, pair_key, pairs, weight_key, \
growth_key
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
        growth_key=growth_key,
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
        n_components=n_components, pair_key=pair_key, pairs=pairs, weight_key=weight_key,
        growth_key=growth_key,
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


def transport(
    model: SingleCellMap,
    adata: AnnData,
    *,
    key_added: str = "mongefit",
    inverse: bool = False,
    copy: bool = False,
) -> AnnData | None:
    """Predict where the cells of the source go, or where those of the target came from.

    Writes

    - ``obsm["X_<key_added>"]``, the predicted states in the representation of the model; NaN for
      cells of other times,
    - ``obs["<key_added>_displacement"]``, how far each cell moves there,
    - ``uns["<key_added>"]``, options, versions and training history,
    - of an ensemble also ``obs["<key_added>_spread"]``, how far its members differ, and
      ``obs["<key_added>_informed"]``, whether a known source is near by, for the source; and in uns
      ``radius_80``, within which 80 % of new clones lie.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells; also others than those of the fit, with the same time key and representation.
    key_added
        Name of what is written. Take another one for the inverse to keep both.
    inverse
        Map the target back instead.
    copy
        Leave ``adata`` alone and return a copy.
    """
    check_model(model, adata)
    check_name(key_added)
    rows = model.times.rows(adata, target=inverse)
    points = model.coordinates(adata, rows)
    mapped = (model.model.inverse_transform if inverse else model.model.transform)(points)
    columns = {"displacement": np.linalg.norm(mapped - points, axis=1)}
    if isinstance(model.model, EnsembleMap) and not inverse:
        columns |= {"spread": model.model.spread(points), "informed": model.model.informed(points)}
    if copy:
        adata = in_memory(adata)
    adata.obsm[f"X_{key_added}"] = among_all(adata, rows, mapped)
    for name, column in columns.items():
        adata.obs[f"{key_added}_{name}"] = among_all(adata, rows, column)
    adata.uns[key_added] = _record(model, inverse=inverse)
    return adata if copy else None


def _record(model: SingleCellMap, *, inverse: bool) -> dict[str, Any]:
    """What uns says of a result: text, numbers and arrays, which h5ad can write."""
    fitted = model.model
    one = fitted.members_[0] if isinstance(fitted, EnsembleMap) else fitted
    if isinstance(one, MongeMapCV):
        one = one.best_estimator_
    options = describe_options(one.get_params(deep=False))
    record = {
        "time_key": model.times.key,
        "source": model.times.source,
        "target": model.times.target,
        "use_rep": "pca" if model.representation.pca is not None else model.representation.name,
        "n_components": fitted.n_features_in_,
        **{name: key for name in ("weight_key", "growth_key") if (key := getattr(model, name))},
        "inverse": inverse,
        "options": {name: _writable(each) for name, each in options.items() if each is not None},
        "versions": {"mongefit": mongefit.__version__, **recorded_versions()},
    }
    if isinstance(fitted, EnsembleMap):
        radius = {"radius_80": fitted.radius(0.8)} if len(fitted.scores_) >= 4 else {}
        return record | {"n_members": len(fitted.members_)} | radius
    return record | {
        "history": {name: np.asarray(column) for name, column in fitted.history_.items()},
        "epsilon": fitted.diagnostics_["epsilon"],
        "converged": fitted.diagnostics_["converged"],
        "data_sha256": fitted.data_sha256_,
    }


def _writable(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return np.asarray(value["tuple"]) if "tuple" in value else json.dumps(value, sort_keys=True)
