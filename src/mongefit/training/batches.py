"""Training on random subsets of the points that nothing is known about."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mongefit.errors import OptionError
from mongefit.losses import Pairs, Subset, Subsets
from mongefit.training.problem import Problem


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
                f"batch_size must be at least {smallest}: a batch holds all points that are in "
                f"pairs or groups, {len(fixed)} of {len(weight)} here, and others; got "
                f"{batch_size}."
            )
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


class Batches(eqx.Module):
    """How to draw batches, and what is known, by the rows of a batch."""

    source: Side
    target: Side
    pairs: Pairs | None
    subsets: Subsets | None
    validation: Pairs | None
    key: PRNGKeyArray

    @classmethod
    def of(cls, problem: Problem, batch_size: int, seed: int) -> Batches:
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
        return cls(source, target, pairs, subsets, validation, jr.key(seed))

    def draw(
        self, problem: Problem, step: Int[Array, ""]
    ) -> tuple[Problem, Int[Array, " s"], Int[Array, " t"]]:
        """The problem of a batch, and its rows in the source and in the target."""
        keys = jr.split(jr.fold_in(self.key, step))
        rows, a = self.source.draw(keys[0], problem.a)
        columns, b = self.target.draw(keys[1], problem.b)
        part = dataclasses.replace(
            problem,
            x=problem.x[rows],
            y=problem.y[columns],
            a=a,
            b=b,
            pairs=self.pairs,
            subsets=self.subsets,
            validation=self.validation,
        )
        return part, rows, columns


def _place_both(pairs: Pairs, source: Side, target: Side) -> Int[np.ndarray, "k 2"]:
    return np.stack([_place(pairs.source, source), _place(pairs.target, target)], axis=1)


def _place(rows: Int[Array, "*k"], side: Side) -> Int[np.ndarray, "*k"]:
    """Where rows of the whole cloud are in a batch; padding, which is in none, anywhere."""
    places = np.searchsorted(np.asarray(side.fixed), np.asarray(rows))
    return np.minimum(places, len(side.fixed) - 1)
