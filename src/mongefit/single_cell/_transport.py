"""Where the cells of an AnnData go, written back into it, and cells at a time between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import mongefit
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.ways import Way
from mongefit._storage import describe_options
from mongefit._validation import check_switch
from mongefit._versions import recorded_versions
from mongefit.errors import DataError, warn_user
from mongefit.single_cell._columns import Times, check_name, in_memory
from mongefit.single_cell._model import SingleCellMap, check_model

if TYPE_CHECKING:
    from anndata import AnnData

    from mongefit.single_cell._average import CellMap

AnyMap = TypeVar("AnyMap", bound="CellMap")


def transport(
    model: CellMap,
    adata: AnnData,
    *,
    source: Any = None,
    target: Any = None,
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
        What `fit` or `load` gave; no average. Cells of a batch are mapped by that of their batch.
    adata
        The cells; also others than those of the fit, with the same time key and representation.
    source, target
        Of a model of several times the two to map between; by default the first and the last.
    key_added
        Name of what is written. Take another one for the inverse to keep both.
    inverse
        Map the target back instead.
    copy
        Leave ``adata`` alone and return a copy.
    """
    model = check_model(model, adata)
    check_switch(inverse, "inverse")
    check_switch(copy, "copy")
    check_name(key_added)
    parts = parts_with_cells(model.each_batch(source, target), adata, target=inverse)
    columns: dict[str, NDArray[Any]] = {}
    for each, rows in parts:
        for name, values in _mapped(each, adata, rows, inverse=inverse).items():
            if name not in columns:
                blank = False if values.dtype == bool else np.nan
                columns[name] = np.full((adata.n_obs, *values.shape[1:]), blank)
            columns[name][rows] = values
    if copy:
        adata = in_memory(adata)
    adata.obsm[f"X_{key_added}"] = columns.pop("states")
    for name, column in columns.items():
        adata.obs[f"{key_added}_{name}"] = column
    record = describe_fit(parts[0][0]) | {"inverse": inverse}
    adata.uns[key_added] = record | described_batches(model)
    return adata if copy else None


def parts_with_cells(
    maps: Sequence[AnyMap], adata: AnnData, *, target: bool
) -> list[tuple[AnyMap, NDArray[np.int64]]]:
    """Those of the maps, one for each batch, that have cells here, with the rows of these."""
    if len(maps) == 1:
        return [(maps[0], maps[0].times.rows(adata, target=target))]
    found, failure = [], None
    for each in maps:
        try:
            found.append((each, each.times.rows(adata, target=target)))
        except DataError as error:
            failure = error
    if not found and failure is not None:
        raise failure
    times = maps[0].times
    time = times.target if target else times.source
    here = Times(times.key, time).rows_at(adata, time)
    if others := len(here) - sum(len(rows) for _, rows in found):
        batches = [each.times.batch[1] for each in maps if each.times.batch is not None]
        warn_user(
            f"{others} cells of {times.key} {time} are in no batch of the model "
            f"({', '.join(batches)}): nothing is known of them."
        )
    return found


def described_batches(model: SingleCellMap) -> dict[str, Any]:
    """What uns says of batches."""
    if model.batch_key is None:
        return {}
    return {"batch_key": model.batch_key, "batches": np.asarray(model.batches)}


def _mapped(
    model: SingleCellMap, adata: AnnData, rows: NDArray[np.int64], *, inverse: bool
) -> dict[str, NDArray[Any]]:
    """What is known of some cells of a map between two times."""
    points, fitted = model.coordinates(adata, rows), model.model
    moved = (fitted.inverse_transform if inverse else fitted.transform)(points)
    found = {"states": moved, "displacement": np.linalg.norm(moved - points, axis=1)}
    if isinstance(fitted, EnsembleMap) and not inverse:
        found |= {"spread": fitted.spread(points), "informed": fitted.informed(points)}
    return found


def describe_fit(model: SingleCellMap) -> dict[str, Any]:
    """What uns says of a map between two times: text, numbers and arrays, which h5ad can write."""
    fitted: Any = model.model
    one = fitted.members_[0] if isinstance(fitted, EnsembleMap) else fitted
    if isinstance(one, Way):
        one = one.legs[0]
    if isinstance(one, MongeMapCV):
        one = one.best_estimator_
    options = describe_options(one.get_params(deep=False))
    record = {
        "time_key": model.times.key,
        "source": model.times.source,
        "target": model.times.target,
        "use_rep": "pca" if model.representation.pca is not None else model.representation.name,
        "n_components": fitted.n_features_in_,
        **({} if model.representation.layer is None else {"layer": model.representation.layer}),
        **{name: key for name in ("weight_key", "growth_key") if (key := getattr(model, name))},
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
