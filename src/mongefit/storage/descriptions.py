"""Objects as JSON and back: kinds out of a fixed list, with their settings."""

from __future__ import annotations

import numbers
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from mongefit.conjugate import ConjugateICNN
from mongefit.convex import ICNN, ConvexFunction, Mahalanobis, PowerNorm, SquaredEuclidean
from mongefit.diffeos import AutoregressiveFlow, Diffeo
from mongefit.duals import NewtonDual, SinkhornDual
from mongefit.errors import ModelFileError, OptionError
from mongefit.losses import (
    CorrectMass,
    Directional,
    Groups,
    LowRank,
    Paired,
    TargetFit,
    Weighted,
    WrongMass,
)
from mongefit.maps import EntropicMap
from mongefit.penalties import CostSize, DirichletEnergy, FlowSimilarity, LogDet


def describe_h(h: ConvexFunction) -> dict[str, Any]:
    if type(h) is ICNN:
        return {"kind": "icnn", **_describe_network(h), "quadratic": h.quadratic is not None}
    if type(h) is ConjugateICNN:
        described = _describe_network(h.network) | {"alpha": h.alpha, "beta": h.network.alpha}
        return {"kind": "conjugate_icnn", **described}
    if type(h) is SquaredEuclidean:
        return {"kind": "sqeuclidean"}
    if type(h) is Mahalanobis:
        return {"kind": "mahalanobis"}
    if type(h) is PowerNorm:
        return {"kind": "power_norm", "exponent": h.exponent, "alpha": h.alpha}
    raise OptionError(
        f"A cost of class {type(h).__name__} cannot be saved; those of mongefit.convex can."
    )


def _describe_network(network: ICNN) -> dict[str, Any]:
    return {
        "hidden_layer_sizes": [len(bias) for bias in network.bias],
        "symmetric": network.symmetric,
        "alpha": network.alpha,
        "activation": network.activation,
    }


def build_h(spec: dict[str, Any], dim: int) -> ConvexFunction:
    kind = spec["kind"]
    if kind in ("icnn", "conjugate_icnn"):
        names = ("symmetric", "alpha", "activation", "quadratic" if kind == "icnn" else "beta")
        settings = {name: spec[name] for name in names}
        sizes = tuple(spec["hidden_layer_sizes"])
        return (ICNN if kind == "icnn" else ConjugateICNN)(dim, sizes, key=jr.key(0), **settings)
    if kind == "sqeuclidean":
        return SquaredEuclidean()
    if kind == "mahalanobis":
        # The class looks into its matrix, which cannot be had as a shape: a small one stands in.
        return eqx.tree_at(lambda h: h.matrix, Mahalanobis(np.eye(1)), jnp.zeros((dim, dim)))
    if kind == "power_norm":
        return PowerNorm(spec["exponent"], spec["alpha"])
    raise ModelFileError(f"it holds a cost of the unknown kind {kind!r}.")


def describe_diffeo(phi: Diffeo | None) -> dict[str, Any] | None:
    if phi is None:
        return None
    if type(phi) is AutoregressiveFlow:
        return {
            "kind": "autoregressive",
            "n_blocks": phi.n_blocks,
            "width": phi.width,
            "depth": phi.depth,
            "max_log_scale": phi.max_log_scale,
        }
    raise OptionError(
        f"A diffeo of class {type(phi).__name__} cannot be saved; those of mongefit.diffeos can."
    )


def build_diffeo(spec: dict[str, Any] | None, dim: int) -> Diffeo | None:
    if spec is None:
        return None
    if spec["kind"] != "autoregressive":
        raise ModelFileError(f"it holds a diffeo of the unknown kind {spec['kind']!r}.")
    return AutoregressiveFlow(
        dim,
        key=jr.key(0),
        n_blocks=spec["n_blocks"],
        width=spec["width"],
        depth=spec["depth"],
        max_log_scale=spec["max_log_scale"],
    )


_FITTED = "<object>"

# Losses, penalties and solvers that an option may hold; nothing else is ever built from a file.
_PARTS: dict[str, Any] = {
    part.__name__: part
    for part in (
        *(Paired, Groups, TargetFit, LowRank, Directional, CorrectMass, WrongMass),
        *(CostSize, FlowSimilarity, DirichletEnergy, LogDet, NewtonDual, SinkhornDual),
    )
}


def describe_option(value: Any) -> Any:
    """An option as JSON.

    Costs and flows are marked, and come back as their fitted selves. Losses, penalties and solvers
    are described. Functions cannot be: their list comes back as None, the default.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, tuple | list) and all(isinstance(v, numbers.Real) for v in value):
        return [describe_option(v) for v in value]
    if isinstance(value, tuple | list) and any(
        isinstance(v, Weighted) or callable(v) for v in value
    ):
        return {"terms": [describe_part(v) for v in value]}
    if type(value).__name__ in _PARTS:
        return describe_part(value)
    return _FITTED


def describe_part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, Weighted):
        described = describe_part(part.term)
        return described and described | {"weight": float(part.weight)}
    if type(part) is not _PARTS.get(type(part).__name__):
        return None
    settings = {field.name: describe_option(getattr(part, field.name)) for field in fields(part)}
    return {"kind": type(part).__name__, "settings": settings}


def build_part(spec: dict[str, Any]) -> Any:
    if spec["kind"] not in _PARTS:
        raise ModelFileError(f"it holds a loss or solver of the unknown kind {spec['kind']!r}.")
    # JAX takes other texts for names of data types, which NumPy hands to Python's parser.
    words = [name for name, value in spec["settings"].items() if isinstance(value, str)]
    if words not in ([], ["direction"]):
        raise ModelFileError(f"the settings {words} of {spec['kind']} are not numbers.")
    kind = _PARTS[spec["kind"]]
    single = {field.name for field in fields(kind) if field.metadata.get("static", False)}
    lists = {name for name, value in spec["settings"].items() if isinstance(value, list)}
    if single & lists:
        raise ModelFileError(f"the settings {sorted(single & lists)} of {spec['kind']} are lists.")
    # Arrays, such as learned directions, are written as lists.
    settings = {
        name: jnp.asarray(np.asarray(value, dtype=np.float64)) if isinstance(value, list) else value
        for name, value in spec["settings"].items()
    }
    part = kind(**settings)
    return spec["weight"] * part if "weight" in spec else part


def restore_option(name: str, value: Any, entropic_map: EntropicMap) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict) and "terms" in value:
        described = value["terms"]
        return None if None in described else [build_part(spec) for spec in described]
    if isinstance(value, dict):
        return build_part(value)
    if value == _FITTED:
        cost = entropic_map.cost
        fitted = {
            "cost": cost.h,
            "diffeo": cost.phi_mu if cost.shared else (cost.phi_mu, cost.phi_nu),
        }
        return fitted.get(name)
    return value
