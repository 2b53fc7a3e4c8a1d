"""AnnData on the command line: options, cells and pairs out of files, cells into files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.console import Console, count
from mongefit._cli.options import Options, flag_of, grouped

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from mongefit.single_cell._cells import Cells
    from mongefit.single_cell._legs import CellLegs
    from mongefit.single_cell._representation import Representation

SUFFIX = ".h5ad"
ALL = "all"

_COLUMN = {"metavar": "COLUMN"}
_TIME = {"metavar": "TIME"}
_OPTIONS: Options = {
    "time_key": (_COLUMN, "h5ad: column of obs with the time."),
    "source_time": (_TIME, "h5ad: time to map from."),
    "target_time": (_TIME, "h5ad: time to map to."),
    "times": (
        {"metavar": "TIMES"},
        "h5ad: several times instead, such as 2,4,6, or all; one cost for all steps.",
    ),
    "pair_key": (
        _COLUMN,
        "h5ad: column of obs with clones, or array of obsm, cells x clones; each counts the same.",
    ),
    "groups_key": (_COLUMN, "h5ad: column of obs with groups that stay together."),
    "use_rep": ({"metavar": "NAME"}, "h5ad: array of obsm to work in, or X.  [default: X_pca]"),
    "n_components": ({"type": int}, "h5ad: use the first columns of --use-rep only."),
    "pca": ({"type": int}, "h5ad: compute so many components of X and work in them."),
    "layer": ({"metavar": "NAME"}, "h5ad: layer to take for X."),
    "diffusion": (
        {"type": int, "metavar": "NUMBER"},
        "h5ad: work in so many diffusion components of the cells; see also fates.",
    ),
    "weight_key": (_COLUMN, "h5ad: column of obs with weights."),
    "growth_key": (
        _COLUMN,
        "h5ad: column of obs with growth rates of the source, per unit of time.",
    ),
    "batch_key": (_COLUMN, "h5ad: column of obs with batches; each has a map, all have one cost."),
}
# --source and --target, beside the arguments of these names.
_FLAGS = {name: flag_of(name.removesuffix("_time")) for name in _OPTIONS}

cell_options = grouped("cells", _OPTIONS, _FLAGS)
"""Gives a command the options of .h5ad files, as ``cells``."""


def is_cells(path: str) -> bool:
    """Whether a file is named as one with an AnnData."""
    return path.lower().endswith(SUFFIX)


def check_clouds(
    source: str,
    target: str | None,
    cells: dict[str, Any],
    *,
    pairs: str | None,
    weighted: bool = False,
    learns: bool = True,
) -> None:
    """Find, before anything is read, what is missing or too much for two tables or for cells."""
    if not is_cells(source):
        for name, value in cells.items():
            if value is not None:
                raise click.UsageError(f"{_FLAGS[name]} is for {SUFFIX} files.")
        if target is None:
            raise click.UsageError(
                "Missing argument 'TARGET': each cloud has a table of its own, unless SOURCE is an "
                f"{SUFFIX} file."
            )
        if learns and pairs is None:
            raise click.UsageError(
                "A cost is learned from known pairs: give --pairs FILE, or use --cost sqeuclidean "
                "without --diffeo for the map of a fixed cost."
            )
        return
    if weighted:
        raise click.UsageError(
            f"--source-weight and --target-weight are not for {SUFFIX} files: use --weight-key "
            "COLUMN."
        )
    if target is not None:
        raise click.UsageError(
            f"One {SUFFIX} file holds both clouds: leave out {target}, and name them by --source "
            "and --target."
        )
    needed: tuple[str, ...] = ("time_key", "source_time", "target_time")
    if cells["times"] is not None:
        needed = ("time_key",)
        if cells["source_time"] is not None or cells["target_time"] is not None:
            raise click.UsageError(
                "--times names all times, from the first to the last: leave out --source and "
                "--target."
            )
    if missing := [
        f"{_FLAGS[name]} {_OPTIONS[name][0]['metavar']}" for name in needed if cells[name] is None
    ]:
        no_ends = "source_time" in needed and cells["source_time"] == cells["target_time"]
        several = ", or --times TIMES for several" if no_ends else ""
        raise click.UsageError(f"{SUFFIX} files also need {', '.join(missing)}{several}.")
    if learns and (pairs, cells["pair_key"], cells["groups_key"]) == (None, None, None):
        raise click.UsageError(
            "A cost is learned from what is known: give --pair-key COLUMN, --pairs FILE or "
            "--groups-key COLUMN, or use --cost sqeuclidean without --diffeo for the map of a "
            "fixed cost."
        )


def read_cells_of(
    path: str, options: dict[str, Any], pairs: str | None, *, many_to_many: bool
) -> Cells:
    """Both clouds of an .h5ad file and what is known of them."""
    from mongefit.single_cell._cells import take_cells

    named = {name.removesuffix("_time"): value for name, value in options.items()}
    if (times := several_times(named.pop("times"))) is not None:
        named |= {"source": times[0], "target": times[-1]}
    del named["batch_key"]
    with _open_cells(path, pairs) as (adata, table):
        return take_cells(adata, **named, pairs=table, many_to_many=many_to_many)


def read_legs_of(
    path: str, options: dict[str, Any], pairs: str | None, *, many_to_many: bool
) -> CellLegs:
    """The cells of several times or batches of an .h5ad file, and what is known of them."""
    from mongefit.single_cell._legs import take_legs
    from mongefit.single_cell._times import choose_times

    named = {name.removesuffix("_time"): value for name, value in options.items()}
    key, source, target = (named.pop(name) for name in ("time_key", "source", "target"))
    several = several_times(named.pop("times"))
    with _open_cells(path, pairs) as (adata, table):
        times = choose_times(adata, key, source, target, several)
        return take_legs(adata, times, **named, pairs=table, many_to_many=many_to_many)


def has_legs(options: dict[str, Any]) -> bool:
    """Whether more than one map is asked for."""
    times = several_times(options["times"])
    listed = times is not None and times != ALL
    return options["batch_key"] is not None or times == ALL or (listed and len(times) != 2)


def several_times(text: str | None) -> Any:
    """Times out of 2,4,6; all of a column are ``"all"``."""
    if text is None or text.strip() == ALL:
        return None if text is None else ALL
    return [part.strip() for part in text.split(",")]


@contextlib.contextmanager
def _open_cells(path: str, pairs: str | None) -> Iterator[tuple[AnnData, DataFrame | None]]:
    """An .h5ad file and the pairs of its cells in a table."""
    table = None if pairs is None else read_named_pairs(pairs)
    # Backed, because X may be large and often is not needed.
    adata = read_cells(path, backed=True)
    try:
        yield adata, table
    finally:
        adata.file.close()


def say_cells(console: Console, cells: Cells, path: str) -> None:
    """Say which cells were taken."""
    times, columns = cells.times, _columns(cells.representation, cells.x.shape[1], path)
    console.say(f"Source: {count(len(cells.x), 'cell')} of {times.key} {times.source}, {columns}")
    console.say(f"Target: {count(len(cells.y), 'cell')} of {times.key} {times.target}")


def say_legs(console: Console, cells: CellLegs, path: str) -> None:
    """Say which cells of which times and batches were taken, and what is known of each leg."""
    import numpy as np

    times = cells.times
    columns = _columns(cells.representation, cells.clouds[0][0].shape[1], path)
    console.say(f"Times: {times.key} {', '.join(times.values)}, {columns}")
    if cells.batch_key is not None:
        names = ", ".join(cells.batches)
        console.say(f"Batches: {names} (obs[{cells.batch_key!r}]), each with a map of its own")
    for leg, (x, y) in zip(cells.legs, cells.clouds, strict=True):
        console.say(f"Leg {leg_title(leg.name)}: {len(x)} to {count(len(y), 'cell')}")
    for name, pairs in cells.given["pairs"].items():
        clones = cells.given["clones"].get(name)
        seen = "" if clones is None else f"{count(len(np.unique(clones)), 'clone')}, "
        console.say(f"Known {leg_title(name)}: {seen}{count(len(pairs), 'pair')}")
    for name, (source, _) in cells.given["groups"].items():
        console.say(f"Groups {leg_title(name)}: {', '.join(sorted(set(source) - {None}))}")


def _columns(representation: Representation, size: int, path: str) -> str:
    """What a cell is to the map, in words."""
    kind = "column" if representation.pca is None else "component"
    if representation.diffusion is not None:
        kind = "diffusion component"
    return f"{count(size, kind)} of {representation.where} ({path})"


def leg_title(name: Any) -> str:
    """What a leg is called: its times, or its name."""
    return " to ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def read_cells(path: str, *, backed: bool = False) -> AnnData:
    """Read an .h5ad file; what cannot be read is named."""
    from mongefit._io import require_file
    from mongefit.errors import DataError
    from mongefit.single_cell._columns import import_anndata

    require_file(path)
    anndata = import_anndata()
    try:
        return anndata.read_h5ad(path, backed="r" if backed else None)
    except MemoryError:
        raise
    except Exception as error:  # h5py and anndata raise all kinds for what they cannot read
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{path} is not an {SUFFIX} file, or is damaged ({first_line}). anndata.write_h5ad "
            "writes such files."
        ) from error


def read_named_pairs(path: str) -> DataFrame:
    """Pairs of cells by their names, out of a table."""
    import pandas as pd

    from mongefit._io import require_file
    from mongefit.errors import DataError

    require_file(path)
    sep = "\t" if path.lower().endswith(".tsv") else ","
    try:
        frame = pd.read_csv(
            path, sep=sep, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False
        )
    except (ValueError, OSError) as error:  # pandas' errors of parsing are ValueErrors
        raise DataError(f"{path} cannot be read: {error}.") from error
    columns = list(frame.columns)
    if columns not in (["source", "target"], ["source", "target", "weight"]):
        raise DataError(
            f"{path}, line 1: pairs of cells need the header source,target or "
            f"source,target,weight; it is {','.join(columns)}."
        )
    return frame
