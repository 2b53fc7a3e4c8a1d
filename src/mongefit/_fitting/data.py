"""Two clouds and what is known of the map between them, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from mongefit._runtime import is_traced
from mongefit._transport import Units
from mongefit._validation import (
    Knowledge,
    check_points,
    check_same_features,
    check_weights,
)
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


class Leg(NamedTuple):
    """Two clouds and what is known of the map between them, checked.

    ``held_out`` are validation pairs. ``spared`` says which of the known pairs they are if the fit
    kept them from training itself.
    """

    clouds: Clouds
    known: Knowledge
    held_out: NDArray[np.int64] | None = None
    spared: NDArray[np.bool_] | None = None


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
    kind = jnp.dtype("float32" if dtype == "float32" else "float64")
    weights = jnp.asarray(a, kind), jnp.asarray(b, kind)
    units = Units.of((source, a), (target, b))
    x, y = _inside(units, kind, source, target)
    return Clouds(source, target, units, x, y, *weights, notes)


def share_units(clouds: Sequence[Clouds], ends: Sequence[tuple[int, int]]) -> list[Clouds]:
    """The clouds of several legs in the same units; ``ends`` numbers those of each leg."""
    numbered = {
        end: (points, np.asarray(weight, np.float64))
        for each, (first, last) in zip(clouds, ends, strict=True)
        for end, points, weight in ((last, each.target, each.b), (first, each.source, each.a))
    }
    units = Units.of(*(numbered[end] for end in sorted(numbered)))
    shared = []
    for each in clouds:
        x, y = _inside(units, each.x.dtype, each.source, each.target)
        shared.append(each._replace(units=units, x=x, y=y))
    return shared


def _inside(units: Units, dtype: Any, *clouds: NDArray[np.float64]) -> list[Float[Array, "n d"]]:
    return [units.into(points).astype(dtype) for points in clouds]


def hash_arrays(*arrays: Any) -> str:
    """A hash of some arrays, None among them."""
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(np.zeros(0) if array is None else array)
        digest.update(f"{plain.dtype.str} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()


def hash_texts(texts: Iterable[str]) -> str:
    """A hash of some texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def check_clones(clones: Any, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The clone of every pair, from 0 on; without labels, pairs that share a point are one."""
    labels = connected_parts(*pairs.T) if clones is None else check_labels(clones, pairs)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def check_labels(clones: Any, pairs: NDArray[np.int64]) -> NDArray[Any]:
    """A label for every pair."""
    labels = np.asarray(clones)
    if labels.shape != (len(pairs),):
        raise DataError(
            f"clones has shape {labels.shape}; one label for each of the {len(pairs)} pairs is "
            "needed, none of which may be repeated."
        )
    return labels


def clones_across(
    labels: Sequence[Any],
    tables: Sequence[NDArray[np.int64]],
    ends: Sequence[tuple[int, int]],
) -> list[NDArray[np.int64]]:
    """The clone of every pair of several legs, numbered across them.

    A label means the same clone in every leg. Without any labels, pairs that share a point, also
    of a cloud where two legs meet, are one clone. ``ends`` numbers the clouds of each leg.
    """
    if all(each is None for each in labels):
        size = 1 + max(table.max(initial=0) for table in tables)
        # A cloud at the end of one leg and at the start of another has the same points in both.
        nodes = [table + size * np.asarray(pair) for table, pair in zip(tables, ends, strict=True)]
        joined = connected_parts(*np.concatenate(nodes).T, bipartite=False)
    else:
        checked = []
        for own, table in zip(labels, tables, strict=True):
            if own is None:
                raise DataError("clones is needed for every leg with pairs, or for none.")
            checked.append(check_labels(own, table))
        joined = np.concatenate(checked)
    numbers = np.unique(joined, return_inverse=True)[1].astype(np.int64)
    return np.split(numbers, np.cumsum([len(table) for table in tables])[:-1])


def connected_parts(
    rows: NDArray[np.int64], columns: NDArray[np.int64], *, bipartite: bool = True
) -> NDArray[np.int64]:
    """The connected part of a graph that each edge, from a row to a column, is in.

    Row k and column k are different points if it is ``bipartite``, else the same.
    """
    n = rows.max(initial=0) + 1 if bipartite else 0
    size = max(n + columns.max(initial=0), rows.max(initial=0)) + 1
    graph = scipy.sparse.coo_array((np.ones(len(rows)), (rows, n + columns)), shape=(size, size))
    return scipy.sparse.csgraph.connected_components(graph, directed=False)[1][rows]
