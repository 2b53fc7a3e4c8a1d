"""Where clouds, or groups in them, should land: Sinkhorn divergences of their images."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._convex import SquaredEuclidean
from mongefit._costs import Cost
from mongefit._duals import DualProblem, divergence
from mongefit.losses._base import Direction, MapLoss


def total_variance(points: Float[Array, "n d"], weight: Float[Array, " n"]) -> Float[Array, ""]:
    """Σ_i w_i ‖x_i − x̄‖², which is the mean of ½‖x − x'‖² over independent pairs."""
    return weight @ jnp.sum((points - weight @ points) ** 2, axis=1)


def point_divergence(
    x: Float[Array, "n d"],
    a: Float[Array, " n"],
    y: Float[Array, "m d"],
    b: Float[Array, " m"],
    eps: Float[Array, ""],
) -> Float[Array, ""]:
    """S(x, y) for the cost ½‖·‖²; NaN where it could not be solved, so that no step uses it."""
    cost = Cost(SquaredEuclidean())
    across = DualProblem(cost.matrix(x, y), a, b, eps=eps)
    found = divergence(across, cost.matrix(x, x), cost.matrix(y, y))
    return jnp.where(found.converged, found.value, jnp.nan)


class TargetFit(MapLoss):
    """S(T#μ, ν), the Sinkhorn divergence between the image of one cloud and the other cloud.

    Parameters
    ----------
    direction
        "both", "forward" or "reverse".
    epsilon
        Regularisation of the divergence relative to the variance of the cloud that is aimed at.
    """

    direction: Direction = eqx.field(static=True, default="both", kw_only=True)
    epsilon: float = eqx.field(static=True, default=0.05)

    def one_way(self, view):
        eps = self.epsilon * total_variance(view.others, view.other_weight)
        return point_divergence(view.mapped, view.weight, view.others, view.other_weight, eps)


class Groups(MapLoss):
    """Σ_k S(T#μ_k, ν_k): each group of the source should land on its group of the target.

    μ_k and ν_k are group k with its weights brought to sum 1. Points in no group are free.

    Parameters
    ----------
    direction
        "both", "forward" or "reverse".
    epsilon
        Regularisation of the divergences relative to the variance of the whole cloud that is aimed
        at, one for all groups.
    """

    direction: Direction = eqx.field(static=True, default="both", kw_only=True)
    epsilon: float = eqx.field(static=True, default=0.05)

    requires: ClassVar[str | None] = "groups"

    def one_way(self, view):
        eps = self.epsilon * total_variance(view.others, view.other_weight)
        source, target = view.subsets.source, view.subsets.target

        def of_group(rows, weight, other_rows, other_weight):
            return point_divergence(
                view.mapped[rows], weight, view.others[other_rows], other_weight, eps
            )

        each = jax.vmap(of_group)(source.rows, source.weight, target.rows, target.weight)
        return jnp.sum(each)
