"""Training one cost on the maps of several legs, and on maps that are composed of them.

Every loss is a weighted mean over the legs and the composed maps on which it has something to look
at: one that requires pairs weighs them by their pairs, so that each pair counts the same wherever
it is known. Where h takes long to compile, legs are padded with points of weight zero to a few
shapes, and legs of one shape are evaluated by one program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mongefit._convex import QuadraticConvexFunction
from mongefit._costs import LegCosts
from mongefit._registry import is_ours
from mongefit._runtime import on_cpu, to_device
from mongefit._training.batches import BatchedProblem
from mongefit._training.costs import CostProblem, Model, applies, evaluate_terms, miss, scatter
from mongefit._training.padding import of_stack, pad_and_stack, stack
from mongefit._training.problem import Evaluation, Problem, Recipe
from mongefit._transport import EntropicMap
from mongefit.losses import Context, FunctionTerm, Pairs, Subsets, Term
from mongefit.penalties import Departure

MOST_PADDING = 2.0
"""Legs share a shape if none of them gets more than this many times its pairs of points."""


class LegsModel(eqx.Module):
    """What is learned: the costs of all legs, and the terms as in `Model`."""

    costs: LegCosts
    terms: tuple[Term, ...]

    def of(self, leg: int) -> Model:
        """The model of one leg."""
        return Model(self.costs.of(leg), self.terms)


class Composed(eqx.Module):
    """What is known of the map from the source of the first leg of a chain to the last target.

    Attributes
    ----------
    chain
        Numbers of the legs that the map takes, in order.
    x, y, a, b
        The clouds at the ends and their weights.
    pairs, validation, subsets
        As in `CostProblem`, by rows of x and y.
    """

    chain: tuple[int, ...] = eqx.field(static=True)
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    pairs: Pairs | None
    validation: Pairs | None
    subsets: Subsets | None

    def context(self, maps: Sequence[EntropicMap]) -> tuple[Context, Bool[Array, ""]]:
        """What terms may look at, and whether every point was mapped.

        There is no matrix of costs between the ends: it is NaN.
        """
        x, y = self.x, self.y
        pairs = self.validation if self.pairs is None else self.pairs
        rows: Any = np.arange(len(x))
        columns: Any = np.arange(len(y))
        if self.subsets is None and pairs is not None:
            rows, columns = pairs.rows, pairs.columns
        there, found = carry(maps, x[rows])
        density = composed_density(maps, x, y)
        back, found_back = carry(maps, y[columns], reverse=True)
        context = Context(
            None, x, y, self.a, self.b,
            C=jnp.full((len(x), len(y)), jnp.nan, x.dtype),
            P=self.a[:, None] * self.b * jnp.exp(density),
            pairs=self.pairs,
            subsets=self.subsets,
            forward=scatter(rows, there.astype(x.dtype), len(x)),
            reverse=scatter(columns, back.astype(x.dtype), len(y)),
            log_density=density,
        )  # fmt: skip
        return context, found & found_back


def carry(
    maps: Sequence[EntropicMap], points: Float[Array, "N d"], *, reverse: bool = False
) -> tuple[Float[Array, "N d"], Bool[Array, ""]]:
    """Points mapped by one map after the other, backwards from the last if ``reverse``."""
    found = jnp.asarray(True)
    for each in reversed(maps) if reverse else maps:
        moved = each.transport(points, reverse=reverse, every_order=False)
        points, found = moved.points, found & jnp.all(moved.converged)
    return points, found


def composed_density(
    maps: Sequence[EntropicMap], x: Float[Array, "N d"], y: Float[Array, "M d"]
) -> Float[Array, "N M"]:
    """log of p(x, y) = Σ_k p¹(x, z_k) b_k p²(z_k, y), the density of the plan over several legs.

    z and b are the target of the first leg; x and y any points.
    """
    first, *rest = maps
    log_p = _log_density(first, x, first.y, first.g)
    for before, after in itertools.pairwise(maps):
        end, g = (y, after.g_hat(y)) if after is rest[-1] else (after.y, after.g)
        following = _log_density(after, before.y, end, g)
        # The largest of each row and column held out, so that no product vanishes needlessly.
        top, last = (
            jax.lax.stop_gradient(jnp.max(each, axis=axis, keepdims=True))
            for each, axis in ((log_p, 1), (following, 0))
        )
        product = (jnp.exp(log_p - top) * before.b) @ jnp.exp(following - last)
        log_p = jnp.log(jnp.maximum(product, jnp.finfo(product.dtype).tiny)) + top + last
    return log_p


def _log_density(
    entropic_map: EntropicMap,
    x: Float[Array, "N d"],
    y: Float[Array, "M d"],
    g: Float[Array, " M"],
) -> Float[Array, "N M"]:
    """(f̂(x_i) + g_j − c(x_i, y_j))/eps, g the potential at y."""
    f = entropic_map.f_hat(x)
    return (f[:, None] + g - entropic_map.cost.matrix(x, y)) / entropic_map.eps


class LegsProblem(Problem):
    """Several legs and composed maps of one cost.

    Attributes
    ----------
    parts
        The problems of single legs, those of one shape stacked.
    members
        Numbers of the legs of each part; legs about which nothing is known are in none.
    composed
        What is known of composed maps.
    share
        How much each term counts on each leg, followed by the composed maps.
    validation_share
        How much the squared error on validation pairs counts on each of them.
    """

    recipe: Recipe
    parts: tuple[CostProblem | BatchedProblem, ...]
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    composed: tuple[Composed, ...]
    share: Float[Array, "terms all"]
    validation_share: Float[Array, " all"]
    validates_any: bool = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        terms: Sequence[Term],
        legs: Sequence[CostProblem | BatchedProblem],
        composed: Sequence[Composed],
        costs: LegCosts,
    ) -> LegsProblem:
        """Put the legs that are needed into as few shapes as serve them."""
        whole = [leg.whole if isinstance(leg, BatchedProblem) else leg for leg in legs]
        known: list[CostProblem | Composed] = [*whole, *composed]
        share = np.array([[_amount(term, each) for each in known] for term in terms])
        used = {k for one in composed for k in one.chain}
        used |= {int(k) for k in np.flatnonzero(share[: recipe.n_losses].any(axis=0))}
        used |= {k for k, each in enumerate(whole) if each.validation is not None}
        used &= set(range(len(legs)))
        share[:, [k for k in range(len(legs)) if k not in used]] = 0.0
        share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
        counts = np.array(
            [0.0 if each.validation is None else each.validation.weight.sum() for each in known]
        )
        # Padding is points of weight zero. A function may look at points without their weights.
        padded = all(_weighs_points(term) for term in terms)
        members = _alike(legs, sorted(used), costs) if padded else tuple((k,) for k in sorted(used))
        return cls(
            recipe,
            tuple(pad_and_stack([legs[k] for k in those]) for those in members),
            members,
            tuple(composed),
            to_device(share.astype(whole[0].dtype)),
            to_device((counts / max(counts.sum(), 1.0)).astype(whole[0].dtype)),
            bool(counts.any()),
        )

    @property
    def dtype(self) -> jnp.dtype:
        return self.share.dtype

    @property
    def pairs_per_step(self) -> int:
        return max(each.pairs_per_step for _, each in self.each())

    @property
    def data(self):
        return [each.data for _, each in self.each()]

    @property
    def noisy(self) -> bool:
        return any(part.noisy for part in self.parts)

    @property
    def validates(self) -> bool:
        return self.validates_any

    def each(self) -> list[tuple[int, CostProblem | BatchedProblem]]:
        """The numbers of the legs that are evaluated, and their problems."""
        return [
            (leg, part if len(those) == 1 else of_stack(part, k))
            for part, those in zip(self.parts, self.members, strict=True)
            for k, leg in enumerate(those)
        ]

    def cold_start(self, model: LegsModel) -> tuple[Any, ...]:
        starts = {leg: each.cold_start(model.of(leg)) for leg, each in self.each()}
        return tuple(
            starts[those[0]] if len(those) == 1 else stack([starts[leg] for leg in those])
            for those in self.members
        )

    def evaluate(self, model, epsilon, warm, step):
        found: dict[int, Evaluation] = {}
        kept = []
        for part, those, own in zip(self.parts, self.members, warm, strict=True):
            if len(those) == 1:
                one = part.evaluate(model.of(those[0]), epsilon, own, step)
                found[those[0]] = one
                kept.append(one.warm)
            else:
                stacked = _evaluate_stack(part, [model.of(k) for k in those], epsilon, own, step)
                found |= {leg: of_stack(stacked, k) for k, leg in enumerate(those)}
                kept.append(stacked.warm)
        ok = jnp.all(jnp.stack([each.ok for each in found.values()]))
        count = self.share.shape[1]
        values: list[Any] = [jnp.zeros(len(model.terms), self.dtype)] * count
        missed: list[Any] = [jnp.zeros((), self.dtype)] * count
        for leg, each in found.items():
            values[leg] = each.values
            missed[leg] = each.validation
        for k, one in enumerate(self.composed, start=count - len(self.composed)):
            context, mapped = one.context([found[leg].map for leg in one.chain])
            own = tuple(term if term.requires is not None else _Nothing() for term in model.terms)
            values[k] = evaluate_terms(own, context, self.recipe.names)
            missed[k] = miss(context, one.validation)
            ok = ok & mapped
        counted = self.validation_share > 0
        square = jnp.where(counted, jnp.stack(missed) ** 2, 0.0)
        pooled = jnp.sqrt(self.validation_share @ square) if self.validates else jnp.nan
        every = list(found.values())
        return Evaluation(
            values=jnp.sum(self.share * jnp.stack(values, axis=1), axis=1),
            warm=tuple(kept),
            dual_error=_largest(each.dual_error for each in every),
            dual_iterations=_largest(each.dual_iterations for each in every),
            inverse_residual=_largest(each.inverse_residual for each in every),
            inverse_iterations=_largest(each.inverse_iterations for each in every),
            validation=jnp.asarray(pooled, self.dtype),
            ok=ok,
        )


class _Nothing(Term):
    """A term that counts for nothing."""

    def __call__(self, context):
        return jnp.zeros((), context.x.dtype)


def _weighs_points(term: Term) -> bool:
    """Whether points of weight zero change nothing, as far as is known."""
    return is_ours(type(term)) and not isinstance(term, FunctionTerm | Departure)


def _amount(term: Term, known: CostProblem | Composed) -> float:
    """How much there is that a term looks at: pairs, groups, or a leg."""
    if not applies(term, known):
        return 0.0
    if term.requires is None:
        return float(isinstance(known, CostProblem))
    if term.requires == "pairs":
        return float(known.pairs.weight.sum())  # type: ignore[union-attr]
    return float(len(known.subsets.source.rows))  # type: ignore[union-attr]


def _evaluate_stack(
    part: Any, models: Sequence[Model], epsilon: Any, warm: Any, step: Any
) -> Evaluation:
    """The evaluations of legs of one shape, stacked.

    On a CPU one after the other, which keeps its cache warm; on an accelerator side by side.
    """
    costs = stack([model.cost for model in models])
    arrays, static = eqx.partition((costs, part, warm), eqx.is_array)
    outside: list[Any] = []

    def one(arrays):
        cost, problem, own = eqx.combine(arrays, static)
        found = problem.evaluate(Model(cost, models[0].terms), epsilon, own, step)
        found, rest = eqx.partition(found, eqx.is_array)
        outside.append(rest)
        return found

    found = jax.lax.map(one, arrays) if on_cpu() else jax.vmap(one)(arrays)
    return eqx.combine(found, outside[0])


def _alike(
    legs: Sequence[CostProblem | BatchedProblem], used: Sequence[int], costs: LegCosts
) -> tuple[tuple[int, ...], ...]:
    """Which legs share a shape, the largest first."""
    groups: list[tuple[Any, list[int]]] = []
    for k in sorted(used, key=lambda k: (-legs[k].pairs_per_step, k)):
        kind = _kind(legs[k], costs, k)
        for other, those in groups:
            if kind is not None and kind == other and _fits(legs[k], [legs[j] for j in those]):
                those.append(k)
                break
        else:
            groups.append((kind, [k]))
    return tuple(tuple(sorted(those)) for _, those in groups)


def _kind(leg: CostProblem | BatchedProblem, costs: LegCosts, k: int) -> Any:
    """All of a leg but the sizes of its arrays; None where it is not stacked."""
    cost = costs.of(k)
    # Steps of a quadratic h compile fast, and are 10 to 25 % faster without padding and stacking.
    if isinstance(leg, BatchedProblem) or isinstance(cost.h, QuadraticConvexFunction):
        return None
    shapes = [leaf.shape for leaf in jax.tree.leaves(cost) if eqx.is_array(leaf)]
    count = None if leg.subsets is None else len(leg.subsets.source.rows)
    return jax.tree.structure(leg), jax.tree.structure(cost), shapes, count


def _fits(leg: Any, others: Sequence[Any]) -> bool:
    every = [leg, *others]
    shape = max(len(each.x) for each in every) * max(len(each.y) for each in every)
    return all(shape <= MOST_PADDING * each.pairs_per_step for each in every)


def _largest(values: Iterable[Float[Array, ""] | Int[Array, ""]]) -> Any:
    return jnp.max(jnp.stack(list(values)))
