"""Training the cost and its map: a pure step, run many at a time in one compiled scan.

`step(problem, state) -> (state, info)`: the state is what the next step needs, the info what a
person wants to see. A step whose solves failed or whose gradient is not finite is not applied:
the parameters go half the way back to the last ones that worked, epsilon is held up for a while,
and the step is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from mongefit.conjugate import InverseGradientSolver, inverse_gradient
from mongefit.costs import Cost, pairwise_value, pairwise_value_and_gradient
from mongefit.duals import Differentiation, DualSolution, DualSolver, plan, solve_dual
from mongefit.errors import TrainingError
from mongefit.losses import Context, Pairs
from mongefit.maps import conditional_mean, conditional_weights, relative_eps

Term = Callable[[Context], Float[Array, ""]]
Scalar = Float[Array, ""] | float

DEFAULT_OPTIMISER = optax.chain(optax.clip_by_global_norm(10.0), optax.scale_by_adam(b2=0.99))
"""Directions of unit rate; the learning rates are applied by the step."""


class Schedule(eqx.Module):
    """A quantity that goes geometrically from ``start`` to ``end`` over the run."""

    start: Scalar = eqx.field(converter=jnp.asarray)
    end: Scalar = eqx.field(converter=jnp.asarray)

    def __call__(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The value at ``progress`` in [0, 1]."""
        return self.start * (self.end / self.start) ** jnp.clip(progress, 0.0, 1.0)


def _as_terms(terms):
    # Arrays, here and below: a Python number would be compiled in, and a new one compiled anew.
    return tuple((jnp.asarray(weight), term) for weight, term in terms)


class Problem(eqx.Module):
    """Everything that stays the same during a run.

    Attributes
    ----------
    x, y, a, b
        Both clouds and their weights, in common units.
    pairs
        Known pairs.
    terms
        Losses and penalties, each with its weight.
    epsilon
        Relative regularisation over the run.
    learning_rate, diffeo_learning_rate
        Rates of h and of the flows over the run.
    max_iter
        Number of steps.
    """

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    pairs: Pairs
    terms: tuple[tuple[Scalar, Term], ...] = eqx.field(converter=_as_terms)
    epsilon: Schedule
    learning_rate: Schedule
    diffeo_learning_rate: Schedule
    max_iter: Int[Array, ""] | int = eqx.field(converter=jnp.asarray)
    dual_solver: DualSolver | None = None
    inverse_solver: InverseGradientSolver | None = None
    differentiate: Differentiation = eqx.field(static=True, default="implicit")
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=DEFAULT_OPTIMISER)


class WarmStart(eqx.Module):
    """Solutions of both inner problems at the last good step."""

    g: Float[Array, " m"]
    z: Float[Array, "both d"]


class State(eqx.Module):
    """What the next step needs.

    Attributes
    ----------
    cost
        Current cost.
    good
        The last cost at which everything could be solved and differentiated.
    optimiser
        State of the optimiser.
    warm
        Warm starts.
    step
        Number of the next step.
    best, best_objective
        The best of the good costs in the last tenth of the run, where epsilon is near its end.
    failures
        Steps in a row that were not applied.
    epsilon_floor
        Below this epsilon is not lowered for now.
    """

    cost: Cost
    good: Cost
    optimiser: optax.OptState
    warm: WarmStart
    best: Cost
    best_objective: Float[Array, ""]
    step: Int[Array, ""]
    failures: Int[Array, ""]
    epsilon_floor: Float[Array, ""]


class Info(eqx.Module):
    """What a person wants to see of a step."""

    step: Int[Array, ""]
    loss: Float[Array, ""]
    objective: Float[Array, ""]
    epsilon: Float[Array, ""]
    dual_error: Float[Array, ""]
    dual_iterations: Int[Array, ""]
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    gradient_norm: Float[Array, ""]
    applied: Bool[Array, ""]


def trainable(cost: Cost) -> Cost:
    """A tree of booleans: which arrays of a cost training may change."""
    spec = jax.tree.map(eqx.is_inexact_array, cost)
    if cost.h.learned:
        return spec
    return eqx.tree_at(lambda c: c.h, spec, jax.tree.map(lambda _: False, cost.h))


def initial_state(problem: Problem, cost: Cost) -> State:
    """The state before the first step."""
    return State(
        cost=cost,
        good=cost,
        optimiser=problem.optimiser.init(eqx.filter(cost, trainable(cost))),
        warm=WarmStart(
            jnp.zeros_like(problem.b),
            jnp.zeros((2 * len(problem.pairs.source), problem.x.shape[1]), problem.x.dtype),
        ),
        best=cost,
        best_objective=jnp.asarray(jnp.inf, problem.x.dtype),
        step=jnp.asarray(0),
        failures=jnp.asarray(0),
        epsilon_floor=jnp.zeros((), problem.x.dtype),
    )


