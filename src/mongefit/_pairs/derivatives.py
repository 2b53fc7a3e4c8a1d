"""Costs of all pairs, and the gradients and derivatives of those that matter."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._convex import ConvexFunction
from mongefit._costs import pairwise_value
from mongefit._numerics import cast
from mongefit._pairs.request import PairRequest, all_displacements, negligible
from mongefit._pairs.sweeps import sweep
from mongefit._runtime import one_chunk

LEFT_OUT = {"float64": 1e-11, "float32": 1e-8}
LEFT_OUT_SLOPE = {"float64": 1e-8, "float32": 1e-6}

Latent = tuple[ConvexFunction, Float[Array, "n d"], Float[Array, "m d"]]


def pairwise(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    request: PairRequest,
    *,
    dtype: str | None = None,
) -> tuple[Float[Array, "n m"], Float[Array, "k d"]]:
    """C_ij = h(u_i − v_j) for all pairs, and a token for `gradients`.

    Parameters
    ----------
    h, u, v
        Convex function and latent points.
    request
        The pairs whose gradients will be requested.
    dtype
        Precision of the derivative; that of the points by default.

    Returns
    -------
    C, token
        The costs, and zeros of the shape of their gradients, to which `gradients` passes its
        slopes: so that one sweep over the pairs serves the derivatives of both.
    """
    return _pairwise((h, u, v), request, dtype)


def gradients(
    token: Float[Array, "k d"],
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    request: PairRequest,
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
    request
        The rows and columns to which s and t belong.
    s, t
        Weights of means over the rows and over the columns; each row of either has sum 1.
    dtype
        Precision of the computation; that of the points by default.

    Returns
    -------
    of_rows, of_columns
        The gradients for every row that was requested, and for every column.
    """
    return request.split(
        _gradients(token, *jax.lax.stop_gradient(((h, u, v), request, s, t)), dtype)
    )


@eqx.filter_custom_vjp
def _pairwise(latent: Latent, request: PairRequest, dtype):
    h, u, v = latent
    if request.all_pairs and one_chunk(request.count) and dtype in (None, str(u.dtype)):
        # As ∇h and the derivatives will be, so that a compiler finds the same layers again.
        C = h.value(all_displacements(u, v)).reshape(len(u), len(v))
    else:
        C = pairwise_value(h, u, v)
    return C, jnp.zeros((request.count, u.shape[1]), C.dtype)


@_pairwise.def_fwd
def _(perturbed, latent, request, dtype):
    return _pairwise(latent, request, dtype), None


@_pairwise.def_bwd
def _(residuals, slopes, perturbed, latent, request, dtype):
    h, u, v = latent
    full, dtype = u.dtype, dtype or str(u.dtype)
    of_C = jnp.zeros((len(u), len(v)), full) if slopes[0] is None else slopes[0]
    of_gradient = slopes[1] if request.count else None
    h, u, v = cast(latent, dtype)
    points_move = any(jax.tree.leaves(perturbed[1:]))
    derivatives = _all_derivatives if one_chunk(of_C.size) else _large_derivatives
    found = derivatives(h, u, v, request, of_C, of_gradient, dtype, points_move)
    # What is not finite fails every comparison, and must not be left out for that.
    total = jnp.sum(jnp.abs(of_C))
    if of_gradient is not None:
        total = total + jnp.sum(jnp.abs(of_gradient))
    finite = jnp.isfinite(total)
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.nan).astype(full), found)


def _pull(h, z, to_value, to_gradient, points_move: bool):
    """Derivatives of Σ to_value h(z) + ⟨to_gradient, ∇h(z)⟩ in z, where it moves, and in h."""

    def along(h, z):
        if to_gradient is None:
            return jnp.sum(to_value * h.value(z))
        # A slope of the gradient asks for a directional derivative of the value.
        value, change = jax.jvp(h.value, (z,), (to_gradient,))
        return jnp.sum(to_value * value + change)

    if not points_move:
        return None, eqx.filter_grad(along)(h, z)
    of_h, of_z = eqx.filter_grad(lambda pair: along(*pair))((h, z))
    return of_z, of_h


def _of_points(of_z):
    """Derivatives in u, row by row, and in v, from those in u_i − v_j."""
    return (None, None) if of_z is None else (jnp.sum(of_z, axis=1), -jnp.sum(of_z, axis=0))


def _all_derivatives(h, u, v, request: PairRequest, of_C, of_gradient, dtype, points_move):
    """Derivatives in h, u and v, over all pairs at once."""
    to_gradient = None if of_gradient is None else request.of_pairs(of_gradient).astype(dtype)
    of_z, of_h = _pull(
        h, all_displacements(u, v), of_C.ravel().astype(dtype), to_gradient, points_move
    )
    of_u, of_v = _of_points(None if of_z is None else of_z.reshape(*of_C.shape, -1))
    return of_h, of_u, of_v


def _large_derivatives(h, u, v, request: PairRequest, of_C, of_gradient, dtype, points_move):
    """The same without the pairs with the smallest slopes."""
    left_out = LEFT_OUT_SLOPE[dtype]
    size = jnp.abs(of_C)
    large = size > negligible(size, left_out)
    look = None
    if of_gradient is not None:
        look = request.lookup(of_gradient)
        large = large | request.large(of_gradient, left_out)

    def pull_chunk(rows, columns, real):
        to_value = jnp.where(real, of_C[rows, columns], 0.0).astype(dtype)
        to_gradient = None
        if look is not None:
            to_gradient = jnp.where(real[:, None], look(rows, columns), 0.0).astype(dtype)
        return _pull(h, u[rows] - v[columns], to_value, to_gradient, points_move)

    nothing = (
        jnp.zeros((0, u.shape[1]), dtype) if points_move else None,
        jax.tree.map(jnp.zeros_like, eqx.filter(h, eqx.is_inexact_array)),
    )
    of_u, (of_h, of_v) = sweep(large, pull_chunk, nothing, _of_points)
    return of_h, of_u, of_v


@eqx.filter_custom_vjp
def _gradients(token, latent: Latent, request: PairRequest, s, t, dtype):
    if not request.count:
        return token
    dtype = dtype or str(token.dtype)
    h, u, v = cast(latent, dtype)
    if one_chunk(request.count):
        return h.gradient(request.displacements(u, v)).astype(token.dtype)

    def chunk(k, _, real):
        rows, columns = request.pair(k)
        return h.gradient(u[rows] - v[columns]), None

    keep = request.weighted(s, t, LEFT_OUT[dtype])
    nothing = jnp.zeros((0, u.shape[1]), dtype), None
    return sweep(keep[:, None], chunk, nothing)[0][:, 0].astype(token.dtype)


@_gradients.def_fwd
def _(perturbed, token, latent, request, s, t, dtype):
    return _gradients(token, latent, request, s, t, dtype), None


@_gradients.def_bwd
def _(residuals, slope, perturbed, token, latent, request, s, t, dtype):
    return slope
