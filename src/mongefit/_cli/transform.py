"""``mongefit transform``."""

from __future__ import annotations

import click

from mongefit._cli.cells import SUFFIX, is_cells, read_cells
from mongefit._cli.console import Console, command, count, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import check_output


@click.command()
@click.argument("model")
@click.argument("points")
@click.option("-o", "--output", metavar="OUT", required=True, help="Table of mapped points.")
@click.option("--inverse", is_flag=True, help="Map targets back to sources.")
@click.option(
    "--source", metavar="TIME", help="h5ad: of several times that to map from.  [default: first]"
)
@click.option(
    "--target", metavar="TIME", help="h5ad: of several times that to map to.  [default: last]"
)
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
    source: str | None,
    target: str | None,
    key_added: str | None,
    force: bool,
) -> None:
    """Map the POINTS of a table with a MODEL that fit has written.

    POINTS and OUT are .csv, .tsv, .npy or .npz files with a point in each row. For a MODEL of cells
    both may be .h5ad files: OUT then holds all of POINTS, with the predicted states of the source
    (with --inverse, of the target) in obsm, and how far each cell moves in obs.
    """
    cells = is_cells(points)
    for flag, value in (("--key-added", key_added), ("--source", source), ("--target", target)):
        if value is not None and not cells:
            raise click.UsageError(f"{flag} is for {SUFFIX} files.")
    from mongefit import _io as tables
    from mongefit._validation import check_points
    from mongefit.errors import DataError

    suffixes = (SUFFIX,) if cells else tables.SUFFIXES
    check_output(output, force=force, inputs=(model, points), suffixes=suffixes)
    if cells:
        start_jax(console)
        from mongefit.single_cell import SingleCellMap, transport
        from mongefit.single_cell import load as load_cells

        key = "mongefit" if key_added is None else key_added
        fitted = load_cells(model)
        if not isinstance(fitted, SingleCellMap):
            raise DataError(
                f"{model} holds an average of {len(fitted.maps)} maps, each in coordinates of its "
                "own, so that a cell has no one place to go to. Where cells go is told by their "
                f"fates: mongefit fates {points} --from {model} --key COLUMN -o {output}"
            )
        adata = read_cells(points)
        with interruptible():
            transport(fitted, adata, source=source, target=target, key_added=key, inverse=inverse)
        with tables.atomic_file(output, overwrite=force) as stream:
            adata.write_h5ad(stream.name)
        n_points = int(adata.obs[f"{key}_displacement"].notna().sum())
        n_features = adata.obsm[f"X_{key}"].shape[1]
    else:
        queries = check_points(tables.read_points(points), points)
        start_jax(console)
        from mongefit._storage import load

        estimator = load(model)
        n_points, n_features = queries.shape
        if n_features != estimator.n_features_in_:
            expected = count(estimator.n_features_in_, "feature")
            raise DataError(f"The model expects {expected}, got {n_features}.")
        with interruptible():
            mapped = (estimator.inverse_transform if inverse else estimator.transform)(queries)
        tables.write_points(output, mapped, overwrite=force)

    console.say(
        f"Mapped {count(n_points, 'cell' if cells else 'point')}{' back' if inverse else ''}."
    )
    console.say(f"Wrote {output}")
    console.result(
        model=model,
        points=points,
        output=output,
        n_points=n_points,
        n_features=n_features,
        inverse=inverse,
    )
