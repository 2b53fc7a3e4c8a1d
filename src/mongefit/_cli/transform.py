"""``mongefit transform``."""

from __future__ import annotations

import click

from mongefit._cli.cells import SUFFIX, is_cells, read_cells, write_cells
from mongefit._cli.console import Console, command, count, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.outputs import check_output


@click.command()
@click.argument("model")
@click.argument("points")
@click.option("-o", "--output", metavar="OUT", required=True, help="Table of mapped points.")
@click.option("--inverse", is_flag=True, help="Map targets back to sources.")
@click.option(
    "--key-added", metavar="NAME", help="h5ad: name of what is added.  [default: mongefit]"
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@command
def transform(
    console: Console,
    model: str,
    points: str,
    output: str,
    inverse: bool,
    key_added: str | None,
    force: bool,
) -> None:
    """Map the POINTS of a table with a MODEL that fit has written.

    POINTS and OUT are .csv, .tsv, .npy or .npz files with a point in each row. For a MODEL of cells
    both may be .h5ad files: OUT then holds all of POINTS, with the predicted states of the source
    (with --inverse, of the target) in obsm, and how far each cell moves in obs.
    """
    if is_cells(points):
        key = "mongefit" if key_added is None else key_added
        n_points, n_features = _transform_cells(
            console, model, points, output, key_added=key, inverse=inverse, force=force
        )
    else:
        if key_added is not None:
            raise click.UsageError(f"--key-added is for {SUFFIX} files.")
        n_points, n_features = _transform_table(
            console, model, points, output, inverse=inverse, force=force
        )
    noun = "cell" if is_cells(points) else "point"

    console.say(f"Mapped {count(n_points, noun)}{' back' if inverse else ''}.")
    console.say(f"Wrote {output}")
    console.result(
        {
            "model": model,
            "points": points,
            "output": output,
            "n_points": n_points,
            "n_features": n_features,
            "inverse": inverse,
        }
    )


def _transform_table(
    console: Console, model: str, points: str, output: str, *, inverse: bool, force: bool
) -> tuple[int, int]:
    """Map a table; its numbers of points and of features."""
    from mongefit._io import SUFFIXES, read_points, write_points
    from mongefit._validation import check_points
    from mongefit.errors import DataError

    check_output(output, force=force, inputs=(model, points), suffixes=SUFFIXES)
    queries = check_points(read_points(points), points)

    start_jax(console)
    from mongefit._storage.models import load

    estimator = load(model)
    n_points, n_features = queries.shape
    if n_features != estimator.n_features_in_:
        expected = count(estimator.n_features_in_, "feature")
        raise DataError(f"The model expects {expected}, got {n_features}.")
    with interruptible():
        move = estimator.inverse_transform if inverse else estimator.transform
        mapped = move(queries)
    write_points(output, mapped, overwrite=force)
    return n_points, n_features


def _transform_cells(
    console: Console,
    model: str,
    points: str,
    output: str,
    *,
    key_added: str,
    inverse: bool,
    force: bool,
) -> tuple[int, int]:
    """Map the cells of one time; their number, and that of their features."""
    check_output(output, force=force, inputs=(model, points), suffixes=(SUFFIX,))

    start_jax(console)
    from mongefit.single_cell import load, transport

    fitted = load(model)
    adata = read_cells(points)
    with interruptible():
        transport(fitted, adata, key_added=key_added, inverse=inverse)
    write_cells(output, adata, overwrite=force)
    n_points = int(adata.obs[f"{key_added}_displacement"].notna().sum())
    return n_points, fitted.model.n_features_in_
