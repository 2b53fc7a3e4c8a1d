"""Penalties on the cost and its flows, on the same context as the losses."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from mongefit._flows import Diffeo
from mongefit.losses._base import Reach, Term


class CostSize(Term):
    """LogSumExp_ij(|C_ij|)²: keeps h from growing.

    With eps relative to a mean that is held constant, growing h looks like lowering eps. Beyond 32
    points a side the sum is estimated from at most 32 rows and columns, evenly spread, so that the
    derivative need not visit every pair.
    """

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        C = context.C
        rows, columns = (-(-size // 32) for size in C.shape)
        some = C[::rows, ::columns]
        return (logsumexp(jnp.abs(some)) + math.log(C.size / some.size)) ** 2


class FlowSimilarity(Term):
    """½ Σ_i a_i ‖Φμ(x_i) − Φν(x_i)‖² + ½ Σ_j b_j ‖Φμ(y_j) − Φν(y_j)‖²: pulls two flows together.

    With equal flows and a symmetric h the cost is symmetric.
    """

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        cost = context.cost

        def gap(points):
            return jnp.sum((cost.latent_source(points) - cost.latent_target(points)) ** 2, axis=1)

        return 0.5 * (context.a @ gap(context.x) + context.b @ gap(context.y))


class DirichletEnergy(Term):
    """½ Σ_i a_i ‖JΦμ(x_i)‖_F² + ½ Σ_j b_j ‖JΦν(y_j)‖_F²: keeps flows from stretching.

    A side without a flow adds the constant of the identity, d/2.
    """

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        source = _energy(context.cost.phi_mu, context.x)
        target = _energy(context.cost.phi_nu, context.y)
        return 0.5 * (context.a @ source + context.b @ target)


class LogDet(Term):
    """Σ_i a_i (log|det JΦμ(x_i)|)² + Σ_j b_j (log|det JΦν(y_j)|)²: keeps flows near volume 1."""

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        cost, total = context.cost, jnp.zeros((), context.x.dtype)
        if cost.phi_mu is not None:
            total = total + context.a @ cost.phi_mu.log_det(context.x) ** 2
        if cost.phi_nu is not None:
            total = total + context.b @ cost.phi_nu.log_det(context.y) ** 2
        return total


class Departure(Term):
    """How far the flows are from the identity, see `Diffeo.departure`: pulls them towards it.

    ‖W − I‖² + ‖t‖² of an affine map, and of a kernel map also Σ_kl κ(x_k, x_l) c_k·c_l. A shared
    flow counts once.
    """

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        cost, total = context.cost, jnp.zeros((), context.x.dtype)
        if cost.phi_mu is not None:
            total = total + cost.phi_mu.departure(context.x)
        if cost.phi_nu is not None and not cost.shared:
            total = total + cost.phi_nu.departure(context.y)
        return total


def _energy(phi: Diffeo | None, points: Float[Array, "N d"]) -> Float[Array, " N"]:
    """‖JΦ‖_F² at every point."""
    if phi is None:
        return jnp.full(points.shape[0], float(points.shape[1]), points.dtype)
    jacobian = jax.vmap(jax.jacfwd(lambda point: phi.forward(point[None])[0]))(points)
    return jnp.sum(jacobian**2, axis=(1, 2))
