r"""Entropic optimal transport between weighted points, seen only through the cost matrix.

With weights a, b that appear exactly once,

    f_i = −eps log Σ_j b_j exp((g_j − C_ij)/eps),    P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps),

the semi-dual F(g) = Σ a_i f_i(g) + Σ b_j g_j is concave with gradient b − colsum(P). Solvers climb
it in the log domain with everything held constant; `solve_dual` then attaches the derivative. The
potentials are determined up to f + t, g − t; they are returned with Σ a_i f_i = Σ b_j g_j.
"""

from __future__ import annotations

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from mongefit._numerics import Status, safe_log

Matrix = Float[Array, "n m"]
Differentiation = Literal["implicit", "unrolled", "none"]


class DualSolution(eqx.Module):
    """Potentials of an entropic transport problem and how well they were found.

    Attributes
    ----------
    f, g
        Potentials, finite whatever happened, with Σ a_i f_i = Σ b_j g_j.
    error
        L1 error of both marginals of the plan that f and g define, recomputed from them.
    iterations
        Newton or Sinkhorn iterations spent, over all stages.
    status
        A `Status`: whether ``error`` is within tolerance, and if not why the solver stopped.
    """

    f: Float[Array, " n"]
    g: Float[Array, " m"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    status: Int[Array, ""]

    @property
    def converged(self):
        """Whether the marginal error was checked to be within tolerance."""
        return self.status == Status.CONVERGED


def default_tolerance(dtype: jnp.dtype) -> float:
    """Marginal error at which a dual counts as solved: 1e-9, or 1e-3 in float32.

    In float32 the exponent (f + g − C)/eps alone carries an error of max(C)/eps · 6e-8.
    """
    return 1e-9 if dtype == jnp.float64 else 1e-3


def plan(
    C: Matrix,
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    eps: Float[Array, ""],
    f: Float[Array, " n"],
    g: Float[Array, " m"],
) -> Matrix:
    """P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps)."""
    exponent = (f[:, None] + g[None, :] - C) / eps
    return jnp.exp(safe_log(a)[:, None] + safe_log(b)[None, :] + exponent)


def soft_minimum(
    C: Matrix, weight: Float[Array, " m"], potential: Float[Array, " m"], eps: Float[Array, ""]
) -> Float[Array, " n"]:
    """−eps log Σ_j weight_j exp((potential_j − C_ij)/eps), for every row i."""
    return -eps * logsumexp(safe_log(weight) + (potential - C) / eps, axis=1)


def marginal_error(C, a, b, eps, f, g) -> Float[Array, ""]:
    """‖P1 − a‖₁ + ‖Pᵀ1 − b‖₁ of the plan that f and g define."""
    P = plan(C, a, b, eps, f, g)
    return jnp.sum(jnp.abs(P.sum(1) - a)) + jnp.sum(jnp.abs(P.sum(0) - b))


class _Point(eqx.Module):
    """The semi-dual at g: everything that a solver wants to know there."""

    g: Float[Array, " m"]
    conditional: Matrix  # P̃, the plan with rows normalised to 1
    column: Float[Array, " m"]  # colsum(P)
    value: Float[Array, ""]  # F(g)
    size: Float[Array, ""]  # Σ a|f| + Σ b|g|, the scale of rounding in F
    error: Float[Array, ""]  # ‖b − colsum(P)‖₁


def _evaluate(C, a, b, eps, g) -> _Point:
    logits = safe_log(b) + (g - C) / eps
    log_total = logsumexp(logits, axis=1, keepdims=True)
    # Not exp(logits − log_total): at large |logits| its rows would sum to 1 + 1e-9, and the Hessian
    # of the semi-dual would not be semidefinite.
    conditional = jax.nn.softmax(logits, axis=1)
    f = -eps * log_total[:, 0]
    column = a @ conditional
    return _Point(
        g=g,
        conditional=conditional,
        column=column,
        value=a @ f + b @ g,
        size=a @ jnp.abs(f) + b @ jnp.abs(g),
        error=jnp.sum(jnp.abs(b - column)),
    )


def _hessian_inverse(a, eps, conditional, column):
    r"""The map (r, damping) ↦ (−∇²F + damping · diag(c)/eps)⁺ r, with c = colsum(P).

    −∇²F = (diag(c) − P̃ᵀ diag(a) P̃)/eps. Scaled by c^(−1/2) on both sides it is I − KᵀK with the
    singular values of K in [0, 1]. Each connected component of the plan contributes one null
    vector. The overall constant is deflated exactly; the offsets between components that exchange
    no mass in this precision by a shift just above rounding, whose effect on all other directions
    two rounds of refinement undo. A right-hand side that conserves the mass of each component has
    nothing along them, so these offsets stay where the last connected solve left them.
    """
    identity = jnp.eye(column.shape[0], dtype=column.dtype)
    root = jnp.sqrt(column)
    inverse_root = jnp.where(column > 0, 1 / jnp.where(column > 0, root, 1.0), 0.0)
    K = jnp.sqrt(a)[:, None] * conditional * inverse_root
    undamped = identity - K.T @ K + jnp.outer(root, root) / jnp.sum(column)
    shift = 20 * column.shape[0] * jnp.finfo(column.dtype).eps

    def solve(right, damping):
        matrix = undamped + damping * identity
        factor = jnp.linalg.cholesky(matrix + shift * identity)
        # Should it fail all the same, the identity makes a short safe step of the rest.
        factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, identity)
        scaled = inverse_root * right
        solution = jax.scipy.linalg.cho_solve((factor, True), scaled)
        for _ in range(2):
            rest = scaled - matrix @ solution
            solution = solution + jax.scipy.linalg.cho_solve((factor, True), rest)
        return eps * inverse_root * solution

    return solve


