"""Solving an entropic transport problem, with derivatives, and its value."""

from __future__ import annotations

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mongefit._duals.problem import (
    DualProblem,
    DualSolution,
    default_tolerance,
    expm1_over,
    strictness,
)
from mongefit._duals.semidual import hessian_inverse, semidual
from mongefit._duals.solvers import DualSolver, NewtonDual, SymmetricDual, sinkhorn_step
from mongefit._numerics import Status
from mongefit.errors import DataError, OptionError, did_you_mean

Differentiation = Literal["implicit", "one_step", "unrolled", "none"]


def check_differentiation(mode: str) -> None:
    """Refuse a mode that does not exist: it would give zero derivatives."""
    modes = get_args(Differentiation)
    if mode not in modes:
        raise OptionError(
            f"differentiate must be one of {', '.join(modes)}, got {mode!r}."
            + did_you_mean(str(mode), modes)
        )


def _polish(problem: DualProblem, g: Float[Array, " m"], tol: float) -> Float[Array, " m"]:
    """One Newton step from the solution g, with g and the Hessian held constant.

    Its value is g, and its first derivative in the problem is the implicit one.
    """
    g = jax.lax.stop_gradient(g)
    point = semidual(problem, g)
    fixed_problem, fixed = jax.lax.stop_gradient((problem, point))
    solve = hessian_inverse(fixed_problem, fixed, atol=tol)
    polished = g + solve(point.gradient, 0.0)
    # A solution far from converged could be thrown anywhere by an undamped step.
    close = (fixed.error <= 1e3 * tol) & jnp.all(jnp.isfinite(polished))
    return jnp.where(close, polished, g)


@jax.custom_jvp
def _solution(problem: DualProblem, g: Float[Array, " m"]) -> Float[Array, " m"]:
    """g as a function of the problem that it solves, with derivatives of every order."""
    return g


@_solution.defjvp
def _(primals, tangents):
    (problem, g), (change, _) = primals, tangents
    g = _solution(problem, g)
    # From ∇F(g; θ) = 0: −∇²F ġ = ∂θ∇F θ̇. Everything here is differentiable.
    point, moved = jax.jvp(lambda problem: semidual(problem, g), (problem,), (change,))
    return g, hessian_inverse(problem, point)(moved.gradient, 0.0)


def _unrolled(problem: DualProblem, g: Float[Array, " m"], n_iter: int) -> Float[Array, " m"]:
    """Sinkhorn iterations from g, differentiated one by one."""

    def iterate(g, _):
        return sinkhorn_step(problem, semidual(problem, g)), None

    return jax.lax.scan(iterate, jax.lax.stop_gradient(g), length=n_iter)[0]


def solve_dual(
    problem: DualProblem,
    *,
    g_init: Float[Array, " m"] | None = None,
    solver: DualSolver | None = None,
    differentiate: Differentiation = "implicit",
    unrolled_iter: int = 200,
) -> DualSolution:
    """Solve an entropic problem; f and g are differentiable in its costs, weights, eps and τ.

    Parameters
    ----------
    problem
        Costs, weights and eps, and how strictly the weights are kept.
    g_init
        Potentials to start from; without them the solve is cold.
    solver
        `NewtonDual` (default) or `SinkhornDual`.
    differentiate
        "implicit" differentiates the optimality condition at the solution, in forward and reverse
        mode and any number of times. "one_step" does so once only, which is faster: second
        derivatives would be wrong. "unrolled" differentiates the last ``unrolled_iter`` Sinkhorn
        iterations. "none" holds the potentials constant.

    Returns
    -------
    DualSolution
        Never NaN; a problem with non-finite entries comes back with ``Status.NON_FINITE``.
    """
    if not isinstance(problem, DualProblem):
        raise DataError(
            f"solve_dual takes a DualProblem(C, a, b, eps=…), got {type(problem).__name__}."
        )
    check_differentiation(differentiate)
    solver = NewtonDual() if solver is None else solver
    tol = default_tolerance(problem.C.dtype) if solver.tol is None else solver.tol
    fixed = jax.lax.stop_gradient(problem)
    g, _, iterations, status = solver.climb(fixed, jax.lax.stop_gradient(g_init), tol)
    g = jax.lax.stop_gradient(g)
    if differentiate == "implicit":
        g = _solution(problem, _polish(fixed, g, tol))
    elif differentiate == "one_step":
        g = _polish(problem, g, tol)
    elif differentiate == "unrolled":
        g = _unrolled(problem, g, unrolled_iter)
    else:
        problem = fixed
    f = problem.source_potential(g)
    if problem.balanced:  # else no constant is free
        offset = 0.5 * (problem.a @ f - problem.b @ g)
        f, g = f - offset, g + offset
    error = fixed.marginal_error(*jax.lax.stop_gradient((f, g)))
    finite = jnp.isfinite(error) & jnp.all(jnp.isfinite(problem.C))
    status = jnp.where(error <= tol, Status.CONVERGED, status)
    status = jnp.where(finite, status, Status.NON_FINITE)
    return DualSolution(
        f=jnp.where(finite, f, 0.0),
        g=jnp.where(finite, g, 0.0),
        error=jnp.where(finite, error, jnp.inf),
        iterations=iterations,
        status=jnp.where(fixed.eps > 0, status, Status.NO_EPS),
    )


