"""``mongefit info``."""

from __future__ import annotations

import itertools
from typing import Any

import click

from mongefit._cli.console import Console, command, count


@click.command()
@click.argument("model")
@click.option(
    "--cost",
    is_flag=True,
    help="Say which displacements its cost makes cheap, and which expensive.",
)
@command
def info(console: Console, model: str, cost: bool) -> None:
    """Say what a MODEL file holds."""
    from safetensors import safe_open

    from mongefit._storage.models import BUNDLE, read_header
    from mongefit.errors import ModelFileError

    header = read_header(model)
    with safe_open(model, framework="numpy") as file:
        kept = {"history.loss", "legs[0].history.loss"} & set(file.keys())
        losses = file.get_tensor(kept.pop()) if kept else []
    final_loss = float(losses[-1]) if len(losses) else None
    try:
        lines = _describe(header, final_loss)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{model} has a header that does not describe a model.") from error
    console.say(model)
    for name, text in lines.items():
        console.item(name, text)
    learned = {}
    if cost:
        learned = _explain(console, model, averaged=header["estimator"] == BUNDLE)
    console.result(**{"model": model, "final_loss": final_loss, **header, **learned})


def _explain(console: Console, model: str, *, averaged: bool) -> dict[str, Any]:
    from mongefit._storage.models import load

    if not averaged:
        return {"learned_cost": _explain_one(console, load(model))}
    from mongefit.single_cell import load as load_cells

    found = []
    for number, each in enumerate(load_cells(model).maps, 1):
        console.say(f"\nmap {number}: {each.representation.text(each.model.n_features_in_)}")
        found.append(_explain_one(console, each.model))
    return {"learned_costs": found}


def _explain_one(console: Console, fitted: Any) -> dict[str, Any]:
    from mongefit.explain import explain_cost

    # The legs of a TemporalMap have one cost.
    found = explain_cost(next(iter(fitted.legs_.values())) if hasattr(fitted, "legs_") else fitted)
    console.say(f"\n{found}")
    shares = {name: getattr(found, name) for name in ("euclidean", "anisotropy", "variation")}
    directions = [
        {"curvature": value, "motion": share, "asymmetry": contrast, "parts": parts.tolist()}
        for value, share, contrast, parts in zip(
            found.curvature, found.motion, found.asymmetry, found.directions, strict=True
        )
    ]
    return shares | {"mean_asymmetry": found.mean_asymmetry, "directions": directions}


def _describe(header: dict[str, Any], final_loss: float | None) -> dict[str, str]:
    lines = {}
    if header["estimator"] == "AveragedMap":
        return _describe_average(header)
    if "single_cell" in header:
        cells = header["single_cell"]
        lines["cells"] = ", in ".join(_cells(cells))
        if cells.get("batches"):
            lines["batches"] = f"{', '.join(cells['batches'])} (obs: {cells['batch_key']})"
        kinds = {"weight_key": "", "growth_key": " as growth rates"}
        weights = [f"{cells[name]}{kind}" for name, kind in kinds.items() if cells.get(name)]
        if weights:
            lines["weights"] = f"obs: {', '.join(weights)}"
    if header["estimator"] == "EnsembleMap":
        members = header["members"]
        lines["ensemble"] = count(len(members), "map")
        shared = {key: header[key] for key in ("mongefit", "versions")}
        return lines | _describe(members[0] | shared, None)
    if header["estimator"] == "TemporalMap":
        times = header["times"]
        names = [f"{one} to {other}" for one, other in itertools.pairwise(times)]
        for name, leg in zip(names or header["names"], header["legs"], strict=True):
            n, m, _ = leg["shape"]
            lines[f"leg {name}"] = f"{n} source, {m} target points"
        shared = {key: header[key] for key in ("mongefit", "versions")}
        described = _describe(header["legs"][0] | shared, final_loss)
        del described["points"]
        return lines | described
    n, m, dim = header["shape"]
    found = header["diagnostics"]
    parts = found["plan_components"]
    trained = f"{header['n_iter']} steps, {found['skipped_steps']} skipped"
    if not found["trained"]:
        trained = "no"
    elif final_loss is not None:
        trained += f", last loss {final_loss:.3g}"
    cost = header["map"]["fields"]["cost"]["fields"]
    flows = {"shared": cost["phi_mu"]}
    if not cost["shared"]:
        flows = {"source": cost["phi_mu"], "target": cost["_phi_nu"]}
    options = {name: value for name, value in header["options"].items() if name != "verbose"}
    return lines | {
        "points": f"{n} source, {m} target",
        "features": str(dim),
        "cost": _text(cost["h"]),
        "flows": "; ".join(f"{side}: {_text(flow)}" for side, flow in flows.items() if flow)
        or "none",
        "trained": trained,
        "epsilon": f"{found['epsilon']:g} of the mean cost",
        "dual solve": f"{found['dual_status']}, error {found['dual_error']:.0e}, "
        + count(found["dual_iterations"], "iteration"),
        "plan": "in one piece" if parts == 1 else f"in {parts} parts",
        "precision": header["dtype"],
        "data": f"sha256 {header['data_sha256'][:16]}...",
        "written by": f"mongefit {header['mongefit']}, jax {header['versions']['jax']}",
        "options": _settings(options),
    }


def _cells(cells: dict[str, Any]) -> tuple[str, str]:
    """Which cells a map goes between, and where its coordinates come from."""
    where = f" (components of {len(cells['genes'])} genes)" if "genes" in cells else ""
    several = " to ".join(cells.get("times", [cells["source"], cells["target"]]))
    name = "X" if "layer" not in cells else f"the layer {cells['layer']}"
    kind = name if cells["use_rep"] == "X" else cells["use_rep"]
    if "diffusion" in cells:
        kind = f"{count(cells['diffusion'], 'diffusion component')} of {kind}"
    return f"{cells['key']} {several}", f"{kind}{where}"


def _describe_average(header: dict[str, Any]) -> dict[str, str]:
    """Several maps between the same cells: what they share, and a line or two for each."""
    parts = [_describe(part, None) for part in header["parts"]]
    first = parts[0]
    lines = {"average": count(len(parts), "map")}
    lines["cells"] = _cells(header["parts"][0]["single_cell"])[0]
    lines |= {name: first[name] for name in ("points", "batches", "weights") if name in first}
    for number, (part, whole) in enumerate(zip(parts, header["parts"], strict=True), 1):
        where = _cells(whole["single_cell"])[1]
        if "diffusion" not in whole["single_cell"]:
            where = f"{count(int(part['features']), 'feature')} of {where}"
        told = [f"{name} {part[name]}" for name in ("cost", "flows", "epsilon", "trained")]
        lines[f"map {number}"] = f"{where}; {'; '.join(told)}"
    return lines | {"written by": first["written by"]}


def _settings(values: dict[str, Any]) -> str:
    texts = {name.strip("_").replace("_", " "): _text(value) for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items() if text)


def _text(value: Any) -> str:
    """A value of a header in words; nothing for arrays."""
    if isinstance(value, dict):
        if "array" in value:
            return ""
        if value.get("class") == "NonTrainable":
            return ""
        if "class" in value:
            settings = _settings(value["fields"])
            return f"{value['class']} ({settings})" if settings else str(value["class"])
        if "left_out" in value:
            return "a function"
        if "fitted" in value:
            return "as fitted"
        value = next(iter(value.values()))
    if isinstance(value, list):
        return ",".join(filter(None, map(_text, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
