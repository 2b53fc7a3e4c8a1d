"""Known outcomes, of which a source may have several: how likely they are under the plan."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mongefit.losses._base import Direction, MapLoss, Reach


class Likelihood(MapLoss):
    """−Σ_i w_i log Σ_j ω_ij p_ij / Σ w, over the known pairs (x_i, y_j) of each source x_i.

    p_ij = P_ij/(a_i b_j) is the density of the plan, w_i = Σ_j w_ij the weight of all pairs of a
    source, and ω_ij = w_ij/w_i the share of each. A source with one pair counts −log p_ij. Of a
    source with several the loss says only that it went to one of these targets: with equal shares
    it counts the mass that goes to them, over what they have of the whole target. So a clone with
    two fates may have both, and its sources need not all have the same.

    The mean of −log p_ij over all pairs would ask every source to go to all of its targets alike.

    Parameters
    ----------
    direction
        "forward" for each source to go to one of its targets, "reverse" for each target to come
        from one of its sources, or "both".
    """

    direction: Direction = eqx.field(static=True, default="both", kw_only=True)

    reach: ClassVar[Reach] = "nothing"
    requires: ClassVar[str | None] = "pairs"
    takes_several: ClassVar[bool] = True

    def one_way(self, view):
        pairs = view.pairs
        logs = view.log_density[pairs.source, pairs.target]
        value, weight = _log_means(logs, pairs.weight, pairs.source, len(view.points))
        return -(weight @ value) / jnp.sum(weight)


def _log_means(
    logs: Float[Array, " k"], weight: Float[Array, " k"], row: Int[Array, " k"], size: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """log of the weighted mean of exp(logs) in each row, and the weight of the row.

    0 where nothing has weight.
    """
    total = jnp.zeros(size, weight.dtype).at[row].add(weight)
    counted = weight > 0
    share = jnp.where(counted, weight / jnp.where(counted, total[row], 1.0), 1.0)
    terms = jnp.where(counted, logs + jnp.log(share), -jnp.inf)
    top = jax.lax.stop_gradient(jnp.full(size, -jnp.inf, logs.dtype).at[row].max(terms))
    top = jnp.where(total > 0, top, 0.0)
    sums = jnp.zeros(size, logs.dtype).at[row].add(jnp.exp(terms - top[row]))
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, sums, 1.0)) + top, 0.0), total
