"""Costs that are linear in convex features, for inverse optimal transport."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._convex import ClosedFormConvexFunction, ConvexFunction, PowerNorm
from mongefit._convex.base import implicit_inverse

POWERS = (1.5, 2.0, 3.0)
_POWER_NORMS = tuple(PowerNorm(q) for q in POWERS)


class _WeightedFeatures(ConvexFunction):
    """A cost whose features have weights θ ≥ 0, and the penalty Σ θ."""

    theta: eqx.AbstractVar[Float[Array, "..."]]
    alpha: eqx.AbstractVar[float]

    lowest: ClassVar[float | None] = 0.0

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    @property
    def parameter(self) -> Float[Array, "..."]:
        """What is learned."""
        return self.theta

    @property
    def size(self) -> Float[Array, ""]:
        """R(θ) = Σ θ."""
        return jnp.sum(self.theta)

    def _add(self, start, parts):
        """start + Σ_k θ_k parts_k."""
        return sum((theta * part for theta, part in zip(self.theta, parts, strict=True)), start)


class PowersCost(_WeightedFeatures, ClosedFormConvexFunction):
    """h(z) = Σ_qk θ_qk |z_k|^q / q + (α/2)‖z‖² with θ ≥ 0 and q = 1.5, 2, 3.

    Like those of `PowerNorm` its gradient is inverted coordinate by coordinate, and its second
    derivative at zero is that at the smallest distance from zero which keeps it finite.
    """

    theta: Float[Array, "3 d"]
    alpha: float = eqx.field(static=True)

    def value(self, z):
        value = 0.5 * self.alpha * z * z
        for theta, power in zip(self.theta, _POWER_NORMS, strict=True):
            value = value + z * theta * power.gradient(z) / power.exponent
        return jnp.sum(value, axis=-1)

    def gradient(self, z):
        return self._add(self.alpha * z, (power.gradient(z) for power in _POWER_NORMS))

    def hessian(self, z):
        curvatures = (jnp.diagonal(power.hessian(z), axis1=1, axis2=2) for power in _POWER_NORMS)
        return jax.vmap(jnp.diag)(self._add(jnp.full_like(z, self.alpha), curvatures))

    def inverse_gradient(self, p):
        # With t = |z_k|, solve Σ_q θ_q t^(q−1) + αt = |p_k|. In s = √t every term is a power of at
        # least 1, the left side convex and increasing, and Newton's method started above the root
        # descends to it. No term alone exceeds |p_k| at the root, which bounds it.
        fixed, target = jax.lax.stop_gradient((self.theta, jnp.abs(p)))
        terms = [(theta, 2 * (q - 1)) for theta, q in zip(fixed, POWERS, strict=True)]
        terms.append((jnp.full_like(fixed[0], self.alpha), 2.0))
        bounds = [
            jnp.where(scale > 0, target / jnp.where(scale > 0, scale, 1.0), jnp.inf) ** (1 / power)
            for scale, power in terms
        ]

        def newton(_, s):
            excess = sum(scale * s**power for scale, power in terms) - target
            slope = sum(scale * power * s ** (power - 1) for scale, power in terms)
            return jnp.maximum(s - excess / jnp.where(slope > 0, slope, 1.0), 0.0)

        s = jax.lax.fori_loop(0, 32, newton, jnp.min(jnp.stack(bounds), axis=0))
        return implicit_inverse(self, p, jnp.sign(jax.lax.stop_gradient(p)) * s**2)


class FeatureCost(_WeightedFeatures):
    """h(z) = Σ_k θ_k φ_k(z) + (α/2)‖z‖² with θ ≥ 0 and convex features φ_k.

    Its gradient is inverted by Newton's method, which can be stuck at zero where a feature has
    infinite curvature there, such as a power below 2; `PowersCost` has no such fault.
    """

    theta: Float[Array, " K"]
    alpha: float = eqx.field(static=True)
    features: tuple[ConvexFunction, ...]

    def value(self, z):
        square = jnp.sum(z * z, axis=-1)
        return self._add(0.5 * self.alpha * square, (phi.value(z) for phi in self.features))

    def gradient(self, z):
        return self._add(self.alpha * z, (phi.gradient(z) for phi in self.features))

    def hessian(self, z):
        identity = jnp.eye(z.shape[-1], dtype=z.dtype)
        of_square = jnp.broadcast_to(self.alpha * identity, (*z.shape, z.shape[-1]))
        return self._add(of_square, (phi.hessian(z) for phi in self.features))


class QuadraticCost(ClosedFormConvexFunction):
    """h(z) = ½ zᵀ L Lᵀ z + (α/2)‖z‖²: linear in the positive semidefinite matrix L Lᵀ."""

    root: Float[Array, "d r"]
    alpha: float = eqx.field(static=True)

    lowest: ClassVar[float | None] = None

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    @property
    def parameter(self) -> Float[Array, "d r"]:
        """What is learned."""
        return self.root

    @property
    def size(self) -> Float[Array, ""]:
        """R = tr(L Lᵀ)."""
        return jnp.sum(self.root**2)

    def _matrix(self, dtype):
        return self.root @ self.root.T + self.alpha * jnp.eye(len(self.root), dtype=dtype)

    def value(self, z):
        square = jnp.sum((z @ self.root) ** 2, axis=-1)
        return 0.5 * square + 0.5 * self.alpha * jnp.sum(z**2, axis=-1)

    def gradient(self, z):
        return z @ self.root @ self.root.T + self.alpha * z

    def hessian(self, z):
        return jnp.broadcast_to(self._matrix(z.dtype), (*z.shape, z.shape[-1]))

    def inverse_gradient(self, p):
        factor = jax.scipy.linalg.cho_factor(self._matrix(p.dtype))
        return jax.scipy.linalg.cho_solve(factor, p.T).T


LinearCost = PowersCost | FeatureCost | QuadraticCost
