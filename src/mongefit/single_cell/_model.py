"""A map between the cells of two times or more, where its cells come from, and its model files."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import EnsembleMap, usual_distance
from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.temporal import TemporalMap
from mongefit._estimators.ways import Way
from mongefit._storage import Section, load_with_cells, save
from mongefit.errors import DataError, ModelFileError, OptionError, did_you_mean
from mongefit.metrics import Table
from mongefit.single_cell._cells import Cells
from mongefit.single_cell._columns import Times, canonical, check_adata, import_anndata
from mongefit.single_cell._legs import CellLegs, leg_name
from mongefit.single_cell._representation import Representation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

    from mongefit._io import StrPath

    Model = MongeMap | MongeMapCV | EnsembleMap
    Fitted = Model | TemporalMap | Way


@dataclasses.dataclass(frozen=True, eq=False)
class Informants:
    """Cells of the source of which something is known, [k, d].

    Others are near one of them within ``reach``, the distance that 95 % of them have to the nearest
    one of another clone.
    """

    points: NDArray[np.float64]
    reach: float

    @classmethod
    def of(
        cls, x: NDArray[np.float64], pairs: NDArray[np.int64], clone: NDArray[np.int64] | None
    ) -> Informants | None:
        """The sources of pairs by rows of ``x``; None where all are of one clone."""
        rows, first = np.unique(pairs[:, 0], return_index=True)
        group = rows if clone is None else clone[first]
        if len(np.unique(group)) < 2:
            return None
        return cls(x[rows], usual_distance(x[rows], group))

    def near(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which rows have one of these cells near by."""
        from scipy.spatial import KDTree

        return np.asarray(KDTree(self.points).query(points)[0] <= self.reach)


