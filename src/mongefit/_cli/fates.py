"""``mongefit fates``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from mongefit._cli.cells import SUFFIX, is_cells, read_cells, read_named_pairs
from mongefit._cli.console import Console, command, count, start_jax
from mongefit._cli.interrupts import interruptible
from mongefit._cli.options import (
    Options,
    check_folder,
    check_output,
    flag_of,
    grouped,
    seed_option,
    whole_numbers,
)

if TYPE_CHECKING:
    from anndata import AnnData

    from mongefit.single_cell import AveragedMap, FateValidation
    from mongefit.single_cell._average import CellMap

_COLUMN = {"metavar": "COLUMN"}
_TIMES: Options = {
    "source": ({"metavar": "TIME"}, "Time to map from; of a model by default its first."),
    "target": ({"metavar": "TIME"}, "Time to map to; of a model by default its last."),
}
_FITTING: Options = {
    "time_key": (_COLUMN, "Column of obs with the time."),
    "pair_key": (_COLUMN, "Column of obs with clones, or array of obsm, cells x clones."),
    "pairs": (
        {"metavar": "FILE"},
        "Known pairs instead: names of cells, with the header source,target.",
    ),
    "use_rep": ({"metavar": "NAME"}, "Array of obsm to work in.  [default: X_pca]"),
    "n_components": (
        {"type": whole_numbers, "metavar": "NUMBERS"},
        "Numbers of first columns of --use-rep; a map for each.  [default: 10,20]",
    ),
    "diffusion": (
        {"type": int, "metavar": "NUMBER"},
        "Number of diffusion components; a map in these.  [default: 20]",
    ),
    "weight_key": (_COLUMN, "Column of obs with weights."),
    "growth_key": (
        _COLUMN,
        "Column of obs with growth rates of the source, per unit of time.",
    ),
    "model": ({"metavar": "MODEL"}, "Write the fitted maps there, for --from."),
}
_SWITCHES = {"no_diffusion": "--no-diffusion", "validate": "--validate"}


@click.command()
@click.argument("cells")
@click.option("-o", "--output", metavar="OUT", required=True, help="The .h5ad file to write.")
@click.option("--key", metavar="COLUMN", required=True, help="Column of obs with the labels.")
@click.option(
    "--exclude", metavar="LABEL", multiple=True, help="A label that is no fate; may be repeated."
)
@grouped("times", _TIMES, {})
@grouped("fitting", _FITTING, {})
@click.option("--no-diffusion", is_flag=True, help="No map in diffusion components.")
@click.option(
    "--from", "known", metavar="MODEL", help="Take a model of cells that exists; nothing is fitted."
)
@click.option(
    "--reference",
    metavar="FILE",
    help="With --from: the .h5ad file of the fit with the labels, where CELLS has other cells.",
)
@click.option(
    "--validate",
    is_flag=True,
    help="Also judge fates on clones that nothing was chosen by; many times as long.",
)
@click.option(
    "--pictures", metavar="FOLDER", help="Draw fates.png, transitions.png, calibration.png there."
)
@click.option(
    "--key-added", metavar="NAME", default="mongefit", help="Beginning of the names in OUT."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@seed_option("--random-state", "--seed", text="Seed of the folds.")
@command
def fates(
    console: Console,
    cells: str,
    output: str,
    key: str,
    exclude: tuple[str, ...],
    times: dict[str, Any],
    fitting: dict[str, Any],
    no_diffusion: bool,
    known: str | None,
    reference: str | None,
    validate: bool,
    pictures: str | None,
    key_added: str,
    force: bool,
    random_state: int,
) -> None:
    """Predict which labels the descendants of cells will have.

    CELLS is an .h5ad file with cells of two times, named by --time-key, --source and --target.
    --key names the column with the labels of the later cells, such as cell types, and --pair-key
    that with clones. Maps are chosen in several kinds of coordinates by the labels of clones that
    are held out, and averaged.

    OUT holds all of CELLS, with the probability of every label in obsm["mongefit_fates"], the most
    probable one in obs["mongefit_fate"], and how open the fate is in obs["mongefit_fate_entropy"].
    """
    switches = {"no_diffusion": no_diffusion, "validate": validate}
    _check(cells, known, reference, times, fitting, switches)
    if key_added == "" or "/" in key_added:
        raise click.UsageError(f"--key-added must be a name without '/', got {key_added!r}.")
    model_path, pairs = fitting.pop("model"), fitting.pop("pairs")
    inputs = (cells, known, reference, pairs)
    check_output(output, force=force, inputs=inputs, suffixes=(SUFFIX,))
    if model_path is not None:
        check_output(model_path, force=force, inputs=(*inputs, output), flag="--model")
    names = ["fates.png", "transitions.png", *(["calibration.png"] if validate else [])]
    paths = {} if pictures is None else check_folder(pictures, names, force=force)

    start_jax(console)
    from mongefit import single_cell
    from mongefit._io import atomic_file
    from mongefit.single_cell._fate_fitting import DIFFUSION, N_COMPONENTS

    started = time.monotonic()
    asked: dict[str, Any] = {}
    if known is None:
        asked = fitting | times | {"key": key, "exclude": exclude}
        asked["pairs"] = None if pairs is None else read_named_pairs(pairs)
        if asked["n_components"] is None:
            asked["n_components"] = N_COMPONENTS
        if asked["diffusion"] is None and not no_diffusion:
            asked["diffusion"] = DIFFUSION
        adata = read_cells(cells)
        model: CellMap = _fit(console, adata, cells, pairs, asked, random_state)
        if model_path is not None:
            model.save(model_path, overwrite=force)
            console.written.append(model_path)
    else:
        model, adata = single_cell.load(known), read_cells(cells)
    labelled = None if reference is None else read_cells(reference)
    with interruptible(_left(console)):
        single_cell.fates(
            model, adata, key, **times, exclude=exclude, reference=labelled, key_added=key_added
        )
    with atomic_file(output, overwrite=force) as stream:
        adata.write_h5ad(stream.name)
    console.written.append(output)
    rows, chosen = _say_fates(console, adata, key_added), _say_choice(console, model)
    found = None
    if validate:
        console.note("Judging on clones that are held out from all of this.")
        with interruptible(_left(console)):
            found = single_cell.cross_validate_fates(
                adata, **asked, random_state=random_state, verbose=int(console.shows_progress)
            )
    elif known is None:
        console.note("note: how well all of it predicts new clones is told by --validate.")
    differences = [] if found is None else _say_validation(console, found)
    if pictures is not None:
        from mongefit._cli.pictures import draw_fates

        os.makedirs(pictures, exist_ok=True)
        options = {"key": key, "exclude": exclude, **times}
        draw_fates(console, paths, model, adata, labelled, options, key_added, found)
    seconds = time.monotonic() - started
    console.say(f"\n{seconds:.0f} s")
    for path in console.written:
        console.say(f"Wrote {path}")
    console.result(
        cells=cells,
        output=output,
        model=known if known is not None else model_path,
        files=console.written,
        key=key,
        fates=rows,
        chosen=chosen,
        validation=None if found is None else list(found.table.rows),
        differences=differences,
        perplexity=adata.uns[f"{key_added}_fates"]["perplexity"],
        informative=adata.uns[f"{key_added}_fates"]["informative"],
        seconds=round(seconds, 3),
    )


def _check(
    cells: str,
    known: str | None,
    reference: str | None,
    times: dict[str, Any],
    fitting: dict[str, Any],
    switches: dict[str, bool],
) -> None:
    """Find, before anything is read, what is missing or too much."""
    for path in (cells, reference):
        if path is not None and not is_cells(path):
            raise click.UsageError(f"fates works on {SUFFIX} files; {path} is none.")
    if fitting["diffusion"] is not None and switches["no_diffusion"]:
        raise click.UsageError("--diffusion and --no-diffusion: give one of them.")
    if known is not None:
        given = [flag_of(name) for name, value in fitting.items() if value is not None]
        given += [_SWITCHES[name] for name, value in switches.items() if value]
        if given:
            raise click.UsageError(
                f"With --from nothing is fitted: leave out {', '.join(given)}, or leave out --from "
                "to fit."
            )
        return
    if reference is not None:
        raise click.UsageError(
            "--reference goes with --from MODEL: what is fitted here is fitted to CELLS."
        )
    needed = {"time_key": "COLUMN", "source": "TIME", "target": "TIME"}
    values = fitting | times
    missing = [f"{flag_of(name)} {text}" for name, text in needed.items() if values[name] is None]
    if missing:
        raise click.UsageError(
            f"To fit give also {', '.join(missing)}; or give --from MODEL, which exists."
        )
    if fitting["pair_key"] is None and fitting["pairs"] is None:
        raise click.UsageError("Fates are learned from clones: give --pair-key COLUMN.")


def _left(console: Console) -> str:
    """What is left of the work if it is ended."""
    files = ", ".join(console.written)
    return f"already written: {files}" if files else "nothing was written"


def _fit(
    console: Console,
    adata: AnnData,
    path: str,
    pairs: str | None,
    asked: dict[str, Any],
    random_state: int,
) -> AveragedMap:
    """Take the cells, say which, and fit the maps."""
    from mongefit._cli.inputs import inputs_of
    from mongefit.single_cell._fate_fitting import fit_views, take_views

    with interruptible():
        views = take_views(adata, **asked)
    first = views.cells[0]
    for side, points, value in (
        ("Source", first.x, first.times.source),
        ("Target", first.y, first.times.target),
    ):
        where = f" ({path})" if side == "Source" else ""
        console.say(f"{side}: {count(len(points), 'cell')} of {first.times.key} {value}{where}")
    inputs_of(first).say_known(console, pairs, learns=False)
    kinds = [each.representation.text(each.x.shape[1]) for each in views.cells]
    console.say(f"Maps in: {', '.join(kinds)}\n")
    console.note("Compiling, which takes longest the first time; then choosing by held-out clones.")
    verbose = int(console.shows_progress)
    with interruptible():
        return fit_views(views, max_cells=512, random_state=random_state, verbose=verbose)


def _say_fates(console: Console, adata: AnnData, key_added: str) -> list[dict[str, Any]]:
    """Say how many cells have which fate, and how sure that is."""
    import numpy as np

    from mongefit.metrics import Table

    about = adata.uns[f"{key_added}_fates"]
    probability = adata.obsm[f"{key_added}_fates"]
    cells = probability[np.isfinite(probability).all(axis=1)]
    best = np.bincount(cells.argmax(axis=1), minlength=cells.shape[1])
    rows: list[dict[str, Any]] = [
        {"name": str(name), "cells": int(most), "mean": float(mean)}
        for name, most, mean in zip(about["names"], best, cells.mean(axis=0), strict=True)
    ]
    shown = [row | {"cells": f"{row['cells']} ({row['cells'] / len(cells):.0%})"} for row in rows]
    titles = {"name": "fate", "cells": "most probable in", "mean": "mean probability"}
    console.say(str(Table(tuple(shown), titles)))
    where = f"{about['time_key']} {about['source']}"
    console.say(f"Of {count(len(cells), 'cell')} of {where}.")
    if (name := f"{key_added}_informed") in adata.obs:
        near = int(np.sum(adata.obs[name]))
        console.say(f"A cell of a known clone is near {near} of them.")
    return rows


def _say_choice(console: Console, model: CellMap) -> list[dict[str, Any]] | None:
    """Say what was chosen in each kind of coordinates, and how well it predicts labels."""
    from mongefit.metrics import Table

    chosen: list[dict[str, Any]] = []
    simple: dict[str, dict[str, Any]] = {}
    for each in model.maps:
        report = getattr(each.model, "report_", None)
        if report is None or "log_loss" not in report.headers:
            return None
        where = each.representation.text(each.model.n_features_in_)
        for row in report.rows:
            kept = {"log_loss": row["log_loss"], "auroc": row["auroc"], "what": row["what"]}
            if row["chosen"]:
                chosen.append({"name": where, **kept, "kind": "map"})
            elif row["kind"] == "simple" and row["log_loss"] is not None:
                best = simple.get(row["name"])
                # In the coordinates that suit it best.
                if best is None or row["log_loss"] < best["log_loss"]:
                    simple[row["name"]] = {"name": row["name"], **kept, "what": where}
    rows = chosen + [row | {"kind": "simple"} for row in simple.values()]
    titles = {"name": "held-out clones", "log_loss": "log-loss", "auroc": "AUROC"}
    console.say(f"\n{Table(tuple(rows), titles)}")
    console.paragraph(
        "Of the labels of their cells; a lower log-loss is better. Logistic regression and nearest "
        "pairs are those in the coordinates that suit each best. Chosen:"
    )
    room = max(len(row["name"]) for row in chosen)
    for row in chosen:
        console.item(row["name"], row["what"], room=room)
    return rows


def _say_validation(console: Console, found: FateValidation) -> list[dict[str, Any]]:
    """Say how good fates are on clones that were held out from all, and how sure that is."""
    from mongefit.metrics import Table
    from mongefit.single_cell._fate_validation import EUCLIDEAN

    best = found.best_euclidean()
    kept = [
        row | {"name": EUCLIDEAN if row["name"] == best else row["name"]}
        for row in found.table.rows
        if row["name"] == best or not row["name"].startswith(EUCLIDEAN)
    ]
    titles = {
        "name": "validation", "log_loss": "log-loss", "auroc": "AUROC",
        "calibration_error": "calibration",
    }  # fmt: skip
    console.say(f"\n{Table(tuple(kept), titles)}")
    console.paragraph(
        f"{found.table.notes[0]} Squared Euclidean at the {best.rpartition(', ')[2]} that suits it "
        "best. Fates less others, with 95 % intervals over clones:"
    )
    names = ["class shares", "logistic regression", "nearest pairs", best]
    differences = []
    for name in names:
        both = {score: found.difference(name, score=score) for score in ("log_loss", "auroc")}
        log_loss, auroc = (
            f"{each.mean:+.3f} ({each.low:+.3f} to {each.high:+.3f})" for each in both.values()
        )
        shown = EUCLIDEAN if name == best else name
        console.item(shown, f"log-loss {log_loss}, AUROC {auroc}", room=19)
        differences += [
            {"name": name, "score": score, "mean": each.mean, "low": each.low, "high": each.high}
            for score, each in both.items()
        ]
    return differences
