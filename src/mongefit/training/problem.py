"""What to train, on what, and how."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from mongefit.conjugate import InverseGradientSolver
from mongefit.costs import Cost
from mongefit.duals import Differentiation, DualSolver
from mongefit.losses import Context, LearnedMapLoss, Pairs, Subsets

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
    validation
        Pairs on which the best model of the run is chosen, or None. Their sources are among the
        rows of ``pairs``.
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
    validation: Pairs | None = None
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


def trainable(model: Model) -> Model:
    """A tree of booleans: which arrays of a model training may change."""

    def mark(part, learned: bool):
        return jax.tree.map(lambda leaf: learned and eqx.is_inexact_array(leaf), part)

    cost = mark(model.cost, True)
    if not model.cost.h.learned:
        cost = eqx.tree_at(lambda cost: cost.h, cost, mark(model.cost.h, False))
    return Model(cost, tuple(mark(term, isinstance(term, LearnedMapLoss)) for term in model.terms))
