"""``mongefit select``."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import click

from mongefit._cli.cells import (
    SUFFIX,
    cell_options,
    check_clouds,
    is_cells,
    read_cells_of,
    say_cells,
)
from mongefit._cli.console import Console, command, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import check_output, flag_of, seed_option


@click.command()
@click.argument("source", metavar="CELLS")
@click.option(
    "--pairs", metavar="FILE", help="Known pairs: names of cells, with the header source,target."
)
@click.option("-o", "--output", metavar="MODEL", required=True, help="Model file to write.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option(
    "--folds", type=click.IntRange(min=2), help="Folds.  [default: 5; few clones: one each]"
)
@click.option(
    "--max-cells",
    type=click.IntRange(min=2),
    default=512,
    help="Cells of each time to choose on, with all that are in clones.",
)
@click.option(
    "--nested",
    is_flag=True,
    help="Also estimate the error on clones that the choice has not seen; five times as long.",
)
@seed_option("--random-state", "--seed", text="Seed of the folds.")
@click.option("--checkpoint", metavar="FOLDER", help="Keep every candidate that is judged there.")
@click.option("--resume", is_flag=True, help="Go on with the choice in the --checkpoint folder.")
@cell_options
@command
def select(
    console: Console,
    source: str,
    pairs: str | None,
    output: str,
    force: bool,
    folds: int | None,
    max_cells: int,
    nested: bool,
    random_state: int,
    checkpoint: str | None,
    resume: bool,
    cells: dict[str, Any],
) -> None:
    """Choose settings by clones that are held out, and fit them on all.

    CELLS is an .h5ad file with cells of both times, named by --time-key, --source and --target, and
    their clones by --pair-key. The table shows what no map should lose to on the same clones.
    """
    if not is_cells(source):
        raise click.UsageError(f"select works on {SUFFIX} files; {source} is none.")
    if cells["groups_key"] is not None:
        raise click.UsageError("select chooses by clones or pairs: leave out --groups-key.")
    for name in ("times", "batch_key"):
        if cells[name] is not None:
            raise click.UsageError(
                f"select is for two times and no batches: leave out {flag_of(name)}. mongefit fit "
                "takes it, and chooses settings too."
            )
    if cells["diffusion"] is not None:
        raise click.UsageError(
            "select does not work in diffusion components: leave out --diffusion. mongefit fit "
            "takes it, and mongefit fates chooses maps in several kinds of coordinates."
        )
    check_clouds(source, None, cells, pairs=pairs)
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint FOLDER, to go on from.")
    check_output(output, force=force, inputs=(source, pairs))
    start_jax(console)
    taken = read_cells_of(source, cells, pairs, many_to_many=True)

    from mongefit import model_selection
    from mongefit._cli.inputs import inputs_of
    from mongefit.single_cell._model import with_origin

    say_cells(console, taken, source)
    inputs_of(taken).say_known(console, pairs, learns=False)
    console.note("Compiling, which takes longest the first time; then training on each fold.")
    settings: dict[str, Any] = taken.known_pairs() | {
        "n_folds": folds,
        "max_points": max_cells,
        "random_state": random_state,
        "verbose": int(console.shows_progress),
    }
    started = time.monotonic()
    left = f"what was judged is kept in {checkpoint}; the same command with --resume goes on"
    with interruptible(left, grace=60.0) if checkpoint else interruptible():
        found = model_selection.select(
            None, taken.x, taken.y, **settings, checkpoint=checkpoint, resume=resume
        )
        unseen = None
        if nested:
            unseen = model_selection.cross_validate(None, taken.x, taken.y, **settings)
    with_origin(found.model, taken).save(output, overwrite=force)
    console.written.append(output)
    console.say(f"\n{found}\n")
    if unseen is not None:
        console.say(f"Chosen without the clones that are judged:\n\n{unseen}\n")
    console.say(f"{time.monotonic() - started:.0f} s. Wrote {output}")
    console.result(
        model=output,
        files=console.written,
        choice=dataclasses.asdict(found.choice),
        rows=list(found.table.rows),
        nested_rows=None if unseen is None else list(unseen.table.rows),
        seconds=round(time.monotonic() - started, 3),
        data_sha256=found.model.data_sha256_,
    )
