"""A fitted h for OTT-JAX. The only file that imports it; install it with ``mongefit[ott]``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from ott.geometry import costs

from mongefit._convex import ConvexFunction
from mongefit._inverse import InverseGradientSolver, inverse_gradient


@jax.tree_util.register_pytree_node_class
class ConvexCost(costs.TICost):
    """The cost h(x − y) as OTT-JAX's ``TICost``, on latent points where the cost has flows.

    OTT's own Legendre transform holds the minimiser constant, so that maps built from it have zero
    derivative in the parameters of h; here ``twist_operator`` applies the differentiable (∇h)⁻¹.

    Parameters
    ----------
    h
        Convex function, for example ``estimator.map_.cost.h``.
    solver
        Method for (∇h)⁻¹ where it has no closed form.
    """

    def __init__(self, h: ConvexFunction, solver: InverseGradientSolver | None = None):
        super().__init__()
        self.convex = h
        self.solver = solver

    def h(self, z: jax.Array) -> jax.Array:
        return self.convex.value(z[None])[0]

    def _inverse_gradient(self, p: jax.Array) -> jax.Array:
        return inverse_gradient(self.convex, p[None], solver=self.solver).z[0]

    def h_legendre(self, z: jax.Array) -> jax.Array:
        """h*(p) = max_z ⟨z, p⟩ − h(z); OTT calls the argument z."""
        best = self._inverse_gradient(z)
        return jnp.dot(best, z) - self.h(best)

    def twist_operator(self, vec: jax.Array, dual_vec: jax.Array, variable: bool) -> jax.Array:
        """Where a potential of gradient ``dual_vec`` sends ``vec``; in reverse if ``variable``."""
        if variable:
            return vec + self._inverse_gradient(-dual_vec)
        return vec - self._inverse_gradient(dual_vec)

    def tree_flatten(self):
        return (self.convex, self.solver), None

    @classmethod
    def tree_unflatten(cls, aux_data, children):
        return cls(*children)
