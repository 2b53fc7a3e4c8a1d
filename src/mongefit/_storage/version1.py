"""Model files of version 1, translated into version 2.

Version 1 described costs, flows, losses and solvers by kinds and settings, wrote arrays of losses
into the header, and named the weights of flows as flowjax does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_FITTED = "<object>"
_LEFT_OUT = {"left_out": "a function"}


def translate(
    header: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors of such a file as version 2 has them."""
    tensors = dict(tensors)
    cost, dim = header["cost"], header["shape"][2]
    shared = cost["shared"]
    fields = {
        "h": _function(cost["h"]),
        "phi_mu": _flow(cost["phi_mu"], "map.cost.phi_mu", dim),
        "_phi_nu": None if shared else _flow(cost["phi_nu"], "map.cost._phi_nu", dim),
        "shared": shared,
    }
    units = {name: _array(f"map.units.{name}") for name in ("centre", "scale")}
    entropic_map: dict[str, Any] = {
        name: _array(f"map.{name}") for name in ("x", "y", "a", "b", "f", "g", "eps")
    }
    entropic_map |= {
        "cost": _object("Cost", fields),
        "units": _object("Units", units),
        "inverse_solver": None,
    }
    losses = [
        _LEFT_OUT if spec is None else _part(spec, f"losses[{k}]", tensors)
        for k, spec in enumerate(header["losses"])
    ]
    options = {
        name: _option(name, value, f"options.{name}", tensors)
        for name, value in header["options"].items()
    }
    new = header | {
        "version": 2,
        "estimator": "MongeMap",
        "map": _object("EntropicMap", entropic_map),
        "losses": {"tuple": losses},
        "options": options,
    }
    del new["cost"]
    return new, tensors


def _object(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"class": name, "fields": fields}


def _array(name: str) -> dict[str, str]:
    return {"array": name}


def _function(spec: dict[str, Any]) -> dict[str, Any]:
    kind = spec["kind"]
    if kind == "icnn":
        return _network(spec, "map.cost.h", quadratic=spec["quadratic"])
    if kind == "conjugate_icnn":
        network = _network(spec | {"alpha": spec["beta"]}, "map.cost.h.network", quadratic=True)
        solver = _object("NewtonInverse", {"tol": None, "max_iter": 200})
        fields = {"network": network, "solver": solver, "alpha": spec["alpha"]}
        return _object("ConjugateICNN", fields)
    if kind == "mahalanobis":
        matrix = _object("NonTrainable", {"tree": _array("map.cost.h.matrix")})
        return _object("Mahalanobis", {"_matrix": matrix})
    if kind == "power_norm":
        return _object("PowerNorm", {"exponent": spec["exponent"], "alpha": spec["alpha"]})
    return _object("SquaredEuclidean" if kind == "sqeuclidean" else str(kind), {})


def _network(spec: dict[str, Any], name: str, *, quadratic: bool) -> dict[str, Any]:
    layers = len(spec["hidden_layer_sizes"])
    arrays = {"passthrough": layers, "bias": layers, "hidden": layers - 1}
    fields: dict[str, Any] = {
        key: {"tuple": [_array(f"{name}.{key}[{k}]") for k in range(count)]}
        for key, count in arrays.items()
    }
    fields |= {key: _array(f"{name}.{key}") for key in ("out", "log_gain")}
    fields["quadratic"] = _array(f"{name}.quadratic") if quadratic else None
    fields |= {key: spec[key] for key in ("alpha", "symmetric", "activation")}
    return _object("ICNN", fields)


def _flow(spec: dict[str, Any] | None, name: str, dim: int) -> dict[str, Any] | None:
    if spec is None:
        return None
    if spec["kind"] != "autoregressive":
        return _object(str(spec["kind"]), {})
    # Every second bijection reversed the coordinates.
    layers = [
        f"{name}.bijection.bijections[{2 * block}].masked_autoregressive_mlp.layers[{layer}]"
        for block in range(min(spec["n_blocks"], 10_000))
        for layer in range(min(spec["depth"], 10_000) + 1)
    ]
    weights = [
        _array(f"{layer}{part}") for layer in layers for part in (".weight.args[1]", ".bias")
    ]
    sizes = {key: spec[key] for key in ("n_blocks", "width", "depth", "max_log_scale")}
    return _object("AutoregressiveFlow", {"weights": {"tuple": weights}, "dim": dim} | sizes)


def _option(name: str, value: Any, where: str, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return {"tuple": value}
    if value == _FITTED:
        return {"fitted": name} if name in ("cost", "diffeo") else _LEFT_OUT
    if not isinstance(value, dict):
        return value
    if "terms" not in value:
        return _part(value, where, tensors)
    if None in value["terms"]:
        return _LEFT_OUT
    return {
        "list": [_part(each, f"{where}[{k}]", tensors) for k, each in enumerate(value["terms"])]
    }


def _part(spec: dict[str, Any], where: str, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """A loss, a penalty or a solver."""
    fields = {}
    for key, value in spec["settings"].items():
        fields[key] = value
        if isinstance(value, list):
            tensors[f"{where}.{key}"] = np.asarray(value, dtype=np.float64)
            fields[key] = _array(f"{where}.{key}")
    part = _object(spec["kind"], fields)
    if "weight" not in spec:
        return part
    return _object("Weighted", {"term": part, "weight": spec["weight"]})
