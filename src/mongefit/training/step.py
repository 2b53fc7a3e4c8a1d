"""One step of training."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mongefit.conjugate import InverseGradient, inverse_gradient
from mongefit.costs import pairwise_value_and_gradient
from mongefit.duals import DualSolution, plan, soft_minimum, solve_dual
from mongefit.losses import Context, Pairs
from mongefit.maps import conditional_mean, conditional_weights, relative_eps
from mongefit.sparse import Asked, gradients, pairwise, take
from mongefit.training.batches import Batches
from mongefit.training.problem import Model, Problem, trainable
from mongefit.training.state import (
    Info,
    State,
    WarmStart,
    batch_start,
    carried_on,
    flatten,
    keep_batch,
    kept_with,
    needed,
    of_flows,
)


class _Solves(eqx.Module):
    """Results of the inner problems of one step."""

    warm: WarmStart
    dual: DualSolution
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    validation: Float[Array, ""]
    ok: Bool[Array, ""]


def evaluate(
    problem: Problem,
    model: Model,
    epsilon: Float[Array, ""],
    warm: WarmStart,
    *,
    batched: bool = False,
) -> tuple[Context, _Solves]:
    """Everything that the terms look at, each part computed once.

    h is evaluated over all pairs, ∇h and all derivatives over those that carry mass to a point at
    which the map is needed. An h that must solve for its value has ∇h along with it, everywhere.
    In a batch some potentials to start from may not be known.
    """
    x, y, a, b, cost = problem.x, problem.y, problem.a, problem.b, model.cost
    h = cost.h
    rows, columns = (needed(model, problem, way) for way in ("forward", "reverse"))
    u, v = cost.latent_source(x), cost.latent_target(y)
    n, m = len(u), len(v)
    if h.solves:
        C, gradient = pairwise_value_and_gradient(h, u, v, warm.gradient)
    else:
        asked = Asked(rows, columns, n, m)
        C, token = pairwise(h, u, v, asked, dtype=problem.pair_dtype)
    eps = relative_eps(C, a, b, epsilon)
    # Steps follow a path, and solutions go on as they went.
    g_init = carried_on(warm.g)
    if batched:
        g_init = _complete(*jax.lax.stop_gradient((C, a, b, eps)), g_init)
    else:
        g_init = jnp.where(jnp.isfinite(g_init), g_init, 0.0)
    dual = solve_dual(
        C, a, b, eps,
        g_init=g_init, solver=problem.dual_solver, differentiate=problem.differentiate,
    )  # fmt: skip
    s = conditional_weights(take(C, rows), b, dual.g, eps)
    t = conditional_weights(take(C.T, columns), a, dual.f, eps)
    if h.solves:
        of_rows, of_columns = take(gradient, rows), take(gradient.swapaxes(0, 1), columns)
    else:
        of_rows, of_columns = gradients(token, h, u, v, asked, s, t, dtype=problem.pair_dtype)
    p = jnp.concatenate([conditional_mean(s, of_rows), conditional_mean(t, of_columns)])
    # Where there is no solution to start from, the mean displacement is close.
    mean = jnp.concatenate([u[rows] - s @ v, t @ u - v[columns]])
    start = carried_on(warm.z)
    start = jnp.where(jnp.isfinite(start), start, jax.lax.stop_gradient(mean))
    found = _invert(h, p, start, problem.inverse_solver)
    z_forward, z_reverse = found.z[: len(rows)], found.z[len(rows) :]
    context = Context(
        cost, x, y, a, b, C,
        P=plan(C, a, b, eps, dual.f, dual.g),
        pairs=problem.pairs,
        subsets=problem.subsets,
        forward=_scatter(rows, cost.target_from_latent(u[rows] - z_forward), n),
        reverse=_scatter(columns, cost.source_from_latent(v[columns] + z_reverse), m),
    )  # fmt: skip
    solves = _Solves(
        warm=WarmStart(
            kept_with(dual.g, warm.g), kept_with(found.z, warm.z), gradient if h.solves else None
        ),
        dual=dual,
        inverse_residual=jnp.max(found.residual, initial=0.0),
        inverse_iterations=found.iterations,
        validation=_miss(context, problem.validation),
        ok=dual.converged & jnp.all(found.converged),
    )
    return context, solves


def _miss(context: Context, pairs: Pairs | None) -> Float[Array, ""]:
    """Root mean square distance of the mapped sources of pairs from their targets."""
    if pairs is None:
        return jnp.asarray(jnp.nan, context.x.dtype)
    square = jnp.sum((context.forward[pairs.source] - context.y[pairs.target]) ** 2, axis=1)
    return jnp.sqrt(pairs.weight @ square / jnp.sum(pairs.weight))


def _complete(C, a, b, eps, g):
    """Potentials to start from where some are not known: one sweep from those that are."""
    known = jnp.isfinite(g)
    f = soft_minimum(C, jnp.where(known, b, 0.0), jnp.where(known, g, 0.0), eps)
    swept = soft_minimum(C.T, a, f, eps)
    swept = jnp.where(jnp.all(jnp.isfinite(swept)), swept, 0.0)
    return jnp.where(jnp.all(known), g, swept)


def _invert(h, p, z_init, solver) -> InverseGradient:
    if len(p) == 0:  # no term looks at the map
        return InverseGradient(p, p[:, 0], p[:, 0] == 0, jnp.asarray(0))
    return inverse_gradient(h, p, z_init, solver=solver)


def _scatter(rows, values, size):
    """Values at their rows, and NaN elsewhere: a term that looks where nothing is fails loudly."""
    empty = jnp.full((size, values.shape[1]), jnp.nan, values.dtype)
    return empty.at[rows].set(values, unique_indices=True)


def objective(
    problem: Problem,
    model: Model,
    epsilon: Float[Array, ""],
    warm: WarmStart,
    *,
    batched: bool = False,
) -> tuple[Float[Array, ""], tuple[Float[Array, " terms"], _Solves]]:
    """The weighted sum of all terms, each term alone, and the inner solves."""
    context, solves = evaluate(problem, model, epsilon, warm, batched=batched)
    values = jnp.stack([term(context) for term in model.terms])
    return problem.weight @ values, (values, solves)


def _select(condition, when_true, when_false):
    """Choose between two trees of the same structure, array by array."""
    return jax.tree.map(
        lambda x, y: jnp.where(condition, x, y) if eqx.is_array(x) else x, when_true, when_false
    )


def step(problem: Problem, state: State, batches: Batches | None = None) -> tuple[State, Info]:
    """One step of training, on all points or on a batch of them."""
    warm = state.warm
    if batches is not None:
        problem, _, columns = batches.draw(problem, state.step)
        warm = batch_start(warm, columns)
    progress = state.step / jnp.maximum(problem.max_iter, 1)
    epsilon = jnp.maximum(problem.epsilon(progress), state.epsilon_floor).astype(problem.x.dtype)
    at = state.parameters
    parameters, fixed = eqx.partition(state.model, trainable(state.start))

    def loss_fn(parameters):
        model = eqx.combine(parameters, fixed)
        return objective(problem, model, epsilon, warm, batched=batches is not None)

    (total, (values, solves)), slopes = jax.value_and_grad(loss_fn, has_aux=True)(parameters)
    gradient = flatten(slopes)
    norm = jnp.linalg.norm(gradient)
    ok = solves.ok & jnp.isfinite(total) & jnp.isfinite(norm)

    kept = solves.warm
    if batches is not None:
        kept = keep_batch(state.warm, kept, columns)
    update, optimiser = problem.optimiser.update(gradient, state.optimiser, at)
    rate = jnp.where(
        of_flows(parameters),
        problem.diffeo_learning_rate(progress),
        problem.learning_rate(progress),
    )
    moved = at - rate.astype(at.dtype) * update
    # Before the last tenth every good model counts as the best so far. With batches it does to the
    # end: the least of many objectives on different points would be that of a lucky draw.
    early = (progress < 0.9) if batches is None else jnp.asarray(True)
    score = solves.validation
    if problem.validation is not None:
        if batches is not None:
            known = jnp.isfinite(state.score)
            score = jnp.where(known, 0.9 * state.score + 0.1 * score, score)
        better, best_objective = ok & (score < state.best_objective), score
    else:
        better = ok & (early | (total < state.best_objective))
        best_objective = jnp.where(early, jnp.inf, total)
    relaxed = jnp.where(ok, 0.95 * state.epsilon_floor, 1.25 * epsilon)
    new_state = State(
        start=state.start,
        parameters=jnp.where(ok, moved, 0.5 * (at + state.good)),
        good=jnp.where(ok, at, state.good),
        optimiser=_select(ok, optimiser, state.optimiser),
        warm=_select(ok, kept, state.warm),
        best=jnp.where(better, at, state.best),
        best_objective=jnp.where(better, best_objective, state.best_objective),
        score=jnp.where(ok, score, state.score),
        step=state.step + 1,
        failures=jnp.where(ok, 0, state.failures + 1),
        epsilon_floor=relaxed.astype(state.epsilon_floor.dtype),
    )
    info = Info(
        step=state.step,
        loss=problem.weight[: problem.n_losses] @ values[: problem.n_losses],
        losses=values[: problem.n_losses],
        objective=total,
        epsilon=epsilon,
        dual_error=solves.dual.error,
        dual_iterations=solves.dual.iterations,
        inverse_residual=solves.inverse_residual,
        inverse_iterations=solves.inverse_iterations,
        gradient_norm=norm,
        validation=solves.validation,
        applied=ok,
    )
    return new_state, info
