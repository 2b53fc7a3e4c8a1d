"""Model files: tensors and a JSON header in one safetensors file, with a checksum over both.

Nothing in a file is ever executed: the header names kinds of objects out of a fixed list and their
settings, and the tensors must have exactly the names, types and shapes that these imply. The
checksum finds damage; it is not a signature and says nothing about who wrote the file.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import mongefit
from mongefit._numerics import cast, double_precision
from mongefit._versions import recorded_versions
from mongefit.costs import Cost
from mongefit.errors import ModelFileError
from mongefit.estimator import MongeMap
from mongefit.files import missing_file
from mongefit.files.tensors import TensorFileError, read_tensors, write_tensors
from mongefit.maps import EntropicMap, Units
from mongefit.storage.descriptions import (
    build_diffeo,
    build_h,
    build_part,
    describe_diffeo,
    describe_h,
    describe_option,
    describe_part,
    restore_option,
)

FORMAT = "mongefit-model"
FORMAT_VERSION = 1
# What pictures and reports take from the history of every trained model.
_HISTORY = ("step", "loss", "epsilon", "applied")
_DTYPES = ("float32", "float64")
_CELLS = "single_cell"


class Section(NamedTuple):
    """What `mongefit.single_cell` keeps in a model file beside the map.

    Attributes
    ----------
    header
        The entry of the header, for JSON.
    tensors
        Its arrays, by names of their own.
    """

    header: dict[str, Any]
    tensors: dict[str, np.ndarray]


def save(
    estimator: MongeMap,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    single_cell: Section | None = None,
) -> None:
    """Write a fitted estimator to one file, completely or not at all."""
    with double_precision():
        tensors = {f"map{name}": np.asarray(leaf) for name, leaf in _named_arrays(estimator.map_)}
        tensors |= {f"history.{name}": column for name, column in estimator.history_.items()}
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "mongefit": mongefit.__version__,
        "versions": recorded_versions(),
        "options": {name: describe_option(value) for name, value in estimator.get_params().items()},
        "cost": {
            "h": describe_h(estimator.map_.cost.h),
            "phi_mu": describe_diffeo(estimator.map_.cost.phi_mu),
            "phi_nu": describe_diffeo(estimator.map_.cost.phi_nu),
            "shared": estimator.map_.cost.shared,
        },
        "dtype": str(estimator.map_.x.dtype),
        "shape": [len(estimator.map_.x), len(estimator.map_.y), estimator.n_features_in_],
        "n_iter": estimator.n_iter_,
        "losses": [describe_part(loss) for loss in estimator.losses_],
        "scores": [score if np.isfinite(score) else None for score in estimator.scores_.tolist()],
        "diagnostics": estimator.diagnostics_,
        "data_sha256": estimator.data_sha256_,
    }
    if hasattr(estimator, "feature_names_in_"):
        header["feature_names"] = list(map(str, estimator.feature_names_in_))
    if single_cell is not None:
        header[_CELLS] = single_cell.header
        tensors |= {f"{_CELLS}.{name}": array for name, array in single_cell.tensors.items()}
    write_tensors(path, header, tensors, overwrite=overwrite)


def load(path: str | os.PathLike[str]) -> MongeMap:
    """Read an estimator that `MongeMap.save` wrote; it maps points to the same bits.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, or of a version that this release cannot read.
    """
    return load_with_cells(path)[0]


def load_with_cells(path: str | os.PathLike[str]) -> tuple[MongeMap, Section | None]:
    """As `load`, with what `mongefit.single_cell` keeps there, unchecked, or None."""
    header, tensors = _read(path)
    try:
        with double_precision():
            return _rebuild(header, tensors), _cells(header, tensors)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from None
    except Exception as error:  # whatever a forged header makes the constructors raise
        raise ModelFileError(
            f"{os.fspath(path)} is not a valid model: its header does not describe one ({error})."
        ) from error


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a model file, after the checksum has been verified."""
    return _read(path)[0]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    name = os.fspath(path)
    if os.path.isdir(name):
        raise ModelFileError(f"{name} is a folder. Name a model file in it.")
    if not os.path.exists(name):
        raise ModelFileError(missing_file(name))
    try:
        return read_tensors(name, lambda header: _check_version(name, header))
    except TensorFileError as error:
        raise ModelFileError(
            f"{name} is not a mongefit model, or is damaged ({error}). Models are written by "
            "MongeMap.save and by the command 'mongefit fit'."
        ) from error


def _check_version(name: str, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT or "version" not in header:
        raise ModelFileError(f"{name} is a safetensors file, but not a mongefit model.")
    version = header["version"]
    # Not isinstance, which takes True for a whole number.
    if type(version) is not int or version < 1:
        raise ModelFileError(
            f"{name} has format version {version!r}, which no release of mongefit writes: versions "
            "are whole numbers from 1. Save the model again."
        )
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{name} has format version {version}; this release of mongefit reads up to "
            f"{FORMAT_VERSION}. Upgrade mongefit."
        )


