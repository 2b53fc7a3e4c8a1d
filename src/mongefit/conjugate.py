r"""The inverse gradient (∇h)⁻¹(p) = argmin_z h(z) − ⟨z, p⟩, with honest per-point status.

Solvers run with everything held constant. The value returned is one Newton step from the solution,
z* − ∇²h(z*)⁻¹(∇h(z*) − p) with z* and ∇²h(z*) held constant: it equals z*, and its derivative in p
and in the parameters of h is the implicit one. The same rule, the other way round, evaluates an h
that is given by its conjugate.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mongefit._numerics import safe_norm
from mongefit.convex import ICNN, Activation, ClosedFormConvexFunction, ConvexFunction


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


class InverseGradientSolver(eqx.Module):
    """An iterative method for ∇h(z) = p; it need not be differentiable."""

    tol: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def solve(
        self, h: ConvexFunction, p: Float[Array, "N d"], z_init: Float[Array, "N d"], tol: float
    ) -> tuple[Float[Array, "N d"], Float[Array, "N d d"], Int[Array, ""]]:
        """Approximate solution, ∇²h there, and the number of iterations."""


def default_tolerance(dtype: jnp.dtype) -> float:
    """Residual at which an inverse gradient counts as found: 1e-10, or 1e-5 in float32."""
    return 1e-10 if dtype == jnp.float64 else 1e-5


def _relative_residual(h, z, p):
    # Where h is found by a solve, p is what that solve should find.
    gradient = h.value_and_gradient(z, p)[1] if h.solves else h.gradient(z)
    return safe_norm(gradient - p) / (1 + safe_norm(p))


def _cholesky_solve(matrix: Float[Array, "N d d"], right: Float[Array, "N d"]):
    if matrix.shape[-1] <= 3:
        return _written_out_solve(matrix, right)
    factor = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]


def _written_out_solve(matrix, right):
    """The same for a few dimensions, entry by entry: a call for each matrix would take longer."""
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
                jnp.where(good[:, None], _cholesky_solve(trial_hessian, trial_r), step),
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
) -> InverseGradient:
    """(∇h)⁻¹(p) for every row of p, differentiable in p and in the parameters of h.

    Parameters
    ----------
    h
        Convex function. A closed form is used where h has one.
    p
        Points in the range of ∇h.
    z_init
        Where to start; zero by default.
    solver
        Method for functions with no closed form; damped Newton by default.
    """
    solver = NewtonInverse() if solver is None else solver
    tol = default_tolerance(p.dtype) if solver.tol is None else solver.tol
    if isinstance(h, ClosedFormConvexFunction):
        z, iterations = h.inverse_gradient(p), jnp.asarray(0)
    else:
        start = jnp.zeros_like(p) if z_init is None else z_init
        h_fixed, p_fixed, start = jax.lax.stop_gradient((h, p, start))
        found, hessian, iterations = solver.solve(h_fixed, p_fixed, start, tol)
        found, hessian = jax.lax.stop_gradient((found, hessian))
        rest = h.gradient(found) - p
        z = found - _cholesky_solve(hessian, rest)
        # The last step polishes a good solution; a bad one it could throw anywhere.
        close = safe_norm(jax.lax.stop_gradient(rest)) <= 1e3 * tol * (1 + safe_norm(p_fixed))
        z = jnp.where(close[:, None], z, found)
    residual = _relative_residual(*jax.lax.stop_gradient((h, z, p)))
    return InverseGradient(z, residual, residual <= tol, iterations)


class ConjugateICNN(ClosedFormConvexFunction):
    r"""A learned convex function h = k* given by its conjugate, an `ICNN` k = h* of p.

    The inverse gradient needs no solve, (∇h)⁻¹(p) = ∇k(p). The function itself does,

        h(z) = max_p ⟨p, z⟩ − k(p),    ∇h(z) = p*(z),    ∇²h(z) = ∇²k(p*)⁻¹,

    where ∇k(p*) = z. The derivative of h follows from the envelope theorem, ∂_θ h = −∂_θ k(p*) with
    p* held constant; that of ∇h from one Newton step of `inverse_gradient`. Only first derivatives
    of either are right.

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

    learned: ClassVar[bool] = True
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
                raise ValueError(f"{name} must be positive and finite, got {value}.")
        if alpha * beta >= 1:
            raise ValueError(
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
        p = jax.lax.stop_gradient(found.z)
        value = jnp.sum(p * z, axis=-1) - self.conjugate.value(p)
        return (
            jnp.where(found.converged, value, jnp.nan),
            jnp.where(found.converged[:, None], found.z, jnp.nan),
        )

    def hessian(self, z):
        found = self.solve(z)
        inverse = jnp.linalg.inv(self.conjugate.hessian(found.z))
        return jnp.where(found.converged[:, None, None], inverse, jnp.nan)

    def inverse_gradient(self, p):
        return self.conjugate.gradient(p)
