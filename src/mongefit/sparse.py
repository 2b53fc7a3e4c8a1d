r"""Costs of all pairs, with gradients and derivatives over the pairs that carry mass.

At small eps most entries of a plan are negligible, and so is what their gradients contribute to the
map and to any derivative. Here h is evaluated for every pair; ∇h and the derivatives, which cost
several times as much, only for pairs that matter, in chunks of a fixed size, as many as there are.

What is left out is bounded. Of the gradients, those are left out whose weights are below
``LEFT_OUT`` / (number of weights) times the sum: together at most ``LEFT_OUT`` of any mean. The
derivative leaves out pairs by the slopes that reach it, in the same way, with ``LEFT_OUT_SLOPE``.

With float64 points, gradients and derivatives may be computed in float32, which halves their time
and leaves about six digits. Not so the costs themselves: they are divided by eps, and differences
of a millionth of a cost decide at small eps which pairs carry mass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mongefit._numerics import cast
from mongefit.convex import ConvexFunction
from mongefit.costs import pairwise_value

LEFT_OUT = 1e-10
LEFT_OUT_SLOPE = 1e-6

Latent = tuple[ConvexFunction, Float[Array, "n d"], Float[Array, "m d"]]


def pairwise(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    *,
    dtype: str | None = None,
) -> tuple[Float[Array, "n m"], Float[Array, "n m d"]]:
    """C_ij = h(u_i − v_j) for all pairs, and a token for `gradients`.

    Parameters
    ----------
    h, u, v
        Convex function and latent points.
    dtype
        Precision of the derivative; that of the points by default.

    Returns
    -------
    C, token
        The costs, and zeros of the shape of their gradients, to which `gradients` passes its
        slopes: so that one sweep over the pairs serves the derivatives of both.
    """
    return _pairwise((h, u, v), dtype)


def gradients(
    token: Float[Array, "n m d"],
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    s: Float[Array, "n m"],
    t: Float[Array, "n m"],
    *,
    dtype: str | None = None,
) -> Float[Array, "n m d"]:
    """∇h(u_i − v_j) for the pairs that have weight in s or t, and zero for all others.

    Parameters
    ----------
    token
        What `pairwise` gave for the same h, u and v.
    h, u, v
        Convex function and latent points.
    s, t
        Weights of means over the rows and over the columns: the rows of s and the columns of t
        have sum 1, or 0 where no mean is asked for.
    dtype
        Precision of the computation; that of the points by default.
    """
    return _gradients(token, *jax.lax.stop_gradient(((h, u, v), s, t)), dtype)


def _chunk_size(pairs: int) -> int:
    """Pairs to evaluate at a time: on a CPU those whose layers stay in its cache."""
    return min(pairs, 2**10 if jax.default_backend() == "cpu" else 2**18)


class _Chosen(eqx.Module):
    """The pairs to keep, in order, and chunks of them."""

    keep: Bool[Array, "n m"]
    index: Int[Array, " capacity"]
    count: Int[Array, ""]
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, keep: Bool[Array, "n m"]) -> _Chosen:
        size = _chunk_size(keep.size)
        capacity = -(-keep.size // size) * size
        index = jnp.nonzero(keep.ravel(), size=capacity, fill_value=keep.size - 1)[0]
        return cls(keep, index, jnp.sum(keep), size)

    def sweep(
        self,
        body: Callable[[Int[Array, " k"], Int[Array, " k"], Bool[Array, " k"]], Any],
        dim: int,
        dtype: jnp.dtype,
    ) -> tuple[Float[Array, "n m d"], Any]:
        """``vectors, terms = body(rows, columns, real)`` for every chunk, as many as there are.

        The last chunk is filled up with pairs that are not ``real``. Returns the vectors, as an
        array over all pairs with zeros for those not kept, and the sums of the terms.
        """
        m = self.keep.shape[1]
        chunk = jnp.zeros(self.size, self.index.dtype)
        _, terms = jax.eval_shape(body, chunk, chunk, chunk > 0)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), terms)
        # Written in order and brought to their places afterwards, by one gather: scattering every
        # chunk is slow on a CPU.
        vectors = jnp.zeros((len(self.index), dim), dtype)

        def step(carry):
            start, vectors, total = carry
            part = jax.lax.dynamic_slice(self.index, (start,), (self.size,))
            real = start + jnp.arange(self.size) < self.count
            found, terms = body(part // m, part % m, real)
            vectors = jax.lax.dynamic_update_slice(vectors, found, (start, 0))
            return start + self.size, vectors, jax.tree.map(jnp.add, total, terms)

        start = jnp.zeros_like(self.count)
        _, vectors, total = jax.lax.while_loop(
            lambda carry: carry[0] < self.count, step, (start, vectors, nothing)
        )
        position = (jnp.cumsum(self.keep.ravel()) - 1).reshape(self.keep.shape)
        return jnp.where(self.keep[..., None], vectors[position], 0.0), total


@eqx.filter_custom_vjp
def _pairwise(latent: Latent, dtype):
    h, u, v = latent
    C = pairwise_value(h, u, v)
    return C, jnp.zeros((*C.shape, u.shape[1]), C.dtype)


@_pairwise.def_fwd
def _(perturbed, latent, dtype):
    return _pairwise(latent, dtype), None


@_pairwise.def_bwd
def _(residuals, slopes, perturbed, latent, dtype):
    h, u, v = latent
    full = u.dtype
    shape = (len(u), len(v), u.shape[1])
    of_C = jnp.zeros(shape[:2], full) if slopes[0] is None else slopes[0]
    of_gradient = jnp.zeros(shape, full) if slopes[1] is None else slopes[1]
    sizes = [jnp.abs(of_C), jnp.sum(jnp.abs(of_gradient), axis=2)]
    totals = [jnp.sum(size) for size in sizes]
    large = [
        size > LEFT_OUT_SLOPE / size.size * total for size, total in zip(sizes, totals, strict=True)
    ]
    h, u, v = cast(latent, dtype or full)

    def pull_chunk(rows, columns, real):
        to_value = jnp.where(real, of_C[rows, columns], 0.0).astype(u.dtype)
        to_slope = jnp.where(real[:, None], of_gradient[rows, columns], 0.0).astype(u.dtype)
        z = u[rows] - v[columns]

        def along(pair):
            # A slope of the gradient asks for a directional derivative of the value.
            h, z = pair
            value, change = jax.jvp(h.value, (z,), (to_slope,))
            return jnp.sum(to_value * value + change)

        of_h, of_z = eqx.filter_grad(along)((h, z))
        return of_z, of_h

    of_z, of_h = _Chosen.of(large[0] | large[1]).sweep(pull_chunk, shape[2], u.dtype)
    # What is not finite fails every comparison above, and must not be left out for that.
    finite = jnp.isfinite(totals[0] + totals[1])
    return jax.tree.map(
        lambda leaf: jnp.where(finite, leaf, jnp.nan).astype(full),
        (of_h, jnp.sum(of_z, axis=1), -jnp.sum(of_z, axis=0)),
    )


@eqx.filter_custom_vjp
def _gradients(token, latent: Latent, s, t, dtype):
    h, u, v = cast(latent, dtype or token.dtype)
    n, m = s.shape
    keep = ~((s <= LEFT_OUT / m) & (t <= LEFT_OUT / n))  # weights that are not finite are kept

    def chunk(rows, columns, real):
        return h.gradient(u[rows] - v[columns]), ()

    return _Chosen.of(keep).sweep(chunk, u.shape[1], u.dtype)[0].astype(token.dtype)


@_gradients.def_fwd
def _(perturbed, token, latent, s, t, dtype):
    return _gradients(token, latent, s, t, dtype), None


@_gradients.def_bwd
def _(residuals, slope, perturbed, token, latent, s, t, dtype):
    return slope
