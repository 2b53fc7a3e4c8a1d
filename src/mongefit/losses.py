"""What is known of the map, as losses on one context that is computed once per step."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Pairs(eqx.Module):
    """Known pairs: source ``source[k]`` goes to target ``target[k]``, with weight ``weight[k]``."""

    source: Int[Array, " k"]
    target: Int[Array, " k"]
    weight: Float[Array, " k"]


class Context(eqx.Module):
    """What losses and penalties may look at.

    Attributes
    ----------
    x, y, a, b
        Both clouds and their weights, in common units.
    C, P
        Cost matrix and plan.
    pairs
        Known pairs.
    forward, reverse
        T(x) at the source and T⁻¹(y) at the target of each known pair.
    """

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    C: Float[Array, "n m"]
    P: Float[Array, "n m"]
    pairs: Pairs
    forward: Float[Array, "k d"]
    reverse: Float[Array, "k d"]


class Paired(eqx.Module):
    """½ Σ_k w_k ‖T(x_k) − y_k‖² / Σ w + ½ Σ_k w_k ‖T⁻¹(y_k) − x_k‖² / Σ w."""

    def __call__(self, context: Context) -> Float[Array, ""]:
        pairs = context.pairs
        forward = jnp.sum((context.forward - context.y[pairs.target]) ** 2, axis=1)
        reverse = jnp.sum((context.reverse - context.x[pairs.source]) ** 2, axis=1)
        return 0.5 * (pairs.weight @ (forward + reverse)) / jnp.sum(pairs.weight)
