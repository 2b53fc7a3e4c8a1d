"""What every diffeomorphism gives."""

from __future__ import annotations

import abc

from jaxtyping import Array, Float

from mongefit._registry import Registered


class Diffeo(Registered):
    """A smooth invertible map of R^d, applied to a batch of points.

    Every real array of it is trained, except inside `NonTrainable`.
    """

    @abc.abstractmethod
    def forward(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ(x) for every row of x."""

    @abc.abstractmethod
    def inverse(self, u: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ⁻¹(u) for every row of u."""

    @abc.abstractmethod
    def log_det(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """log |det ∂Φ/∂x| for every row of x."""
