"""Methods that climb the semi-dual, with everything held constant."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mongefit._duals.problem import DualProblem, relaxed, soft_minimum
from mongefit._duals.semidual import Point, hessian_inverse, semidual
from mongefit._numerics import Status
from mongefit._registry import Registered


class DualSolver(Registered):
    """A method that climbs the semi-dual; it need not be differentiable."""

    tol: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def climb(
        self, problem: DualProblem, g_init: Float[Array, " m"] | None, tol: float
    ) -> tuple[Float[Array, " m"], Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
        """The best g found, its error, the iterations, and a status that explains an error > tol.

        ``g_init`` is None for a cold start.
        """


class _Stage(NamedTuple):
    """One way of climbing, tried until it stalls."""

    newton: bool
    cold: bool
    max_iter: int
    patience: int


class _Climb(eqx.Module):
    """State of a climb: where it is, how it will step next, and the best so far at eps."""

    point: Point
    eps: Float[Array, ""]  # temperature of the point
    known: Bool[Array, ""]  # whether the point has been evaluated at this temperature
    damping: Float[Array, ""]
    sinkhorn: Bool[Array, ""]  # whether the next step is one of Sinkhorn's
    best_g: Float[Array, " m"]
    best_error: Float[Array, ""]
    iteration: Int[Array, ""]
    status: Int[Array, ""]
    stage: Int[Array, ""]
    stage_error: Float[Array, ""]  # the best of this stage
    stage_iteration: Int[Array, ""]
    since_best: Int[Array, ""]


def _climb_stages(problem: DualProblem, g_init, tol, stages: Sequence[_Stage]):
    """Climb by one stage after the other until the error is within ``tol``; returns as `climb`.

    A warm stage starts at eps from the best potentials so far, a cold one at the temperature
    mean(C), at which any start converges quickly. A temperature that is roughly solved is halved;
    at eps a stage goes on until its best error has not improved for ``patience`` steps.

    Everything is one loop that proposes potentials, evaluates them and takes them or not: loops
    within loops would hold the same code several times, and a first fit waits for its compilation.
    """
    C, a, b, eps = problem.C, problem.a, problem.b, problem.eps
    stage_tol = 1e-3
    newton, cold, max_iter, patience = map(jnp.asarray, zip(*stages, strict=True))
    hottest = jnp.maximum(eps, a @ jnp.abs(C) @ b)
    zero, infinite = jnp.asarray(0), jnp.asarray(jnp.inf, C.dtype)

    def unfinished(climb: _Climb):
        return (climb.best_error > tol) & (climb.stage < len(stages))

    def newton_potentials(climb: _Climb, temperature):
        point = climb.point
        gradient = point.gradient
        # Where it iterates: as close as the next step can make use of.
        solve = hessian_inverse(problem.at(temperature), point, rtol=1e-3, atol=0.1 * tol)
        direction = solve(gradient, climb.damping)
        return point.g + direction, gradient @ direction

    def sinkhorn_potentials(climb: _Climb, temperature):
        return sinkhorn_step(problem.at(temperature), climb.point), jnp.zeros_like(infinite)

    def iterate(climb: _Climb):
        point, damping, stage = climb.point, climb.damping, climb.stage
        lower = climb.known & (point.error <= stage_tol) & (climb.eps > eps)
        temperature = jnp.where(lower, jnp.maximum(0.5 * climb.eps, eps), climb.eps)
        steps = climb.known & ~lower
        by_newton = newton[stage] & ~climb.sinkhorn & steps
        if any(stage.newton for stage in stages):
            g, slope = jax.lax.cond(
                by_newton, newton_potentials, sinkhorn_potentials, climb, temperature
            )
        else:
            g, slope = sinkhorn_potentials(climb, temperature)
        trial = semidual(problem.at(temperature), jnp.where(steps, g, point.g), centred=True)

        slack = 8 * jnp.finfo(C.dtype).eps * point.size
        climbs = (slope >= 0) & (trial.value >= point.value + 0.1 * slope - slack)
        accepted = ~by_newton | climbs | (trial.error < 0.5 * point.error)
        point = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, point)
        easier = jnp.where(damping > 1e-5, 0.01 * damping, 0.0)
        harder = jnp.maximum(10 * damping, 1e-6)
        at_eps = temperature <= eps
        error = jnp.where(accepted & at_eps, point.error, jnp.inf)
        stepped = jnp.where(accepted & steps, 1, 0)
        stalled = at_eps & ~(error < climb.stage_error)
        taken = _Climb(
            point=point,
            eps=temperature,
            known=jnp.asarray(True),
            damping=jnp.where(by_newton, jnp.where(accepted, easier, harder), damping),
            # After a damped step, for it climbs where Newton is slow; and where all damping failed.
            sinkhorn=by_newton & jnp.where(accepted, damping > 0, damping >= 1),
            best_g=jnp.where(error < climb.best_error, point.g, climb.best_g),
            best_error=jnp.minimum(error, climb.best_error),
            iteration=climb.iteration + stepped,
            status=climb.status,
            stage=stage,
            stage_error=jnp.minimum(error, climb.stage_error),
            stage_iteration=climb.stage_iteration + stepped,
            since_best=jnp.where(stalled, climb.since_best + stepped, 0),
        )
        exhausted = taken.stage_iteration >= max_iter[stage]
        over = exhausted | (taken.since_best >= patience[stage]) | ~jnp.isfinite(point.error)
        status = jnp.where(exhausted, Status.MAX_ITER, Status.STALLED)
        following = begin(stage + 1, point, taken.best_g, taken.best_error, taken.iteration, status)
        return jax.tree.map(lambda new, old: jnp.where(over, new, old), following, taken)

    def begin(stage, point, best_g, best_error, iteration, status) -> _Climb:
        starts_cold = cold[stage]  # an index past the last stage is held in range, and not used
        g = jnp.where(starts_cold, 0.0, best_g)
        return _Climb(
            point=eqx.tree_at(lambda point: point.g, point, g),
            eps=jnp.where(starts_cold, hottest, eps),
            known=jnp.asarray(False),
            damping=jnp.zeros_like(infinite),
            sinkhorn=jnp.asarray(False),
            best_g=best_g,
            best_error=best_error,
            iteration=iteration,
            status=status,
            stage=stage,
            stage_error=infinite,
            stage_iteration=zero,
            since_best=zero,
        )

    g = jnp.zeros_like(b) if g_init is None else g_init
    # Not left to the first round: side by side, a round takes a step whether it is needed or not.
    temperature = hottest if stages[0].cold else eps
    point = semidual(problem.at(temperature), g, centred=True)
    error = jnp.where(temperature <= eps, point.error, jnp.inf)
    start = begin(zero, point, g, infinite, zero, jnp.asarray(Status.STALLED))
    start = dataclasses.replace(start, known=jnp.asarray(True), best_error=error, stage_error=error)
    climb = jax.lax.while_loop(unfinished, iterate, start)
    return climb.best_g, climb.best_error, climb.iteration, climb.status


def sinkhorn_step(problem: DualProblem, point: Point) -> Float[Array, " m"]:
    """One half-iteration of Sinkhorn's from a point: τ_b (g + eps log(b/colsum P))."""
    b = problem.b
    # With colsum(P) kept above underflow this is at most the full step, which still climbs.
    tiny = jnp.finfo(b.dtype).tiny
    ratio = jnp.where(b > 0, b, 1.0) / jnp.where(b > 0, jnp.maximum(point.column, tiny), 1.0)
    return relaxed(point.g + problem.eps * jnp.log(ratio), problem.tau_b)


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

    def climb(self, problem, g_init, tol):
        stage = _Stage(False, g_init is None, self.max_iter, patience=self.max_iter)
        return _climb_stages(problem, g_init, tol, [stage])