class TransportValue(eqx.Module):
    """A value made of solved transport problems, and whether all of them were solved."""

    value: Float[Array, ""]
    converged: Bool[Array, ""]


def transport_value(
    problem: DualProblem,
    *,
    g_init: Float[Array, " m"] | None = None,
    solver: DualSolver | None = None,
) -> TransportValue:
    """OT_eps = max_{f,g} Σ a_i f_i + Σ b_j g_j − eps (Σ P_ij − 1), with derivatives of every order.

    With τ < 1 the sum of a side is −ρ Σ a_i (exp(−f_i/ρ) − 1) instead. By the envelope theorem the
    first derivative in C is the plan.
    """
    dual = solve_dual(problem, g_init=g_init, solver=solver, differentiate="none")
    return TransportValue(_optimal_value(problem, dual.f, dual.g), dual.converged)


def _objective(problem: DualProblem, f: Float[Array, " n"], g: Float[Array, " m"]):
    of_f, of_g = (
        potential if tau is None else -expm1_over(-potential, strictness(problem.eps, tau))
        for potential, tau in ((f, problem.tau_a), (g, problem.tau_b))
    )
    mass = jnp.sum(problem.plan(f, g))
    return problem.a @ of_f + problem.b @ of_g - problem.eps * (mass - 1)


@jax.custom_jvp
def _optimal_value(problem: DualProblem, f: Float[Array, " n"], g: Float[Array, " m"]):
    """The dual objective at the potentials that solve the problem."""
    return _objective(problem, f, g)


@_optimal_value.defjvp
def _(primals, tangents):
    (problem, f, g), (change, *_) = primals, tangents
    # The potentials are functions of the problem: that matters from the second derivative on.
    g = _solution(problem, g)
    f = problem.source_potential(g)
    return jax.jvp(lambda problem: _objective(problem, f, g), (problem,), (change,))


def divergence(
    across: DualProblem,
    C_xx: Float[Array, "n n"],
    C_yy: Float[Array, "m m"],
    *,
    solver: DualSolver | None = None,
) -> TransportValue:
    """The Sinkhorn divergence S = OT_eps(x, y) − ½ OT_eps(x, x) − ½ OT_eps(y, y).

    Every term is the regularised dual value of `transport_value`. The solver is for the first; the
    symmetric ones have their own.
    """
    a, b, eps = across.a, across.b, across.eps
    within_x = transport_value(DualProblem(C_xx, a, a, eps=eps), solver=SymmetricDual())
    problem_y = DualProblem(C_yy, b, b, eps=eps)
    dual_y = solve_dual(problem_y, solver=SymmetricDual(), differentiate="none")
    within_y = _optimal_value(problem_y, dual_y.f, dual_y.g)
    # Clouds that agree have the potentials of y with itself. From there a few sweeps, each far
    # cheaper than a factorisation, leave two or three steps to Newton's method.
    g = _sweep(*jax.lax.stop_gradient((across, dual_y.g)))
    value = transport_value(across, g_init=g, solver=solver)
    return TransportValue(
        value.value - 0.5 * (within_x.value + within_y),
        value.converged & within_x.converged & dual_y.converged,
    )


def _sweep(problem: DualProblem, g: Float[Array, " m"], n_iter: int = 20) -> Float[Array, " m"]:
    """Sinkhorn iterations from g."""

    def sweep(g, _):
        return problem.target_potential(problem.source_potential(g)), None

    return jax.lax.scan(sweep, g, length=n_iter)[0]
