"""What every strictly convex function gives."""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._registry import Registered


class ConvexFunction(Registered):
    """A strictly convex function h with h(0) = 0 and ∇h(0) = 0.

    A function of your own needs `value`. Gradient and Hessian come from autodiff unless you write
    them. Every real array of it is trained, except inside `NonTrainable`.

    Attributes
    ----------
    solves
        Whether evaluating h solves an inner problem, so that ∇h is worth keeping as a guess.
    """

    solves: ClassVar[bool] = False

    @abc.abstractmethod
    def value(self, z: Float[Array, "*N d"]) -> Float[Array, "*N"]:
        """h(z) for every row of z."""

    def gradient(self, z: Float[Array, "*N d"]) -> Float[Array, "*N d"]:
        """∇h(z) for every row of z."""
        return jax.vmap(jax.grad(lambda z: self.value(z[None])[0]))(z)

    def hessian(self, z: Float[Array, "N d"]) -> Float[Array, "N d d"]:
        """∇²h(z) for every row of z."""
        return jax.vmap(jax.jacfwd(lambda z: self.gradient(z[None])[0]))(z)

    def value_and_gradient(
        self, z: Float[Array, "*N d"], guess: Float[Array, "*N d"] | None = None
    ) -> tuple[Float[Array, "*N"], Float[Array, "*N d"]]:
        """h(z) and ∇h(z) for every row of z.

        Parameters
        ----------
        z
            Displacements.
        guess
            Approximation of ∇h(z). A function that ``solves`` starts from it, the others ignore it;
            a row that is not finite is no guess.
        """
        return self.value(z), self.gradient(z)

    def gradient_and_hessian(
        self, z: Float[Array, "N d"]
    ) -> tuple[Float[Array, "N d"], Float[Array, "N d d"]]:
        """∇h(z) and ∇²h(z) for every row of z, which may share much of their computation."""
        return self.gradient(z), self.hessian(z)

    @property
    def is_even(self) -> bool:
        """Whether h(−z) = h(z), as far as the class can tell."""
        return False

    @property
    def strong_convexity(self) -> float:
        """A constant α with ⟨∇h(z) − ∇h(z'), z − z'⟩ ≥ α‖z − z'‖²; 0 if none is known."""
        return 0.0


class ProjectedConvexFunction(ConvexFunction):
    """A convex function that looks at z only through linear projections Az.

    For pairs of points they are differences, A(u − v) = Au − Av: one product for each point instead
    of one for every pair.
    """

    @abc.abstractmethod
    def project(self, z: Float[Array, "*N d"]) -> Float[Array, "*N k"]:
        """Az for every row of z."""

    @abc.abstractmethod
    def value_of_projected(self, Az: Float[Array, "*N k"]) -> Float[Array, "*N"]:
        """h(z) for every row of Az."""


class ClosedFormConvexFunction(ConvexFunction):
    """A convex function whose gradient can be inverted without an iterative solver."""

    @abc.abstractmethod
    def inverse_gradient(self, p: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """(∇h)⁻¹(p) for every row of p, differentiable in p and in the arrays of h."""


@eqx.filter_custom_jvp
def implicit_inverse(h, p, z):
    """z as the function of h and p for which ∇h(z) = p, with derivatives of every order."""
    return z


@implicit_inverse.def_jvp
def _(primals, tangents):
    (h, p, z), (h_change, p_change, _) = primals, tangents
    z = implicit_inverse(h, p, z)
    # From p − ∇h(z) = 0: ∇²h(z) ż = ṗ − ∂θ∇h(z) θ̇. Everything here is differentiable.
    _, rest = eqx.filter_jvp(lambda h, p: p - h.gradient(z), (h, p), (h_change, p_change))
    return z, solve_positive(h.hessian(z), rest)


def solve_positive(
    matrix: Float[Array, "N d d"], right: Float[Array, "N d"]
) -> Float[Array, "N d"]:
    """The solutions of many systems with positive definite matrices."""
    if matrix.shape[-1] <= 3:
        return _solve_written_out(matrix, right)
    factor = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]


def _solve_written_out(matrix, right):
    """The same for few dimensions, entry by entry: a call for each matrix would take longer."""
    dim = matrix.shape[-1]
    factor: dict[tuple[int, int], Array] = {}
    for j in range(dim):
        factor[j, j] = jnp.sqrt(matrix[:, j, j] - sum(factor[j, k] ** 2 for k in range(j)))
        for i in range(j + 1, dim):
            rest = matrix[:, i, j] - sum(factor[i, k] * factor[j, k] for k in range(j))
            factor[i, j] = rest / factor[j, j]
    solution = [right[:, i] for i in range(dim)]
    for i in range(dim):
        known = sum(factor[i, k] * solution[k] for k in range(i))
        solution[i] = (solution[i] - known) / factor[i, i]
    for i in reversed(range(dim)):
        known = sum(factor[k, i] * solution[k] for k in range(i + 1, dim))
        solution[i] = (solution[i] - known) / factor[i, i]
    return jnp.stack(solution, axis=1)
