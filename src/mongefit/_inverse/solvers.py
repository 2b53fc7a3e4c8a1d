r"""The inverse gradient (∇h)⁻¹(p) = argmin_z h(z) − ⟨z, p⟩, with an honest status for each point.

Solvers run with everything held constant. `inverse_gradient` polishes their solution by one Newton
step and attaches the derivative in p and in the parameters of h.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Bool, Float, Int

from mongefit._convex import ClosedFormConvexFunction, ConvexFunction
from mongefit._convex.base import implicit_inverse, solve_positive
from mongefit._numerics import safe_norm
from mongefit._registry import Registered
from mongefit.errors import DataError


class InverseGradient(eqx.Module):
    """(∇h)⁻¹(p) and how well it was found.

    Attributes
    ----------
    z
        The solution, differentiable.
    residual
        ‖∇h(z) − p‖ / (1 + ‖p‖), recomputed from ``z``.
    converged
        Whether the residual is within the tolerance, point by point.
    iterations
        Iterations that the slowest point took.
    """

    z: Float[Array, "N d"]
    residual: Float[Array, " N"]
    converged: Bool[Array, " N"]
    iterations: Int[Array, ""]


class InverseGradientSolver(Registered):
    """An iterative method for ∇h(z) = p; it need not be differentiable."""

    tol: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def solve(
        self, h: ConvexFunction, p: Float[Array, "N d"], z_init: Float[Array, "N d"], tol: float
    ) -> tuple[Float[Array, "N d"], Float[Array, "N d d"], Int[Array, ""]]:
        """Approximate solution, ∇²h there, and the number of iterations."""


def default_tolerance(dtype: Any) -> float:
    """Residual at which an inverse gradient counts as found: 1e-10, or 1e-5 in float32."""
    return 1e-10 if dtype == jnp.float64 else 1e-5


def _relative_residual(h, z, p):
    # Where h is found by a solve, p is what that solve should find.
    gradient = h.value_and_gradient(z, p)[1] if h.solves else h.gradient(z)
    return safe_norm(gradient - p) / (1 + safe_norm(p))


_SHORTEST = 1e-9  # this share of a Newton step, or less, is no step


class NewtonInverse(InverseGradientSolver):
    """Damped Newton with the exact d×d Hessian: the step is halved until ‖∇h(z) − p‖ falls.

    Parameters
    ----------
    tol
        Tolerance on the relative residual; None takes 1e-10 in float64 and 1e-5 in float32.
    max_iter
        Largest number of steps tried, those that were too long counted in.
    """

    tol: float | None = None
    max_iter: int = eqx.field(static=True, default=200)

    def solve(self, h, p, z_init, tol):
        scale = 1 + safe_norm(p)

        def unfinished(carry):
            _, _, _, size, t, iteration = carry
            return jnp.any((size > tol) & (t > _SHORTEST)) & (iteration < self.max_iter)

        # One loop that tries a step and takes it or halves it, point by point.
        def iterate(carry):
            z, step, hessian, size, t, iteration = carry
            trial = z - t[:, None] * step
            trial_gradient, trial_hessian = h.gradient_and_hessian(trial)
            trial_r = trial_gradient - p
            trial_size = safe_norm(trial_r) / scale
            good = (size > tol) & (trial_size < (1 - 1e-4 * t) * size)
            return (
                jnp.where(good[:, None], trial, z),
                jnp.where(good[:, None], solve_positive(trial_hessian, trial_r), step),
                jnp.where(good[:, None, None], trial_hessian, hessian),
                jnp.where(good, trial_size, size),
                jnp.where(good, 1.0, 0.5 * t),
                iteration + 1,
            )

        # The first step is none, to the start itself. Where h is not finite there, it is the last.
        start = (
            z_init,
            jnp.zeros_like(p),
            jnp.broadcast_to(jnp.eye(p.shape[1], dtype=p.dtype), (*p.shape, p.shape[1])),
            jnp.full_like(scale, jnp.inf),
            jnp.full_like(scale, 1.5 * _SHORTEST),
            jnp.asarray(-1),
        )
        z, _, hessian, _, _, iteration = jax.lax.while_loop(unfinished, iterate, start)
        return z, hessian, jnp.maximum(iteration, 0)


class LBFGSInverse(InverseGradientSolver):
    """Limited-memory BFGS on h(z) − ⟨z, p⟩, point by point: no Hessian in the iterations.

    Parameters
    ----------
    tol
        As for `NewtonInverse`.
    max_iter
        Largest number of steps per point.
    history_length
        Number of past steps that approximate the Hessian.
    """

    tol: float | None = None
    max_iter: int = eqx.field(static=True, default=500)
    history_length: int = eqx.field(static=True, default=10)

    def solve(self, h, p, z_init, tol):
        def objective(z, target):
            return h.value(z[None])[0] - z @ target

        def minimise(start, target):
            solver: optimistix.LBFGS = optimistix.LBFGS(
                rtol=0.1 * tol, atol=0.1 * tol, history_length=self.history_length
            )
            solution: optimistix.Solution = optimistix.minimise(
                objective, solver, start, target, max_steps=self.max_iter, throw=False
            )
            return solution.value, solution.stats["num_steps"]

        z, steps = jax.vmap(minimise)(z_init, p)
        return z, h.hessian(z), jnp.max(steps)


def inverse_gradient(
    h: ConvexFunction,
    p: Float[Array, "N d"],
    z_init: Float[Array, "N d"] | None = None,
    *,
    solver: InverseGradientSolver | None = None,
    one_step: bool = False,
) -> InverseGradient:
    """(∇h)⁻¹(p) for every row of p, differentiable in p and in the parameters of h.

    Parameters
    ----------
    h
        Convex function. A closed form is used where h has one.
    p
        Points in the range of ∇h, [N, d].
    z_init
        Where to start; zero by default.
    solver
        Method for functions without a closed form; damped Newton by default.
    one_step
        Differentiate one Newton step with its matrix held constant. That is faster, and right for
        first derivatives only.
    """
    if not isinstance(h, ConvexFunction):
        raise DataError(f"h must be a ConvexFunction, got {type(h).__name__}.")
    p = jnp.asarray(p)
    if p.ndim != 2:
        raise DataError(
            f"inverse_gradient takes points in rows, [N, d], got shape {p.shape}. Write p[None] "
            "for a single point."
        )
    if len(p) == 0:
        return InverseGradient(p, p[:, 0], p[:, 0] == 0, jnp.asarray(0))
    solver = NewtonInverse() if solver is None else solver
    tol = default_tolerance(p.dtype) if solver.tol is None else solver.tol
    if isinstance(h, ClosedFormConvexFunction):
        z, iterations = h.inverse_gradient(p), jnp.asarray(0)
    else:
        start = jnp.zeros_like(p) if z_init is None else z_init
        h_fixed, p_fixed, start = jax.lax.stop_gradient((h, p, start))
        found, hessian, iterations = solver.solve(h_fixed, p_fixed, start, tol)
        found, hessian = jax.lax.stop_gradient((found, hessian))
        # One Newton step from the solution: its value is the solution, polished, and with the
        # solution and the Hessian held constant its first derivative is the implicit one.
        rest = h.gradient(found) - p if one_step else h_fixed.gradient(found) - p_fixed
        z = found - solve_positive(hessian, rest)
        # A bad solution it could throw anywhere.
        close = safe_norm(jax.lax.stop_gradient(rest)) <= 1e3 * tol * (1 + safe_norm(p_fixed))
        z = jnp.where(close[:, None], z, found)
        if not one_step:
            z = implicit_inverse(h, p, z)
    residual = _relative_residual(*jax.lax.stop_gradient((h, z, p)))
    return InverseGradient(z, residual, residual <= tol, iterations)
