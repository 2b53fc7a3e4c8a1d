"""``mongefit fit``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.cells import (
    CellOptions,
    cell_options,
    check_cells,
    is_cells,
    read_cells_of,
    save_cells_model,
    say_cells,
)
from mongefit._cli.console import Console, command, count, keeping, start_jax
from mongefit._cli.interrupts import promptly_interruptible
from mongefit._cli.options import check_training_options, read_config, training_options
from mongefit._cli.outputs import check_folder, check_output

if TYPE_CHECKING:
    from mongefit._cli.inputs import Inputs
    from mongefit._estimators.monge_map import MongeMap
    from mongefit.model_selection import Selection

_MAX_DRAWN = 2000


@click.command()
@click.argument("source")
@click.argument("target", required=False)
@click.option(
    "--pairs",
    metavar="FILE",
    help="Known pairs: row of SOURCE, row of TARGET, from 0. h5ad: names of cells, with the header "
    "source,target.",
)
@click.option("-o", "--output", metavar="MODEL", required=True, help="Model file to write.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--pictures", metavar="FOLDER", help="Draw map.png, cost.png and history.png there.")
@click.option(
    "--holdout",
    type=float,
    metavar="FRACTION",
    help="Share of the pairs kept from training to measure the error.  [default: 0.2 from 20 pairs "
    "on, else 0]",
)
@click.option(
    "--config",
    metavar="FILE.toml",
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="Options from a file; the command line wins.",
)
@click.option("--source-weight", metavar="FILE", help="Weights of the source, one column.")
@click.option("--target-weight", metavar="FILE", help="Weights of the target, one column.")
@click.option("--normalize-weight", is_flag=True, help="Divide weights by their sum.")
@click.option("--many-to-many", is_flag=True, help="Accept several targets for one source.")
@click.option(
    "--random-state",
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the initial weights and of the held-out pairs.",
)
@click.option("--strict", is_flag=True, help="Fail (exit 4) where a solve did not converge.")
@click.option("--checkpoint", metavar="FOLDER", help="Keep the training there while it goes on.")
@click.option("--resume", is_flag=True, help="Go on with the training in the --checkpoint folder.")
@training_options
@cell_options
@command
def fit(
    console: Console,
    source: str,
    target: str | None,
    pairs: str | None,
    output: str,
    force: bool,
    pictures: str | None,
    holdout: float | None,
    source_weight: str | None,
    target_weight: str | None,
    checkpoint: str | None,
    resume: bool,
    cells: CellOptions,
    training: dict[str, Any],
    **options: Any,
) -> None:
    """Learn a cost and its map from SOURCE to TARGET.

    Tables are .csv, .tsv, .npy or .npz files with a point in each row; name one array of several
    as file.npz:name. Model files are usually called something.mongefit.

    One .h5ad file in the place of both holds cells of both times, named by --time-key, --source and
    --target. Without options of training, from --cost to --dtype, a small cost is learned from
    their clones and stopped where clones that are held out in turn are predicted best, as
    mongefit.single_cell.fit does. With any of them, --epsilon is 0.05 and --batch-size at least 512
    unless given.
    """
    if holdout is not None and not 0 <= holdout < 1:
        raise click.BadParameter("must be at least 0 and below 1.", param_hint="--holdout")
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint FOLDER, to go on from.")
    learns = training.get("cost") != "sqeuclidean" or training.get("diffeo") is not None
    if is_cells(source):
        weighted = source_weight is not None or target_weight is not None
        check_cells(cells, target, pairs=pairs, weighted=weighted, learns=learns)
    else:
        _check_tables(cells, target, pairs, learns=learns)
    check_training_options(training)
    check_output(output, force=force, inputs=(source, target, pairs, source_weight, target_weight))
    names = ["map.png", "cost.png", "history.png"]
    if not learns or training.get("max_iter") == 0:
        names.remove("history.png")
    drawn = {} if pictures is None else check_folder(pictures, names, force=force)

    from mongefit._cli.inputs import hold_out, inputs_of, read_tables

    taken, chooses = None, False
    if target is None:
        start_jax(console)
        taken = read_cells_of(source, cells, pairs, many_to_many=options["many_to_many"])
        chooses = not training and taken.can_stop_early
        if not chooses:
            training = taken.suited_options() | training
        options["many_to_many"] |= taken.has_clones
        inputs = inputs_of(taken)
    else:
        inputs = read_tables(
            source,
            target,
            pairs,
            source_weight=source_weight,
            target_weight=target_weight,
            normalize_weight=options["normalize_weight"],
            many_to_many=options["many_to_many"],
        )
    if learns:
        # What is chosen by held-out clones is measured on them too.
        fraction = 0.0 if chooses and holdout is None else holdout
        inputs = hold_out(inputs, fraction, seed=options["random_state"])
    if taken is not None:
        say_cells(console, taken, inputs, (source, pairs), learns=learns)
    else:
        _say_what_was_taken(console, inputs, (source, target, pairs), learns=learns)
        start_jax(console)
    if not chooses:
        _note_what_pairs_are_for(console, inputs, learns=learns)

    from mongefit._cli.summary import fit_baseline, health, table

    if learns and training.get("max_iter") != 0:
        console.note("Compiling, which takes longest the first time; then training.")
    started = time.monotonic()
    with keeping(_what_is_kept(checkpoint)) if checkpoint else promptly_interruptible():
        known = inputs.knowledge if learns else {}
        kept: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
        verbose = int(console.shows_progress)
        if chooses:
            chosen = _choose(inputs, verbose=verbose, seed=options["random_state"], **kept)
            model = chosen.model
        else:
            from mongefit._estimators.monge_map import MongeMap

            model = MongeMap(**options, **training, verbose=verbose)
            model.fit(inputs.x, inputs.y, **known, **inputs.weights, **kept)
        seconds = time.monotonic() - started
        models = {"squared_euclidean": model}
        if learns:
            baseline = fit_baseline(console, model, inputs.x, inputs.y, **inputs.weights)
            models = {"squared_euclidean": baseline, "learned_cost": model}
        errors = _errors(models, inputs, learns=learns)
    if taken is None:
        model.save(output, overwrite=force)
    else:
        save_cells_model(model, taken, output, overwrite=force)
    console.wrote(output)
    if pictures is not None:
        os.makedirs(pictures, exist_ok=True)
        _draw(console, drawn, models, inputs, errors)

    if chooses:
        console.say(f"\n{chosen}")
    if errors:
        console.say(f"\n{table(errors, _columns(errors))}\n")
    console.say(health(model, seconds))
    for path in console.written:
        console.say(f"Wrote {path}")
    console.result(
        {
            "model": output,
            "files": console.written,
            "n_source": len(inputs.x),
            "n_target": len(inputs.y),
            "n_features": inputs.x.shape[1],
            "n_pairs": len(inputs.pairs),
            "n_held_out": int(inputs.held_out.sum()),
            "chosen": list(chosen.table.rows) if chooses else None,
            "rmse": errors,
            "n_iter": model.n_iter_,
            "seconds": round(seconds, 3),
            "diagnostics": model.diagnostics_,
            "data_sha256": model.data_sha256_,
        }
    )


def _choose(
    inputs: Inputs, *, verbose: int, seed: int, checkpoint: str | None, resume: bool
) -> Selection:
    """Stop the first candidate where held-out clones are predicted best, on what is not hidden."""
    import itertools

    from mongefit.model_selection import default_candidates, select

    seen = ~inputs.held_out
    first = dict(itertools.islice(default_candidates().items(), 1))
    clone: Any = inputs.clone
    return select(
        first, inputs.x, inputs.y,
        pairs=inputs.pairs[seen], pair_weight=inputs.knowledge["pair_weight"], clones=clone[seen],
        **inputs.weights, random_state=seed, verbose=verbose, checkpoint=checkpoint, resume=resume,
    )  # fmt: skip


def _what_is_kept(checkpoint: str) -> str:
    return f"training is kept in {checkpoint}; the same command with --resume goes on from there"


def _check_tables(
    cells: CellOptions, target: str | None, pairs: str | None, *, learns: bool
) -> None:
    """Find, before anything is read, what is missing or too much for two tables."""
    cells.refuse()
    if target is None:
        raise click.UsageError(
            "Missing argument 'TARGET': each cloud has a table of its own, unless SOURCE is an "
            ".h5ad file."
        )
    if learns and pairs is None:
        raise click.UsageError(
            "A cost is learned from known pairs: give --pairs FILE, or use --cost sqeuclidean "
            "without --diffeo for the map of a fixed cost."
        )


def _say_what_was_taken(
    console: Console, inputs: Inputs, files: tuple[str, str | None, str | None], *, learns: bool
) -> None:
    source, target, pairs = files
    features = count(inputs.x.shape[1], "feature")
    console.say(f"Source: {count(len(inputs.x), 'point')}, {features} ({source})")
    console.say(f"Target: {count(len(inputs.y), 'point')}, {features} ({target})")
    if pairs is not None:
        held_out = f", {inputs.held_out.sum()} held out" if learns else ""
        console.say(f"Pairs: {len(inputs.pairs)} known{held_out} ({pairs})")


def _note_what_pairs_are_for(console: Console, inputs: Inputs, *, learns: bool) -> None:
    if not len(inputs.pairs):
        return
    if not learns:
        console.note("note: this cost is fixed; the pairs only measure its error.")
    elif not inputs.held_out.any():
        console.note("note: no pairs are held out; the error on unseen ones is unknown.")


def _errors(
    models: dict[str, MongeMap], inputs: Inputs, *, learns: bool
) -> dict[str, dict[str, float]]:
    """RMSE of each way to predict, on the pairs that were learned from and on the others."""
    import numpy as np

    from mongefit._cli.summary import rmse

    if not len(inputs.pairs):
        return {}
    x, y = inputs.x[inputs.pairs[:, 0]], inputs.y[inputs.pairs[:, 1]]
    mean = np.average(inputs.y, axis=0, weights=inputs.b)
    predictions = {"identity": x, "target_mean": np.broadcast_to(mean, y.shape)}
    predictions |= {name: model.transform(x) for name, model in models.items()}
    parts = {"training" if learns else "known": ~inputs.held_out}
    if inputs.held_out.any():
        parts["held_out"] = inputs.held_out
    weight = np.ones(len(x)) if inputs.pair_weight is None else inputs.pair_weight
    return {
        name: {
            part: rmse(mapped[chosen], y[chosen], weight[chosen]) for part, chosen in parts.items()
        }
        for name, mapped in predictions.items()
    }


def _columns(errors: dict[str, dict[str, float]]) -> dict[str, str]:
    return {part: f"{part.replace('_', '-')} pairs" for part in errors["identity"]}


def _draw(
    console: Console,
    paths: dict[str, str],
    models: dict[str, MongeMap],
    inputs: Inputs,
    errors: dict[str, dict[str, float]],
) -> None:
    import numpy as np

    from mongefit._cli.pictures import save_cost, save_history, save_map

    drawn = np.unique(np.linspace(0, len(inputs.x) - 1, _MAX_DRAWN).astype(int))
    truth = None
    # A clone has no one place where a source should be.
    if len(inputs.pairs) and inputs.clone is None:
        # Rows that stay NaN are not drawn.
        truth = np.full_like(inputs.x, np.nan)
        shown = inputs.pairs[inputs.held_out] if inputs.held_out.any() else inputs.pairs
        truth[shown[:, 0]] = inputs.y[shown[:, 1]]
        truth = truth[drawn]
    *_, model = models.values()
    titled = {_title(name, errors): found for name, found in models.items()}
    save_map(paths["map.png"], titled, inputs.x[drawn], inputs.y, truth)
    console.wrote(paths["map.png"])
    save_cost(paths["cost.png"], model, inputs.x[drawn])
    console.wrote(paths["cost.png"])
    if "history.png" in paths:
        save_history(paths["history.png"], model)
        console.wrote(paths["history.png"])


def _title(name: str, errors: dict[str, dict[str, float]]) -> str:
    from mongefit._cli.summary import LABELS

    if not errors:
        return LABELS[name]
    part, error = list(errors[name].items())[-1]
    return f"{LABELS[name]}\nRMSE {error:.3g} on {part.replace('_', '-')} pairs"
