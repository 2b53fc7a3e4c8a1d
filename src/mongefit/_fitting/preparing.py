"""From options and data to a task: checked, with costs to start from and a problem to train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._costs import Cost
from mongefit._fitting.apply import MapOptions, require_plan_memory, solve_map
from mongefit._fitting.data import Clouds, FitData, check_clones, check_clouds
from mongefit._fitting.options import (
    DIFFERENTIATIONS,
    Checked,
    build_cost,
    check_convex,
    check_options,
    check_terms,
)
from mongefit._numerics import cast
from mongefit._options import FitOptions, takes_several
from mongefit._runtime import (
    chunk_size,
    double_precision,
    drop_programs_if_crowded,
    dual_bytes,
    on_cpu,
    require_memory,
)
from mongefit._training import BatchedProblem, CostProblem, Model, Recipe, learns
from mongefit._validation import Knowledge, check_groups, check_pairs, check_validation_pairs
from mongefit.errors import DataError, Option, ignored_warnings, noted_warnings, warn_user
from mongefit.losses import Groups, Paired, Pairs, Subset, Subsets, Term, Weighted
from mongefit.losses._base import Direction

ENOUGH_CLONES = 20
"""From so many clones on some are kept from training to stop early by."""


class Task(NamedTuple):
    """A fit that is checked and not trained.

    ``held_out`` are validation pairs. ``spared`` says which of the known pairs they are if the fit
    kept them from training itself. ``costs`` has the cost of each start, and ``how`` says which map
    of a cost is built in the end. Without a ``problem`` there is nothing to learn.
    """

    options: FitOptions
    clouds: Clouds
    known: Knowledge
    held_out: NDArray[np.int64] | None
    costs: list[Cost]
    how: MapOptions
    problem: CostProblem | BatchedProblem | None
    models: list[Model]
    spared: NDArray[np.bool_] | None = None

    def bytes_per_step(self) -> int:
        """Memory that a step of one model needs."""
        part: Any = self.problem
        if isinstance(part, BatchedProblem):
            part = part.draw(jnp.asarray(0))[0]
        model = self.models[0]
        n, m, dim = len(part.x), len(part.y), part.x.shape[1]
        # What XLA sets aside for a step: a dual solve, vectors for every pair whose gradient is
        # requested or kept from step to step, and layers of the pairs that are evaluated at a time
        # with their tangents and slopes.
        vectors = n * m if model.cost.h.solves else part.requested(model).count
        layers = [leaf for leaf in jax.tree.leaves(model.cost.h) if jnp.ndim(leaf) == 2]
        values = 5 * dim * vectors + 6 * sum(map(len, layers)) * chunk_size(n * m)
        return dual_bytes(n, m, part.x.dtype.itemsize) + part.x.dtype.itemsize * values

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
        require_plan_memory(self.clouds)  # or training would be in vain


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
    drop_programs_if_crowded()
    with noted_warnings() as notes:
        checked = check_options(options)
    clouds = check_clouds(data, dtype=options.dtype, normalize=options.normalize_weight)
    clouds.notes[:0] = notes
    known = _check_knowledge(options, data, clouds, used=use_knowledge)
    held_out = check_validation_pairs(
        data.validation_pairs, len(clouds.source), len(clouds.target), known.trained_on()
    )
    spared = None
    if held_out is None and learn and options.max_iter and not _open(known, options.losses):
        known, spared = _spare(known, checked.spared, checked.seed)
        if spared is not None:
            held_out = known.pairs[spared]  # type: ignore[index]
    costs = [
        cast(build_cost(clouds, known, options, checked.seed + k), clouds.x.dtype)
        for k in range(options.n_init)
    ]
    check_convex(costs[0], clouds)
    how = MapOptions(checked.schedules["epsilon"][1], debias=options.debias, **checked.taus)
    task = Task(options, clouds, known, held_out, costs, how, None, [], spared)
    if not learn:
        return task
    chosen = choose_losses(known, costs[0]) if options.losses is None else options.losses
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


def _open(known: Knowledge, losses: Any) -> bool:
    """Whether sources have several targets of which none is the one: an RMSE judges nothing."""
    return (
        known.pairs is not None
        and takes_several(losses)
        and len(np.unique(known.pairs[:, 0])) < len(known.pairs)
    )


def _spare(
    known: Knowledge, fraction: float, seed: int
) -> tuple[Knowledge, NDArray[np.bool_] | None]:
    """Keep the pairs of some clones from training, to stop early by, where there are enough.

    What is known without them, and which pairs they are.
    """
    if known.pairs is None or known.clones is None or known.pair_weight is None:
        return known, None
    counted = np.unique(known.clones[known.pair_weight > 0])
    count = round(fraction * len(counted))
    if len(counted) < ENOUGH_CLONES or count == 0:
        return known, None
    drawn = np.random.default_rng(seed).permutation(counted)[:count]
    out = np.isin(known.clones, drawn)
    weight = np.where(out, 0.0, known.pair_weight)
    weight *= np.count_nonzero(weight) / weight.sum()
    return known._replace(pair_weight=weight), out & (known.pair_weight > 0)


def _check_knowledge(
    options: FitOptions, data: FitData, clouds: Clouds, *, used: bool
) -> Knowledge:
    """What is known, checked. What is not used may be questionable: nobody learns from it."""
    n, m = len(clouds.source), len(clouds.target)
    many_to_many = options.many_to_many or not used or takes_several(options.losses)
    with noted_warnings(clouds.notes) if used else ignored_warnings():
        table, weight = check_pairs(
            data.pairs, n, m, weight=data.pair_weight, many_to_many=many_to_many
        )
        members = check_groups(data.groups, np.asarray(clouds.a), np.asarray(clouds.b))
    if table is None and data.clones is not None:
        raise DataError("clones was given without pairs.")
    clones = None if table is None else check_clones(data.clones, table)
    return Knowledge(table, weight, members, clones) if used else Knowledge()


def _with_problem(task: Task, checked: Checked, losses: Sequence[Weighted]) -> Task:
    """The task with the problem to train, and a model to start from for each of its costs."""
    options, clouds, known = task.options, task.clouds, task.known
    dtype = clouds.x.dtype
    weighted = [*losses, *checked.penalties]
    terms = [each.term for each in weighted]
    for term in terms:
        if term.requires is not None and getattr(known, term.requires) is None:
            raise DataError(
                f"{term.name}() needs {term.requires}: give fit(X, Y, {term.requires}=…), or leave "
                "it out."
            )
    models = [
        cast(Model(cost, _initialise(terms, task, cost, checked, k)), dtype)
        for k, cost in enumerate(task.costs)
    ]
    pairs = None if known.pairs is None else Pairs.of(
        known.pairs,
        jnp.asarray(known.pair_weight, dtype),
        also=None if task.held_out is None else task.held_out[:, 0],
    )  # fmt: skip
    recipe = Recipe(
        [term.name for term in terms],
        weight=[each.weight for each in weighted],
        n_losses=len(losses),
        max_iter=int(options.max_iter),
        optimizer=options.optimizer,
        dtype=dtype,
        **checked.schedules,
    )
    problem = CostProblem(
        recipe=recipe,
        x=clouds.x, y=clouds.y, a=clouds.a, b=clouds.b,
        pairs=pairs,
        subsets=None if known.groups is None else Subsets(
            Subset.of(known.groups[0], clouds.a), Subset.of(known.groups[1], clouds.b)
        ),
        dual_solver=checked.dual_solver,
        differentiate=DIFFERENTIATIONS[options.differentiate],
        validation=None if task.held_out is None else _pad(task.held_out, pairs, dtype),
        pair_dtype="float32" if options.dtype == "mixed" else None,
        **task.how.taus(dtype),
    )  # fmt: skip
    size = options.batch_size
    if size is not None and options.max_iter and size < max(len(clouds.x), len(clouds.y)):
        return task._replace(problem=BatchedProblem.of(problem, size, checked.seed), models=models)
    return task._replace(problem=problem, models=models)


def _pad(held_out: NDArray[np.int64], pairs: Pairs | None, dtype: Any) -> Pairs:
    """Validation pairs in the shapes of the known ones, so that all folds compile once."""
    size = max(len(held_out), 0 if pairs is None else len(pairs.source))
    table = np.concatenate([held_out, np.repeat(held_out[:1], size - len(held_out), axis=0)])
    chosen = Pairs.of(table, jnp.asarray(np.arange(size) < len(held_out), dtype))
    if pairs is None:
        return chosen
    return dataclasses.replace(chosen, rows=pairs.rows, columns=pairs.columns)


def _initialise(
    terms: Sequence[Term], task: Task, cost: Cost, checked: Checked, start: int
) -> tuple[Term, ...]:
    """The terms, with starting values for the arrays that they learn."""
    if all(type(term).initialised is Term.initialised for term in terms):
        return tuple(terms)
    clouds = task.clouds
    # Mean displacements of the source points under the plan of the cost before training.
    first = task.how._replace(epsilon=checked.schedules["epsilon"][0], debias=False)
    P = np.asarray(solve_map(clouds, cost, first).plan, np.float64)
    mass = P.sum(axis=1)
    mean = P @ np.asarray(clouds.y) / np.where(mass > 0, mass, 1.0)[:, None]
    moves = mean - np.asarray(clouds.x)
    return tuple(term.initialised(moves, mass, checked.seed + start) for term in terms)
