"""``mongefit fit`` for several times or batches of an .h5ad file."""

from __future__ import annotations

import os
import re
import time
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from mongefit._cli.cells import leg_title, say_legs
from mongefit._cli.console import Console, count
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import check_folder
from mongefit._cli.summary import mass, rmse, table
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.temporal import TemporalMap
from mongefit._training import Checkpoint
from mongefit.errors import ignored_warnings
from mongefit.metrics import Table
from mongefit.single_cell._legs import CellLegs
from mongefit.single_cell._model import SingleCellMap, with_origin_of_legs
from mongefit.single_cell._several import choose_options, fit_chosen, fit_estimator

Points = NDArray[np.float64]
Errors = dict[str, dict[str, float]]

_ENOUGH_CLONES, _HELD_OUT = 20, 0.2
_MAX_DRAWN = 2000
_WIDEST = 3
"""Legs whose errors have a column each; of more there is one for all."""


class LegsCommand(NamedTuple):
    """What the command line says of a fit.

    ``training`` are the options that are given, ``options`` those with a default.
    """

    source: str
    output: str
    force: bool
    holdout: float | None
    pictures: str | None
    checkpoint: str | None
    resume: bool
    learns: bool
    chooses: bool
    training: dict[str, Any]
    options: dict[str, Any]


def fit_several(console: Console, cells: CellLegs, asked: LegsCommand) -> None:
    """Fit, say how good it is, and write the model."""
    say_legs(console, cells, asked.source)
    held_out = _hold_out(cells, asked)
    drawn = _picture_files(cells, asked)
    hidden = sum(int(out.sum()) for out in held_out.values())
    if hidden:
        console.say(f"Held out: {count(hidden, 'pair')}")
    if cells.given["pairs"] and not asked.learns:
        console.note("note: this cost is fixed; the pairs only measure its error.")
    elif cells.given["pairs"] and not asked.chooses and not hidden:
        console.note("note: no pairs are held out; the error on unseen ones is unknown.")
    if asked.learns and asked.training.get("max_iter") != 0:
        console.note("Compiling, which takes longest the first time; then training.")
    started = time.monotonic()
    kept = asked.checkpoint
    left = f"training is kept in {kept}; the same command with --resume goes on from there"
    with interruptible(left, grace=60.0) if kept else interruptible():
        model, report = _fit(console, cells.without(held_out), asked)
        seconds = time.monotonic() - started
        fitted = with_origin_of_legs(model, cells, report)
        errors, columns = _errors(fitted, cells, held_out, learns=asked.learns)
    fitted.save(asked.output, overwrite=asked.force)
    console.written.append(asked.output)
    if asked.pictures is not None:
        os.makedirs(asked.pictures, exist_ok=True)
        _draw(console, drawn, model, cells, report)
    if report is not None:
        console.say(f"\n{report}")
    if errors:
        console.say(f"\n{table(errors, columns)}\n")
    for name, leg in model.legs_.items():
        if line := mass(leg):
            console.say(f"Leg {leg_title(name)}: {line}")
    console.say(_health(model, report, seconds))
    for path in console.written:
        console.say(f"Wrote {path}")
    console.result(
        model=asked.output,
        files=console.written,
        times=list(cells.times.values),
        batches=list(cells.batches),
        legs={
            leg_title(leg.name): {"n_source": len(x), "n_target": len(y)}
            for leg, (x, y) in zip(cells.legs, cells.clouds, strict=True)
        },
        n_features=model.n_features_in_,
        n_pairs={leg_title(name): len(pairs) for name, pairs in cells.given["pairs"].items()},
        n_held_out={leg_title(name): int(out.sum()) for name, out in held_out.items()},
        chosen=None if report is None else list(report.rows),
        rmse=errors,
        n_iter=model.n_iter_,
        seconds=round(seconds, 3),
        diagnostics={leg_title(name): found for name, found in model.diagnostics_.items()},
        data_sha256=model.data_sha256_,
    )


def _fit(console: Console, cells: CellLegs, asked: LegsCommand) -> tuple[TemporalMap, Table | None]:
    verbose = int(console.shows_progress)
    if not asked.chooses:
        model = TemporalMap(**asked.options, **asked.training, verbose=verbose)
        settings = {"checkpoint": asked.checkpoint, "resume": asked.resume}
        return fit_estimator(cells, model, **settings), None
    own = {name: asked.options[name] for name in ("normalize_weight", "random_state", "strict")}
    chooser = MongeMapCV(**own, **asked.training, verbose=verbose)
    options, report = choose_options(
        cells, chooser, checkpoint=asked.checkpoint, resume=asked.resume
    )
    kept = None
    if asked.checkpoint is not None and options.get("max_iter") != 0:
        folder = os.path.join(asked.checkpoint, "legs")
        # What is there belongs to this choice, whether or not it had come so far.
        kept = Checkpoint(folder, resume=os.path.isdir(folder))
    return fit_chosen(cells, options, checkpoint=kept), report


