"""Losses on the plan instead of the map: what the cost-learning methods beside this one use."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from mongefit.losses._base import Reach, Term


class CorrectMass(Term):
    """−Σ_k w_k P_{i_k j_k} over the known pairs (i_k, j_k): mass that goes where it should."""

    reach: ClassVar[Reach] = "nothing"
    requires: ClassVar[str | None] = "pairs"

    def __call__(self, context):
        pairs = context.pairs
        return -pairs.weight @ context.P[pairs.source, pairs.target]


class WrongMass(Term):
    """Σ P_ij² over the entries that join two different groups (Liu et al. 2020)."""

    reach: ClassVar[Reach] = "nothing"
    requires: ClassVar[str | None] = "groups"

    def __call__(self, context):
        source, target = context.subsets.source, context.subsets.target
        count = len(source.rows)
        # Group membership as indicators, [n, K] and [m, K]; padding has weight zero.
        group = jnp.arange(count)[:, None]
        in_source = jnp.zeros((len(context.a), count), context.P.dtype)
        in_source = in_source.at[source.rows, group].max(source.weight > 0)
        in_target = jnp.zeros((len(context.b), count), context.P.dtype)
        in_target = in_target.at[target.rows, group].max(target.weight > 0)
        same = in_source @ in_target.T
        labelled = jnp.outer(in_source.sum(1), in_target.sum(1))
        return jnp.sum((labelled - same) * context.P**2)
