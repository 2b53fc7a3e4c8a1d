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

from mongefit.conjugate import InverseGradient, InverseGradientSolver, inverse_gradient
from mongefit.costs import Cost, pairwise_value_and_gradient
from mongefit.duals import Differentiation, DualSolution, DualSolver, plan, solve_dual
from mongefit.errors import TrainingError
from mongefit.losses import Context, LearnedMapLoss, MapLoss, Pairs, Subsets, Term
from mongefit.maps import conditional_mean, conditional_weights, relative_eps
from mongefit.sparse import gradients, pairwise

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


class Problem(eqx.Module):
    """Everything that stays the same during a run.

    Attributes
    ----------
    x, y, a, b
        Both clouds and their weights, in common units.
    pairs, subsets
        Known pairs and groups, or None.
    weight
        Weights of the losses, followed by those of the penalties.
    n_losses
        How many of the weights belong to losses.
    epsilon
        Relative regularisation over the run.
    learning_rate, diffeo_learning_rate
        Rates of h and of the flows over the run.
    max_iter
        Number of steps.
    pair_dtype
        Precision of ∇h and of derivatives over the pairs; that of the points by default.
    """

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    pairs: Pairs | None
    subsets: Subsets | None
    # An array, like all numbers here: a Python number would be compiled in, and a new one anew.
    weight: Float[Array, " terms"] = eqx.field(converter=jnp.asarray)
    n_losses: int = eqx.field(static=True)
    epsilon: Schedule
    learning_rate: Schedule
    diffeo_learning_rate: Schedule
    max_iter: Int[Array, ""] | int = eqx.field(converter=jnp.asarray)
    dual_solver: DualSolver | None = None
    inverse_solver: InverseGradientSolver | None = None
    differentiate: Differentiation = eqx.field(static=True, default="implicit")
    pair_dtype: str | None = eqx.field(static=True, default=None)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=DEFAULT_OPTIMISER)


class Model(eqx.Module):
    """What is learned: the cost, and the losses and penalties where they have arrays of their own.

    Attributes
    ----------
    cost
        The cost.
    terms
        Losses followed by penalties, in the order of the problem's weights.
    """

    cost: Cost
    terms: tuple[Callable[[Context], Float[Array, ""]], ...]


class WarmStart(eqx.Module):
    """Solutions of the inner problems at the last good step.

    Attributes
    ----------
    g
        Potentials.
    z
        Inverse gradients, of the forward map followed by those of the reverse map.
    gradient
        ∇h over all pairs, where h must solve for it, else None.
    """

    g: Float[Array, " m"]
    z: Float[Array, "both d"]
    gradient: Float[Array, "n m d"] | None


class State(eqx.Module):
    """What the next step needs.

    The parameters of a model are one vector: a step treats all of them alike, and a program with
    one operation for all compiles faster than one with an operation for each array.

    Attributes
    ----------
    start
        The model before the first step.
    parameters
        Current parameters, put into the start by `model`.
    good
        The last parameters at which everything could be solved and differentiated.
    optimiser
        State of the optimiser.
    warm
        Warm starts.
    step
        Number of the next step.
    best, best_objective
        The best of the good parameters in the last tenth of the run, where epsilon is near its end.
    failures
        Steps in a row that were not applied.
    epsilon_floor
        Below this epsilon is not lowered for now.
    """

    start: Model
    parameters: Float[Array, " p"]
    good: Float[Array, " p"]
    optimiser: optax.OptState
    warm: WarmStart
    best: Float[Array, " p"]
    best_objective: Float[Array, ""]
    step: Int[Array, ""]
    failures: Int[Array, ""]
    epsilon_floor: Float[Array, ""]

    @property
    def model(self) -> Model:
        """The current model."""
        return _with_parameters(self.start, self.parameters)


class Info(eqx.Module):
    """What a person wants to see of a step."""

    step: Int[Array, ""]
    loss: Float[Array, ""]
    losses: Float[Array, " losses"]
    objective: Float[Array, ""]
    epsilon: Float[Array, ""]
    dual_error: Float[Array, ""]
    dual_iterations: Int[Array, ""]
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    gradient_norm: Float[Array, ""]
    applied: Bool[Array, ""]


def trainable(model: Model) -> Model:
    """A tree of booleans: which arrays of a model training may change."""

    def mark(part, learned: bool):
        return jax.tree.map(lambda leaf: learned and eqx.is_inexact_array(leaf), part)

    cost = mark(model.cost, True)
    if not model.cost.h.learned:
        cost = eqx.tree_at(lambda cost: cost.h, cost, mark(model.cost.h, False))
    return Model(cost, tuple(mark(term, isinstance(term, LearnedMapLoss)) for term in model.terms))


