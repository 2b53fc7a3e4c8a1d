"""Training a cost on the map between two clouds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mongefit._costs import Cost
from mongefit._duals import Differentiation, DualProblem, DualSolver, solve_dual
from mongefit._inverse import InverseGradientSolver
from mongefit._pairs import PairCosts, PairRequest
from mongefit._training.problem import Evaluation, Problem, Recipe
from mongefit._transport import EntropicMap, Potentials, Units, displace, relative_eps
from mongefit.errors import OptionError
from mongefit.losses import Context, Pairs, Subsets, Term
from mongefit.losses._base import Direction

# Of how many good steps solutions are kept to extrapolate from. A parabola through potentials was
# now and then too far off to start from.
_POTENTIALS, _INVERSES = 3, 4


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
    terms: tuple[Term, ...]

    def of(self, leg: int) -> Model:
        """The model of one leg: there is only this."""
        return self


class WarmStart(eqx.Module):
    """Solutions of the inner problems at the last good steps, the newest first; NaN if not known.

    Attributes
    ----------
    g
        Potentials.
    z
        Displacements, of the forward map followed by those of the reverse map.
    gradient
        ∇h over all pairs at the last step, where h must solve for it, else None.
    """

    g: Float[Array, "k m"]
    z: Float[Array, "l both d"]
    gradient: Float[Array, "n m d"] | None


class CostProblem(Problem):
    """Two clouds and what is known of the map between them, in common units.

    Attributes
    ----------
    x, y, a, b
        Both clouds and their weights.
    pairs, subsets
        Known pairs and groups, or None.
    validation
        Pairs on which the best model of the run is chosen, or None. Their sources are among the
        rows of ``pairs``.
    dual_solver, inverse_solver
        Methods for the potentials and for (∇h)⁻¹.
    differentiate
        How the potentials are differentiated.
    pair_dtype
        Precision of ∇h and of derivatives over the pairs; that of the points by default.
    tau_a, tau_b
        How strictly the weights of each side are kept; None for exactly.
    """

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    pairs: Pairs | None
    subsets: Subsets | None
    recipe: Recipe
    validation: Pairs | None = None
    dual_solver: DualSolver | None = None
    inverse_solver: InverseGradientSolver | None = None
    differentiate: Differentiation = eqx.field(static=True, default="one_step")
    pair_dtype: str | None = eqx.field(static=True, default=None)
    tau_a: Float[Array, ""] | None = None
    tau_b: Float[Array, ""] | None = None

    @property
    def dtype(self) -> jnp.dtype:
        return self.x.dtype

    @property
    def pairs_per_step(self) -> int:
        return len(self.x) * len(self.y)

    @property
    def data(self):
        return [self.x, self.y, self.a, self.b, self.pairs, self.subsets]

    @property
    def validates(self) -> bool:
        return self.validation is not None

    def requested(self, model: Model) -> PairRequest:
        """The rows at which some term looks at the forward map, and the columns for the reverse."""
        rows, columns = (_looked_at(model, self, way) for way in ("forward", "reverse"))
        return PairRequest(rows, columns, len(self.x), len(self.y))

    def cold_start(self, model: Model) -> WarmStart:
        return self.blank_start(model, _POTENTIALS, _INVERSES, guesses=model.cost.h.solves)

    def blank_start(
        self, model: Model, potentials: int, inverses: int, *, guesses: bool
    ) -> WarmStart:
        """A start at which nothing is known, with room for so many solutions."""
        request, dim = self.requested(model), self.x.shape[1]
        moved = len(request.rows) + len(request.columns)
        shapes = (potentials, len(self.y)), (inverses, moved, dim)
        g, z = (jnp.full(shape, jnp.nan, self.dtype) for shape in shapes)
        gradient = jnp.full((len(self.x), len(self.y), dim), jnp.nan, self.dtype)
        return WarmStart(g, z, gradient if guesses else None)

    def evaluate(self, model, epsilon, warm, step):
        g = extrapolate(warm.g)
        return self.evaluate_from(
            model, epsilon, warm, lambda problem: jnp.where(jnp.isfinite(g), g, 0.0)
        )

    def evaluate_from(
        self,
        model: Model,
        epsilon: Float[Array, ""],
        warm: WarmStart,
        start: Callable[[DualProblem], Float[Array, " m"]],
    ) -> Evaluation:
        """All terms, with the dual solved from the potentials that ``start`` gives.

        h is evaluated over all pairs, ∇h and all derivatives over those that carry mass to a point
        at which the map is needed.
        """
        x, y, a, b, cost = self.x, self.y, self.a, self.b, model.cost
        request = self.requested(model)
        u, v = cost.latent_source(x), cost.latent_target(y)
        costs = PairCosts(cost.h, u, v, request, dtype=self.pair_dtype, guess=warm.gradient)
        eps = relative_eps(costs.C, a, b, epsilon)
        problem = DualProblem(costs.C, a, b, eps=eps, tau_a=self.tau_a, tau_b=self.tau_b)
        dual = solve_dual(
            problem,
            g_init=start(jax.lax.stop_gradient(problem)),
            solver=self.dual_solver,
            differentiate=self.differentiate,
        )
        moved = displace(
            costs,
            Potentials(a, b, dual.f, dual.g, problem.eps),
            guess=extrapolate(warm.z),
            solver=self.inverse_solver,
            one_step=True,
        )
        rows, columns = request.rows, request.columns
        context = Context(
            cost, x, y, a, b, costs.C,
            P=problem.plan(dual.f, dual.g),
            pairs=self.pairs,
            subsets=self.subsets,
            forward=scatter(rows, cost.target_from_latent(u[rows] - moved.rows), len(x)),
            reverse=scatter(
                columns, cost.source_from_latent(v[columns] + moved.columns), len(y)
            ),
            log_density=problem.log_density(dual.f, dual.g),
        )  # fmt: skip
        return Evaluation(
            values=evaluate_terms(model.terms, context, self.recipe.names),
            map=EntropicMap(
                cost,
                x,
                y,
                a,
                b,
                dual.f,
                dual.g,
                problem.eps,
                Units.none(x.shape[1]),
                self.inverse_solver,
                None,
                problem.tau_a,
                problem.tau_b,
            ),
            warm=WarmStart(push(dual.g, warm.g), push(moved.z, warm.z), costs.everywhere),
            dual_error=dual.error,
            dual_iterations=dual.iterations,
            inverse_residual=jnp.max(moved.residual, initial=0.0),
            inverse_iterations=moved.iterations,
            validation=miss(context, self.validation),
            ok=dual.converged & jnp.all(moved.converged),
        )


def evaluate_terms(
    terms: tuple[Term, ...], context: Context, names: tuple[str, ...]
) -> Float[Array, " terms"]:
    """The value of every term, each of which must be one number; 0 without what it requires."""
    values = []
    for term, name in zip(terms, names, strict=True):
        if not applies(term, context):
            values.append(jnp.zeros((), context.x.dtype))
            continue
        value = jnp.asarray(term(context))
        if value.shape != ():
            raise OptionError(
                f"{name} returns an array of shape {value.shape}. A loss is one number: take its "
                "sum or its mean."
            )
        values.append(value.astype(context.x.dtype))
    return jnp.stack(values)


def applies(term: Term, known: Any) -> bool:
    """Whether what a term requires is known; ``known`` has ``pairs`` and ``subsets``."""
    if term.requires is None:
        return True
    return (known.pairs if term.requires == "pairs" else known.subsets) is not None


def extrapolate(kept: Float[Array, "k ..."]) -> Float[Array, "..."]:
    """Extrapolate warm starts from the last steps.

    Along the polynomial that would have predicted the newest of them best: one of high degree on a
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


