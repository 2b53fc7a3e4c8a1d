"""Two clouds and what is known of the map between them, checked."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from mongefit._runtime import is_traced
from mongefit._transport import Units
from mongefit._validation import check_points, check_same_features, check_weights
from mongefit.errors import DataError, noted_warnings, warn_user


class FitData(NamedTuple):
    """What a user passes to ``fit``, unchecked."""

    X: ArrayLike
    Y: ArrayLike
    pairs: ArrayLike | None = None
    pair_weight: ArrayLike | None = None
    groups: tuple[ArrayLike, ArrayLike] | None = None
    validation_pairs: ArrayLike | None = None
    source_weight: ArrayLike | None = None
    target_weight: ArrayLike | None = None
    clones: ArrayLike | None = None


class Clouds(NamedTuple):
    """Both clouds, checked.

    ``source`` and ``target`` are in the units of the data, ``x`` and ``y`` in common units and in
    the precision of the computation. ``notes`` is what the user was warned of.
    """

    source: NDArray[np.float64]
    target: NDArray[np.float64]
    units: Units
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    notes: list[str]

    @property
    def dim(self) -> int:
        return self.source.shape[1]


def check_clouds(data: FitData, *, dtype: str, normalize: bool) -> Clouds:
    """Check both clouds and bring them to common units."""
    if is_traced(data.X, data.Y):
        raise DataError(
            "fit cannot be part of a function that JAX transforms, such as by jit or grad. "
            "mongefit.build_map can: it is differentiable in the cost."
        )
    source, target = check_points(data.X, "X"), check_points(data.Y, "Y")
    check_same_features(data.X, data.Y, source, target)
    a = check_weights(data.source_weight, len(source), "source_weight", normalize=normalize)
    b = check_weights(data.target_weight, len(target), "target_weight", normalize=normalize)
    low = np.minimum(source.min(0), target.min(0))
    high = np.maximum(source.max(0), target.max(0))
    constant = np.flatnonzero(low == high)
    with noted_warnings() as notes:
        if len(constant) and len(source) + len(target) > 2:
            names = ", ".join(map(str, constant[:5]))
            warn_user(
                f"{len(constant)} features are constant over both clouds (columns {names}); they "
                "carry no information and could be left out."
            )
    units = Units.of(source, target, a, b)
    kind = jnp.dtype("float32" if dtype == "float32" else "float64")
    x, y = (units.into(points).astype(kind) for points in (source, target))
    return Clouds(source, target, units, x, y, jnp.asarray(a, kind), jnp.asarray(b, kind), notes)


def hash_arrays(*arrays: Any) -> str:
    """A hash of some arrays, None among them."""
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(np.zeros(0) if array is None else array)
        digest.update(f"{plain.dtype.str} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()


def check_clones(clones: Any, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The clone of every pair, from 0 on; without labels, pairs that share a point are one."""
    labels = connected_parts(*pairs.T) if clones is None else np.asarray(clones)
    if labels.shape != (len(pairs),):
        raise DataError(
            f"clones has shape {labels.shape}; one label for each of the {len(pairs)} pairs is "
            "needed, none of which may be repeated."
        )
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def connected_parts(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The connected part of a bipartite graph that each edge, from a row to a column, is in."""
    n = rows.max(initial=0) + 1
    size = n + columns.max(initial=0) + 1
    graph = scipy.sparse.coo_array((np.ones(len(rows)), (rows, n + columns)), shape=(size, size))
    return scipy.sparse.csgraph.connected_components(graph, directed=False)[1][rows]