def _flatten(tree: Model) -> Float[Array, " p"]:
    """All arrays of a tree, one after the other."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _unflatten(vector: Float[Array, " p"], like: Model) -> Model:
    """The inverse of `_flatten`, with the structure and shapes of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(vector, ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _with_parameters(start: Model, vector: Float[Array, " p"]) -> Model:
    parameters, fixed = eqx.partition(start, trainable(start))
    return eqx.combine(_unflatten(vector, parameters), fixed)


def _of_flows(parameters: Model) -> Bool[np.ndarray, " p"]:
    """Which parameters belong to the flows."""
    flags = jax.tree.map(lambda leaf: np.zeros(leaf.size, bool), parameters)
    flags = eqx.tree_at(
        lambda model: (model.cost.phi_mu, model.cost._phi_nu),
        flags,
        replace_fn=lambda flow: jax.tree.map(np.ones_like, flow),
        is_leaf=lambda node: node is None,
    )
    return np.concatenate(jax.tree.leaves(flags))


def _needed(model: Model, problem: Problem, direction: str) -> Int[np.ndarray | Array, " k"]:
    """Rows at which some term looks at the map in one direction."""
    forward = direction == "forward"
    reaches = set()
    for term in model.terms:
        if isinstance(term, MapLoss):
            reaches.add(term.reach if term.direction in ("both", direction) else "nothing")
        else:
            # A term of the library that is no MapLoss needs no map; a function may need it all.
            reaches.add("nothing" if isinstance(term, Term) else "all")
    if "all" in reaches:
        return np.arange(len(problem.x if forward else problem.y))
    if "pairs" in reaches and problem.pairs is not None:
        return problem.pairs.rows if forward else problem.pairs.columns
    return np.arange(0)


def initial_state(problem: Problem, model: Model) -> State:
    """The state before the first step."""
    mapped = sum(len(_needed(model, problem, way)) for way in ("forward", "reverse"))
    dtype = problem.x.dtype
    n, m, dim = len(problem.x), len(problem.y), problem.x.shape[1]
    # NaN is no guess: the first step starts cold.
    gradient = jnp.full((n, m, dim), jnp.nan, dtype) if model.cost.h.solves else None
    parameters = _flatten(eqx.filter(model, trainable(model)))
    return State(
        start=model,
        parameters=parameters,
        good=parameters,
        optimiser=problem.optimiser.init(parameters),
        warm=WarmStart(jnp.zeros_like(problem.b), jnp.zeros((mapped, dim), dtype), gradient),
        best=parameters,
        best_objective=jnp.asarray(jnp.inf, dtype),
        step=jnp.asarray(0),
        failures=jnp.asarray(0),
        epsilon_floor=jnp.zeros((), dtype),
    )


class _Solves(eqx.Module):
    """Results of the inner problems of one step."""

    warm: WarmStart
    dual: DualSolution
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    ok: Bool[Array, ""]


def evaluate(
    problem: Problem, model: Model, epsilon: Float[Array, ""], warm: WarmStart
) -> tuple[Context, _Solves]:
    """Everything that the terms look at, each part computed once.

    h is evaluated over all pairs, ∇h and all derivatives over those that carry mass to a point at
    which the map is needed. An h that must solve for its value has ∇h along with it, everywhere.
    """
    x, y, a, b, cost = problem.x, problem.y, problem.a, problem.b, model.cost
    h = cost.h
    rows, columns = (_needed(model, problem, way) for way in ("forward", "reverse"))
    u, v = cost.latent_source(x), cost.latent_target(y)
    n, m = len(u), len(v)
    if h.solves:
        C, gradient = pairwise_value_and_gradient(h, u, v, warm.gradient)
    else:
        C, token = pairwise(h, u, v, dtype=problem.pair_dtype)
    eps = relative_eps(C, a, b, epsilon)
    dual = solve_dual(
        C, a, b, eps,
        g_init=warm.g, solver=problem.dual_solver, differentiate=problem.differentiate,
    )  # fmt: skip
    s = _scatter(rows, conditional_weights(C[rows], b, dual.g, eps), n, fill=0.0)
    t = _scatter(columns, conditional_weights(C.T[columns], a, dual.f, eps), m, fill=0.0).T
    if not h.solves:
        gradient = gradients(token, h, u, v, s, t, dtype=problem.pair_dtype)
    p_forward = conditional_mean(s, gradient)[rows]
    p_reverse = conditional_mean(t.T, gradient.swapaxes(0, 1))[columns]
    p = jnp.concatenate([p_forward, p_reverse])
    found = _invert(h, p, warm.z, problem.inverse_solver)
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
        warm=WarmStart(dual.g, found.z, gradient if h.solves else None),
        dual=dual,
        inverse_residual=jnp.max(found.residual, initial=0.0),
        inverse_iterations=found.iterations,
        ok=dual.converged & jnp.all(found.converged),
    )
    return context, solves


