"""Fitting on an AnnData, mapping its cells, and model files that remember where they came from."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone as unfitted

import mongefit
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.monge_map import MongeMap
from mongefit._storage import Section, describe_options, load_with_cells, save
from mongefit._versions import recorded_versions
from mongefit.errors import DataError, ModelFileError, Option, OptionError
from mongefit.model_selection import default_candidates
from mongefit.model_selection import select as choose
from mongefit.single_cell._cells import Cells, take_cells
from mongefit.single_cell._columns import Times, check_adata
from mongefit.single_cell._representation import Components, Fingerprint, Representation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from pandas import DataFrame


@dataclasses.dataclass(frozen=True, eq=False)
class SingleCellMap:
    """A fitted map, and where in an AnnData its cells come from.

    Attributes
    ----------
    model
        The fitted estimator, or an ensemble: its clouds are cells of both times.
    times
        Column of obs and its values for source and target.
    representation
        Array of obsm, X, or components of X with their mean and loadings.
    """

    model: MongeMap | EnsembleMap
    times: Times
    representation: Representation

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write all of it to one file; `mongefit.single_cell.load` reads it.

        `mongefit.load` reads the estimator alone.
        """
        save(self.model, path, overwrite=overwrite, single_cell=_describe(self))

    def coordinates(self, adata: AnnData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Coordinates of some cells, as the model expects them, [n, d]."""
        points = self.representation.of(adata, rows)
        expected = self.model.n_features_in_
        if points.shape[1] != expected:
            raise DataError(
                f"The model expects {expected} features, got {points.shape[1]} of "
                f"{self.representation.where}."
            )
        if self.representation.fingerprint is not None:
            self.representation.fingerprint.check(adata, self.representation)
        return points


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
    model: MongeMap | EnsembleMap | None = None,
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
    model
        What to fit: an estimator with options, which is itself not changed; an `EnsembleMap` tells
        how sure it is. By default, from ten clones on, the first of
        `mongefit.model_selection.default_candidates`, stopped where held-out clones are predicted
        best; with fewer clones stopped after 40 steps; without any ``MongeMap(epsilon=0.05)``. In
        batches of at least 512 cells.

    Notes
    -----
    In ``pair_key`` and ``groups_key`` the missing values of pandas, −1 and words such as "unknown"
    mark cells of which nothing is known.
    """
    if not isinstance(model, MongeMap | EnsembleMap | None):
        raise OptionError(
            f"model must be a MongeMap or an EnsembleMap, got {type(model).__name__}."
        )
    many_to_many = isinstance(model, EnsembleMap) or (model is not None and model.many_to_many)
    cells = take_cells(
        adata, time_key=time_key, source=source, target=target, use_rep=use_rep, pca=pca,
        n_components=n_components, pair_key=pair_key, pairs=pairs, groups_key=groups_key,
        weight_key=weight_key, many_to_many=many_to_many,
    )  # fmt: skip
    return with_origin(_fit(cells, model), cells)


def _fit(cells: Cells, model: MongeMap | EnsembleMap | None) -> MongeMap | EnsembleMap:
    """Fit an estimator to cells, or what suits them best."""
    known = cells.known_pairs()
    if isinstance(model, EnsembleMap):
        if cells.groups is not None or cells.known is None:
            raise DataError(
                "An ensemble resamples clones: give {pair_key} or pairs, and no groups.",
                pair_key=Option("pair_key"),
            )
        return unfitted(model).fit(cells.x, cells.y, **known)
    if model is None and cells.can_stop_early:
        name, candidate = next(iter(default_candidates().items()))
        return choose({name: candidate}, cells.x, cells.y, **known).model
    options = cells.suited_options() if model is None else model.get_params(deep=False)
    if cells.has_clones:
        options["many_to_many"] = True
    del known["clones"]
    estimator = (MongeMap if model is None else type(model))(**options)
    return estimator.fit(cells.x, cells.y, groups=cells.groups, **known)


def with_origin(model: MongeMap | EnsembleMap, cells: Cells) -> SingleCellMap:
    """A model that was fitted to cells, with where these came from."""
    if isinstance(model, MongeMap):
        model.diagnostics_["input_warnings"][:0] = cells.warnings
    return SingleCellMap(model, cells.times, cells.representation)


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
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise OptionError(f"key_added must be a name without '/', got {key_added!r}.")
    rows = model.times.rows(adata, target=inverse)
    points = model.coordinates(adata, rows)
    mapped = (model.model.inverse_transform if inverse else model.model.transform)(points)
    columns = {"displacement": np.linalg.norm(mapped - points, axis=1)}
    if isinstance(model.model, EnsembleMap) and not inverse:
        columns |= {"spread": model.model.spread(points), "informed": model.model.informed(points)}
    if copy:
        # In memory, because a file behind the original cannot be changed.
        adata = adata.to_memory() if adata.isbacked else adata.copy()
    adata.obsm[f"X_{key_added}"] = _among_all(adata, rows, mapped)
    for name, column in columns.items():
        adata.obs[f"{key_added}_{name}"] = _among_all(adata, rows, column)
    adata.uns[key_added] = _record(model, inverse=inverse)
    return adata if copy else None


def load(path: str | os.PathLike[str], *, classes: Sequence[type] = ()) -> SingleCellMap:
    """Read what `SingleCellMap.save` or ``mongefit fit cells.h5ad`` wrote.

    ``classes`` are those of your own that the model holds, as for `mongefit.load`. It raises a
    `ModelFileError` if the file cannot be read, or holds a model of plain arrays.
    """
    model, section = load_with_cells(path, classes=classes)
    if section is None:
        raise ModelFileError(
            f"{os.fspath(path)} was not fitted on an AnnData, and does not know its time key and "
            "representation. mongefit.load reads it, for plain arrays."
        )
    try:
        return _restore(model, section)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} is not a valid model: what it says of cells cannot be right "
            f"({error})."
        ) from error


