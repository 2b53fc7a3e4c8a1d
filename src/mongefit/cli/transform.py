"""``mongefit transform``."""

from __future__ import annotations

import click

from mongefit.cli.console import Console, command, count, start_jax
from mongefit.cli.interrupts import promptly_interruptible
from mongefit.cli.outputs import check_output


@click.command()
@click.argument("model")
@click.argument("points")
@click.option("-o", "--output", metavar="OUT", required=True, help="Table of mapped points.")
@click.option("--inverse", is_flag=True, help="Map targets back to sources.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@command
def transform(
    console: Console, model: str, points: str, output: str, inverse: bool, force: bool
) -> None:
    """Map the POINTS of a table with a MODEL that fit has written.

    POINTS and OUT are .csv, .tsv, .npy or .npz files with a point in each row.
    """
    from mongefit.errors import DataError
    from mongefit.files import SUFFIXES, read_points, write_points
    from mongefit.validation import check_points

    check_output(output, force=force, inputs=(model, points), suffixes=SUFFIXES)
    queries = check_points(read_points(points), points)

    start_jax(console)
    from mongefit.storage import load

    estimator = load(model)
    n_points, n_features = queries.shape
    if n_features != estimator.n_features_in_:
        expected = count(estimator.n_features_in_, "feature")
        raise DataError(f"The model expects {expected}, got {n_features}.")
    with promptly_interruptible():
        move = estimator.inverse_transform if inverse else estimator.transform
        mapped = move(queries)
    write_points(output, mapped, overwrite=force)
    console.wrote(output)

    console.say(f"Mapped {count(n_points, 'point')}{' back' if inverse else ''}.")
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
