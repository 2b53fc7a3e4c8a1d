"""Known pairs: each source should go to its target."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from mongefit.losses.base import Direction, MapLoss, Reach


class Paired(MapLoss):
    """Σ_k w_k ‖T(x_k) − y_k‖² / Σ w over the known pairs (x_k, y_k) with weights w_k."""

    direction: Direction = eqx.field(static=True, default="both", kw_only=True)

    reach: ClassVar[Reach] = "pairs"
    requires: ClassVar[str | None] = "pairs"

    def one_way(self, view):
        pairs = view.pairs
        miss = view.mapped[pairs.source] - view.others[pairs.target]
        return pairs.weight @ jnp.sum(miss**2, axis=1) / jnp.sum(pairs.weight)
