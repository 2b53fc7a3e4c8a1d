"""Costs of all pairs, and the gradients and derivatives of those that matter."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._numerics import cast
from mongefit.convex import ConvexFunction
from mongefit.costs import pairwise_value
from mongefit.sparse.asked import Asked, negligible
from mongefit.sparse.sweeps import one_chunk, sweep

LEFT_OUT = {"float64": 1e-11, "float32": 1e-8}
LEFT_OUT_SLOPE = {"float64": 1e-8, "float32": 1e-6}

Latent = tuple[ConvexFunction, Float[Array, "n d"], Float[Array, "m d"]]


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
    every = one_chunk(size.size)
    large = jnp.ones(size.shape, bool) if every else size > negligible(size, left_out)
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

    nothing = (
        jnp.zeros((0, u.shape[1]), dtype) if points_move else None,
        jax.tree.map(jnp.zeros_like, eqx.filter(h, eqx.is_inexact_array)),
    )
    of_u, (of_h, of_v) = sweep(large, pull_chunk, nothing, finish)
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
    every = one_chunk(asked.count)
    keep = jnp.ones(asked.count, bool) if every else asked.weighted(s, t, LEFT_OUT[dtype])

    def chunk(k, _, real):
        rows, columns = asked.pair(k)
        return h.gradient(u[rows] - v[columns]), None

    nothing = jnp.zeros((0, u.shape[1]), dtype), None
    return sweep(keep[:, None], chunk, nothing)[0][:, 0].astype(token.dtype)


@_gradients.def_fwd
def _(perturbed, token, latent, asked, s, t, dtype):
    return _gradients(token, latent, asked, s, t, dtype), None


@_gradients.def_bwd
def _(residuals, slope, perturbed, token, latent, asked, s, t, dtype):
    return slope
