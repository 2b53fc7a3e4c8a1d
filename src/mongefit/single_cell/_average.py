"""Several maps between the same cells, in coordinates of their own, asked as one."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.outcomes import chain_of
from mongefit._estimators.temporal import TemporalMap
from mongefit._storage import read_bundle, save_bundle
from mongefit.errors import DataError, OptionError, wrong_option
from mongefit.metrics import Table
from mongefit.single_cell._columns import Times, check_adata
from mongefit.single_cell._model import SingleCellMap, hint_of_model, load_map

if TYPE_CHECKING:
    from mongefit._io import StrPath


@dataclasses.dataclass(frozen=True, eq=False)
class AveragedMap:
    """Several maps between the same cells; where a cell goes is the mean of what they say.

    Their coordinates may differ, and their costs. `fates`, `origins`, `transition_table`, `push`
    and `pull` take it as they take a `SingleCellMap`.

    Attributes
    ----------
    maps
        The maps.
    """

    maps: tuple[SingleCellMap, ...]

    @property
    def times(self) -> Times:
        """The times that all of them go between."""
        return self.maps[0].times

    def between(self, source: Any = None, target: Any = None, *, batch: Any = None) -> AveragedMap:
        """The maps from one time to a later one; by default from the first to the last."""
        return AveragedMap(tuple(each.between(source, target, batch=batch) for each in self.maps))

    def each_batch(self, source: Any = None, target: Any = None) -> list[AveragedMap]:
        """`between` of every batch; without batches the only map."""
        batches = zip(*(each.each_batch(source, target) for each in self.maps), strict=True)
        return [AveragedMap(maps) for maps in batches]

    @property
    def report(self) -> Table | None:
        """What each map was chosen from, if all were chosen by the same scores; else None."""
        found = [getattr(each.model, "report_", None) for each in self.maps]
        tables: list[Table] = [table for table in found if table is not None]
        if len(tables) < len(found):
            return None
        rows: list[dict[str, Any]] = []
        for each, table in zip(self.maps, tables, strict=True):
            where = each.representation.text(each.model.n_features_in_)
            rows += [row | {"name": f"{where}: {row['name']}"} for row in table.rows]
        return Table(tuple(rows), tables[0].headers, tables[0].notes[1:])

    @property
    def coupling_(self) -> NDArray[np.float64]:
        """The mean of the plans between the cells of the fit, [n, m]."""
        return np.asarray(np.mean([each.model.coupling_ for each in self.maps], axis=0))

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write all maps to one file; `mongefit.single_cell.load` reads it."""
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for k, each in enumerate(self.maps):
                part = Path(folder, f"{k}.mongefit")
                each.save(part)
                files.append(part)
            save_bundle(files, path, overwrite=overwrite)


CellMap = SingleCellMap | AveragedMap
"""What fates are asked of."""


def average(maps: Sequence[CellMap]) -> AveragedMap:
    """Average several maps between the same cells.

    Where each cell goes is the mean of the distributions that the maps say. That is how two kinds
    of knowledge are put together that no coordinates share: one map of a cost that was learned from
    clones, and one along the neighbours of cells, in diffusion components.

    Parameters
    ----------
    maps
        What `fit`, `load` or `average` gave, all between the same times of the same cells.
    """
    if isinstance(maps, CellMap | str) or not isinstance(maps, Sequence) or len(maps) < 2:
        several = isinstance(maps, list | tuple)
        told = f"a list of {len(maps)}" if several else f"a {type(maps).__name__}"
        raise OptionError(
            f"average needs a list of two maps or more, as in average([one, other]), got {told}."
        )
    found: list[SingleCellMap] = []
    for each in maps:
        if not isinstance(each, CellMap):
            raise OptionError(
                "average takes what mongefit.single_cell.fit and mongefit.single_cell.load give, "
                f"got {type(each).__name__}.{hint_of_model(each)}"
            )
        found.extend(each.maps)
    first = found[0]
    for each in found[1:]:
        if (each.times, each.batch_key, each.batches) != (
            first.times,
            first.batch_key,
            first.batches,
        ):
            raise DataError(
                f"These maps go between different cells: one {first.times.text}, another "
                f"{each.times.text}. Fit both between the same times."
            )
        if not _same_cells(first, each):
            raise DataError(
                f"These maps {first.times.text} were fitted to different cells, or to the same in "
                "another order. Fit both to the same AnnData."
            )
    return AveragedMap(tuple(found))


def _same_cells(one: SingleCellMap, other: SingleCellMap) -> bool:
    """Whether two maps were fitted to the same cells, as far as they know."""
    marks = [each.representation.fingerprint for each in (one, other)]
    names = [mark.cells for mark in marks if mark is not None]
    if len(names) == 2 and names[0] != names[1]:
        return False
    sizes = [
        [(len(leg.x), len(leg.y)) for step in chain_of(each.model) for leg in step]
        for each in (one, other)
        # Members of an ensemble were fitted to parts of the cells.
        if not isinstance(each.model, TemporalMap | EnsembleMap)
    ]
    return len(sizes) < 2 or sizes[0] == sizes[1]


def check_cell_map(model: Any, adata: Any) -> None:
    """Refuse what is neither a map of cells nor an average of some, and what is no AnnData."""
    if not isinstance(model, CellMap):
        raise OptionError(
            "model must be what mongefit.single_cell.fit, load or average gives, got "
            f"{type(model).__name__}.{hint_of_model(model)}"
        )
    check_adata(adata)


def load(path: StrPath, *, classes: Sequence[type] = ()) -> SingleCellMap | AveragedMap:
    """Read what `SingleCellMap.save`, `AveragedMap.save` or ``mongefit fit cells.h5ad`` wrote.

    ``classes`` are those of your own that the model holds, as for `mongefit.load`. It raises a
    `ModelFileError` if the file cannot be read, or holds a model of plain arrays.
    """
    if not isinstance(path, str | os.PathLike):
        raise wrong_option("path", "the name of a model file", type(path).__name__)
    files = read_bundle(path)
    if files is None:
        return load_map(path, classes=classes)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for k, content in enumerate(files):
            part = os.path.join(folder, f"part {k + 1} of {os.path.basename(os.fspath(path))}")
            Path(part).write_bytes(content)
            found.append(load_map(part, classes=classes))
    return average(found) if len(found) > 1 else AveragedMap(tuple(found))
