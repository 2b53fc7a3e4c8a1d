"""Affine maps."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from mongefit._flows.base import Diffeo
from mongefit.errors import OptionError


class AffineMap(Diffeo):
    """Φ(x) = Wx + t, which starts as the identity.

    With it on the source alone, the cost contains what linear regression on the pairs knows, and
    the map still ends in the target's distribution.

    Parameters
    ----------
    dim
        Dimension d.
    weight, shift
        W and t to start from; the identity and zero by default.
    """

    has_inverse: ClassVar[bool] = False  # W may be close to singular

    weight: Float[Array, "d d"]
    shift: Float[Array, " d"]

    def __init__(
        self,
        dim: int,
        *,
        weight: ArrayLike | None = None,
        shift: ArrayLike | None = None,
    ):
        self.weight = jnp.eye(dim) if weight is None else jnp.asarray(weight)
        self.shift = jnp.zeros(dim) if shift is None else jnp.asarray(shift)

    def __check_init__(self):
        dim = self.weight.shape[-1]
        if self.weight.shape != (dim, dim) or self.shift.shape != (dim,):
            raise OptionError(
                f"AffineMap needs a weight [d, d] and a shift [d], got {self.weight.shape} and "
                f"{self.shift.shape}."
            )

    def forward(self, x):
        return x @ self.weight.T + self.shift

    def inverse(self, u):
        return jnp.linalg.solve(self.weight, (u - self.shift).T).T

    def log_det(self, x):
        return jnp.broadcast_to(jnp.linalg.slogdet(self.weight)[1], x.shape[:1])

    def departure(self, x):
        # In common units ‖W − I‖² is the mean of ‖(W − I)x‖² over a round cloud.
        return jnp.sum((self.weight - jnp.eye(len(self.shift))) ** 2) + jnp.sum(self.shift**2)
