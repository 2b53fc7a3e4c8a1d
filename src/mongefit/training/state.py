"""What a step needs of the one before it, and what it tells."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from mongefit._numerics import placed
from mongefit.losses import MapLoss, Term
from mongefit.training.batches import Batches
from mongefit.training.problem import Model, Problem, trainable

# Of how many good steps solutions are kept. Potentials along a parabola were now and then too far
# off to start from.
POTENTIALS_KEPT, INVERSES_KEPT = 3, 4


class WarmStart(eqx.Module):
    """Solutions of the inner problems at the last good steps, the newest first.

    NaN stands for what is not known. Batches, whose points differ, keep no more than potentials of
    one step.

    Attributes
    ----------
    g
        Potentials.
    z
        Inverse gradients, of the forward map followed by those of the reverse map.
    gradient
        ∇h over all pairs at the last step, where h must solve for it, else None.
    """

    g: Float[Array, "k m"]
    z: Float[Array, "k both d"]
    gradient: Float[Array, "n m d"] | None


def carried_on(kept: Float[Array, "k ..."]) -> Float[Array, ...]:
    """Where solutions at equal steps go next.

    Along the polynomial that would have foretold the newest of them best: one of high degree on a
    smooth path, a constant where it turns at every step.
    """
    ahead = chosen = kept[0]
    differences, least = kept, jnp.asarray(jnp.inf, kept.dtype)
    for _ in range(len(kept) - 1):
        # The sum of the newest differences of all orders up to k is where degree k leads, and the
        # difference of order k + 1 is how far that was from the newest solution.
        differences = differences[:-1] - differences[1:]
        missed = jnp.sum(jnp.square(differences[0]))
        chosen = jnp.where(missed < least, ahead, chosen)
        least = jnp.fmin(missed, least)
        ahead = ahead + differences[0]
    return chosen


def kept_with(new: Float[Array, ...], kept: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
    """The solutions with a new one, without the oldest."""
    return jnp.concatenate([new[None], kept[:-1]])


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
        The best of the good parameters in the last tenth of the run, where epsilon is near its end;
        with validation pairs the best on these, of the whole run.
    score
        The error on validation pairs; with batches its running mean.
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
    score: Float[Array, ""]
    step: Int[Array, ""]
    failures: Int[Array, ""]
    epsilon_floor: Float[Array, ""]

    @property
    def model(self) -> Model:
        """The current model."""
        return with_parameters(self.start, self.parameters)


class Info(eqx.Module):
    """What a person wants to see of a step.

    The root mean square error on validation pairs is in common units, and NaN without any.
    """

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
    validation: Float[Array, ""]
    applied: Bool[Array, ""]


def flatten(tree: Model) -> Float[Array, " p"]:
    """All arrays of a tree, one after the other."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _unflatten(vector: Float[Array | np.ndarray, " p"], like: Model) -> Model:
    """The inverse of `flatten`, with the structure and shapes of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts: list[Any] = (np if isinstance(vector, np.ndarray) else jnp).split(vector, ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    if isinstance(vector, np.ndarray):
        shaped = [placed(part) for part in shaped]
    return jax.tree.unflatten(structure, shaped)


def with_parameters(start: Model, vector: Float[Array | np.ndarray, " p"]) -> Model:
    parameters, fixed = eqx.partition(start, trainable(start))
    return eqx.combine(_unflatten(vector, parameters), fixed)


def of_flows(parameters: Model) -> Bool[np.ndarray, " p"]:
    """Which parameters belong to the flows."""
    flags = jax.tree.map(lambda leaf: np.zeros(leaf.size, bool), parameters)
    flags = eqx.tree_at(
        lambda model: (model.cost.phi_mu, model.cost._phi_nu),
        flags,
        replace_fn=lambda flow: jax.tree.map(np.ones_like, flow),
        is_leaf=lambda node: node is None,
    )
    return np.concatenate(jax.tree.leaves(flags))


def needed(model: Model, problem: Problem, direction: str) -> Int[np.ndarray | Array, " k"]:
    """Rows at which some term looks at the map in one direction."""
    forward = direction == "forward"
    reaches = set()
    for term in model.terms:
        if isinstance(term, MapLoss):
            reaches.add(term.reach if term.direction in ("both", direction) else "nothing")
        else:
            # A term of the library that is no MapLoss needs no map; a function may need it all.
            reaches.add("nothing" if isinstance(term, Term) else "all")
    if forward and problem.validation is not None:
        reaches.add("pairs")
    if "all" in reaches:
        return np.arange(len(problem.x if forward else problem.y))
    pairs = problem.validation if problem.pairs is None else problem.pairs
    if "pairs" in reaches and pairs is not None:
        return pairs.rows if forward else pairs.columns
    return np.arange(0)


def batch_start(warm: WarmStart, columns: Int[Array, " t"]) -> WarmStart:
    """What is known at the points of a batch."""
    return WarmStart(warm.g[:, columns], warm.z, None)


def keep_batch(warm: WarmStart, part: WarmStart, columns: Int[Array, " t"]) -> WarmStart:
    """What is known of all points, after a batch."""
    return WarmStart(warm.g.at[:, columns].set(part.g), warm.z, None)


@eqx.filter_jit  # as one, for otherwise every array would be compiled for itself
def initial_state(problem: Problem, model: Model, batches: Batches | None = None) -> State:
    """The state before the first step."""
    part = problem if batches is None else batches.draw(problem, jnp.asarray(0))[0]
    mapped = sum(len(needed(model, part, way)) for way in ("forward", "reverse"))
    dtype = problem.x.dtype
    n, m, dim = len(problem.x), len(problem.y), problem.x.shape[1]
    follows = batches is None
    solves = model.cost.h.solves and follows
    gradient = jnp.full((n, m, dim), jnp.nan, dtype) if solves else None
    parameters = flatten(eqx.filter(model, trainable(model)))
    return State(
        start=model,
        parameters=parameters,
        good=parameters,
        optimiser=problem.optimiser.init(parameters),
        warm=WarmStart(
            jnp.full((POTENTIALS_KEPT if follows else 1, m), jnp.nan, dtype),
            jnp.full((INVERSES_KEPT if follows else 1, mapped, dim), jnp.nan, dtype),
            gradient,
        ),
        best=parameters,
        best_objective=jnp.asarray(jnp.inf, dtype),
        score=jnp.asarray(jnp.nan, dtype),
        step=jnp.asarray(0),
        failures=jnp.asarray(0),
        epsilon_floor=jnp.zeros((), dtype),
    )
