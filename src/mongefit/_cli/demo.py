"""``mongefit demo``."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any

import click

from mongefit._cli.console import Console, command, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import check_folder, seed_option

_DATASETS = ("t_shape", "moon", "spiral")
_N_TRAINING, _N_NEW = 128, 32
_FILES = {
    "map.png": "both maps on the new points",
    "cost.png": "the learned cost",
    "choice.png": "what the map was chosen from, on held-out pairs",
    "model.mongefit": "the fitted model",
    "source.csv": "training points",
    "target.csv": "where they go",
    "pairs.csv": "which goes where",
    "new_points.csv": "points to try the model on",
}


@click.command()
@click.option(
    "-o", "--output", metavar="FOLDER", default="mongefit-demo", help="Folder to leave files in."
)
@click.option("--dataset", type=click.Choice(_DATASETS), default="t_shape", help="Built-in data.")
@seed_option("--seed", text="Seed of the data and of the folds.")
@click.option("--force", is_flag=True, help="Overwrite an earlier demo.")
@command
def demo(console: Console, output: str, dataset: str, seed: int, force: bool) -> None:
    """Learn a map from built-in data and draw it.

    Takes less than a minute; needs no files and no network.
    """
    paths = check_folder(output, _FILES, force=force)
    from mongefit import datasets

    make = getattr(datasets, dataset)
    x, y = make(_N_TRAINING, seed=seed)
    x_new, y_new = make(_N_NEW, seed=seed + 1000)
    console.say(f"{dataset}: {len(x)} known pairs to learn from, {len(x_new)} new points to test.")

    start_jax(console)
    import numpy as np

    from mongefit._cli.pictures import draw
    from mongefit._cli.summary import fit_baseline, health, rmse, table, titled
    from mongefit._estimators.chosen import MongeMapCV
    from mongefit._io import write_points

    model = MongeMapCV(random_state=seed, verbose=int(console.shows_progress))
    pairs = np.repeat(np.arange(len(x))[:, None], 2, axis=1)
    console.note("Compiling, which takes longest the first time; then choosing.")
    started = time.monotonic()
    with interruptible():
        model.fit(x, y, pairs=pairs)
        seconds = time.monotonic() - started
        models: dict[str, Any] = {
            "squared_euclidean": fit_baseline(console, model, x, y),
            "learned_cost": model,
        }
        errors = {
            name: {
                "forward": rmse(found.transform(x_new), y_new),
                "reverse": rmse(found.inverse_transform(y_new), x_new),
            }
            for name, found in models.items()
        }

    os.makedirs(output, exist_ok=True)
    model.save(paths["model.mongefit"], overwrite=True)
    console.written.append(paths["model.mongefit"])
    draw(console, paths, titled(models, errors, {"forward": "new points"}), x_new, y, y_new)
    tables = {"source.csv": x, "target.csv": y, "new_points.csv": x_new, "pairs.csv": pairs}
    for name, rows in tables.items():
        header = ["source", "target"] if rows is pairs else None
        write_points(paths[name], rows, overwrite=True, header=header)
        console.written.append(paths[name])
    console.say(f"\n{model.report_}")
    console.say(f"\n{table(errors, {'forward': 'new points', 'reverse': 'and back'})}\n")
    console.say(health(model, seconds))
    console.say(f"\nIn the folder {output}: look at map.png first.")
    for name, what in _FILES.items():
        console.item(name, what)
    console.say(f"\n{_what_next(paths)}")
    console.result(
        dataset=dataset,
        folder=output,
        files=console.written,
        n_training_pairs=len(x),
        n_new_points=len(x_new),
        rmse=errors,
        chosen=model.best_params_,
        n_iter=model.n_iter_,
        seconds=round(seconds, 3),
        diagnostics=model.diagnostics_,
    )


def _what_next(paths: dict[str, str]) -> str:
    quoted = {name: shlex.quote(path) for name, path in paths.items()}
    commands = (
        f"transform {quoted['model.mongefit']} \\\n      {quoted['new_points.csv']} -o mapped.csv",
        f"fit {quoted['source.csv']} \\\n      {quoted['target.csv']} -o my.mongefit \\\n"
        f"      --pairs {quoted['pairs.csv']} --pictures my",
        f"info {quoted['model.mongefit']}",
    )
    return "Try next:\n" + "\n".join(f"  mongefit {command}" for command in commands)
