"""Methods that climb the semi-dual, with everything held constant."""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mongefit._numerics import Status
from mongefit.duals.semidual import Matrix, Point, evaluate, hessian_inverse, soft_minimum


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

    point: Point
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
            lower, lambda: evaluate(C, a, b, temperature, climb.point.g), lambda: climb.point
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

    point = evaluate(C, a, b, first_eps, g)
    best_error = jnp.where(first_eps <= eps, point.error, jnp.inf).astype(C.dtype)
    zero = jnp.asarray(0)
    start = _Climb(point, first_eps, g, best_error, zero, zero, jnp.zeros_like(best_error))
    return jax.lax.while_loop(unfinished, iterate, start)


def _first_temperature(C, a, b, eps):
    """Where annealing starts: mean(C), at which any start converges quickly."""
    return jnp.maximum(eps, a @ jnp.abs(C) @ b)


def _stop_status(climb: _Climb, max_iter: int):
    return jnp.where(climb.iteration >= max_iter, Status.MAX_ITER, Status.STALLED)


def sinkhorn_step(b, eps, point: Point) -> Float[Array, " m"]:
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
            return evaluate(C, a, b, temperature, sinkhorn_step(b, temperature, point)), damping

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
            solve = hessian_inverse(a, temperature, point.conditional, point.column)
            slack = 8 * jnp.finfo(C.dtype).eps * point.size

            def attempt(damping):
                direction = solve(gradient, damping)
                slope = gradient @ direction
                trial = evaluate(C, a, b, temperature, point.g + direction)
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
                sinkhorn = evaluate(C, a, b, temperature, sinkhorn_step(b, temperature, point))
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


class SymmetricDual(DualSolver):
    """Averaged Sinkhorn for a cloud with itself: C symmetric, b = a and so f = g.

    g ← ½(g + softmin(g)) needs tens of steps where alternating ones need hundreds, from any start
    and at any eps, and compiles to one short loop.

    Parameters
    ----------
    tol
        Tolerance on the L1 marginal error; None takes 1e-9 in float64 and 1e-3 in float32.
    max_iter
        Largest number of iterations.
    """

    tol: float | None = None
    max_iter: int = eqx.field(static=True, default=5_000)

    def climb(self, C, a, b, eps, g_init, tol):
        def unfinished(carry):
            _, error, iteration = carry
            return (error > tol) & (iteration < self.max_iter)

        def iterate(carry):
            g, _, iteration = carry
            f = soft_minimum(C, a, g, eps)
            # The row sums of the plan of g with itself are a exp((g − f)/eps).
            excess = jnp.where(a > 0, (g - f) / eps, 0.0)
            error = 2 * jnp.sum(a * jnp.abs(jnp.expm1(excess)))
            return 0.5 * (g + f), error, iteration + 1

        cold = jnp.zeros_like(b) if g_init is None else g_init
        start = (cold, jnp.asarray(jnp.inf, C.dtype), jnp.asarray(0))
        g, error, iteration = jax.lax.while_loop(unfinished, iterate, start)
        return g, error, iteration, jnp.asarray(Status.MAX_ITER)
