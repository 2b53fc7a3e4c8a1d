"""Penalties on the cost and its flows, on the same context as the losses."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from mongefit.losses import Context


class CostSize(eqx.Module):
    """LogSumExp_ij(|C_ij|)²: keeps h from growing.

    With eps relative to a mean that is held constant, growing h looks like lowering eps.
    """

    def __call__(self, context: Context) -> Float[Array, ""]:
        return logsumexp(jnp.abs(context.C)) ** 2
