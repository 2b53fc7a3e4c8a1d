"""What every strictly convex function gives."""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float


class ConvexFunction(eqx.Module):
    """A strictly convex function with h(0) = 0 and ∇h(0) = 0.

    Attributes
    ----------
    learned
        Whether training may change the arrays of this function.
    solves
        Whether evaluating h solves an inner problem, so that ∇h is worth keeping as a guess.
    """

    learned: eqx.AbstractClassVar[bool]
    solves: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def strong_convexity(self) -> float:
        """A constant α with ⟨∇h(z) − ∇h(z'), z − z'⟩ ≥ α‖z − z'‖²."""

    @abc.abstractmethod
    def value_and_gradient(
        self, z: Float[Array, "N d"], guess: Float[Array, "N d"] | None = None
    ) -> tuple[Float[Array, " N"], Float[Array, "N d"]]:
        """h(z) and ∇h(z) for every row of z.

        Parameters
        ----------
        z
            Displacements.
        guess
            Approximation of ∇h(z). A function that ``solves`` starts from it, the others ignore it;
            a row that is not finite is no guess.
        """

    @abc.abstractmethod
    def hessian(self, z: Float[Array, "N d"]) -> Float[Array, "N d d"]:
        """∇²h(z) for every row of z."""

    def value(self, z: Float[Array, "N d"]) -> Float[Array, " N"]:
        """h(z) for every row of z."""
        return self.value_and_gradient(z)[0]

    def gradient(self, z: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """∇h(z) for every row of z."""
        return self.value_and_gradient(z)[1]

    def gradient_and_hessian(
        self, z: Float[Array, "N d"]
    ) -> tuple[Float[Array, "N d"], Float[Array, "N d d"]]:
        """∇h(z) and ∇²h(z) for every row of z, which may share much of their computation."""
        return self.gradient(z), self.hessian(z)


class ProjectedConvexFunction(ConvexFunction):
    """A convex function that looks at z through linear projections Az only.

    For pairs of points they are differences, A(u − v) = Au − Av: one product for each point instead
    of one for every pair.
    """

    @abc.abstractmethod
    def project(self, z: Float[Array, "N d"]) -> Float[Array, "N k"]:
        """Az for every row of z."""

    @abc.abstractmethod
    def value_of_projected(self, Az: Float[Array, "N k"]) -> Float[Array, " N"]:
        """h(z) for every row of Az."""


class ClosedFormConvexFunction(ConvexFunction):
    """A convex function whose gradient can be inverted without an iterative solver."""

    @abc.abstractmethod
    def inverse_gradient(self, p: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """(∇h)⁻¹(p) for every row of p, differentiable in p and in the arrays of h."""
