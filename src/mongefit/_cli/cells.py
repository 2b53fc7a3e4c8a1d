"""AnnData on the command line: options, cells and pairs out of files, cells into files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.console import Console, count
from mongefit._cli.options import Options, flag_of, grouped

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from mongefit.single_cell._cells import Cells

SUFFIX = ".h5ad"

_COLUMN = {"metavar": "COLUMN"}
_TIME = {"metavar": "TIME"}
_OPTIONS: Options = {
    "time_key": (_COLUMN, "h5ad: column of obs with the time."),
    "source_time": (_TIME, "h5ad: time to map from."),
    "target_time": (_TIME, "h5ad: time to map to."),
    "pair_key": (_COLUMN, "h5ad: column of obs with clones; each counts the same."),
    "groups_key": (_COLUMN, "h5ad: column of obs with groups that stay together."),
    "use_rep": ({"metavar": "NAME"}, "h5ad: array of obsm to work in, or X.  [default: X_pca]"),
    "n_components": ({"type": int}, "h5ad: use the first columns of --use-rep only."),
    "pca": ({"type": int}, "h5ad: compute so many components of X and work in them."),
    "weight_key": (_COLUMN, "h5ad: column of obs with weights."),
    "growth_key": (
        _COLUMN,
        "h5ad: column of obs with growth rates of the source, per unit of time.",
    ),
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
    needed = ("time_key", "source_time", "target_time")
    if missing := [
        f"{_FLAGS[name]} {_OPTIONS[name][0]['metavar']}" for name in needed if cells[name] is None
    ]:
        raise click.UsageError(f"{SUFFIX} files also need {', '.join(missing)}.")
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

    table = None if pairs is None else _read_named_pairs(pairs)
    # Backed, because X may be large and often is not needed.
    adata = read_cells(path, backed=True)
    try:
        named = {name.removesuffix("_time"): value for name, value in options.items()}
        return take_cells(adata, **named, pairs=table, many_to_many=many_to_many)
    finally:
        adata.file.close()


def say_cells(console: Console, cells: Cells, path: str) -> None:
    """Say which cells were taken."""
    times, representation = cells.times, cells.representation
    kind = "component" if representation.pca is not None else "column"
    columns = f"{count(cells.x.shape[1], kind)} of {representation.where} ({path})"
    console.say(f"Source: {count(len(cells.x), 'cell')} of {times.key} {times.source}, {columns}")
    console.say(f"Target: {count(len(cells.y), 'cell')} of {times.key} {times.target}")


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


def _read_named_pairs(path: str) -> DataFrame:
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