def _hold_out(cells: CellLegs, asked: LegsCommand) -> dict[Any, NDArray[np.bool_]]:
    """Which pairs of every leg are kept from training: whole clones, or pairs of one source."""
    nothing = {name: np.zeros(len(pairs), bool) for name, pairs in cells.given["pairs"].items()}
    if not asked.learns or not nothing:
        return nothing
    labels = {
        name: cells.given["clones"].get(name, [(name, row) for row in pairs[:, 0]])
        for name, pairs in cells.given["pairs"].items()
    }
    distinct = list(dict.fromkeys(label for each in labels.values() for label in each))
    fraction = asked.holdout
    if fraction is None:
        # What is chosen by held-out clones is measured on them too, and clones are few.
        enough = len(distinct) >= _ENOUGH_CLONES and not asked.chooses
        fraction = _HELD_OUT if enough else 0.0
    if fraction == 0:
        return nothing
    size = max(1, round(fraction * len(distinct)))
    if size >= len(distinct):
        raise click.UsageError(
            f"--holdout {fraction:g} leaves no clone to learn from. Lower it, or use --holdout 0."
        )
    order = np.random.default_rng(asked.options["random_state"]).permutation(len(distinct))
    drawn = {distinct[k] for k in order[:size]}
    return {
        name: np.array([label in drawn for label in each], bool) for name, each in labels.items()
    }


def _picture_files(cells: CellLegs, asked: LegsCommand) -> dict[str, str]:
    """The paths of the pictures, a map for each leg, checked before anything is fitted."""
    if asked.pictures is None:
        return {}
    names = [_map_file(leg.name) for leg in cells.legs] + ["cost.png"]
    if asked.learns and asked.training.get("max_iter") != 0:
        names.append("history.png")
    if asked.chooses:
        names.append("choice.png")
    return check_folder(asked.pictures, names, force=asked.force)


def _map_file(name: Any) -> str:
    """The file of the map of a leg: names of batches may hold anything."""
    return f"map-{re.sub(r'[^0-9A-Za-z.]+', '-', leg_title(name)).strip('-')}.png"


def _draw(
    console: Console,
    paths: dict[str, str],
    model: TemporalMap,
    cells: CellLegs,
    report: Table | None,
) -> None:
    from mongefit._cli.pictures import draw_cost, draw_maps

    for leg, (x, y) in zip(cells.legs, cells.clouds, strict=True):
        shown = x[np.unique(np.linspace(0, len(x) - 1, _MAX_DRAWN).astype(int))]
        own = {leg_title(leg.name): model.legs_[leg.name]}
        draw_maps(console, paths[_map_file(leg.name)], own, shown, y, None)
    draw_cost(console, paths, model.legs_[cells.legs[0].name], cells.clouds[0][0], report)


def _errors(
    model: SingleCellMap,
    cells: CellLegs,
    held_out: dict[Any, NDArray[np.bool_]],
    *,
    learns: bool,
) -> tuple[Errors, dict[str, str]]:
    """RMSE of each way to predict on every leg, and the columns of the table."""
    if not cells.given["pairs"]:
        return {}, {}
    models = {"squared_euclidean": model}
    if learns:
        fitted = next(iter(model.model.legs_.values()))
        epsilon = fitted.diagnostics_["epsilon_requested"]
        plain = TemporalMap("sqeuclidean", epsilon=epsilon, tau_a=fitted.tau_a, tau_b=fitted.tau_b)
        with ignored_warnings():
            baseline = with_origin_of_legs(fit_estimator(cells, plain), cells)
        models = {"squared_euclidean": baseline, "learned_cost": model}
    has_hidden = any(out.any() for out in held_out.values())
    errors: dict[str, dict[Any, tuple[Points, Points, NDArray[np.float64]]]] = {}
    for name, pairs in cells.given["pairs"].items():
        chosen = held_out[name] if has_hidden else np.ones(len(pairs), bool)
        if not chosen.any():
            continue
        (source, target), times = cells.ends_of(name)
        x, y = source[pairs[chosen, 0]], target[pairs[chosen, 1]]
        weight = cells.given["pair_weight"][name][chosen]
        batch = None if times.batch is None else times.batch[1]
        moved = {
            who: each.between(times.source, times.target, batch=batch).model.transform(x)
            for who, each in models.items()
        }
        moved = {"identity": x, "target_mean": np.broadcast_to(target.mean(0), y.shape)} | moved
        for who, where in moved.items():
            errors.setdefault(who, {})[name] = (where, y, weight)
    names = list(next(iter(errors.values())))
    kind = "held-out" if has_hidden else "training" if learns else "known"
    if len(names) > _WIDEST:
        joined = {
            who: {"all": rmse(*(np.concatenate(part) for part in zip(*each.values(), strict=True)))}
            for who, each in errors.items()
        }
        return joined, {"all": f"{kind} pairs"}
    by_leg = {
        who: {leg_title(name): rmse(*parts) for name, parts in each.items()}
        for who, each in errors.items()
    }
    return by_leg, {leg_title(name): f"{leg_title(name)}, {kind}" for name in names}


def _health(model: TemporalMap, report: Table | None, seconds: float) -> str:
    """Training and solvers in one line."""
    found = list(model.diagnostics_.values())
    text = f"{model.n_iter_} steps" if found[0]["trained"] else "Solved"
    if report is not None:
        candidates = sum(row["kind"] == "candidate" for row in report.rows)
        text = f"Chosen among {candidates} families on one leg, {text.lower()}"
    text += f" in {seconds:.1f} s; dual error {max(each['dual_error'] for each in found):.0e}"
    return text if all(each["converged"] for each in found) else f"{text}, not converged"
