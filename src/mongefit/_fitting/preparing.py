"""From options and data to a task: checked, with costs to start from and a problem to train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._costs import Cost, LegCosts
from mongefit._fitting.apply import MapOptions, require_plan_memory, solve_map
from mongefit._fitting.data import Clouds, FitData, Leg
from mongefit._fitting.journey import Journey, Through, check_journey, parts, spare
from mongefit._fitting.options import (
    DIFFERENTIATIONS,
    Checked,
    build_costs,
    check_convex,
    check_options,
    check_terms,
)
from mongefit._numerics import cast
from mongefit._options import FitOptions
from mongefit._runtime import (
    chunk_size,
    double_precision,
    drop_programs_if_crowded,
    dual_bytes,
    on_cpu,
    require_memory,
)
from mongefit._training import (
    BatchedProblem,
    Composed,
    CostProblem,
    LegsModel,
    LegsProblem,
    Model,
    Problem,
    Recipe,
    learns,
)
from mongefit._validation import Knowledge
from mongefit.errors import DataError, Option, noted_warnings, warn_user
from mongefit.losses import Groups, Paired, Pairs, Subset, Subsets, Term, Weighted
from mongefit.losses._base import Direction


class Task(NamedTuple):
    """A fit that is checked and not trained.

    ``legs`` are the pairs of clouds between which maps of one cost are built, and ``through`` is
    what is known of maps that are composed of several of them. ``costs`` has the costs of each
    start, and ``how`` says which map of a cost is built in the end. Without a ``problem`` there is
    nothing to learn.
    """

    options: FitOptions
    legs: list[Leg]
    through: list[Through]
    costs: list[LegCosts]
    how: MapOptions
    problem: Problem | None
    models: list[Model | LegsModel]

    @property
    def clouds(self) -> Clouds:
        """The clouds of the first leg; all legs have its units."""
        return self.legs[0].clouds

    @property
    def known(self) -> Knowledge:
        """What is known of the first leg."""
        return self.legs[0].known

    def bytes_per_step(self) -> int:
        """Memory that a step of one model needs."""
        model = self.models[0]
        if isinstance(self.problem, LegsProblem):
            return sum(_bytes_per_step(each, model.of(k)) for k, each in self.problem.each())
        return _bytes_per_step(self.problem, model.of(0))

    def require_memory(self) -> None:
        """Refuse what would not fit: a step of all models that are trained at once, or the plan."""
        n, m = len(self.clouds.x), len(self.clouds.y)
        remedy = "Set {batch_size}, such as 512."
        if isinstance(self.problem, BatchedProblem):
            n, m = self.problem.source.size, self.problem.target.size
            remedy = "Set a smaller {batch_size}."
        needed = self.bytes_per_step() * (1 if on_cpu() else len(self.models))
        what = f"A training step between {n} and {m} points needs about"
        option = Option("batch_size")
        require_memory(needed, what, remedy, on_device=True, batch_size=option)
        for leg in self.legs:
            require_plan_memory(leg.clouds)  # or training would be in vain


def _bytes_per_step(problem: Any, model: Model) -> int:
    """Memory that a step of one leg needs."""
    if isinstance(problem, BatchedProblem):
        problem = problem.draw(jnp.asarray(0))[0]
    n, m, dim = len(problem.x), len(problem.y), problem.x.shape[1]
    # What XLA sets aside for a step: a dual solve, vectors for every pair whose gradient is
    # requested or kept from step to step, and layers of the pairs that are evaluated at a time
    # with their tangents and slopes.
    vectors = n * m if model.cost.h.solves else problem.requested(model).count
    layers = [leaf for leaf in jax.tree.leaves(model.cost.h) if jnp.ndim(leaf) == 2]
    values = 5 * dim * vectors + 6 * sum(map(len, layers)) * chunk_size(n * m)
    return dual_bytes(n, m, problem.x.dtype.itemsize) + problem.x.dtype.itemsize * values


def default_losses(known: Knowledge, cost: Cost) -> list[Term]:
    """The losses that what is known calls for, in the directions in which the cost has a map."""
    ways = {
        name
        for name, phi in (("reverse", cost.phi_mu), ("forward", cost.phi_nu))
        if phi is not None and not phi.has_inverse
    }
    direction: Direction = (
        "reverse" if ways == {"forward"} else "forward" if ways == {"reverse"} else "both"
    )
    chosen: list[Term] = [] if known.pairs is None else [Paired(direction=direction)]
    return chosen if known.groups is None else [*chosen, Groups()]


@double_precision()
def prepare(
    options: FitOptions,
    data: FitData,
    *,
    choose_losses: Callable[[Knowledge, Cost], list[Term]] = default_losses,
    learn: bool = True,
    use_knowledge: bool = True,
) -> Task:
    """Check everything, and set up the training.

    ``choose_losses`` gives the losses where the options name none. Without ``learn`` nothing is
    trained, and without ``use_knowledge`` pairs and groups are only checked.
    """
    return prepare_legs(
        options, Journey.of_one(data), choose_losses=choose_losses, learn=learn,
        use_knowledge=use_knowledge,
    )  # fmt: skip


@double_precision()
def prepare_legs(
    options: FitOptions,
    journey: Journey,
    *,
    choose_losses: Callable[[Knowledge, Cost], list[Term]] = default_losses,
    learn: bool = True,
    use_knowledge: bool = True,
) -> Task:
    """`prepare` for any number of legs, whose maps have one cost."""
    drop_programs_if_crowded()
    with noted_warnings() as notes:
        checked = check_options(options)
    legs, through = check_journey(options, journey, notes, used=use_knowledge)
    if learn and options.max_iter:
        legs, through = spare(legs, through, checked.spared, checked.seed, options.losses)
    dtype = legs[0].clouds.x.dtype
    costs = [
        cast(build_costs(legs, journey.roles, options, checked.seed + k), dtype)
        for k in range(options.n_init)
    ]
    first = costs[0].of(0)
    check_convex(first, legs[0].clouds)
    how = MapOptions(checked.schedules["epsilon"][1], debias=options.debias, **checked.taus)
    task = Task(options, legs, through, costs, how, None, [])
    if not learn:
        return task
    chosen = options.losses
    if chosen is None:
        chosen = choose_losses(_all_kinds([each.known for each in parts(legs, through)]), first)
    losses = check_terms(chosen, "losses")
    if not learns(costs[0]):
        if losses:
            warn_user(
                "Pairs, groups and losses are not used: with a fixed cost and no diffeo nothing is "
                "learned."
            )
        return task
    if not losses:
        raise DataError(
            "There is a cost to learn and nothing to learn it from: give pairs or groups, or "
            "losses=[TargetFit()] for the target alone, or use {cost} and no {diffeo} for a map "
            "with a fixed cost.",
            cost=Option("cost", "sqeuclidean"), diffeo=Option("diffeo"),
        )  # fmt: skip
    draws = isinstance(options.cost, str) or isinstance(options.diffeo, str)
    if options.n_init > 1 and not draws:
        warn_user(
            "{n_init} has no effect: costs and flows that are given start as they are.",
            n_init=Option("n_init"),
        )
    return _with_problem(task, checked, losses)


def _all_kinds(knowns: Sequence[Knowledge]) -> Knowledge:
    """Of each kind of knowledge what some leg has."""
    kinds = zip(*knowns, strict=True)
    return Knowledge(*(next((x for x in kind if x is not None), None) for kind in kinds))


def _with_problem(task: Task, checked: Checked, losses: Sequence[Weighted]) -> Task:
    """The task with the problem to train, and a model to start from for each of its costs."""
    options, dtype = task.options, task.clouds.x.dtype
    weighted = [*losses, *checked.penalties]
    terms = [each.term for each in weighted]
    kinds = _all_kinds([each.known for each in parts(task.legs, task.through)])
    for term in terms:
        if term.requires is not None and getattr(kinds, term.requires) is None:
            raise DataError(
                f"{term.name}() needs {term.requires}: give fit(X, Y, {term.requires}=…), or leave "
                "it out."
            )
    recipe = Recipe(
        [term.name for term in terms],
        weight=[each.weight for each in weighted],
        n_losses=len(losses),
        max_iter=int(options.max_iter),
        optimizer=options.optimizer,
        dtype=dtype,
        **checked.schedules,
    )
    started = [
        cast((costs, _initialise(terms, task, costs, checked, k)), dtype)
        for k, costs in enumerate(task.costs)
    ]
    each = [_leg_problem(task, leg, recipe, checked) for leg in task.legs]
    if len(each) == 1 and not task.through:
        models: list[Model | LegsModel] = [Model(costs.of(0), own) for costs, own in started]
        return task._replace(problem=each[0], models=models)
    composed = [
        Composed(
            one.chain,
            *(one.clouds.x, one.clouds.y, one.clouds.a, one.clouds.b),
            *_known_pairs(one, dtype),
            None if one.known.groups is None else _subsets(one),
        )
        for one in task.through
    ]
    problem = LegsProblem.of(recipe, terms, each, composed, task.costs[0])
    return task._replace(problem=problem, models=[LegsModel(*own) for own in started])


def _leg_problem(
    task: Task, leg: Leg, recipe: Recipe, checked: Checked
) -> CostProblem | BatchedProblem:
    """The training problem of one leg."""
    options, clouds = task.options, leg.clouds
    pairs, validation = _known_pairs(leg, clouds.x.dtype)
    problem = CostProblem(
        recipe=recipe,
        x=clouds.x, y=clouds.y, a=clouds.a, b=clouds.b,
        pairs=pairs,
        subsets=None if leg.known.groups is None else _subsets(leg),
        dual_solver=checked.dual_solver,
        differentiate=DIFFERENTIATIONS[options.differentiate],
        validation=validation,
        pair_dtype="float32" if options.dtype == "mixed" else None,
        **task.how.taus(clouds.x.dtype),
    )  # fmt: skip
    size = options.batch_size
    if size is not None and options.max_iter and size < max(len(clouds.x), len(clouds.y)):
        return BatchedProblem.of(problem, size, checked.seed)
    return problem


def _known_pairs(leg: Leg | Through, dtype: Any) -> tuple[Pairs | None, Pairs | None]:
    """The pairs to train on and those to validate on."""
    held_out, pairs = leg.held_out, None
    table, weight = leg.known.pairs, leg.known.pair_weight
    # Where all pairs of a leg are held out none is left to train on.
    if table is not None and np.any(weight > 0):  # type: ignore[operator]
        also = None if held_out is None else held_out[:, 0]
        pairs = Pairs.of(table, jnp.asarray(weight, dtype), also=also)
    return pairs, None if held_out is None else _pad(held_out, pairs, dtype)


def _subsets(leg: Leg | Through) -> Subsets:
    source, target = leg.known.groups  # type: ignore[misc]
    return Subsets(Subset.of(source, leg.clouds.a), Subset.of(target, leg.clouds.b))


def _pad(held_out: NDArray[np.int64], pairs: Pairs | None, dtype: Any) -> Pairs:
    """Validation pairs in the shapes of the known ones, so that all folds compile once."""
    size = max(len(held_out), 0 if pairs is None else len(pairs.source))
    table = np.concatenate([held_out, np.repeat(held_out[:1], size - len(held_out), axis=0)])
    chosen = Pairs.of(table, jnp.asarray(np.arange(size) < len(held_out), dtype))
    if pairs is None:
        return chosen
    return dataclasses.replace(chosen, rows=pairs.rows, columns=pairs.columns)


def _initialise(
    terms: Sequence[Term], task: Task, costs: LegCosts, checked: Checked, start: int
) -> tuple[Term, ...]:
    """The terms, with starting values for the arrays that they learn."""
    if all(type(term).initialised is Term.initialised for term in terms):
        return tuple(terms)
    # Mean displacements of the source points under the plan of the cost before training.
    first = task.how._replace(epsilon=checked.schedules["epsilon"][0], debias=False)
    moves, masses = [], []
    for k, leg in enumerate(task.legs):
        P = np.asarray(solve_map(leg.clouds, costs.of(k), first).plan, np.float64)
        mass = P.sum(axis=1)
        mean = P @ np.asarray(leg.clouds.y) / np.where(mass > 0, mass, 1.0)[:, None]
        moves.append(mean - np.asarray(leg.clouds.x))
        masses.append(mass)
    every = np.concatenate(moves), np.concatenate(masses)
    return tuple(term.initialised(*every, checked.seed + start) for term in terms)
