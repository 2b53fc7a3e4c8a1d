"""Known pairs: each source should go to its target."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mongefit._numerics import safe_norm
from mongefit.errors import OptionError
from mongefit.losses._base import Direction, MapLoss, Reach


class Paired(MapLoss):
    """Σ_k w_k r_k² / Σ w, r_k = ‖T(x_k) − y_k‖, over the known pairs (x_k, y_k) with weights w_k.

    With ``huber`` = M, pairs that miss by much pull less. With Σ w = 1 the loss is then

        (½ min_{σ > 0} Σ_k w_k σ (1 + H(r_k/σ)))²,   H(t) = t² up to M and 2Mt − M² beyond it.

    The best σ, Huber's proposal 2, is the root mean square of the residuals r_k with those above Mσ
    cut there: the unit in which a miss is large comes from the data. Where no residual exceeds Mσ
    the loss is the plain one.

    Parameters
    ----------
    direction
        "both", "forward" or "reverse".
    huber
        M > 1, in units of σ; None for the plain loss. Near 1 the loss is the square of the mean of
        r_k. As long as wrong pairs have less than 1/M² of the weight, the others determine σ.
    """

    direction: Direction = eqx.field(static=True, default="both", kw_only=True)
    huber: float | None = eqx.field(static=True, default=None, kw_only=True)

    reach: ClassVar[Reach] = "pairs"
    requires: ClassVar[str | None] = "pairs"

    def __check_init__(self):
        if self.huber is not None and not (self.huber > 1 and np.isfinite(self.huber)):
            raise OptionError(f"Paired needs huber > 1 and finite, or None, got {self.huber}.")

    def one_way(self, view):
        pairs = view.pairs
        miss = view.mapped[pairs.source] - view.others[pairs.target]
        square = jnp.sum(miss**2, axis=1)
        if self.huber is None:
            return pairs.weight @ square / jnp.sum(pairs.weight)
        weight = pairs.weight / jnp.sum(pairs.weight)
        # At the best σ the derivative of the minimum is that with σ held constant.
        scale = jax.lax.stop_gradient(_robust_scale(square, weight, self.huber))
        limit = self.huber * scale
        beyond = self.huber * (2 * safe_norm(miss) - limit)
        bent = jnp.where(square <= limit**2, square / scale, beyond)
        return (0.5 * (scale + weight @ bent)) ** 2


def _robust_scale(
    square: Float[Array, " k"], weight: Float[Array, " k"], huber: float
) -> Float[Array, ""]:
    """The σ > 0 with σ² = Σ_k w_k min(r_k², M²σ²), from the squares r_k² and weights with sum 1.

    The right side is the least, over the sets of pairs that may be cut, of a linear function of σ².
    So σ² is the least of the solutions with one set each, and a set to cut is that of the largest.
    """
    order = jnp.argsort(square)
    kept = jnp.cumsum((weight * square)[order])
    room = 1 - huber**2 * (1 - jnp.cumsum(weight[order]))
    solution = jnp.where(room > 0, kept / jnp.where(room > 0, room, 1.0), jnp.inf)
    return jnp.maximum(jnp.sqrt(jnp.min(solution)), jnp.finfo(square.dtype).eps)
