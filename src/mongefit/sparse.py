r"""Costs of all pairs, with gradients and derivatives over the pairs that carry mass.

At small eps most entries of a plan are negligible, and so is what their gradients contribute to the
map and to any derivative. Here h is evaluated for every pair; ∇h and the derivatives, which cost
several times as much, only for pairs that matter, in chunks of a fixed size, as many as there are.

What is left out is bounded. Of the gradients, those are left out whose weights add up to at most
``LEFT_OUT`` of any mean. The derivative leaves out the pairs with the smallest slopes, which
together are at most ``LEFT_OUT_SLOPE`` of the sum of all. Where one chunk holds all pairs, nothing
is left out.

With float64 points, gradients and derivatives may be computed in float32, which halves their time
and leaves about six digits, and more is left out with it. Not so the costs themselves: they are
divided by eps, and differences of a millionth of a cost decide at small eps which pairs carry mass.

Memory: besides matrices over all pairs there is a vector for every pair whose gradient is asked
for, and what one block of pairs needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mongefit._numerics import cast
from mongefit.convex import ConvexFunction
from mongefit.costs import pairwise_value

LEFT_OUT = {"float64": 1e-11, "float32": 1e-8}
LEFT_OUT_SLOPE = {"float64": 1e-8, "float32": 1e-6}

Latent = tuple[ConvexFunction, Float[Array, "n d"], Float[Array, "m d"]]


class Asked(eqx.Module):
    """The pairs whose gradients are asked for: those of some rows and of some columns.

    Where these are few, each row and each column has vectors of its own, one for each of the points
    of the other cloud; else there is one vector for every pair. Vectors are listed in one array.
    """

    rows: Int[Array | np.ndarray, " r"]
    columns: Int[Array | np.ndarray, " c"]
    n: int = eqx.field(static=True)
    m: int = eqx.field(static=True)

    @property
    def all_pairs(self) -> bool:
        """Whether there is one vector for every pair."""
        return len(self.rows) * self.m + len(self.columns) * self.n >= self.n * self.m

    @property
    def count(self) -> int:
        """Number of vectors."""
        if self.all_pairs:
            return self.n * self.m
        return len(self.rows) * self.m + len(self.columns) * self.n

    def pair(self, k: Int[Array, " k"]) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
        """Row and column of the vectors numbered k."""
        if self.all_pairs:
            return k // self.m, k % self.m
        of_rows = len(self.rows) * self.m
        late = jnp.maximum(k - of_rows, 0)
        # Indices beyond the last are held in range, and not used.
        row = jnp.where(k < of_rows, self._at(self.rows, k // self.m), late % self.n)
        column = jnp.where(k < of_rows, k % self.m, self._at(self.columns, late // self.n))
        return row, column

    @staticmethod
    def _at(indices, k):
        return jnp.asarray(indices).astype(k.dtype)[k] if len(indices) else jnp.zeros_like(k)

    def weighted(self, s: Float[Array, "r m"], t: Float[Array, "c n"], left_out: float):
        """Which vectors have weight in the means over rows with s and over columns with t."""
        # Weights that are not finite are kept.
        in_row, in_column = (~(w <= _negligible(w, left_out, axis=1)) for w in (s, t))
        if not self.all_pairs:
            return jnp.concatenate([in_row.ravel(), in_column.ravel()])
        keep = _spread(in_row, self.rows, self.n) | _spread(in_column, self.columns, self.m).T
        return keep.ravel()

    def split(self, vectors: Float[Array, "k d"]) -> tuple[Float[Array, "r m d"], Array]:
        """The vectors of the rows, and those of the columns, [c, n, d]."""
        dim = vectors.shape[1]
        if self.all_pairs:
            table = vectors.reshape(self.n, self.m, dim)
            return take(table, self.rows), take(table.swapaxes(0, 1), self.columns)
        of_rows = len(self.rows) * self.m
        return (
            vectors[:of_rows].reshape(len(self.rows), self.m, dim),
            vectors[of_rows:].reshape(len(self.columns), self.n, dim),
        )

    def large(self, vectors: Float[Array, "k d"], left_out: float) -> Bool[Array, "n m"]:
        """The pairs whose vectors are not small beside all."""
        size = jnp.sum(jnp.abs(vectors), axis=1)
        keep = size > _negligible(size, left_out)
        if self.all_pairs:
            return keep.reshape(self.n, self.m)
        of_rows = len(self.rows) * self.m
        in_row = keep[:of_rows].reshape(len(self.rows), self.m)
        in_column = keep[of_rows:].reshape(len(self.columns), self.n)
        return _spread(in_row, self.rows, self.n) | _spread(in_column, self.columns, self.m).T

    def lookup(self, vectors: Float[Array, "k d"]) -> Callable[[Array, Array], Array]:
        """The function of rows and columns that gives the sum of the vectors of each pair."""
        if self.all_pairs:
            return lambda i, j: vectors[i * self.m + j]
        in_rows, in_columns = (
            jnp.full(size, -1).at[indices].set(jnp.arange(len(indices)))
            for indices, size in ((self.rows, self.n), (self.columns, self.m))
        )
        of_rows = len(self.rows) * self.m

        def look(i, j):
            row, column = in_rows[i], in_columns[j]
            first = vectors[jnp.maximum(row, 0) * self.m + j]
            second = vectors[of_rows + jnp.maximum(column, 0) * self.n + i]
            return jnp.where(row[:, None] >= 0, first, 0) + jnp.where(
                column[:, None] >= 0, second, 0
            )

        return look


def take(table: Array, indices: Int[Array | np.ndarray, " k"]) -> Array:
    """The rows of a table with these numbers, without a copy where they are all its rows."""
    return table if len(indices) == len(table) else table[indices]


def _spread(
    flags: Bool[Array, "k w"], indices: Int[Array | np.ndarray, " k"], size: int
) -> Bool[Array, "s w"]:
    """Flags at their rows, and False elsewhere."""
    if len(indices) == size:
        return flags
    return jnp.zeros((size, flags.shape[1]), bool).at[indices].set(flags, unique_indices=True)


def _negligible(size: Float[Array, "*n"], left_out: float, axis: int | None = None):
    """A bound such that all sizes up to it add up to at most ``left_out`` of the sum.

    It is at least the bound that would do if all were of that size, and found by bisection.
    """
    allowed = left_out * jnp.sum(size, axis=axis, keepdims=axis is not None)
    count = size.size if axis is None else size.shape[axis]

    def halve(_, bounds):
        low, high = bounds
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        dropped = jnp.sum(
            jnp.where(size <= middle, size, 0.0), axis=axis, keepdims=axis is not None
        )
        fits = dropped <= allowed
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    return jax.lax.fori_loop(0, 6, halve, (allowed / max(count, 1), allowed))[0]


def pairwise(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    asked: Asked,
    *,
    dtype: str | None = None,
) -> tuple[Float[Array, "n m"], Float[Array, "k d"]]:
    """C_ij = h(u_i − v_j) for all pairs, and a token for `gradients`.

    Parameters
    ----------
    h, u, v
        Convex function and latent points.
    asked
        The pairs whose gradients will be asked for.
    dtype
        Precision of the derivative; that of the points by default.

    Returns
    -------
    C, token
        The costs, and zeros of the shape of their gradients, to which `gradients` passes its
        slopes: so that one sweep over the pairs serves the derivatives of both.
    """
    return _pairwise((h, u, v), asked, dtype)


def gradients(
    token: Float[Array, "k d"],
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    asked: Asked,
    s: Float[Array, "r m"],
    t: Float[Array, "c n"],
    *,
    dtype: str | None = None,
) -> tuple[Float[Array, "r m d"], Float[Array, "c n d"]]:
    """∇h(u_i − v_j) for the pairs that have weight in s or t; of others it may be zero.

    Parameters
    ----------
    token
        What `pairwise` gave for the same h, u, v and pairs.
    h, u, v
        Convex function and latent points.
    asked
        The rows and columns to which s and t belong.
    s, t
        Weights of means over the rows and over the columns; each row of either has sum 1.
    dtype
        Precision of the computation; that of the points by default.

    Returns
    -------
    of_rows, of_columns
        The gradients for every row that was asked for, and for every column.
    """
    return asked.split(_gradients(token, *jax.lax.stop_gradient(((h, u, v), asked, s, t)), dtype))


def chunk_size(pairs: int) -> int:
    """Pairs to evaluate at a time: on a CPU those whose layers stay in its cache."""
    if jax.default_backend() == "cpu":
        return min(pairs, 2**10)
    return pairs if pairs <= 2**18 else 2**17


def _one_chunk(pairs: int) -> bool:
    """Whether all pairs are one chunk: leaving some out would take longer than it saves."""
    return pairs <= chunk_size(pairs)


BLOCK = 2**24  # pairs among which those to keep are looked for at a time


def _sweep(
    keep: Bool[Array, "n m"],
    body: Callable[[Int[Array, " k"], Int[Array, " k"], Bool[Array, " k"]], Any],
    finish: Callable[[Any], Any] = lambda vectors: (vectors, None),
) -> tuple[Any, Any]:
    """``vectors, terms = body(rows, columns, real)`` for the pairs to keep, chunk by chunk.

    Pairs that are not ``real`` fill up the last chunk of a block of rows. ``finish`` makes of the
    vectors of a block, zero for pairs not kept, what is wanted of its rows, and more terms.
    Returns what is wanted of all rows, and the sums of the terms of both kinds.
    """
    n, m = keep.shape
    rows = min(n, max(1, BLOCK // max(m, 1)))
    blocks = -(-n // rows)

    def block(part, start):
        vectors, terms = _sweep_block(part, start, body)
        wanted, more = finish(vectors)
        return (terms, more), wanted

    if blocks == 1:
        total, wanted = block(keep, jnp.zeros((), jnp.int32))
        return wanted, total
    parts = jnp.pad(keep, ((0, blocks * rows - n), (0, 0))).reshape(blocks, rows, m)
    starts = rows * jnp.arange(blocks, dtype=jnp.int32)
    nothing = _zeros(jax.eval_shape(block, parts[0], starts[0])[0])

    def add(total, part):
        terms, wanted = block(*part)
        return jax.tree.map(jnp.add, total, terms), wanted

    total, wanted = jax.lax.scan(add, nothing, (parts, starts))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], wanted), total


def _zeros(shapes):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _sweep_block(keep, first, body) -> tuple[Float[Array, "rows m d"] | None, Any]:
    m = keep.shape[1]
    if _one_chunk(keep.size):
        k = jnp.arange(keep.size, dtype=jnp.int32)
        vectors, terms = body(first + k // m, k % m, keep.ravel())
        whole = None if vectors is None else vectors.reshape(*keep.shape, -1)
        return whole, terms
    size = chunk_size(keep.size)
    capacity = -(-keep.size // size) * size
    flat, everywhere = keep.ravel(), jnp.arange(keep.size, dtype=jnp.int32)
    position = jnp.cumsum(flat, dtype=jnp.int32) - 1
    count = position[-1] + 1
    # Their numbers, in order; those not to keep go beyond the end, each to a place of its own.
    index = jnp.zeros(capacity, jnp.int32)
    target = jnp.where(flat, position, capacity + everywhere)
    index = index.at[target].set(everywhere, mode="drop", unique_indices=True)

    def chunk(start):
        part = jax.lax.dynamic_slice(index, (start,), (size,))
        real = start + jnp.arange(size, dtype=jnp.int32) < count
        # What fills up may lie in a row of padding, beyond the last.
        part = jnp.where(real, part, 0)
        return body(first + part // m, part % m, real)

    shapes = jax.eval_shape(chunk, count)
    # Written in order and brought to their places afterwards, by one gather: scattering every
    # chunk is slow on a CPU.
    vectors = jax.tree.map(
        lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), shapes[0]
    )

    def step(carry):
        start, vectors, total = carry
        found, terms = chunk(start)
        vectors = jax.tree.map(
            lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0),
            vectors,
            found,
        )
        return start + size, vectors, jax.tree.map(jnp.add, total, terms)

    start = jnp.zeros_like(count)
    _, vectors, total = jax.lax.while_loop(
        lambda carry: carry[0] < count, step, (start, vectors, _zeros(shapes[1]))
    )
    if vectors is None:
        return None, total
    place = position.reshape(keep.shape)
    return jnp.where(keep[..., None], vectors[jnp.maximum(place, 0)], 0.0), total


@eqx.filter_custom_vjp
def _pairwise(latent: Latent, asked: Asked, dtype):
    h, u, v = latent
    C = pairwise_value(h, u, v)
    return C, jnp.zeros((asked.count, u.shape[1]), C.dtype)


@_pairwise.def_fwd
def _(perturbed, latent, asked, dtype):
    return _pairwise(latent, asked, dtype), None


@_pairwise.def_bwd
def _(residuals, slopes, perturbed, latent, asked, dtype):
    h, u, v = latent
    full, dtype = u.dtype, dtype or str(u.dtype)
    of_C = jnp.zeros((len(u), len(v)), full) if slopes[0] is None else slopes[0]
    left_out = LEFT_OUT_SLOPE[dtype]
    size = jnp.abs(of_C)
    total = jnp.sum(size)
    every = _one_chunk(size.size)
    large = jnp.ones(size.shape, bool) if every else size > _negligible(size, left_out)
    of_gradient = None
    if slopes[1] is not None and asked.count:
        of_gradient = asked.lookup(slopes[1])
        large = large if every else large | asked.large(slopes[1], left_out)
        total = total + jnp.sum(jnp.abs(slopes[1]))
    h, u, v = cast(latent, dtype)
    points_move = any(jax.tree.leaves(perturbed[1:]))

    def pull_chunk(rows, columns, real):
        to_value = jnp.where(real, of_C[rows, columns], 0.0).astype(dtype)
        z = u[rows] - v[columns]

        def along(h, z):
            if of_gradient is None:
                return jnp.sum(to_value * h.value(z))
            # A slope of the gradient asks for a directional derivative of the value.
            to_slope = jnp.where(real[:, None], of_gradient(rows, columns), 0.0).astype(dtype)
            value, change = jax.jvp(h.value, (z,), (to_slope,))
            return jnp.sum(to_value * value + change)

        if not points_move:
            return None, eqx.filter_grad(along)(h, z)
        of_h, of_z = eqx.filter_grad(lambda pair: along(*pair))((h, z))
        return of_z, of_h

    def finish(of_z):
        return (None, None) if of_z is None else (jnp.sum(of_z, axis=1), -jnp.sum(of_z, axis=0))

    of_u, (of_h, of_v) = _sweep(large, pull_chunk, finish)
    # What is not finite fails every comparison above, and must not be left out for that.
    finite = jnp.isfinite(total)
    return jax.tree.map(
        lambda leaf: jnp.where(finite, leaf, jnp.nan).astype(full), (of_h, of_u, of_v)
    )


@eqx.filter_custom_vjp
def _gradients(token, latent: Latent, asked: Asked, s, t, dtype):
    if not asked.count:
        return token
    dtype = dtype or str(token.dtype)
    h, u, v = cast(latent, dtype)
    every = _one_chunk(asked.count)
    keep = jnp.ones(asked.count, bool) if every else asked.weighted(s, t, LEFT_OUT[dtype])

    def chunk(k, _, real):
        rows, columns = asked.pair(k)
        return h.gradient(u[rows] - v[columns]), None

    return _sweep(keep[:, None], chunk)[0][:, 0].astype(token.dtype)


@_gradients.def_fwd
def _(perturbed, token, latent, asked, s, t, dtype):
    return _gradients(token, latent, asked, s, t, dtype), None


@_gradients.def_bwd
def _(residuals, slope, perturbed, token, latent, asked, s, t, dtype):
    return slope
