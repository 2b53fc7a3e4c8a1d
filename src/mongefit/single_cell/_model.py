"""A map between the cells of two times, where its cells come from, and its model files."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.monge_map import MongeMap
from mongefit._storage import Section, load_with_cells, save
from mongefit.errors import DataError, ModelFileError, OptionError
from mongefit.single_cell._cells import Cells
from mongefit.single_cell._columns import Times, check_adata
from mongefit.single_cell._representation import Representation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

    from mongefit._io import StrPath

    Model = MongeMap | MongeMapCV | EnsembleMap


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
    weight_key, growth_key
        Columns of obs that the weights of the fit came from; None for equal weights.
    """

    model: Model
    times: Times
    representation: Representation
    weight_key: str | None = None
    growth_key: str | None = None

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write all of it to one file; `mongefit.single_cell.load` reads it.

        `mongefit.load` reads the estimator alone.
        """
        header, tensors = self.representation.describe()
        header |= {"weight_key": self.weight_key, "growth_key": self.growth_key}
        section = Section(dataclasses.asdict(self.times) | header, tensors)
        save(self.model, path, overwrite=overwrite, single_cell=section)

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

    def between(self, source: Any = None, target: Any = None) -> SingleCellMap:
        """The map from one of its times to a later one; by default from the first to the last."""
        return dataclasses.replace(self, times=self.times.between(source, target))


def with_origin(model: Model, cells: Cells) -> SingleCellMap:
    """A model that was fitted to cells, with where these came from."""
    if not isinstance(model, EnsembleMap):
        model.diagnostics_["input_warnings"][:0] = cells.warnings
    return SingleCellMap(
        model, cells.times, cells.representation, cells.weight_key, cells.growth_key
    )


def load(path: StrPath, *, classes: Sequence[type] = ()) -> SingleCellMap:
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
        texts = [section.header[name] for name in ("key", "source", "target", "use_rep")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name is not text")
        keys = [section.header.get(name) for name in ("weight_key", "growth_key")]
        if not all(isinstance(key, str | None) for key in keys):
            raise ValueError("a column is not text")
        representation = Representation.restore(*section, dim=model.n_features_in_)
        return SingleCellMap(model, Times(*texts[:3]), representation, *keys)
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
