"""How fitted estimators are described in a model file, and read back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit._convex import ConvexFunction
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.ensemble import CLOUDS, EnsembleMap
from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.temporal import TemporalMap
from mongefit._storage.objects import CannotSaveError, Restorer, describe
from mongefit._transport import EntropicMap
from mongefit.errors import ModelFileError
from mongefit.metrics import Table

# What pictures and reports take from the history of every trained model.
_HISTORY = ("step", "loss", "epsilon", "applied")
_DTYPES = ("float32", "float64")
_ENSEMBLE = ("counts", "scores", "anchors", "reach")

Tensors = dict[str, np.ndarray]
Saveable = MongeMap | MongeMapCV | EnsembleMap | TemporalMap


class Parts:
    """The tensors of a file to be written, and the names of what it cannot hold."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.left_out: list[str] = []

    def describe(self, value: Any, name: str) -> Any:
        """A value as JSON and tensors, or a mark where it holds a function."""
        own: Tensors = {}
        try:
            described = describe(value, name, own)
        except CannotSaveError:
            self.left_out.append(name)
            return {"left_out": str(value)[:200]}
        self.tensors |= own
        return described


def describe_estimator(estimator: Saveable, parts: Parts) -> dict[str, Any]:
    """The header of an estimator; its tensors go to the parts."""
    if isinstance(estimator, EnsembleMap):
        return _describe_ensemble(estimator, parts)
    if isinstance(estimator, MongeMapCV):
        return _describe_choice(estimator, parts)
    if isinstance(estimator, TemporalMap):
        return _describe_legs(estimator, parts)
    return _describe_map(estimator, "", parts)


def _describe_map(estimator: MongeMap, prefix: str, parts: Parts) -> dict[str, Any]:
    """The header of one map; its tensors are named with the prefix."""
    fitted = estimator.map_
    parts.tensors |= {f"{prefix}history.{key}": part for key, part in estimator.history_.items()}
    header = {
        "estimator": "MongeMap",
        "options": describe_options(estimator.get_params(deep=False), prefix, parts),
        "map": describe(fitted, f"{prefix}map", parts.tensors),
        "dtype": str(fitted.x.dtype),
        "shape": [len(fitted.x), len(fitted.y), estimator.n_features_in_],
        "n_iter": estimator.n_iter_,
        "losses": {
            "tuple": [
                parts.describe(loss, f"{prefix}losses[{k}]")
                for k, loss in enumerate(estimator.losses_)
            ]
        },
        "scores": [score if np.isfinite(score) else None for score in estimator.scores_.tolist()],
        "diagnostics": estimator.diagnostics_,
        "data_sha256": estimator.data_sha256_,
    }
    return header | _names(estimator)


def _describe_ensemble(ensemble: EnsembleMap, parts: Parts) -> dict[str, Any]:
    options = ensemble.get_params(deep=False)
    template = options.pop("estimator")
    if template is not None:
        template = describe_options(template.get_params(deep=False), "template.", parts)
    for name, value in ensemble._calibration().items():
        parts.tensors[f"ensemble.{name}"] = np.asarray(value)
    header = {
        "estimator": "EnsembleMap",
        "options": describe_options(options, "", parts),
        "template": template,
        "clouds": bool(ensemble._clouds),
        "members": [
            _describe_map(member, f"members[{k}].", parts)
            for k, member in enumerate(ensemble.members_)
        ],
    }
    return header | _names(ensemble)


def _describe_choice(estimator: MongeMapCV, parts: Parts) -> dict[str, Any]:
    """The map that was chosen, and beside it what it was chosen from."""
    options = estimator.get_params(deep=False)
    del options["candidates"]  # those of the user's own may hold anything
    report, score = estimator.report_, estimator.best_score_
    columns = {
        name: list(map(_plain, column)) if name == "params" else np.asarray(column).tolist()
        for name, column in estimator.cv_results_.items()
    }
    choice = {
        "options": describe_options(options, "choice.", parts),
        "score": score if np.isfinite(score) else None,
        "results": columns,
        # Pairs keep their order in JSON.
        "report": None
        if report is None
        else {"rows": report.rows, "headers": list(report.headers.items()), "notes": report.notes},
    }
    best = _describe_map(estimator.best_estimator_, "", parts)
    return best | {"estimator": "MongeMapCV", "choice": choice}


