"""One step of training."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mongefit._training.problem import Evaluation, Problem, trainable
from mongefit._training.state import Info, State, flatten, of_flows


def objective(
    problem: Problem, model: Any, epsilon: Float[Array, ""], warm: Any, step: Int[Array, ""]
) -> tuple[Float[Array, ""], Evaluation]:
    """The weighted sum of all terms, and everything that was computed for it."""
    found = problem.evaluate(model, epsilon, warm, step)
    return problem.recipe.weight @ found.values, found


def _select(condition, when_true, when_false):
    """Choose between two trees of the same structure, array by array."""
    return jax.tree.map(
        lambda x, y: jnp.where(condition, x, y) if eqx.is_array(x) else x, when_true, when_false
    )


def step(problem: Problem, state: State) -> tuple[State, Info]:
    """One step of training.

    A step whose solves failed or whose gradient is not finite is not applied: the parameters go
    half the way back to the last ones that worked, epsilon is held up for a while, and the step is
    counted.
    """
    recipe = problem.recipe
    progress = state.step / jnp.maximum(recipe.max_iter, 1)
    epsilon = jnp.maximum(recipe.epsilon(progress), state.epsilon_floor).astype(problem.dtype)
    at = state.parameters
    parameters, fixed = eqx.partition(state.model, trainable(state.start))

    def loss_fn(parameters):
        model = eqx.combine(parameters, fixed)
        return objective(problem, model, epsilon, state.warm, state.step)

    (total, found), slopes = jax.value_and_grad(loss_fn, has_aux=True)(parameters)
    gradient = flatten(slopes)
    norm = jnp.linalg.norm(gradient)
    ok = found.ok & jnp.isfinite(total) & jnp.isfinite(norm)

    update, optimizer = recipe.transformation.update(gradient, state.optimizer, at)
    if recipe.optimizer is None:
        rate = jnp.where(
            of_flows(parameters),
            recipe.diffeo_learning_rate(progress),
            recipe.learning_rate(progress),
        )
        moved = at - rate.astype(at.dtype) * update
    else:
        moved = at + update
    # Before the last tenth every good model counts as the best so far. With batches it does to the
    # end: the least of many objectives on different points would be that of a lucky draw.
    early = jnp.asarray(True) if problem.noisy else progress < 0.9
    score = found.validation
    if problem.validates:
        if problem.noisy:
            known = jnp.isfinite(state.score)
            score = jnp.where(known, 0.9 * state.score + 0.1 * score, score)
        better, best_objective = ok & (score < state.best_objective), score
    else:
        better = ok & (early | (total < state.best_objective))
        best_objective = jnp.where(early, jnp.inf, total)
    floor = jnp.where(ok, 0.95 * state.epsilon_floor, 1.25 * epsilon)
    new_state = State(
        start=state.start,
        parameters=jnp.where(ok, moved, 0.5 * (at + state.good)),
        good=jnp.where(ok, at, state.good),
        optimizer=_select(ok, optimizer, state.optimizer),
        warm=_select(ok, found.warm, state.warm),
        best=jnp.where(better, at, state.best),
        best_objective=jnp.where(better, best_objective, state.best_objective),
        score=jnp.where(ok, score, state.score),
        step=state.step + 1,
        failures=jnp.where(ok, 0, state.failures + 1),
        epsilon_floor=floor.astype(state.epsilon_floor.dtype),
    )
    info = Info(
        step=state.step,
        loss=recipe.weight[: recipe.n_losses] @ found.values[: recipe.n_losses],
        terms=found.values,
        objective=total,
        epsilon=epsilon,
        dual_error=found.dual_error,
        dual_iterations=found.dual_iterations,
        inverse_residual=found.inverse_residual,
        inverse_iterations=found.inverse_iterations,
        gradient_norm=norm,
        validation=found.validation,
        solved=found.ok,
        applied=ok,
    )
    return new_state, info
