"""What a step needs of the one before it, and what it tells."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from mongefit._flows import Diffeo
from mongefit._runtime import to_device
from mongefit._training.problem import Problem, trainable


class State(eqx.Module):
    """What the next step needs.

    The parameters of a model are one vector: a step treats all of them alike, and a program with
    one operation for all compiles faster than one with an operation for each array.

    Attributes
    ----------
    start
        The model before training; its parameters are replaced by those below.
    parameters
        Of the current model.
    good
        Of the last model whose step could be solved and differentiated.
    optimizer
        State of the optimizer.
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
        For now epsilon is not lowered below this.
    """

    start: Any
    parameters: Float[Array, " p"]
    good: Float[Array, " p"]
    optimizer: optax.OptState
    warm: Any
    best: Float[Array, " p"]
    best_objective: Float[Array, ""]
    score: Float[Array, ""]
    step: Int[Array, ""]
    failures: Int[Array, ""]
    epsilon_floor: Float[Array, ""]

    @property
    def model(self) -> Any:
        """The current model."""
        return with_parameters(self.start, self.parameters)


class Info(eqx.Module):
    """What a person wants to see of a step.

    The root mean square error on validation pairs is in common units, and NaN without any.
    """

    step: Int[Array | np.ndarray, "*steps"]
    loss: Float[Array | np.ndarray, "*steps"]
    terms: Float[Array | np.ndarray, "*steps terms"]
    objective: Float[Array | np.ndarray, "*steps"]
    epsilon: Float[Array | np.ndarray, "*steps"]
    dual_error: Float[Array | np.ndarray, "*steps"]
    dual_iterations: Int[Array | np.ndarray, "*steps"]
    inverse_residual: Float[Array | np.ndarray, "*steps"]
    inverse_iterations: Int[Array | np.ndarray, "*steps"]
    gradient_norm: Float[Array | np.ndarray, "*steps"]
    validation: Float[Array | np.ndarray, "*steps"]
    solved: Bool[Array | np.ndarray, "*steps"]
    applied: Bool[Array | np.ndarray, "*steps"]


def flatten(tree: Any) -> Float[Array, " p"]:
    """All arrays of a tree, one after the other."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _unflatten(vector: Float[Array | np.ndarray, " p"], like: Any) -> Any:
    """The inverse of `flatten`, with the structure and shapes of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts: list[Any] = (np if isinstance(vector, np.ndarray) else jnp).split(vector, ends[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    if isinstance(vector, np.ndarray):
        shaped = [to_device(part) for part in shaped]
    return jax.tree.unflatten(structure, shaped)


def with_parameters(start: Any, vector: Float[Array | np.ndarray, " p"]) -> Any:
    """A model with other parameters."""
    parameters, fixed = eqx.partition(start, trainable(start))
    return eqx.combine(_unflatten(vector, parameters), fixed)


def of_flows(parameters: Any) -> Bool[np.ndarray, " p"]:
    """Which parameters belong to flows."""
    flags = [
        np.full(leaf.size, isinstance(node, Diffeo))
        for node in jax.tree.leaves(parameters, is_leaf=lambda node: isinstance(node, Diffeo))
        for leaf in jax.tree.leaves(node)
    ]
    return np.concatenate(flags)


@eqx.filter_jit  # as one, for otherwise every array would be compiled for itself
def initial_state(problem: Problem, model: Any) -> State:
    """The state before the first step."""
    parameters = flatten(eqx.filter(model, trainable(model)))
    return State(
        start=model,
        parameters=parameters,
        good=parameters,
        optimizer=problem.recipe.transformation.init(parameters),
        warm=problem.cold_start(model),
        best=parameters,
        best_objective=jnp.asarray(jnp.inf, problem.dtype),
        score=jnp.asarray(jnp.nan, problem.dtype),
        # Arrays of a type of their own, as a checkpoint gives them back: `jnp.asarray(0)` takes the
        # type of what it meets, and a run that goes on would be compiled anew.
        step=jnp.zeros((), int),
        failures=jnp.zeros((), int),
        epsilon_floor=jnp.zeros((), problem.dtype),
    )