class DualSolver(eqx.Module):
    """A method that climbs the semi-dual; it need not be differentiable."""

    tol: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def climb(
        self,
        C: Matrix,
        a: Float[Array, " n"],
        b: Float[Array, " m"],
        eps: Float[Array, ""],
        g_init: Float[Array, " m"] | None,
        tol: float,
    ) -> tuple[Float[Array, " m"], Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
        """The best g found, its error, the iterations, and a status that explains an error > tol.

        ``g_init`` is None for a cold start.
        """


class _Climb(eqx.Module):
    """State of a climb through falling temperatures."""

    point: _Point
    eps: Float[Array, ""]
    best_g: Float[Array, " m"]
    best_error: Float[Array, ""]
    since_best: Int[Array, ""]
    iteration: Int[Array, ""]
    damping: Float[Array, ""]


def _anneal(C, a, b, eps, first_eps, g, advance, *, tol, patience, max_iter) -> _Climb:
    """Climb at a temperature until it is roughly solved, halve it, and at eps go on to ``tol``.

    ``advance(point, temperature, damping)`` takes one step of the method and says what damping to
    begin the next with. The best potentials at eps are kept; the climb ends when they have not
    improved for ``patience`` steps.
    """
    stage_tol = 1e-3

    def unfinished(climb: _Climb):
        return (
            (climb.best_error > tol)
            & (climb.iteration < max_iter)
            & (climb.since_best < patience)
            & jnp.isfinite(climb.point.error)
        )

    def iterate(climb: _Climb):
        lower = (climb.point.error <= stage_tol) & (climb.eps > eps)
        temperature = jnp.where(lower, jnp.maximum(0.5 * climb.eps, eps), climb.eps)
        point = jax.lax.cond(
            lower, lambda: _evaluate(C, a, b, temperature, climb.point.g), lambda: climb.point
        )
        point, damping = advance(point, temperature, climb.damping)
        last = temperature <= eps
        better = last & (point.error < climb.best_error)
        return _Climb(
            point=point,
            eps=temperature,
            best_g=jnp.where(better, point.g, climb.best_g),
            best_error=jnp.where(better, point.error, climb.best_error),
            since_best=jnp.where(better | ~last, 0, climb.since_best + 1),
            iteration=climb.iteration + 1,
            damping=damping,
        )

    point = _evaluate(C, a, b, first_eps, g)
    best_error = jnp.where(first_eps <= eps, point.error, jnp.inf).astype(C.dtype)
    zero = jnp.asarray(0)
    start = _Climb(point, first_eps, g, best_error, zero, zero, jnp.zeros_like(best_error))
    return jax.lax.while_loop(unfinished, iterate, start)


def _first_temperature(C, a, b, eps):
    """Where annealing starts: mean(C), at which any start converges quickly."""
    return jnp.maximum(eps, a @ jnp.abs(C) @ b)


def _stop_status(climb: _Climb, max_iter: int):
    return jnp.where(climb.iteration >= max_iter, Status.MAX_ITER, Status.STALLED)


def _sinkhorn_step(b, eps, point: _Point) -> Float[Array, " m"]:
    # With colsum(P) kept above underflow this is at most the full step, which still climbs.
    tiny = jnp.finfo(b.dtype).tiny
    ratio = jnp.where(b > 0, b, 1.0) / jnp.where(b > 0, jnp.maximum(point.column, tiny), 1.0)
    return point.g + eps * jnp.log(ratio)


class SinkhornDual(DualSolver):
    """Log-domain Sinkhorn, eps halved from mean(C) when cold: slow and safe, no factorisation.

    Parameters
    ----------
    tol
        Tolerance on the L1 marginal error; None takes 1e-9 in float64 and 1e-3 in float32.
    max_iter
        Largest number of iterations.
    """

    tol: float | None = None
    max_iter: int = eqx.field(static=True, default=20_000)

    def climb(self, C, a, b, eps, g_init, tol):
        def advance(point, temperature, damping):
            return _evaluate(C, a, b, temperature, _sinkhorn_step(b, temperature, point)), damping

        first_eps = _first_temperature(C, a, b, eps) if g_init is None else eps
        climb = _anneal(
            C, a, b, eps, first_eps, jnp.zeros_like(b) if g_init is None else g_init, advance,
            tol=tol, patience=self.max_iter, max_iter=self.max_iter,
        )  # fmt: skip
        return climb.best_g, climb.best_error, climb.iteration, _stop_status(climb, self.max_iter)


class NewtonDual(DualSolver):
    """Damped Newton on the semi-dual: 1–2 iterations when warm, annealed when cold.

    A warm start is tried at eps itself; when it does not converge, and for every cold start, eps
    is halved step by step from mean(C). A Newton step that does not climb is damped in the manner
    of Levenberg and Marquardt: parts of the plan that hardly exchange mass make the Hessian nearly
    singular, and only those directions need shorter steps. A step that cannot be mended so, or
    whose factorisation fails, is replaced by a Sinkhorn step, which always climbs. When Newton
    ends above tolerance, Sinkhorn takes over from its best point.

    Parameters
    ----------
    tol
        Tolerance on the L1 marginal error; None takes 1e-9 in float64 and 1e-3 in float32.
    max_iter
        Largest number of Newton iterations of one climb.
    fallback_iter
        Largest number of Sinkhorn iterations of the fallback.
    """

    tol: float | None = None
    max_iter: int = eqx.field(static=True, default=300)
    fallback_iter: int = eqx.field(static=True, default=5_000)

    def climb(self, C, a, b, eps, g_init, tol):
        def advance(point, temperature, damping):
            gradient = b - point.column
            solve = _hessian_inverse(a, temperature, point.conditional, point.column)
            slack = 8 * jnp.finfo(C.dtype).eps * point.size

            def attempt(damping):
                direction = solve(gradient, damping)
                slope = gradient @ direction
                trial = _evaluate(C, a, b, temperature, point.g + direction)
                climbs = (slope >= 0) & (trial.value >= point.value + 0.1 * slope - slack)
                return damping, trial, climbs | (trial.error < 0.5 * point.error)

            def searching(search):
                damping, _, accepted = search
                return ~accepted & (damping < 1)

            def harder(search):
                return attempt(jnp.maximum(10 * search[0], 1e-6))

            first = jnp.where(damping > 1e-5, 0.01 * damping, 0.0)
            damping, newton, accepted = jax.lax.while_loop(searching, harder, attempt(first))

            def better_of_both():
                sinkhorn = _evaluate(C, a, b, temperature, _sinkhorn_step(b, temperature, point))
                pick = accepted & (newton.value >= sinkhorn.value)
                return jax.tree.map(lambda x, y: jnp.where(pick, x, y), newton, sinkhorn)

            next_point = jax.lax.cond(accepted & (damping == 0), lambda: newton, better_of_both)
            return next_point, damping

        # Attempt 0 starts warm at eps, attempt 1 cold at mean(C); one loop, so one compiled body.
        def unsolved(carry):
            attempt, _, error, _, _ = carry
            return (error > tol) & (attempt < 2)

        def run(carry):
            attempt, best_g, best_error, iterations, _ = carry
            cold = attempt > 0
            climb = _anneal(
                C, a, b, eps,
                jnp.where(cold, _first_temperature(C, a, b, eps), eps),
                jnp.where(cold, 0.0, best_g),
                advance, tol=tol, patience=12, max_iter=self.max_iter,
            )  # fmt: skip
            better = climb.best_error < best_error
            return (
                attempt + 1,
                jnp.where(better, climb.best_g, best_g),
                jnp.where(better, climb.best_error, best_error),
                iterations + climb.iteration,
                _stop_status(climb, self.max_iter),
            )

        start = (
            jnp.asarray(1 if g_init is None else 0),
            jnp.zeros_like(b) if g_init is None else g_init,
            jnp.asarray(jnp.inf, C.dtype),
            jnp.asarray(0),
            jnp.asarray(Status.STALLED),
        )
        _, g, error, iterations, status = jax.lax.while_loop(unsolved, run, start)

        fallback = SinkhornDual(max_iter=self.fallback_iter)
        done_tol = jnp.where(error > tol, tol, jnp.inf)
        sink_g, sink_error, extra, sink_status = fallback.climb(C, a, b, eps, g, done_tol)
        better = sink_error < error
        return (
            jnp.where(better, sink_g, g),
            jnp.where(better, sink_error, error),
            iterations + extra,
            jnp.where(error > tol, sink_status, status),
        )


def _implicit_potential(C, a, b, eps, g):
    """One Newton step from the solution g: its value is g, its derivative the implicit one."""
    at = jax.lax.stop_gradient((C, a, b, eps, g))
    point = _evaluate(*at)
    solve = _hessian_inverse(at[1], at[3], point.conditional, point.column)
    residual = b - _evaluate(C, a, b, eps, at[4]).column
    return at[4] + solve(residual, 0.0)


def _unrolled_potential(C, a, b, eps, g, n_iter):
    """Sinkhorn iterations from g, differentiated one by one."""

    def iterate(g, _):
        return _sinkhorn_step(b, eps, _evaluate(C, a, b, eps, g)), None

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
        polished = _implicit_potential(C, a, b, eps, g)
        # A solution far from converged could be thrown anywhere by an undamped step.
        close = _evaluate(*fixed, g).error <= 1e3 * tol
        g = jnp.where(close & jnp.all(jnp.isfinite(polished)), polished, g)
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
