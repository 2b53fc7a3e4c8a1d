"""A convex function that is learned through its conjugate."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mongefit._convex import ICNN, Activation, ClosedFormConvexFunction
from mongefit._inverse.solvers import (
    InverseGradient,
    InverseGradientSolver,
    NewtonInverse,
    inverse_gradient,
)
from mongefit.errors import OptionError


class ConjugateICNN(ClosedFormConvexFunction):
    r"""A learned convex function h = k* given by its conjugate, an `ICNN` k = h* of p.

    The inverse gradient needs no solve, (∇h)⁻¹(p) = ∇k(p). The function itself does,

        h(z) = max_p ⟨p, z⟩ − k(p),    ∇h(z) = p*(z),    ∇²h(z) = ∇²k(p*)⁻¹,

    where ∇k(p*) = z. The first derivative of h follows from the envelope theorem,
    ∂_θ h = −∂_θ k(p*) with p* held constant; that of ∇h, and all higher ones, from
    `inverse_gradient`.

    With n the network of an ICNN, normalised, the conjugate is

        k(p) = c (n(p) + ½‖Qp‖²) + (β/2)‖p‖²,    c = min(1, (1/α − β) / L),

    with L ≥ ∇²n + QᵀQ everywhere, from `ICNN.curvature_bound`. Hence β ≤ ∇²k ≤ 1/α whatever the
    weights are: h is α-strongly convex and its gradient 1/β-Lipschitz. From k(0) = 0 and ∇k(0) = 0
    follow h(0) = 0 and ∇h(0) = 0. Q starts at the identity and the gain small, so that h starts
    close to ½‖z‖²/(1 + β). L is not tight: c may fall below 1 before the curvature reaches 1/α.

    A point whose inner solve ends above the tolerance has NaN for value, gradient and Hessian. No
    cost is ever silently wrong, but unlike other families this one can fail to give any.

    Parameters
    ----------
    dim
        Dimension d of the displacements.
    hidden_layer_sizes
        Width of each hidden layer.
    key
        Random key for the initial weights.
    symmetric
        Whether h(−z) = h(z).
    alpha
        Strong convexity α of h; must be positive.
    beta
        Strong convexity β of k; must be positive, and αβ < 1.
    activation
        As for `ICNN`.
    gain
        Initial e^γ.
    solver
        Method for p*; damped Newton by default.
    """

    network: ICNN
    solver: InverseGradientSolver
    alpha: float = eqx.field(static=True)

    solves: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        *,
        key: PRNGKeyArray,
        symmetric: bool = True,
        alpha: float = 0.01,
        beta: float = 0.01,
        activation: Activation = "squareplus",
        gain: float = 0.1,
        solver: InverseGradientSolver | None = None,
    ):
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not value > 0 or not np.isfinite(value):
                raise OptionError(f"{name} must be positive and finite, got {value}.")
        if alpha * beta >= 1:
            raise OptionError(
                f"alpha * beta must be below 1, got {alpha} * {beta}: a function whose gradient is "
                "1/beta-Lipschitz is at most 1/beta-strongly convex."
            )
        self.network = ICNN(
            dim,
            hidden_layer_sizes,
            key=key,
            symmetric=symmetric,
            alpha=beta,
            activation=activation,
            gain=gain,
        )
        self.solver = NewtonInverse() if solver is None else solver
        self.alpha = alpha

    @property
    def is_even(self) -> bool:
        return self.network.symmetric

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    @property
    def conjugate(self) -> ICNN:
        """k = h*: the network and its quadratic times c, plus (β/2)‖p‖²."""
        beta = self.network.alpha
        allowed = 1 / self.alpha - beta
        scale = allowed / jnp.maximum(self.network.curvature_bound() - beta, allowed)
        quadratic: Any = self.network.quadratic  # it was built with one
        return eqx.tree_at(
            lambda k: (k.log_gain, k.quadratic),
            self.network,
            (self.network.log_gain + jnp.log(scale), quadratic * jnp.sqrt(scale)),
        )

    def solve(
        self, z: Float[Array, "N d"], guess: Float[Array, "N d"] | None = None
    ) -> InverseGradient:
        """p*(z) = ∇h(z), with ∇k(p*) = z, and how well it was found.

        Without a guess, or where it is not finite, the search starts from the solution of
        ∇²k(0) p = z, which is exact for quadratic k.
        """
        k = self.conjugate
        factor = jax.scipy.linalg.cho_factor(k.hessian(jnp.zeros_like(z[:1]))[0])
        start = jax.scipy.linalg.cho_solve(factor, z.T).T
        if guess is not None:
            # A guess kept from a solve that failed is NaN. It must not make this one fail too.
            start = jnp.where(jnp.all(jnp.isfinite(guess), axis=-1, keepdims=True), guess, start)
        return inverse_gradient(k, z, start, solver=self.solver)

    def value_and_gradient(self, z, guess=None):
        found = self.solve(z, guess)
        return (
            jnp.where(found.converged, _conjugate_value(self.conjugate, z, found.z), jnp.nan),
            jnp.where(found.converged[:, None], found.z, jnp.nan),
        )

    def value(self, z):
        return self.value_and_gradient(z)[0]

    def gradient(self, z):
        return self.value_and_gradient(z)[1]

    def hessian(self, z):
        found = self.solve(z)
        inverse = jnp.linalg.inv(self.conjugate.hessian(found.z))
        return jnp.where(found.converged[:, None, None], inverse, jnp.nan)

    def inverse_gradient(self, p):
        return self.conjugate.gradient(p)


@eqx.filter_custom_jvp
def _conjugate_value(k, z, p):
    """k*(z) = ⟨p, z⟩ − k(p) at the p with ∇k(p) = z."""
    return jnp.sum(p * z, axis=-1) - k.value(p)


@_conjugate_value.def_jvp
def _(primals, tangents):
    (k, z, p), (k_change, z_change, _) = primals, tangents
    # The change of p counts from the second derivative on: p is a function of k and z itself.
    return eqx.filter_jvp(
        lambda k, z: jnp.sum(p * z, axis=-1) - k.value(p), (k, z), (k_change, z_change)
    )
