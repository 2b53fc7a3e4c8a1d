"""``mongefit fit``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.cells import (
    cell_options,
    check_clouds,
    has_legs,
    read_cells_of,
    read_legs_of,
    say_cells,
)
from mongefit._cli.console import Console, command, count, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import (
    TAUS,
    check_folder,
    check_output,
    check_training_options,
    flag_of,
    read_config,
    seed_option,
    training_options,
)

if TYPE_CHECKING:
    from mongefit._cli.inputs import Inputs
    from mongefit._estimators.chosen import MongeMapCV
    from mongefit._estimators.monge_map import MongeMap

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
@click.option("--pictures", metavar="FOLDER", help="Draw map.png, cost.png and more there.")
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
@seed_option(
    "--random-state", "--seed", text="Seed of the initial weights and of the held-out pairs."
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
    cells: dict[str, Any],
    training: dict[str, Any],
    **options: Any,
) -> None:
    """Learn a cost and its map from SOURCE to TARGET.

    Tables are .csv, .tsv, .npy or .npz files with a point in each row; name one array of several
    as file.npz:name. Model files are usually called something.mongefit.

    One .h5ad file in the place of both holds cells of both times, named by --time-key, --source and
    --target, or of several, named by --times.

    Without options of training, from --cost to --dtype, the kind of cost, epsilon and all else are
    chosen by pairs or clones that are held out in turn, as MongeMapCV does in Python. --tau-a and
    --tau-b go with that; --tau-a 1,0.99,0.9 is chosen among too. With any other a MongeMap with
    these options is trained; for cells --epsilon is then 0.05 and --batch-size at least 512 unless
    given.
    """
    if holdout is not None and not 0 <= holdout < 1:
        raise click.BadParameter("must be at least 0 and below 1.", param_hint="--holdout")
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint FOLDER, to go on from.")
    training = check_training_options(training)
    learns = training.get("cost") != "sqeuclidean" or training.get("diffeo") is not None
    weights = {"source_weight": source_weight, "target_weight": target_weight}
    weighted = any(path is not None for path in weights.values())
    check_clouds(source, target, cells, pairs=pairs, weighted=weighted, learns=learns)
    check_output(output, force=force, inputs=(source, target, pairs, *weights.values()))
    trains = learns and training.get("max_iter") != 0
    chooses = learns and not set(training).difference(TAUS)
    for name in TAUS:
        if not chooses and isinstance(training.get(name), tuple):
            raise click.UsageError(
                f"Several values of {flag_of(name)} are chosen among only where all else is: give "
                "one, or leave out the other options of training."
            )
    names = ["map.png", "cost.png", *(["choice.png"] if chooses else [])]
    names += ["history.png"] if trains else []
    drawn = {} if pictures is None else check_folder(pictures, names, force=force)

    if target is None and has_legs(cells):
        start_jax(console)
        from mongefit._cli.legs import LegsCommand, fit_several

        many_to_many = options["many_to_many"] or chooses
        legs = read_legs_of(source, cells, pairs, many_to_many=many_to_many)
        fit_several(
            console,
            legs,
            LegsCommand(
                source, output, force, holdout, pictures, checkpoint, resume, learns, chooses,
                training if chooses else legs.suited_options() | training,
                options | {"many_to_many": many_to_many},
            ),
        )  # fmt: skip
        return

    from mongefit._cli.inputs import hold_out, inputs_of, read_tables

    taken = None
    options["many_to_many"] |= chooses
    if target is None:
        start_jax(console)
        taken = read_cells_of(source, cells, pairs, many_to_many=options["many_to_many"])
        if not chooses:
            training = taken.suited_options() | training
        options["many_to_many"] |= taken.has_clones
        inputs = inputs_of(taken)
    else:
        inputs = read_tables(
            (source, target),
            pairs,
            weights,
            normalize_weight=options["normalize_weight"],
            many_to_many=options["many_to_many"],
        )
    if learns:
        # What is chosen by held-out clones is measured on them too, and clones are few.
        fraction = 0.0 if chooses and taken is not None and holdout is None else holdout
        inputs = hold_out(inputs, fraction, seed=options["random_state"])
    if taken is not None:
        say_cells(console, taken, source)
    else:
        features = count(inputs.x.shape[1], "feature")
        console.say(f"Source: {count(len(inputs.x), 'point')}, {features} ({source})")
        console.say(f"Target: {count(len(inputs.y), 'point')}, {features} ({target})")
    inputs.say_known(console, pairs, learns=learns)
    if taken is None:
        start_jax(console)
    if len(inputs.pairs) and not learns:
        console.note("note: this cost is fixed; the pairs only measure its error.")
    elif len(inputs.pairs) and not chooses and not inputs.held_out.any():
        console.note("note: no pairs are held out; the error on unseen ones is unknown.")

    from mongefit._cli.summary import fit_baseline, health, mass, table, titled

    if trains:
        console.note("Compiling, which takes longest the first time; then training.")
    started = time.monotonic()
    left = f"training is kept in {checkpoint}; the same command with --resume goes on from there"
    with interruptible(left, grace=60.0) if checkpoint else interruptible():
        known = inputs.knowledge if learns else {}
        kept: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
        verbose = int(console.shows_progress)
        if chooses:
            from mongefit._estimators.chosen import MongeMapCV

            own = {name: options[name] for name in ("normalize_weight", "random_state", "strict")}
            model = MongeMapCV(**own, **training, verbose=verbose)
            known["clones"] = None if inputs.clone is None else inputs.clone[~inputs.held_out]
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
        from mongefit.single_cell._model import with_origin

        with_origin(model, taken).save(output, overwrite=force)
    console.written.append(output)
    parts = next(iter(errors.values()), {})
    columns = {part: f"{part.replace('_', '-')} pairs" for part in parts}
    if pictures is not None:
        os.makedirs(pictures, exist_ok=True)
        _draw(console, drawn, titled(models, errors, columns), inputs)

    if chooses and model.report_ is not None:
        console.say(f"\n{model.report_}")
    if errors:
        console.say(f"\n{table(errors, columns)}\n")
    if line := mass(model):
        console.say(line)
    console.say(health(model, seconds))
    for path in console.written:
        console.say(f"Wrote {path}")
    console.result(
        model=output,
        files=console.written,
        n_source=len(inputs.x),
        n_target=len(inputs.y),
        n_features=inputs.x.shape[1],
        n_pairs=len(inputs.pairs),
        n_held_out=int(inputs.held_out.sum()),
        chosen=list(model.report_.rows) if chooses and model.report_ is not None else None,
        rmse=errors,
        died=model.died_,
        unexplained=model.unexplained_,
        n_iter=model.n_iter_,
        seconds=round(seconds, 3),
        diagnostics=model.diagnostics_,
        data_sha256=model.data_sha256_,
    )


def _errors(
    models: dict[str, MongeMap | MongeMapCV], inputs: Inputs, *, learns: bool
) -> dict[str, dict[str, float]]:
    """RMSE of each way to predict, on the pairs that were learned from and on the others."""
    import numpy as np

    from mongefit._cli.summary import rmse

    if not len(inputs.pairs):
        return {}
    x, y = inputs.x[inputs.pairs[:, 0]], inputs.y[inputs.pairs[:, 1]]
    mean = np.average(inputs.y, axis=0, weights=inputs.weights["target_weight"])
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


def _draw(
    console: Console,
    paths: dict[str, str],
    models: dict[str, MongeMap | MongeMapCV],
    inputs: Inputs,
) -> None:
    import numpy as np

    from mongefit._cli.pictures import draw

    drawn = np.unique(np.linspace(0, len(inputs.x) - 1, _MAX_DRAWN).astype(int))
    truth = None
    # A clone has no one place where a source should be.
    if len(inputs.pairs) and inputs.clone is None:
        # Rows that stay NaN are not drawn.
        truth = np.full_like(inputs.x, np.nan)
        shown = inputs.pairs[inputs.held_out] if inputs.held_out.any() else inputs.pairs
        truth[shown[:, 0]] = inputs.y[shown[:, 1]]
        truth = truth[drawn]
    draw(console, paths, models, inputs.x[drawn], inputs.y, truth)
