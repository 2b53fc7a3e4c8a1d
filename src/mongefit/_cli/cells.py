"""AnnData on the command line: options, cells and pairs out of files, cells into files."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.console import Console, count

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._cli.inputs import Inputs
    from mongefit._estimators.monge_map import MongeMap
    from mongefit.single_cell._cells import Cells

SUFFIX = ".h5ad"

_OPTIONS = (
    click.option("--time-key", metavar="COLUMN", help="h5ad: column of obs with the time."),
    click.option("--source", "source_time", metavar="TIME", help="h5ad: time to map from."),
    click.option("--target", "target_time", metavar="TIME", help="h5ad: time to map to."),
    click.option(
        "--pair-key",
        metavar="COLUMN",
        help="h5ad: column of obs with clones; each counts the same.",
    ),
    click.option(
        "--groups-key", metavar="COLUMN", help="h5ad: column of obs with groups that stay together."
    ),
    click.option(
        "--use-rep", metavar="NAME", help="h5ad: array of obsm to work in, or X.  [default: X_pca]"
    ),
    click.option("--n-components", type=int, help="h5ad: use the first columns of --use-rep only."),
    click.option("--pca", type=int, help="h5ad: compute so many components of X and work in them."),
    click.option("--weight-key", metavar="COLUMN", help="h5ad: column of obs with weights."),
)


@dataclasses.dataclass(frozen=True)
class CellOptions:
    """Options that only .h5ad files have."""

    time_key: str | None
    source_time: str | None
    target_time: str | None
    pair_key: str | None
    groups_key: str | None
    use_rep: str | None
    n_components: int | None
    pca: int | None
    weight_key: str | None

    def refuse(self) -> None:
        """Complain of any of them, where there are tables."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                name = field.name.removesuffix("_time").replace("_", "-")
                raise click.UsageError(f"--{name} is for {SUFFIX} files.")


def cell_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of .h5ad files, and call it with them as ``cells``."""

    @functools.wraps(function)
    def collected(**options: Any) -> None:
        names = [field.name for field in dataclasses.fields(CellOptions)]
        cells = CellOptions(**{name: options.pop(name) for name in names})
        function(cells=cells, **options)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected


def is_cells(path: str) -> bool:
    """Whether a file is named as one with an AnnData."""
    return path.lower().endswith(SUFFIX)


def check_cells(
    cells: CellOptions, target: str | None, *, pairs: str | None, weighted: bool, learns: bool
) -> None:
    """Find, before anything is read, what is missing from the options for an .h5ad file."""
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
    given = {
        "--time-key COLUMN": cells.time_key,
        "--source TIME": cells.source_time,
        "--target TIME": cells.target_time,
    }
    if missing := [name for name, value in given.items() if value is None]:
        raise click.UsageError(f"{SUFFIX} files also need {', '.join(missing)}.")
    if learns and (pairs, cells.pair_key, cells.groups_key) == (None, None, None):
        raise click.UsageError(
            "A cost is learned from what is known: give --pair-key COLUMN, --pairs FILE or "
            "--groups-key COLUMN, or use --cost sqeuclidean without --diffeo for the map of a "
            "fixed cost."
        )


def read_cells_of(
    path: str, options: CellOptions, pairs: str | None, *, many_to_many: bool
) -> Cells:
    """Both clouds of an .h5ad file and what is known of them."""
    from mongefit.single_cell._cells import take_cells

    table = None if pairs is None else _read_named_pairs(pairs)
    # Backed, because X may be large and often is not needed.
    adata = read_cells(path, backed=True)
    try:
        return take_cells(
            adata, time_key=options.time_key, source=options.source_time,
            target=options.target_time, use_rep=options.use_rep, pca=options.pca,
            n_components=options.n_components, pair_key=options.pair_key, pairs=table,
            groups_key=options.groups_key, weight_key=options.weight_key,
            many_to_many=many_to_many,
        )  # fmt: skip
    finally:
        adata.file.close()


def say_cells(
    console: Console,
    cells: Cells,
    inputs: Inputs,
    files: tuple[str, str | None],
    *,
    learns: bool,
) -> None:
    """Say which cells were taken, and what is known of them."""
    path, pairs = files
    times, representation = cells.times, cells.representation
    kind = "component" if representation.pca is not None else "column"
    columns = f"{count(inputs.x.shape[1], kind)} of {representation.where} ({path})"
    console.say(f"Source: {count(len(inputs.x), 'cell')} of {times.key} {times.source}, {columns}")
    console.say(f"Target: {count(len(inputs.y), 'cell')} of {times.key} {times.target}")
    held_out = inputs.held_out
    if inputs.clone is not None:
        known, hidden = (len(set(part.tolist())) for part in (inputs.clone, inputs.clone[held_out]))
        end = f", {hidden} held out" if learns and hidden else ""
        console.say(f"Clones: {known} seen at both times, {count(len(held_out), 'pair')}{end}")
    elif len(inputs.pairs):
        end = f", {held_out.sum()} held out" if learns else ""
        console.say(f"Pairs: {len(inputs.pairs)} known{end} ({pairs})")
    if inputs.groups is not None:
        console.say(f"Groups: {', '.join(sorted(set(inputs.groups[0]) - {None}))}")


def save_cells_model(model: MongeMap, cells: Cells, path: str, *, overwrite: bool) -> None:
    """Write a fitted model that remembers where its cells came from."""
    from mongefit.single_cell._mapping import with_origin

    with_origin(model, cells).save(path, overwrite=overwrite)


def read_cells(path: str, *, backed: bool = False) -> AnnData:
    """Read an .h5ad file; what cannot be read is named."""
    from mongefit._io import missing_file
    from mongefit.errors import DataError
    from mongefit.single_cell._columns import import_anndata

    if os.path.isdir(path):
        raise DataError(f"{path} is a folder. Name a file in it.")
    if not os.path.exists(path):
        raise DataError(missing_file(path))
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


def write_cells(path: str, adata: AnnData, *, overwrite: bool) -> None:
    """Write an .h5ad file, completely or not at all."""
    from mongefit._io import atomic_file

    with atomic_file(path, overwrite=overwrite) as stream:
        adata.write_h5ad(stream.name)


def _read_named_pairs(path: str) -> DataFrame:
    import pandas as pd

    from mongefit._io import missing_file
    from mongefit.errors import DataError

    if not os.path.exists(path):
        raise DataError(missing_file(path))
    try:
        frame = pd.read_csv(
            path,
            sep="\t" if path.lower().endswith(".tsv") else ",",
            dtype=str,
            keep_default_na=False,
            encoding="utf-8-sig",
            index_col=False,
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
