"""Powers of the displacement."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit._convex.base import ClosedFormConvexFunction, implicit_inverse
from mongefit.errors import OptionError


class PowerNorm(ClosedFormConvexFunction):
    """h(z) = Σ_k |z_k|^q / q + (α/2)‖z‖² with q > 1 and α ≥ 0.

    The gradient is inverted coordinate by coordinate. For q < 2 the second derivative is infinite
    at zero; ``hessian`` returns it at the smallest distance from zero that keeps it finite.
    """

    exponent: float = eqx.field(static=True)
    alpha: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        if not self.exponent > 1 or not np.isfinite(self.exponent):
            raise OptionError(f"PowerNorm needs an exponent above 1, got {self.exponent}.")
        if not self.alpha >= 0 or not np.isfinite(self.alpha):
            raise OptionError(f"PowerNorm needs alpha >= 0, got {self.alpha}.")

    @property
    def is_even(self) -> bool:
        return True

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    def _magnitude(self, z):
        # |z| kept away from zero, where |z|^(q-2) or its derivative is infinite for q < 3. At the
        # floor ∇h is below the rounding of 1, so nothing measurable changes.
        finfo = jnp.finfo(z.dtype)
        floor = max(float(finfo.eps) ** (1 / min(self.exponent - 1, 1.0)), float(finfo.tiny))
        return jnp.maximum(jnp.abs(z), floor)

    def value(self, z):
        power = self._magnitude(z) ** (self.exponent - 2)
        return jnp.sum(z * z * (power / self.exponent + 0.5 * self.alpha), axis=-1)

    def gradient(self, z):
        return z * (self._magnitude(z) ** (self.exponent - 2) + self.alpha)

    def hessian(self, z):
        second = (self.exponent - 1) * self._magnitude(z) ** (self.exponent - 2) + self.alpha
        return jax.vmap(jnp.diag)(second)

    def inverse_gradient(self, p):
        # With t = |z|, solve t^(q-1) + αt = |p|. For q ≥ 2 the left side is convex in t; for q < 2
        # it is convex in s = t^(q-1), where it reads s + α s^(1/(q-1)). Newton's method on a convex
        # increasing function, started above the root, descends to it monotonically.
        if self.exponent >= 2:
            linear, power, degree = self.alpha, 1.0, self.exponent - 1
        else:
            linear, power, degree = 1.0, self.alpha, 1 / (self.exponent - 1)
        fixed = jax.lax.stop_gradient(p)
        target = jnp.abs(fixed)
        bounds = [target / linear] if linear > 0 else []
        bounds += [(target / power) ** (1 / degree)] if power > 0 else []

        def newton(_, t):
            raised = power * t ** (degree - 1)
            slope = linear + degree * raised
            step = (linear * t + raised * t - target) / jnp.where(slope > 0, slope, 1.0)
            return jnp.maximum(t - step, 0.0)

        t = jax.lax.fori_loop(0, 24, newton, jnp.minimum(bounds[0], bounds[-1]))
        z = jnp.sign(fixed) * (t if self.exponent >= 2 else t**degree)
        return implicit_inverse(self, p, z)