def check_model(model: Any, adata: Any) -> None:
    """Refuse a model that does not know its representation, and what is no AnnData."""
    if not isinstance(model, SingleCellMap):
        raise OptionError(
            "model must be what mongefit.single_cell.fit or mongefit.single_cell.load gives, got "
            f"{type(model).__name__}."
        )
    check_adata(adata)


def _among_all(adata: AnnData, rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Values of some cells among those of all, False or NaN for the others."""
    found = np.full((adata.n_obs, *values.shape[1:]), False if values.dtype == bool else np.nan)
    found[rows] = values
    return found


def _record(model: SingleCellMap, *, inverse: bool) -> dict[str, Any]:
    """What uns says of a result: text, numbers and arrays, which h5ad can write."""
    fitted = model.model
    one = fitted.members_[0] if isinstance(fitted, EnsembleMap) else fitted
    options = describe_options(one.get_params(deep=False))
    record = {
        "time_key": model.times.key,
        "source": model.times.source,
        "target": model.times.target,
        "use_rep": "pca" if model.representation.pca is not None else model.representation.name,
        "n_components": fitted.n_features_in_,
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
    if isinstance(value, dict) and "tuple" in value:
        return np.asarray(value["tuple"])
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _describe(model: SingleCellMap) -> Section:
    header: dict[str, Any] = dataclasses.asdict(model.times)
    header["use_rep"] = model.representation.name
    header["n_components"] = model.representation.n_components
    tensors: dict[str, NDArray[np.float64]] = {}
    if (pca := model.representation.pca) is not None:
        header["genes"] = list(pca.genes)
        tensors |= {"mean": pca.mean, "loadings": pca.loadings}
    if (kept := model.representation.fingerprint) is not None:
        header["fingerprint"] = {"cells": list(kept.cells), "genes": list(kept.genes)}
        tensors |= {"anchors": kept.coordinates, "anchor_loadings": kept.loadings}
    return Section(header, tensors)


def _restore(model: MongeMap | EnsembleMap, section: Section) -> SingleCellMap:
    header, tensors = section
    n_components, dim = header["n_components"], model.n_features_in_
    texts = [header[name] for name in ("key", "source", "target", "use_rep")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a name is not text")
    if n_components is not None and n_components != dim:
        raise ValueError(f"{n_components} components for {dim} features")
    pca = fingerprint = None
    shapes: dict[str, tuple[int, ...]] = {}
    if "genes" in header:
        genes = tuple(map(str, header["genes"]))
        pca = Components(genes, tensors["mean"], tensors["loadings"])
        shapes |= {"mean": (len(genes),), "loadings": (len(genes), dim)}
    if "fingerprint" in header:
        cells, named = (tuple(map(str, header["fingerprint"][key])) for key in ("cells", "genes"))
        fingerprint = Fingerprint(cells, tensors["anchors"], named, tensors["anchor_loadings"])
        shapes |= {"anchors": (len(cells), dim), "anchor_loadings": (len(named), dim)}
    for name, shape in shapes.items():
        found = tensors[name]
        if found.shape != shape or found.dtype != np.float64 or not np.all(np.isfinite(found)):
            raise ValueError(f"single_cell.{name} must be finite float64 numbers of shape {shape}")
    if tensors.keys() - shapes.keys():
        raise ValueError("a tensor does not belong there")
    *times, use_rep = texts
    representation = Representation(use_rep, n_components, pca, fingerprint)
    return SingleCellMap(model, Times(*times), representation)