class NewtonDual(DualSolver):
    """Damped Newton on the semi-dual: 1–3 iterations when warm, annealed when cold.

    A warm start is tried at eps itself; when it does not converge, and for every cold start, eps
    is halved step by step from mean(C). A Newton step that does not climb is damped in the manner
    of Levenberg and Marquardt: parts of the plan that hardly exchange mass make the Hessian nearly
    singular, and only those directions need shorter steps. A damped step is followed by one of
    Sinkhorn's, which always climbs, and a step that cannot be mended so, or whose factorisation
    fails, is replaced by it. When Newton ends above tolerance, Sinkhorn takes over from its best
    point. With more columns than can be factorised a step is found by conjugate gradients.

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

    def climb(self, problem, g_init, tol):
        stages = [
            _Stage(True, False, self.max_iter, patience=12),
            _Stage(True, True, self.max_iter, patience=12),
            _Stage(False, False, self.fallback_iter, patience=self.fallback_iter),
        ]
        first = 1 if g_init is None else 0
        return _climb_stages(problem, g_init, tol, stages[first:])


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

    def climb(self, problem, g_init, tol):
        C, a, eps = problem.C, problem.a, problem.eps

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

        cold = jnp.zeros_like(a) if g_init is None else g_init
        start = (cold, jnp.asarray(jnp.inf, C.dtype), jnp.asarray(0))
        g, error, iteration = jax.lax.while_loop(unfinished, iterate, start)
        return g, error, iteration, jnp.asarray(Status.MAX_ITER)