class _Solves(eqx.Module):
    """Results of the inner problems of one step."""

    warm: WarmStart
    dual: DualSolution
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    ok: Bool[Array, ""]


def evaluate(
    problem: Problem, cost: Cost, epsilon: Float[Array, ""], warm: WarmStart
) -> tuple[Context, _Solves]:
    """Everything that the losses look at, each part computed once.

    All pairs are evaluated once when the known pairs touch most of them; with few known pairs
    ∇h is evaluated only in their rows and columns.
    """
    x, y, a, b, pairs = problem.x, problem.y, problem.a, problem.b, problem.pairs
    h = cost.h
    u, v = cost.latent_source(x), cost.latent_target(y)
    rows, columns = u[pairs.source], v[pairs.target]
    n, m, k = len(u), len(v), len(rows)
    if k * (n + m) >= n * m:
        C, gradient = pairwise_value_and_gradient(h, u, v)
        row_C, row_gradient = C[pairs.source], gradient[pairs.source]
        column_C, column_gradient = C[:, pairs.target], gradient[:, pairs.target]
    else:
        C = pairwise_value(h, u, v)
        row_C, row_gradient = pairwise_value_and_gradient(h, rows, v)
        column_C, column_gradient = pairwise_value_and_gradient(h, u, columns)
    eps = relative_eps(C, a, b, epsilon)
    dual = solve_dual(
        C, a, b, eps,
        g_init=warm.g, solver=problem.dual_solver, differentiate=problem.differentiate,
    )  # fmt: skip
    p_forward = conditional_mean(conditional_weights(row_C, b, dual.g, eps), row_gradient)
    p_reverse = conditional_mean(
        conditional_weights(column_C.T, a, dual.f, eps), column_gradient.swapaxes(0, 1)
    )
    found = inverse_gradient(
        h, jnp.concatenate([p_forward, p_reverse]), warm.z, solver=problem.inverse_solver
    )
    z_forward, z_reverse = found.z[:k], found.z[k:]
    context = Context(
        x, y, a, b, C,
        P=plan(C, a, b, eps, dual.f, dual.g),
        pairs=pairs,
        forward=cost.target_from_latent(rows - z_forward),
        reverse=cost.source_from_latent(columns + z_reverse),
    )  # fmt: skip
    solves = _Solves(
        warm=WarmStart(dual.g, found.z),
        dual=dual,
        inverse_residual=jnp.max(found.residual),
        inverse_iterations=found.iterations,
        ok=dual.converged & jnp.all(found.converged),
    )
    return context, solves


def objective(
    problem: Problem, cost: Cost, epsilon: Float[Array, ""], warm: WarmStart
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], _Solves]]:
    """The weighted sum of all terms, the first term alone, and the inner solves."""
    context, solves = evaluate(problem, cost, epsilon, warm)
    values = [term(context) for _, term in problem.terms]
    weights = jnp.asarray([weight for weight, _ in problem.terms], problem.x.dtype)
    total = weights @ jnp.stack(values)
    return total, (values[0], solves)


def _select(condition, when_true, when_false):
    """Choose between two trees of the same structure, array by array."""
    return jax.tree.map(
        lambda x, y: jnp.where(condition, x, y) if eqx.is_array(x) else x, when_true, when_false
    )


def _scale(tree, factor):
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)


