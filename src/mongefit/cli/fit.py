"""``mongefit fit``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from mongefit.cli.cells import (
    CellOptions,
    cell_options,
    check_cells,
    is_cells,
    read_selection,
    save_cells_model,
    say_cells,
    suited_options,
)
from mongefit.cli.console import Console, command, count, keeping, start_jax
from mongefit.cli.interrupts import promptly_interruptible
from mongefit.cli.options import (
    check_training_options,
    number_or_range,
    read_config,
    whole_numbers,
)
from mongefit.cli.outputs import check_folder, check_output

if TYPE_CHECKING:
    from mongefit.cli.clouds import Clouds
    from mongefit.estimator import MongeMap

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
    "--cost",
    type=click.Choice(["icnn", "conjugate_icnn", "sqeuclidean"]),
    default="icnn",
    show_default=True,
    help="Learned convex function, learned by its conjugate, or squared Euclidean.",
)
@click.option(
    "--diffeo",
    type=click.Choice(["none", "shared", "separate"]),
    default="none",
    show_default=True,
    help="Flows: none, one for both clouds, one each.",
)
@click.option(
    "--hidden-layer-sizes",
    callback=whole_numbers,
    metavar="SIZES",
    default="64,64",
    show_default=True,
    help="Widths of the learned function.",
)
@click.option(
    "--symmetric/--no-symmetric", default=True, show_default=True, help="Whether h(-z) = h(z)."
)
@click.option("--alpha", type=float, default=0.01, show_default=True, help="Strong convexity of h.")
@click.option(
    "--epsilon",
    callback=number_or_range,
    metavar="NUMBER|START,END",
    default="0.01",
    show_default=True,
    help="Regularisation relative to the mean cost.",
)
@click.option("--max-iter", type=int, default=500, show_default=True, help="Training steps.")
@click.option(
    "--batch-size", type=int, help="Points of each cloud in a training step; all by default."
)
@click.option(
    "--n-init",
    type=int,
    default=1,
    show_default=True,
    help="Starts, of which the one with the least loss is kept.",
)
@click.option(
    "--learning-rate",
    callback=number_or_range,
    metavar="NUMBER|START,END",
    default="0.05",
    show_default=True,
    help="Adam's rate for h.",
)
@click.option(
    "--diffeo-learning-rate",
    callback=number_or_range,
    metavar="NUMBER|START,END",
    default="0.005",
    show_default=True,
    help="Adam's rate for the flows.",
)
@click.option(
    "--dual",
    type=click.Choice(["newton", "sinkhorn"]),
    default="newton",
    show_default=True,
    help="How potentials are found in training.",
)
@click.option(
    "--differentiate",
    type=click.Choice(["implicit", "unrolled"]),
    default="implicit",
    show_default=True,
    help="How potentials are differentiated.",
)
@click.option(
    "--random-state",
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the initial weights and of the held-out pairs.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "mixed", "float32"]),
    default="float64",
    show_default=True,
    help="Precision.",
)
@click.option("--strict", is_flag=True, help="Fail (exit 4) where a solve did not converge.")
@click.option("--checkpoint", metavar="FOLDER", help="Keep the training there while it goes on.")
@click.option("--resume", is_flag=True, help="Go on with the training in the --checkpoint folder.")
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
    **options: Any,
) -> None:
    """Learn a cost and its map from SOURCE to TARGET.

    Tables are .csv, .tsv, .npy or .npz files with a point in each row; name one array of several
    as file.npz:name. Model files are usually called something.mongefit.

    One .h5ad file in the place of both holds cells of both times, named by --time-key, --source and
    --target. For cells --epsilon is 0.05 and --batch-size at least 512 unless they are given, and
    for clones training is short and the network small: mongefit select chooses both by held-out
    clones.
    """
    if holdout is not None and not 0 <= holdout < 1:
        raise click.BadParameter("must be at least 0 and below 1.", param_hint="--holdout")
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint FOLDER, to go on from.")
    options["diffeo"] = None if options["diffeo"] == "none" else options["diffeo"]
    learns = options["cost"] != "sqeuclidean" or options["diffeo"] is not None
    if is_cells(source):
        weighted = source_weight is not None or target_weight is not None
        check_cells(cells, target, pairs=pairs, weighted=weighted, learns=learns)
    else:
        _check_tables(cells, target, pairs, learns=learns)
    check_training_options(options)
    check_output(output, force=force, inputs=(source, target, pairs, source_weight, target_weight))
    names = ["map.png", "cost.png", "history.png"]
    if not learns or options["max_iter"] == 0:
        names.remove("history.png")
    drawn = {} if pictures is None else check_folder(pictures, names, force=force)

    from mongefit.cli.clouds import clouds_of, hold_out, read_clouds

    selection = None
    if target is None:
        start_jax(console)
        selection = read_selection(source, cells, pairs, many_to_many=options["many_to_many"])
        options |= suited_options(selection)
        clouds = clouds_of(selection)
    else:
        clouds = read_clouds(
            source,
            target,
            pairs,
            source_weight=source_weight,
            target_weight=target_weight,
            normalize_weight=options["normalize_weight"],
            many_to_many=options["many_to_many"],
        )
    if learns:
        clouds = hold_out(clouds, holdout, seed=options["random_state"])
    if selection is not None:
        say_cells(console, selection, clouds, (source, pairs), learns=learns)
    else:
        _say_what_was_taken(console, clouds, (source, target, pairs), learns=learns)
        start_jax(console)
    _note_what_pairs_are_for(console, clouds, learns=learns)

    from mongefit.cli.summary import fit_baseline, health, table
    from mongefit.estimator import MongeMap

    model = MongeMap(**options, verbose=int(console.shows_progress))
    models = {"squared_euclidean": model}
    weights: dict[str, Any] = {"source_weight": clouds.a, "target_weight": clouds.b}
    if learns and options["max_iter"] > 0:
        console.note("Compiling, which takes longest the first time; then training.")
    started = time.monotonic()
    with keeping(_what_is_kept(checkpoint)) if checkpoint else promptly_interruptible():
        known = clouds.knowledge if learns else {}
        model.fit(clouds.x, clouds.y, **known, **weights, checkpoint=checkpoint, resume=resume)
        seconds = time.monotonic() - started
        if learns:
            baseline = fit_baseline(console, model, clouds.x, clouds.y, **weights)
            models = {"squared_euclidean": baseline, "learned_cost": model}
        errors = _errors(models, clouds, learns=learns)
    if selection is None:
        model.save(output, overwrite=force)
    else:
        save_cells_model(model, selection, output, overwrite=force)
    console.wrote(output)
    if pictures is not None:
        os.makedirs(pictures, exist_ok=True)
        _draw(console, drawn, models, clouds, errors)

    if errors:
        console.say(f"\n{table(errors, _columns(errors))}\n")
    console.say(health(model, seconds))
    for path in console.written:
        console.say(f"Wrote {path}")
    console.result(
        {
            "model": output,
            "files": console.written,
            "n_source": len(clouds.x),
            "n_target": len(clouds.y),
            "n_features": clouds.x.shape[1],
            "n_pairs": len(clouds.pairs),
            "n_held_out": int(clouds.held_out.sum()),
            "rmse": errors,
            "n_iter": model.n_iter_,
            "seconds": round(seconds, 3),
            "diagnostics": model.diagnostics_,
            "data_sha256": model.data_sha256_,
        }
    )


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
    console: Console, clouds: Clouds, files: tuple[str, str | None, str | None], *, learns: bool
) -> None:
    source, target, pairs = files
    features = count(clouds.x.shape[1], "feature")
    console.say(f"Source: {count(len(clouds.x), 'point')}, {features} ({source})")
    console.say(f"Target: {count(len(clouds.y), 'point')}, {features} ({target})")
    if pairs is not None:
        held_out = f", {clouds.held_out.sum()} held out" if learns else ""
        console.say(f"Pairs: {len(clouds.pairs)} known{held_out} ({pairs})")


def _note_what_pairs_are_for(console: Console, clouds: Clouds, *, learns: bool) -> None:
    if not len(clouds.pairs):
        return
    if not learns:
        console.note("note: this cost is fixed; the pairs only measure its error.")
    elif not clouds.held_out.any():
        console.note("note: no pairs are held out; the error on unseen ones is unknown.")


def _errors(
    models: dict[str, MongeMap], clouds: Clouds, *, learns: bool
) -> dict[str, dict[str, float]]:
    """RMSE of each way to predict, on the pairs that were learned from and on the others."""
    import numpy as np

    from mongefit.cli.summary import rmse

    if not len(clouds.pairs):
        return {}
    x, y = clouds.x[clouds.pairs[:, 0]], clouds.y[clouds.pairs[:, 1]]
    mean = np.average(clouds.y, axis=0, weights=clouds.b)
    predictions = {"identity": x, "target_mean": np.broadcast_to(mean, y.shape)}
    predictions |= {name: model.transform(x) for name, model in models.items()}
    parts = {"training" if learns else "known": ~clouds.held_out}
    if clouds.held_out.any():
        parts["held_out"] = clouds.held_out
    weight = np.ones(len(x)) if clouds.pair_weight is None else clouds.pair_weight
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
    clouds: Clouds,
    errors: dict[str, dict[str, float]],
) -> None:
    import numpy as np

    from mongefit.cli.pictures import save_cost, save_history, save_map

    drawn = np.unique(np.linspace(0, len(clouds.x) - 1, _MAX_DRAWN).astype(int))
    truth = None
    # A clone has no one place where a source should be.
    if len(clouds.pairs) and clouds.clone is None:
        # Rows that stay NaN are not drawn.
        truth = np.full_like(clouds.x, np.nan)
        shown = clouds.pairs[clouds.held_out] if clouds.held_out.any() else clouds.pairs
        truth[shown[:, 0]] = clouds.y[shown[:, 1]]
        truth = truth[drawn]
    *_, model = models.values()
    titled = {_title(name, errors): found for name, found in models.items()}
    save_map(paths["map.png"], titled, clouds.x[drawn], clouds.y, truth)
    console.wrote(paths["map.png"])
    save_cost(paths["cost.png"], model, clouds.x[drawn])
    console.wrote(paths["cost.png"])
    if "history.png" in paths:
        save_history(paths["history.png"], model)
        console.wrote(paths["history.png"])


def _title(name: str, errors: dict[str, dict[str, float]]) -> str:
    from mongefit.cli.summary import LABELS

    if not errors:
        return LABELS[name]
    part, error = list(errors[name].items())[-1]
    return f"{LABELS[name]}\nRMSE {error:.3g} on {part.replace('_', '-')} pairs"
