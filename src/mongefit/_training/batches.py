"""Training on random subsets of the points that nothing is known about."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mongefit._duals import DualProblem, soft_minimum
from mongefit._training.costs import CostProblem, Model, WarmStart
from mongefit._training.problem import Problem, Recipe
from mongefit.errors import Option, OptionError
from mongefit.losses import Pairs, Subset, Subsets


class Side(eqx.Module):
    """Which rows of one cloud are in every batch, and which are drawn.

    Attributes
    ----------
    fixed
        Rows in every batch, first and in this order.
    free
        Rows of which ``drawn`` are in a batch; rows without weight are in none.
    drawn
        Number of rows to draw.
    """

    fixed: Int[Array, " k"]
    free: Int[Array, " l"]
    drawn: int = eqx.field(static=True)

    @classmethod
    def of(cls, known: Int[np.ndarray, " k"], weight: Float[Array, " n"], batch_size: int) -> Side:
        """Rows that are known about are in every batch; a batch holds at most all points."""
        fixed = np.unique(known)
        free = np.setdiff1d(np.flatnonzero(np.asarray(weight) > 0), fixed)
        smallest = len(fixed) + (len(free) > 0)
        if batch_size < smallest:
            raise OptionError(
                "{batch_size} must be at least {smallest}: a batch holds all points that are in "
                "pairs or groups, {fixed} of {all} here, and others; got {got}.",
                batch_size=Option("batch_size"), smallest=smallest, fixed=len(fixed),
                all=len(weight), got=batch_size,
            )  # fmt: skip
        drawn = min(batch_size - len(fixed), len(free))
        return cls(jnp.asarray(fixed), jnp.asarray(free), drawn)

    @property
    def size(self) -> int:
        """Number of rows in a batch."""
        return len(self.fixed) + self.drawn

    def draw(
        self, key: PRNGKeyArray, weight: Float[Array, " n"]
    ) -> tuple[Int[Array, " s"], Float[Array, " s"]]:
        """Rows of a batch and their weights: those drawn stand for all that could be."""
        if self.drawn == 0:
            return self.fixed, weight[self.fixed]
        chosen = jr.choice(key, self.free, (self.drawn,), replace=False)
        share = weight[chosen] * (jnp.sum(weight[self.free]) / jnp.sum(weight[chosen]))
        mass = jnp.concatenate([weight[self.fixed], share])
        return jnp.concatenate([self.fixed, chosen]), mass / jnp.sum(mass)


class BatchedProblem(Problem):
    """A cost problem of which every step sees a batch.

    Attributes
    ----------
    whole
        The problem of all points.
    source, target
        How to draw the points of each cloud.
    pairs, subsets, validation
        What is known, by the rows of a batch.
    key
        Random key of the draws.
    """

    recipe: Recipe
    whole: CostProblem
    source: Side
    target: Side
    pairs: Pairs | None
    subsets: Subsets | None
    validation: Pairs | None
    key: PRNGKeyArray

    @classmethod
    def of(cls, problem: CostProblem, batch_size: int, seed: int) -> BatchedProblem:
        """Batches of ``batch_size`` points of each cloud, with all that something is known of."""
        pairs, subsets, validation = problem.pairs, problem.subsets, problem.validation
        sides = []
        for end, weight in (("source", problem.a), ("target", problem.b)):
            known = [
                np.asarray(getattr(each, end)) for each in (pairs, validation) if each is not None
            ]
            if subsets is not None:
                members: Subset = getattr(subsets, end)
                known.append(np.asarray(members.rows)[np.asarray(members.weight) > 0])
            rows = np.concatenate([np.zeros(0, int), *known]).astype(int)
            sides.append(Side.of(rows, weight, batch_size))
        source, target = sides
        if validation is not None:
            validation = Pairs.of(_place_both(validation, source, target), validation.weight)
        if pairs is not None:
            also = None if validation is None else np.asarray(validation.source)
            pairs = Pairs.of(_place_both(pairs, source, target), pairs.weight, also=also)
        if subsets is not None:
            subsets = Subsets(
                Subset(jnp.asarray(_place(subsets.source.rows, source)), subsets.source.weight),
                Subset(jnp.asarray(_place(subsets.target.rows, target)), subsets.target.weight),
            )
        return cls(
            problem.recipe, problem, source, target, pairs, subsets, validation, jr.key(seed)
        )

    @property
    def dtype(self) -> jnp.dtype:
        return self.whole.dtype

    @property
    def pairs_per_step(self) -> int:
        return self.source.size * self.target.size

    @property
    def data(self):
        return self.whole.data

    @property
    def noisy(self) -> bool:
        return True

    @property
    def validates(self) -> bool:
        return self.whole.validates

    def draw(self, step: Int[Array, ""]) -> tuple[CostProblem, Int[Array, " s"], Int[Array, " t"]]:
        """The problem of a batch, and its rows in the source and in the target."""
        whole = self.whole
        keys = jr.split(jr.fold_in(self.key, step))
        rows, a = self.source.draw(keys[0], whole.a)
        columns, b = self.target.draw(keys[1], whole.b)
        part = dataclasses.replace(
            whole,
            x=whole.x[rows],
            y=whole.y[columns],
            a=a,
            b=b,
            pairs=self.pairs,
            subsets=self.subsets,
            validation=self.validation,
        )
        return part, rows, columns

    def cold_start(self, model: Model) -> WarmStart:
        """Potentials of all points. Displacements and gradients of other points are of no use."""
        blank = self.draw(jnp.asarray(0))[0].blank_start(model, 1, 1, guesses=False)
        g = jnp.full((1, len(self.whole.y)), jnp.nan, self.dtype)
        return WarmStart(g, blank.z, None)

    def evaluate(self, model, epsilon, warm, step):
        part, _, columns = self.draw(step)
        g = warm.g[0, columns]
        here = WarmStart(g[None], warm.z, None)
        found = part.evaluate_from(model, epsilon, here, lambda problem: _sweep_unknown(problem, g))
        kept = WarmStart(warm.g.at[:, columns].set(found.warm.g), warm.z, None)
        return dataclasses.replace(found, warm=kept)


def _sweep_unknown(problem: DualProblem, g: Float[Array, " m"]) -> Float[Array, " m"]:
    """Potentials to start from where some are not known: one sweep from those that are."""
    known = jnp.isfinite(g)
    weight = jnp.where(known, problem.b, 0.0)
    f = soft_minimum(problem.C, weight, jnp.where(known, g, 0.0), problem.eps)
    swept = problem.target_potential(f)
    swept = jnp.where(jnp.all(jnp.isfinite(swept)), swept, 0.0)
    return jnp.where(jnp.all(known), g, swept)


def _place_both(pairs: Pairs, source: Side, target: Side) -> Int[np.ndarray, "k 2"]:
    return np.stack([_place(pairs.source, source), _place(pairs.target, target)], axis=1)


def _place(rows: Int[Array, "*k"], side: Side) -> Int[np.ndarray, "*k"]:
    """Where rows of the whole cloud are in a batch; padding, which is in none, anywhere."""
    places = np.searchsorted(np.asarray(side.fixed), np.asarray(rows))
    return np.minimum(places, len(side.fixed) - 1)