def step(problem: Problem, state: State) -> tuple[State, Info]:
    """One step of training."""
    progress = state.step / jnp.maximum(problem.max_iter, 1)
    epsilon = jnp.maximum(problem.epsilon(progress), state.epsilon_floor).astype(problem.x.dtype)
    parameters, fixed = eqx.partition(state.cost, trainable(state.cost))

    def loss_fn(parameters):
        return objective(problem, eqx.combine(parameters, fixed), epsilon, state.warm)

    (total, (loss, solves)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(parameters)
    norm = optax.tree.norm(gradient)
    ok = solves.ok & jnp.isfinite(total) & jnp.isfinite(norm)

    updates, optimiser = problem.optimiser.update(gradient, state.optimiser, parameters)
    rate = problem.learning_rate(progress)
    diffeo_rate = problem.diffeo_learning_rate(progress)
    updates = eqx.tree_at(
        lambda cost: (cost.h, cost.phi_mu, cost._phi_nu),
        updates,
        (
            _scale(updates.h, -rate),
            _scale(updates.phi_mu, -diffeo_rate),
            _scale(updates._phi_nu, -diffeo_rate),
        ),
        is_leaf=lambda node: node is None,
    )
    moved = eqx.combine(eqx.apply_updates(parameters, updates), fixed)
    halfway = jax.tree.map(
        lambda bad, good: 0.5 * (bad + good) if eqx.is_inexact_array(bad) else bad,
        state.cost,
        state.good,
    )
    # Before the last tenth every good cost counts as the best so far.
    better = ok & ((progress < 0.9) | (total < state.best_objective))
    best_objective = jnp.where(progress < 0.9, jnp.inf, total)
    relaxed = jnp.where(ok, 0.95 * state.epsilon_floor, 1.25 * epsilon)
    new_state = State(
        cost=_select(ok, moved, halfway),
        good=_select(ok, state.cost, state.good),
        optimiser=_select(ok, optimiser, state.optimiser),
        warm=_select(ok, solves.warm, state.warm),
        best=_select(better, state.cost, state.best),
        best_objective=jnp.where(better, best_objective, state.best_objective),
        step=state.step + 1,
        failures=jnp.where(ok, 0, state.failures + 1),
        epsilon_floor=relaxed.astype(state.epsilon_floor.dtype),
    )
    info = Info(
        step=state.step,
        loss=loss,
        objective=total,
        epsilon=epsilon,
        dual_error=solves.dual.error,
        dual_iterations=solves.dual.iterations,
        inverse_residual=solves.inverse_residual,
        inverse_iterations=solves.inverse_iterations,
        gradient_norm=norm,
        applied=ok,
    )
    return new_state, info


@eqx.filter_jit
def run_interval(problem: Problem, state: State, length: int) -> tuple[State, Info]:
    """``length`` steps in one compiled scan.

    Step ``max_iter`` is the last: it evaluates the outcome of the ``max_iter`` updates before it.
    Steps beyond it are not taken; their infos carry its number plus one or more.
    """
    arrays, static = eqx.partition(state, eqx.is_array)

    def take(arrays):
        new_state, info = step(problem, eqx.combine(arrays, static))
        return eqx.filter(new_state, eqx.is_array), info

    blank = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(take, arrays)[1]
    )

    def body(arrays, _):
        step_number = eqx.combine(arrays, static).step
        past = eqx.tree_at(lambda info: info.step, blank, step_number)
        return jax.lax.cond(
            step_number <= problem.max_iter, take, lambda arrays: (arrays, past), arrays
        )

    arrays, infos = jax.lax.scan(body, arrays, length=length)
    return eqx.combine(arrays, static), infos


def train(
    problem: Problem,
    cost: Cost,
    *,
    interval: int = 10,
    max_failures: int = 30,
    on_interval: Callable[[Info], None] | None = None,
) -> tuple[Cost, dict[str, np.ndarray]]:
    """Run all steps.

    Parameters
    ----------
    problem
        What to train on and how.
    cost
        Where to start.
    interval
        Steps per compiled scan, after each of which ``on_interval`` is called with their infos.
    max_failures
        Steps in a row that may fail before training gives up.

    Returns
    -------
    cost, history
        The best good cost of the last tenth of the run, and one array per field of `Info`: entry k
        describes the cost after k updates.

    Raises
    ------
    TrainingError
        After ``max_failures`` failed steps in a row, naming the step and the cause.
    """
    state = initial_state(problem, cost)
    history: list[Info] = []
    while int(state.step) <= int(problem.max_iter):
        state, infos = run_interval(problem, state, interval)
        infos = jax.tree.map(np.asarray, infos)
        taken = infos.step <= int(problem.max_iter)
        infos = jax.tree.map(lambda leaf, taken=taken: leaf[taken], infos)
        history.append(infos)
        if on_interval is not None:
            on_interval(infos)
        if int(state.failures) >= max_failures:
            raise TrainingError(_explain_failure(infos))
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *history)
    return state.best, {field.name: getattr(joined, field.name) for field in fields(Info)}


def _explain_failure(infos: Info) -> str:
    where = f"Training stopped at step {infos.step[-1]}: the last steps could not be applied. "
    if not np.isfinite(infos.objective[-1]) or not np.isfinite(infos.gradient_norm[-1]):
        return where + "The loss or its gradient is not finite. Try a smaller learning_rate."
    if infos.inverse_residual[-1] > infos.dual_error[-1]:
        return where + (
            f"The inverse gradient was not found (residual {infos.inverse_residual[-1]:.1e}). "
            "Try a larger alpha or a smaller learning_rate."
        )
    return where + (
        f"The dual solve did not converge at epsilon {infos.epsilon[-1]:.3g} "
        f"(error {infos.dual_error[-1]:.1e}). Try a larger epsilon."
    )
