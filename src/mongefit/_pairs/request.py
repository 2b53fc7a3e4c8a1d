"""The pairs whose gradients are requested, and which of them matter."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class PairRequest(eqx.Module):
    """The pairs whose gradients are requested: those of some rows and of some columns.

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

    def displacements(self, u: Float[Array, "n d"], v: Float[Array, "m d"]) -> Float[Array, "k d"]:
        """u_i − v_j for every vector."""
        if self.all_pairs:
            return all_displacements(u, v)
        of_rows, of_columns = u[self.rows][:, None] - v, u - v[self.columns][:, None]
        return jnp.concatenate([each.reshape(-1, u.shape[1]) for each in (of_rows, of_columns)])

    @staticmethod
    def _at(indices, k):
        return jnp.asarray(indices).astype(k.dtype)[k] if len(indices) else jnp.zeros_like(k)

    def weighted(self, s: Float[Array, "r m"], t: Float[Array, "c n"], left_out: float):
        """Which vectors have weight in the means over rows with s and over columns with t."""
        # Weights that are not finite are kept.
        in_row, in_column = (~(w <= negligible(w, left_out, axis=1)) for w in (s, t))
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
        keep = size > negligible(size, left_out)
        if self.all_pairs:
            return keep.reshape(self.n, self.m)
        of_rows = len(self.rows) * self.m
        in_row = keep[:of_rows].reshape(len(self.rows), self.m)
        in_column = keep[of_rows:].reshape(len(self.columns), self.n)
        return _spread(in_row, self.rows, self.n) | _spread(in_column, self.columns, self.m).T

    def of_pairs(self, vectors: Float[Array, "k d"]) -> Float[Array, "nm d"]:
        """The sum of the vectors of each pair, of all pairs row by row."""
        if self.all_pairs:
            return vectors
        of_rows, of_columns = self.split(vectors)
        table = jnp.zeros((self.n, self.m, vectors.shape[1]), vectors.dtype)
        table = table.at[self.rows].set(of_rows).at[:, self.columns].add(of_columns.swapaxes(0, 1))
        return table.reshape(-1, vectors.shape[1])

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


def all_displacements(u: Float[Array, "n d"], v: Float[Array, "m d"]) -> Float[Array, "nm d"]:
    """u_i − v_j of all pairs, row by row."""
    return (u[:, None] - v).reshape(-1, u.shape[1])


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


def negligible(size: Float[Array, "*n"], left_out: float, axis: int | None = None):
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