def _invert(h, p, z_init, solver) -> InverseGradient:
    if len(p) == 0:  # no term looks at the map
        return InverseGradient(p, p[:, 0], p[:, 0] == 0, jnp.asarray(0))
    return inverse_gradient(h, p, z_init, solver=solver)


def _scatter(rows, values, size, *, fill=jnp.nan):
    """Values at their rows, and NaN elsewhere: a term that looks where nothing is fails loudly."""
    empty = jnp.full((size, values.shape[1]), fill, values.dtype)
    return empty.at[rows].set(values, unique_indices=True)


def objective(
    problem: Problem, model: Model, epsilon: Float[Array, ""], warm: WarmStart
) -> tuple[Float[Array, ""], tuple[Float[Array, " terms"], _Solves]]:
    """The weighted sum of all terms, each term alone, and the inner solves."""
    context, solves = evaluate(problem, model, epsilon, warm)
    values = jnp.stack([term(context) for term in model.terms])
    return problem.weight @ values, (values, solves)


def _select(condition, when_true, when_false):
    """Choose between two trees of the same structure, array by array."""
    return jax.tree.map(
        lambda x, y: jnp.where(condition, x, y) if eqx.is_array(x) else x, when_true, when_false
    )


def step(problem: Problem, state: State) -> tuple[State, Info]:
    """One step of training."""
    progress = state.step / jnp.maximum(problem.max_iter, 1)
    epsilon = jnp.maximum(problem.epsilon(progress), state.epsilon_floor).astype(problem.x.dtype)
    at = state.parameters
    parameters, fixed = eqx.partition(state.model, trainable(state.start))

    def loss_fn(parameters):
        return objective(problem, eqx.combine(parameters, fixed), epsilon, state.warm)

    (total, (values, solves)), slopes = jax.value_and_grad(loss_fn, has_aux=True)(parameters)
    gradient = _flatten(slopes)
    norm = jnp.linalg.norm(gradient)
    ok = solves.ok & jnp.isfinite(total) & jnp.isfinite(norm)

    update, optimiser = problem.optimiser.update(gradient, state.optimiser, at)
    rate = jnp.where(
        _of_flows(parameters),
        problem.diffeo_learning_rate(progress),
        problem.learning_rate(progress),
    )
    moved = at - rate.astype(at.dtype) * update
    # Before the last tenth every good model counts as the best so far.
    better = ok & ((progress < 0.9) | (total < state.best_objective))
    best_objective = jnp.where(progress < 0.9, jnp.inf, total)
    relaxed = jnp.where(ok, 0.95 * state.epsilon_floor, 1.25 * epsilon)
    new_state = State(
        start=state.start,
        parameters=jnp.where(ok, moved, 0.5 * (at + state.good)),
        good=jnp.where(ok, at, state.good),
        optimiser=_select(ok, optimiser, state.optimiser),
        warm=_select(ok, solves.warm, state.warm),
        best=jnp.where(better, at, state.best),
        best_objective=jnp.where(better, best_objective, state.best_objective),
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
    model: Model,
    *,
    interval: int = 10,
    max_failures: int = 30,
    on_interval: Callable[[Info], None] | None = None,
) -> tuple[Model, dict[str, np.ndarray]]:
    """Run all steps.

    Parameters
    ----------
    problem
        What to train on and how.
    model
        Where to start.
    interval
        Steps per compiled scan, after each of which ``on_interval`` is called with their infos.
    max_failures
        Steps in a row that may fail before training gives up.

    Returns
    -------
    model, history
        The best good model of the last tenth of the run, and one array per field of `Info`: entry k
        describes the model after k updates.

    Raises
    ------
    TrainingError
        After ``max_failures`` failed steps in a row, naming the step and the cause.
    """
    state = initial_state(problem, model)
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
    best = _with_parameters(state.start, state.best)
    return best, {field.name: getattr(joined, field.name) for field in fields(Info)}


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
