"""What every diffeomorphism gives."""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._registry import Registered


class Diffeo(Registered):
    """A smooth invertible map of R^d, applied to a batch of points.

    Every real array of it is trained, except inside `NonTrainable`.

    Attributes
    ----------
    has_inverse
        Whether Φ⁻¹ exists everywhere, however it is trained. Where it may not, training looks by
        default in the direction that needs none.
    """

    has_inverse: ClassVar[bool] = True

    @abc.abstractmethod
    def forward(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ(x) for every row of x."""

    @abc.abstractmethod
    def inverse(self, u: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ⁻¹(u) for every row of u."""

    @abc.abstractmethod
    def log_det(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """log |det ∂Φ/∂x| for every row of x."""

    def departure(self, x: Float[Array, "N d"]) -> Float[Array, ""]:
        """How far Φ is from the identity: mean ‖Φ(x) − x‖², or what a class has in its place."""
        return jnp.mean(jnp.sum((self.forward(x) - x) ** 2, axis=1))

    def orientation(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """The sign of det ∂Φ/∂x at every row of x; where it changes, Φ folds and has no inverse."""
        return jnp.ones(len(x), x.dtype)
