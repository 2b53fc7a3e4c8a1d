"""Solving an entropic transport problem, with derivatives, and its value."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mongefit._numerics import Status
from mongefit.duals.semidual import (
    DualSolution,
    Matrix,
    default_tolerance,
    evaluate,
    hessian_inverse,
    marginal_error,
    plan,
    soft_minimum,
)
from mongefit.duals.solvers import DualSolver, NewtonDual, SymmetricDual, sinkhorn_step

Differentiation = Literal["implicit", "unrolled", "none"]


def _implicit_potential(C, a, b, eps, g, tol):
    """One Newton step from the solution g: its value is g, its derivative the implicit one."""
    a_fixed, eps_fixed, g = jax.lax.stop_gradient((a, eps, g))
    point = evaluate(C, a, b, eps, g)
    fixed = jax.lax.stop_gradient(point)
    solve = hessian_inverse(a_fixed, eps_fixed, fixed.conditional, fixed.column, atol=tol)
    polished = g + solve(b - point.column, 0.0)
    # A solution far from converged could be thrown anywhere by an undamped step.
    close = (fixed.error <= 1e3 * tol) & jnp.all(jnp.isfinite(polished))
    return jnp.where(close, polished, g)


def _unrolled_potential(C, a, b, eps, g, n_iter):
    """Sinkhorn iterations from g, differentiated one by one."""

    def iterate(g, _):
        return sinkhorn_step(b, eps, evaluate(C, a, b, eps, g)), None

    return jax.lax.scan(iterate, jax.lax.stop_gradient(g), length=n_iter)[0]


def solve_dual(
    C: Matrix,
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    eps: Float[Array, ""],
    *,
    g_init: Float[Array, " m"] | None = None,
    solver: DualSolver | None = None,
    differentiate: Differentiation = "implicit",
    unrolled_iter: int = 200,
) -> DualSolution:
    """Solve the entropic problem; f and g are differentiable in C, a, b and eps.

    Parameters
    ----------
    C
        Cost matrix.
    a, b
        Non-negative weights of the rows and columns, each with sum 1.
    eps
        Absolute regularisation, positive.
    g_init
        Potentials to start from; without them the solve is cold.
    solver
        `NewtonDual` (default) or `SinkhornDual`.
    differentiate
        "implicit" differentiates the optimality condition at the solution, "unrolled" the last
        ``unrolled_iter`` Sinkhorn iterations, "none" holds the potentials constant.

    Returns
    -------
    DualSolution
        Never NaN; a problem with non-finite entries comes back with ``Status.NON_FINITE``.
    """
    solver = NewtonDual() if solver is None else solver
    tol = default_tolerance(C.dtype) if solver.tol is None else solver.tol
    eps = jnp.asarray(eps, C.dtype)
    fixed = jax.lax.stop_gradient((C, a, b, eps))
    g, _, iterations, status = solver.climb(*fixed, jax.lax.stop_gradient(g_init), tol)
    g = jax.lax.stop_gradient(g)
    if differentiate == "implicit":
        g = _implicit_potential(C, a, b, eps, g, tol)
    elif differentiate == "unrolled":
        g = _unrolled_potential(C, a, b, eps, g, unrolled_iter)
    else:
        C, a, b, eps = fixed
    f = soft_minimum(C, b, g, eps)
    offset = 0.5 * (a @ f - b @ g)
    f, g = f - offset, g + offset
    error = marginal_error(*fixed, *jax.lax.stop_gradient((f, g)))
    finite = jnp.isfinite(error) & jnp.all(jnp.isfinite(C))
    status = jnp.where(error <= tol, Status.CONVERGED, status)
    status = jnp.where(finite, status, Status.NON_FINITE)
    return DualSolution(
        f=jnp.where(finite, f, 0.0),
        g=jnp.where(finite, g, 0.0),
        error=jnp.where(finite, error, jnp.inf),
        iterations=iterations,
        status=status,
    )


class TransportValue(eqx.Module):
    """A value made of solved transport problems, and whether all of them were solved."""

    value: Float[Array, ""]
    converged: Bool[Array, ""]


def transport_value(
    C: Matrix,
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    eps: Float[Array, ""],
    *,
    g_init: Float[Array, " m"] | None = None,
    solver: DualSolver | None = None,
) -> TransportValue:
    """OT_eps = max_{f,g} Σ a_i f_i + Σ b_j g_j − eps (Σ P_ij − 1), with its first derivative.

    By the envelope theorem the derivative in C is the plan; the potentials are held constant.
    """
    dual = solve_dual(C, a, b, eps, g_init=g_init, solver=solver, differentiate="none")
    return _value_at(C, a, b, eps, dual)


def _value_at(C, a, b, eps, dual: DualSolution) -> TransportValue:
    f, g = jax.lax.stop_gradient((dual.f, dual.g))
    value = a @ f + b @ g - eps * (jnp.sum(plan(C, a, b, eps, f, g)) - 1)
    return TransportValue(value, dual.converged)


def _swept(C, a, b, eps, g, n_iter=20):
    def sweep(g, _):
        return soft_minimum(C.T, a, soft_minimum(C, b, g, eps), eps), None

    return jax.lax.scan(sweep, g, length=n_iter)[0]


def divergence(
    C_xy: Matrix,
    C_xx: Float[Array, "n n"],
    C_yy: Float[Array, "m m"],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    eps: Float[Array, ""],
    *,
    solver: DualSolver | None = None,
) -> TransportValue:
    """The Sinkhorn divergence S = OT_eps(x, y) − ½ OT_eps(x, x) − ½ OT_eps(y, y).

    Every term is the regularised dual value of `transport_value`. The solver is for the first; the
    symmetric ones have their own.
    """
    within_x = transport_value(C_xx, a, a, eps, solver=SymmetricDual())
    dual_y = solve_dual(C_yy, b, b, eps, solver=SymmetricDual(), differentiate="none")
    within_y = _value_at(C_yy, b, b, eps, dual_y)
    # Clouds that agree have the potentials of y with itself. From there a few sweeps, each far
    # cheaper than a factorisation, leave two or three steps to Newton's method.
    g = _swept(*jax.lax.stop_gradient((C_xy, a, b, jnp.asarray(eps, C_xy.dtype), dual_y.g)))
    across = transport_value(C_xy, a, b, eps, g_init=g, solver=solver)
    return TransportValue(
        across.value - 0.5 * (within_x.value + within_y.value),
        across.converged & within_x.converged & within_y.converged,
    )
