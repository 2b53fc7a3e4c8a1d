"""What to train and how: the interface that the step sees."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from mongefit._registry import NonTrainable
from mongefit._runtime import to_device

ADAM = optax.chain(optax.clip_by_global_norm(10.0), optax.scale_by_adam(b2=0.99))
"""Directions of unit rate; the step multiplies them by the learning rates."""


class Schedule(eqx.Module):
    """A quantity that goes geometrically from ``start`` to ``end`` over the run."""

    start: Float[Array, ""]
    end: Float[Array, ""]

    def __init__(self, start: Any, end: Any):
        # Arrays: a Python number would be compiled in, and every new one anew.
        self.start, self.end = jnp.asarray(start), jnp.asarray(end)

    def __call__(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The value at ``progress`` in [0, 1]."""
        return self.start * (self.end / self.start) ** jnp.clip(progress, 0.0, 1.0)


class Recipe(eqx.Module):
    """How to train.

    Attributes
    ----------
    weight
        Weights of the losses, followed by those of the penalties.
    names
        What messages call them.
    n_losses
        How many of them are losses.
    epsilon
        Relative regularisation over the run.
    learning_rate, diffeo_learning_rate
        Rates of everything but flows, and of flows, over the run.
    max_iter
        Number of steps.
    optimizer
        An optax optimizer that brings its own rates; None for Adam with the rates above. It sees
        all parameters as one vector.
    """

    weight: Float[Array, " terms"]
    epsilon: Schedule
    learning_rate: Schedule
    diffeo_learning_rate: Schedule
    max_iter: Int[Array, ""]
    names: tuple[str, ...] = eqx.field(static=True)
    n_losses: int = eqx.field(static=True)
    optimizer: optax.GradientTransformation | None = eqx.field(static=True)

    def __init__(
        self,
        names: Sequence[str],
        *,
        weight: Any = None,
        n_losses: int | None = None,
        epsilon: tuple[float, float],
        learning_rate: tuple[float, float],
        diffeo_learning_rate: tuple[float, float] | None = None,
        max_iter: int,
        optimizer: optax.GradientTransformation | None = None,
        dtype: Any = float,
    ):
        self.names = tuple(names)
        self.n_losses = len(self.names) if n_losses is None else n_losses
        weight = np.ones(len(self.names)) if weight is None else weight
        self.weight = to_device(np.asarray(weight, dtype))
        self.epsilon = Schedule(*epsilon)
        self.learning_rate = Schedule(*learning_rate)
        self.diffeo_learning_rate = Schedule(*(diffeo_learning_rate or learning_rate))
        self.max_iter = jnp.asarray(max_iter)
        self.optimizer = optimizer

    @property
    def transformation(self) -> optax.GradientTransformation:
        """What turns gradients into updates."""
        return ADAM if self.optimizer is None else self.optimizer


class Evaluation(eqx.Module):
    """What a problem tells of a model at one step.

    Attributes
    ----------
    values
        Every loss, followed by every penalty, unweighted.
    warm
        What the next step can start from.
    dual_error, dual_iterations, inverse_residual, inverse_iterations
        How well the inner problems were solved, and how long that took.
    validation
        Root mean square error on validation pairs, in common units; NaN without any.
    ok
        Whether every inner problem was solved within tolerance.
    map
        The map in common units, of problems that have one.
    """

    values: Float[Array, " terms"]
    warm: Any
    dual_error: Float[Array, ""]
    dual_iterations: Int[Array, ""]
    inverse_residual: Float[Array, ""]
    inverse_iterations: Int[Array, ""]
    validation: Float[Array, ""]
    ok: Bool[Array, ""]
    map: Any = None


class Problem(eqx.Module):
    """Everything that stays the same during a run.

    Attributes
    ----------
    recipe
        How to train.
    """

    recipe: eqx.AbstractVar[Recipe]

    @abc.abstractmethod
    def evaluate(
        self, model: Any, epsilon: Float[Array, ""], warm: Any, step: Int[Array, ""]
    ) -> Evaluation:
        """All terms of a model, each inner problem solved once."""

    @abc.abstractmethod
    def cold_start(self, model: Any) -> Any:
        """What the first step starts from."""

    @property
    @abc.abstractmethod
    def dtype(self) -> jnp.dtype:
        """Precision of the computation."""

    @property
    @abc.abstractmethod
    def pairs_per_step(self) -> int:
        """Pairs of points that a step looks at."""

    @property
    def data(self) -> Any:
        """The arrays that a checkpoint calls data; all others are options."""
        return ()

    @property
    def noisy(self) -> bool:
        """Whether steps see different points, so that their objectives do not compare."""
        return False

    @property
    def validates(self) -> bool:
        """Whether there are validation pairs to choose the best model by."""
        return False


def trainable(tree: Any) -> Any:
    """Which arrays training may change: all real ones, except inside `NonTrainable`."""
    return jax.tree.map(
        lambda node: not isinstance(node, NonTrainable) and eqx.is_inexact_array(node),
        tree,
        is_leaf=lambda node: isinstance(node, NonTrainable),
    )


def learns(tree: Any) -> bool:
    """Whether there is anything to train."""
    return any(jax.tree.leaves(trainable(tree)))