def _rebuild(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> MongeMap:
    n, m, dim = header["shape"]
    # JAX takes a text for the name of a data type, and NumPy hands one that it does not know to
    # Python's parser.
    if any(type(size) is not int or size < 1 for size in (n, m, dim)):
        raise ModelFileError("its shape is not three whole numbers from 1 on.")
    if header["dtype"] not in _DTYPES:
        raise ModelFileError(f"it has numbers of the unknown type {str(header['dtype'])[:40]!r}.")
    dtype = jnp.dtype(header["dtype"])
    if _count_layers(header["cost"]) > len(tensors):
        raise ModelFileError("its header names more layers than it has tensors.")
    # First as shapes alone: a forged header cannot make us allocate more than the file holds.
    outline = eqx.filter_eval_shape(_skeleton, header["cost"], n, m, dim, dtype)
    expected = {f"map{name}": leaf for name, leaf in _named_arrays(outline)}
    beside = ("history.", f"{_CELLS}.") if _CELLS in header else ("history.",)
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(beside)}
    if missing := sorted(expected.keys() - found.keys()):
        raise ModelFileError(f"the tensor {missing[0]} is missing.")
    if extra := sorted(found.keys() - expected.keys()):
        raise ModelFileError(f"the tensor {extra[0]} does not belong to this model.")
    for name, leaf in expected.items():
        tensor = found[name]
        if tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            raise ModelFileError(
                f"the tensor {name} is {tensor.dtype}{list(tensor.shape)}; this model needs "
                f"{leaf.dtype}{list(leaf.shape)}."
            )
        if not np.all(np.isfinite(tensor)):
            raise ModelFileError(f"the tensor {name} contains NaN or infinity.")
    history = {
        name.removeprefix("history."): tensor
        for name, tensor in tensors.items()
        if name.startswith("history.")
    }
    if header["n_iter"] > 0 and (absent := [key for key in _HISTORY if key not in history]):
        raise ModelFileError(
            f"the tensor history.{absent[0]} is missing from a model trained for "
            f"{header['n_iter']} steps."
        )
    skeleton = _skeleton(header["cost"], n, m, dim, dtype)
    entropic_map = jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            jnp.asarray(found[f"map{jax.tree_util.keystr(path)}"]) if _is_saved(leaf) else leaf
        ),
        skeleton,
    )
    options = {
        name: restore_option(name, value, entropic_map) for name, value in header["options"].items()
    }
    estimator = MongeMap(**options)
    estimator.map_ = entropic_map
    estimator.units_ = entropic_map.units
    estimator.history_ = history
    estimator.n_iter_ = header["n_iter"]
    estimator.losses_ = tuple(spec and build_part(spec) for spec in header["losses"])
    scores = [np.inf if score is None else score for score in header.get("scores", [])]
    estimator.scores_ = np.asarray(scores, dtype=np.float64)
    estimator.diagnostics_ = header["diagnostics"]
    estimator.data_sha256_ = header["data_sha256"]
    estimator.n_features_in_ = dim
    if "feature_names" in header:
        estimator.feature_names_in_ = np.asarray(header["feature_names"], dtype=object)
    return estimator


def _cells(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Section | None:
    if _CELLS not in header:
        return None
    prefix = f"{_CELLS}."
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return Section(header[_CELLS], found)


def _is_saved(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _named_arrays(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_saved(leaf)]


def _count_layers(cost: dict[str, Any]) -> int:
    """Layers of h and of the flows: each has tensors, and takes time to build even as shapes."""
    flows = [phi for phi in (cost["phi_mu"], cost["phi_nu"]) if phi is not None]
    return len(cost["h"].get("hidden_layer_sizes", ())) + sum(
        phi["n_blocks"] * phi["depth"] for phi in flows[: 1 if cost["shared"] else 2]
    )


def _skeleton(cost: dict[str, Any], n: int, m: int, dim: int, dtype: jnp.dtype) -> EntropicMap:
    """A map of the right structure, with any numbers in it."""
    h = build_h(cost["h"], dim)
    phi_mu = build_diffeo(cost["phi_mu"], dim)
    phi_nu = phi_mu if cost["shared"] else build_diffeo(cost["phi_nu"], dim)
    skeleton = EntropicMap(
        Cost(h, phi_mu, phi_nu),
        x=jnp.zeros((n, dim)), y=jnp.zeros((m, dim)),
        a=jnp.zeros(n), b=jnp.zeros(m), f=jnp.zeros(n), g=jnp.zeros(m), eps=jnp.zeros(()),
        units=Units.none(dim),
    )  # fmt: skip
    return eqx.tree_at(lambda tree: tree.units, cast(skeleton, dtype), Units.none(dim))