def push(new: Float[Array, "..."], kept: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
    """The solutions with a new one, without the oldest."""
    return jnp.concatenate([new[None], kept[:-1]])


def _looked_at(
    model: Model, problem: CostProblem, direction: Direction
) -> Int[np.ndarray | Array, " k"]:
    """Rows at which some term, or validation, looks at the map in one direction."""
    forward = direction == "forward"
    reaches = {term.reach_of(direction) for term in model.terms if applies(term, problem)}
    if forward and problem.validation is not None:
        reaches.add("pairs")
    if "all" in reaches:
        return np.arange(len(problem.x if forward else problem.y))
    pairs = problem.validation if problem.pairs is None else problem.pairs
    if "pairs" in reaches and pairs is not None:
        return pairs.rows if forward else pairs.columns
    return np.arange(0)


def miss(context: Context, pairs: Pairs | None) -> Float[Array, ""]:
    """Root mean square distance of the mapped sources of pairs from their targets."""
    if pairs is None:
        return jnp.asarray(jnp.nan, context.x.dtype)
    square = jnp.sum((context.forward[pairs.source] - context.y[pairs.target]) ** 2, axis=1)
    return jnp.sqrt(pairs.weight @ square / jnp.sum(pairs.weight))


def scatter(
    rows: Int[Array | np.ndarray, " k"], values: Float[Array, "k d"], size: int
) -> Float[Array, "n d"]:
    """Values at their rows, and NaN elsewhere: a term that looks where nothing is fails loudly."""
    empty = jnp.full((size, values.shape[1]), jnp.nan, values.dtype)
    return empty.at[rows].set(values, unique_indices=True)