def _describe_legs(estimator: TemporalMap, parts: Parts) -> dict[str, Any]:
    header = {
        "estimator": "TemporalMap",
        "options": describe_options(estimator.get_params(deep=False), "temporal.", parts),
        "times": list(estimator.times_),
        "names": [] if estimator.times_ else list(estimator.legs_),
        "legs": [
            _describe_map(leg, f"legs[{k}].", parts)
            for k, leg in enumerate(estimator.legs_.values())
        ],
    }
    return header | _names(estimator)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON, objects by their text."""
    simple = str | float | int | bool | None
    return {
        name: value if isinstance(value, simple) else str(value)[:200]
        for name, value in options.items()
    }


def _names(estimator: Any) -> dict[str, list[str]]:
    if not hasattr(estimator, "feature_names_in_"):
        return {}
    return {"feature_names": list(map(str, estimator.feature_names_in_))}


def describe_options(
    options: Mapping[str, Any], prefix: str = "", parts: Parts | None = None
) -> dict[str, Any]:
    """Options as JSON.

    Costs and flows are marked, and come back as their fitted selves. What holds a function is left
    out.
    """
    parts = Parts() if parts is None else parts
    described = {}
    for name, value in options.items():
        has_flow = name == "diffeo" and not isinstance(value, str | None)
        if has_flow or isinstance(value, ConvexFunction):
            described[name] = {"fitted": name}
        elif isinstance(value, np.ndarray | jax.Array):
            described[name] = describe(tuple(np.ravel(value).tolist()), name, parts.tensors)
        else:
            described[name] = parts.describe(value, f"{prefix}options.{name}")
    return described


def restore_estimator(header: dict[str, Any], restorer: Restorer) -> Saveable:
    """The estimator that a header describes."""
    kind = header["estimator"]
    if kind == "MongeMapCV":
        return _restore_choice(header, restorer)
    if kind == "EnsembleMap":
        return _restore_ensemble(header, restorer)
    if kind == "TemporalMap":
        return _restore_legs(header, restorer)
    if kind != "MongeMap":
        raise ModelFileError(f"it holds an estimator of the unknown kind {str(kind)[:40]!r}.")
    return _restore_map(header, "", restorer)


def _restore_map(header: dict[str, Any], prefix: str, restorer: Restorer) -> MongeMap:
    entropic_map = restorer.restore(header["map"])
    _check_map(entropic_map, header["shape"], header["dtype"])
    history = restorer.take_all(f"{prefix}history.")
    if header["n_iter"] > 0 and (absent := [key for key in _HISTORY if key not in history]):
        raise ModelFileError(
            f"the tensor {prefix}history.{absent[0]} is missing from a model trained for "
            f"{header['n_iter']} steps."
        )
    estimator = MongeMap(**_restore_options(header["options"], restorer, entropic_map.cost))
    estimator.map_ = entropic_map
    estimator.units_ = entropic_map.units
    estimator.history_ = history
    estimator.n_iter_ = header["n_iter"]
    estimator.losses_ = tuple(
        None if _is_left_out(each) else restorer.restore(each) for each in header["losses"]["tuple"]
    )
    scores = [np.inf if score is None else score for score in header.get("scores", [])]
    estimator.scores_ = np.asarray(scores, dtype=np.float64)
    estimator.diagnostics_ = dict(header["diagnostics"])
    estimator.data_sha256_ = header["data_sha256"]
    estimator.n_features_in_ = header["shape"][2]
    _restore_names(estimator, header)
    return estimator


def _restore_choice(header: dict[str, Any], restorer: Restorer) -> MongeMapCV:
    choice = header["choice"]
    estimator = MongeMapCV(**_restore_options(choice["options"], restorer, None))
    estimator._adopt(_restore_map(header, "", restorer))
    score, report = choice["score"], choice["report"]
    estimator.best_score_ = np.nan if score is None else float(score)
    estimator.cv_results_ = {
        name: column if name == "params" else np.asarray(column)
        for name, column in choice["results"].items()
    }
    estimator.report_ = report and Table(
        tuple(report["rows"]), dict(map(tuple, report["headers"])), tuple(report["notes"])
    )
    return estimator


def _restore_ensemble(header: dict[str, Any], restorer: Restorer) -> EnsembleMap:
    members = [
        _restore_map(each, f"members[{k}].", restorer) for k, each in enumerate(header["members"])
    ]
    template = header["template"]
    if template is not None:
        template = MongeMap(**_restore_options(template, restorer, members[0].map_.cost))
    ensemble = EnsembleMap(template, **_restore_options(header["options"], restorer, None))
    # Older files have no clouds of their own.
    names = [*_ENSEMBLE, *(CLOUDS if header.get("clouds") else ())]
    kept = {name: restorer.take(f"ensemble.{name}") for name in names}
    for points, weight in (CLOUDS[::2], CLOUDS[1::2]) if header.get("clouds") else ():
        shape = (*kept[weight].shape, members[0].n_features_in_)
        if kept[points].shape != shape or kept[points].dtype != np.float64:
            raise ModelFileError(f"the tensor ensemble.{points} is not float64{list(shape)}.")
    ensemble._restore(members, kept)
    _restore_names(ensemble, header)
    return ensemble


def _restore_legs(header: dict[str, Any], restorer: Restorer) -> TemporalMap:
    legs = [_restore_map(each, f"legs[{k}].", restorer) for k, each in enumerate(header["legs"])]
    times = tuple(header["times"])
    keys = list(itertools.pairwise(times)) if times else header["names"]
    if not legs or len(keys) != len(legs):
        raise ModelFileError(f"it has {len(legs)} legs, and {len(keys)} are named.")
    estimator = TemporalMap(**_restore_options(header["options"], restorer, legs[0].map_.cost))
    estimator._adopt(dict(zip(keys, legs, strict=True)), times)
    _restore_names(estimator, header)
    return estimator


def _restore_names(estimator: Any, header: dict[str, Any]) -> None:
    if "feature_names" in header:
        estimator.feature_names_in_ = np.asarray(header["feature_names"], dtype=object)


def _restore_options(options: dict[str, Any], restorer: Restorer, cost: Any) -> dict[str, Any]:
    restored = {}
    for name, spec in options.items():
        if _is_left_out(spec):
            continue  # the default
        if isinstance(spec, dict) and "fitted" in spec:
            flows = cost.phi_mu if cost.shared else (cost.phi_mu, cost.phi_nu)
            restored[name] = cost.h if name == "cost" else flows
        else:
            restored[name] = restorer.restore(spec)
    return restored


def _is_left_out(spec: Any) -> bool:
    return isinstance(spec, dict) and "left_out" in spec


def _check_map(entropic_map: Any, shape: Any, dtype: Any) -> None:
    """Refuse a map whose parts do not fit together."""
    if not isinstance(entropic_map, EntropicMap):
        raise ModelFileError("it holds no map.")
    # Not isinstance, which takes True for a whole number.
    if len(shape) != 3 or any(type(size) is not int or size < 1 for size in shape):
        raise ModelFileError("its shape is not three whole numbers from 1 on.")
    if dtype not in _DTYPES:
        raise ModelFileError(f"it has numbers of the unknown type {str(dtype)[:40]!r}.")
    n, m, dim = shape
    expected = {"x": (n, dim), "y": (m, dim), "a": (n,), "b": (m,), "f": (n,), "g": (m,), "eps": ()}
    for name, size in expected.items():
        found = getattr(entropic_map, name)
        if found.shape != size or found.dtype != dtype:
            raise ModelFileError(
                f"the tensor map.{name} is {found.dtype}{list(found.shape)}; this model needs "
                f"{dtype}{list(size)}."
            )
    if (own := entropic_map.own) is not None and any(
        part.shape != size or part.dtype != dtype
        for part, size in ((own.source, (n,)), (own.target, (m,)))
    ):
        raise ModelFileError(f"its potentials within each cloud are not {dtype}[{n}] and [{m}].")
    units, cost = entropic_map.units, entropic_map.cost
    if units.centre.shape != (dim,) or units.scale.shape != ():
        raise ModelFileError(f"its units are not those of {dim} features.")
    if any(leaf.dtype != dtype for leaf in jax.tree.leaves(cost) if eqx.is_inexact_array(leaf)):
        raise ModelFileError(f"a tensor of its cost is not {dtype}.")

    def evaluate(x, y):
        u, v = cost.latent_source(x), cost.latent_target(y)
        return cost.h.value_and_gradient(u - v), cost.h.hessian(u - v)

    point = jax.ShapeDtypeStruct((1, dim), jnp.dtype(dtype))
    try:
        (value, gradient), hessian = eqx.filter_eval_shape(evaluate, point, point)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"its cost is not one of {dim} features.") from error
    if (value.shape, gradient.shape, hessian.shape) != ((1,), (1, dim), (1, dim, dim)):
        raise ModelFileError(f"its cost is not one of {dim} features.")