@dataclasses.dataclass(frozen=True, eq=False)
class SingleCellMap:
    """A fitted map, and where in an AnnData its cells come from.

    Attributes
    ----------
    model
        The fitted estimator, or an ensemble: its clouds are cells of both times. Of several times
        or batches a `TemporalMap`; `between` gives the map between two of them.
    times
        Column of obs and its values, in order.
    representation
        Array of obsm, X, or components of X with their mean and loadings.
    weight_key, growth_key
        Columns of obs that the weights of the fit came from; None for equal weights.
    batch_key, batches
        Column of obs with batches, and those that have a map of their own; None and empty without.
    informants
        The cells of the source that something was known of; None of an ensemble, which has its own,
        and of several times or batches.
    report
        What the settings were chosen from where that was done on one leg of several; else None.
    """

    model: Fitted
    times: Times
    representation: Representation
    weight_key: str | None = None
    growth_key: str | None = None
    batch_key: str | None = None
    batches: tuple[str, ...] = ()
    report: Table | None = None
    informants: Informants | None = None

    @property
    def maps(self) -> tuple[SingleCellMap, ...]:
        """This map alone; an average has several."""
        return (self,)

    def informed(self, points: NDArray[np.float64]) -> NDArray[np.bool_] | None:
        """Whether a known source is near each of some points of the source; None if unknown."""
        if isinstance(self.model, EnsembleMap):
            return self.model.informed(points)
        return None if self.informants is None else self.informants.near(points)

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write all of it to one file; `mongefit.single_cell.load` reads it.

        `mongefit.load` reads the estimator alone.
        """
        if isinstance(self.model, Way):
            raise OptionError(
                "A map over several legs is not saved on its own. Save the model of all times."
            )
        header, tensors = self.representation.describe()
        header |= {"weight_key": self.weight_key, "growth_key": self.growth_key}
        header |= {"key": self.times.key, "source": self.times.source, "target": self.times.target}
        if len(self.times.values) > 2:
            header["times"] = list(self.times.values)
        if self.times.batch is not None:
            header["batch"] = list(self.times.batch)
        if self.batch_key is not None:
            header |= {"batch_key": self.batch_key, "batches": list(self.batches)}
        if self.informants is not None:
            header["reach"] = self.informants.reach
            tensors["informants"] = self.informants.points
        if self.report is not None:
            columns = [list(each) for each in self.report.headers.items()]
            rows, notes = list(self.report.rows), list(self.report.notes)
            header["report"] = {"rows": rows, "headers": columns, "notes": notes}
        save(self.model, path, overwrite=overwrite, single_cell=Section(header, tensors))

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

    def between(
        self, source: Any = None, target: Any = None, *, batch: Any = None
    ) -> SingleCellMap:
        """The map from one of its times to a later one; by default from the first to the last.

        Its ``times`` are these two, and its ``model`` is a fitted map with `transform`,
        `conditional`, `push` and so on. Of a model of several batches it is that of one: name it.
        """
        times = self.times.between(source, target)
        if self.batch_key is not None:
            times = times.within(self.batch_key, self._batch(batch))
        elif batch is not None:
            own = None if times.batch is None else times.batch[1]
            if own is None or canonical(own) != canonical(batch):
                known = "no batches" if own is None else f"the batch {own!r} only"
                raise OptionError(f"This model has {known}; it knows nothing of {batch!r}.")
        return dataclasses.replace(
            self, model=self._map(times), times=times, batch_key=None, batches=(), report=None
        )

    def each_batch(self, source: Any = None, target: Any = None) -> list[SingleCellMap]:
        """`between` of every batch; without batches the only map."""
        names = self.batches if self.batch_key is not None else [None]
        return [self.between(source, target, batch=name) for name in names]

    def _batch(self, batch: Any) -> str:
        """The name of one batch; it must be said which, if there are several."""
        if batch is None and len(self.batches) == 1:
            return self.batches[0]
        shown = ", ".join(self.batches)
        if batch is None:
            raise OptionError(
                f"This model has a map for each batch of obs[{self.batch_key!r}]: {shown}. Name "
                f"one, as in model.between(batch={self.batches[0]!r})."
            )
        for name in self.batches:
            if canonical(name) == canonical(batch):
                return name
        raise OptionError(
            f"This model knows nothing of the batch {batch!r}, only of: {shown}."
            + did_you_mean(str(batch), self.batches)
        )

    def _map(self, times: Times) -> Fitted:
        """The map between two times."""
        if not isinstance(self.model, TemporalMap):
            return self.model
        values = self.times.values
        way = values[values.index(times.source) : values.index(times.target) + 1]
        span = Times(times.key, *way, batch=times.batch)
        several = len(values) > 2
        legs = [self.model.legs_[leg_name(step, several=several)] for step in span.steps()]
        return legs[0] if len(legs) == 1 else Way(legs, span.labels)


def with_origin(model: Model, cells: Cells) -> SingleCellMap:
    """A model that was fitted to cells, with where these came from."""
    if not isinstance(model, EnsembleMap):
        model.diagnostics_["input_warnings"][:0] = cells.warnings
    informants = None
    if cells.known is not None and not isinstance(model, EnsembleMap):
        informants = Informants.of(cells.x, *cells.known[::2])
    return SingleCellMap(
        model, cells.times, cells.representation, cells.weight_key, cells.growth_key,
        informants=informants,
    )  # fmt: skip


def with_origin_of_legs(
    model: TemporalMap, cells: CellLegs, report: Table | None = None
) -> SingleCellMap:
    """A model of several times or batches, with where its cells came from."""
    for found in model.diagnostics_.values():
        found["input_warnings"][:0] = cells.warnings
    return SingleCellMap(
        model, cells.times, cells.representation, cells.weight_key, cells.growth_key,
        cells.batch_key, cells.batches, report,
    )  # fmt: skip


def load_map(path: StrPath, *, classes: Sequence[type] = ()) -> SingleCellMap:
    """Read one map out of a file."""
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


def _restore(model: Any, section: Section) -> SingleCellMap:
    """What a section of a model file says."""
    header = section.header
    key, source, target, _ = _texts(
        [header[name] for name in ("key", "source", "target", "use_rep")]
    )
    values = _texts(header.get("times", [source, target]))
    batch = None
    if "batch" in header:
        column, name = _texts(header["batch"])
        batch = column, name
    times = Times(key, *values, batch=batch)
    columns = ("weight_key", "growth_key", "batch_key")
    keys = {name: header.get(name) for name in columns}
    if not all(isinstance(name, str | None) for name in keys.values()):
        raise ValueError("a column is not text")
    batches = tuple(_texts(header.get("batches", [])))
    report = header.get("report")
    if report is not None:
        headers = dict(map(tuple, report["headers"]))
        report = Table(tuple(report["rows"]), headers, tuple(report["notes"]))
    tensors, informants = dict(section.tensors), None
    if "reach" in header:
        points = tensors.pop("informants")
        if points.shape[1:] != (model.n_features_in_,) or not np.all(np.isfinite(points)):
            raise ValueError(f"single_cell.informants has the shape {points.shape}")
        informants = Informants(points.astype(np.float64), float(header["reach"]))
    representation = Representation.restore(header, tensors, dim=model.n_features_in_)
    if (keys["batch_key"] is None) != (not batches):
        raise ValueError("batches without their column")
    if not isinstance(model, TemporalMap) and (len(values) != 2 or batches):
        raise ValueError("one map for several times or batches")
    found = SingleCellMap(model, times, representation, **keys, batches=batches, report=report)
    found = dataclasses.replace(found, informants=informants)
    found.each_batch()  # all legs are there
    return found


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a name is not text")
    return values


def check_model(model: Any, adata: Any) -> SingleCellMap:
    """The model, unless it does not know its representation; what is no AnnData is refused too."""
    if not isinstance(model, SingleCellMap):
        hint = hint_of_model(model)
        if isinstance(getattr(model, "maps", None), tuple):
            hint = " An average has several coordinates: take one of its maps, average.maps[0]."
        raise OptionError(
            "model must be what mongefit.single_cell.fit or mongefit.single_cell.load gives, got "
            f"{type(model).__name__}.{hint}"
        )
    check_adata(adata)
    return model


def hint_of_model(model: Any) -> str:
    """What was probably meant by something that is no model of cells."""
    if isinstance(model, str | os.PathLike):
        return " Read the file with mongefit.single_cell.load."
    if isinstance(model, import_anndata().AnnData):
        return " The model comes first, then the AnnData."
    if hasattr(model, "fit"):
        return " Fit it to cells: mongefit.single_cell.fit(adata, …, model=…)."
    return ""
