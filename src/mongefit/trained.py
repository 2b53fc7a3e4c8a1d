"""Estimators that train a cost on what is known: options, terms and knowledge into a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._numerics import cast, placed
from mongefit.costs import Cost
from mongefit.duals import (
    LARGEST_FACTORISED,
    Differentiation,
    DualSolver,
    NewtonDual,
    SinkhornDual,
)
from mongefit.errors import DataError, OptionError, did_you_mean
from mongefit.fitted import EntropicEstimator, collected_warnings
from mongefit.losses import (
    CostTerm,
    LearnedMapLoss,
    MapLoss,
    Pairs,
    Subset,
    Subsets,
    Weighted,
)
from mongefit.programs import (
    Clouds,
    compiled_meanwhile,
    require_plan_memory,
    solved_map,
)
from mongefit.progress import TrainingBar
from mongefit.sparse import Asked, chunk_size
from mongefit.training import (
    Batches,
    Checkpoint,
    Model,
    Problem,
    Run,
    Schedule,
    needed,
    train,
)
from mongefit.validation import (
    Knowledge,
    check_count,
    check_groups,
    check_pairs,
    check_positive,
    check_schedule,
    check_seed,
    require_memory,
)

DUALS = {"newton": NewtonDual, "sinkhorn": SinkhornDual}
DIFFERENTIATIONS: tuple[Differentiation, ...] = ("implicit", "unrolled")


class TrainingOptions(NamedTuple):
    """What goes from a start to an end over training, checked, and the seed of the first start."""

    epsilon: tuple[float, float]
    learning_rate: tuple[float, float]
    diffeo_learning_rate: tuple[float, float]
    seed: int


class Training(NamedTuple):
    """What a fit has to train: a problem, the models to start from, and how to draw batches."""

    problem: Problem
    models: list[Model]
    batches: Batches | None

    def memory(self) -> tuple[int, str]:
        """Bytes that a step of one model needs, and what for."""
        problem, model = self.problem, self.models[0]
        if self.batches is not None:
            problem = self.batches.draw(problem, jnp.asarray(0))[0]
        n, m, dim = len(problem.x), len(problem.y), problem.x.shape[1]
        rows, columns = (needed(model, problem, way) for way in ("forward", "reverse"))
        asked = Asked(rows, columns, n, m)
        # What XLA sets aside for a step: matrices over all pairs, of the costs, the dual and the
        # plan, and vectors for every pair whose gradient is asked for, or kept from step to step.
        vectors = n * m if model.cost.h.solves else asked.count
        values = 12 * n * m + 5 * dim * vectors + (4 * m * m if m <= LARGEST_FACTORISED else 0)
        # Layers of the pairs that are evaluated at a time, with their tangents and slopes.
        layers = [leaf for leaf in jax.tree.leaves(model.cost.h) if jnp.ndim(leaf) == 2]
        values += 6 * sum(len(layer) for layer in layers) * chunk_size(n * m)
        return problem.x.dtype.itemsize * values, f"A training step between {n} and {m} points"

    def require_memory(self) -> None:
        """Refuse a step that would not fit, with all models that are trained at once."""
        size, what = self.memory()
        smaller = "Set batch_size, such as 512."
        if self.batches is not None:
            smaller = "Set a smaller batch_size."
        at_once = 1 if jax.default_backend() == "cpu" else len(self.models)
        require_memory(size * at_once, f"{what} needs about", smaller, on_device=True)


class TrainedEstimator(EntropicEstimator):
    """What every estimator that trains a cost by steps shares."""

    epsilon: float | tuple[float, float]
    max_iter: int
    batch_size: int | None
    learning_rate: float | tuple[float, float]
    diffeo_learning_rate: float | tuple[float, float]
    dual: str | DualSolver
    differentiate: Differentiation
    many_to_many: bool
    random_state: Any
    verbose: int

    def _check_training_options(self, notes: list[str]) -> TrainingOptions:
        """Refuse options that make no sense, before any work."""
        with collected_warnings(notes):
            options = TrainingOptions(
                check_schedule(self.epsilon, "epsilon"),
                check_schedule(self.learning_rate, "learning_rate"),
                check_schedule(self.diffeo_learning_rate, "diffeo_learning_rate"),
                check_seed(self.random_state),
            )
        check_count(self.max_iter, "max_iter")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size", minimum=2)
        if not isinstance(self.dual, DualSolver) and self.dual not in DUALS:
            raise OptionError(
                f"dual must be one of {', '.join(DUALS)} or a DualSolver, got {self.dual!r}."
                + did_you_mean(str(self.dual), DUALS)
            )
        if self.differentiate not in DIFFERENTIATIONS:
            raise OptionError(
                f"differentiate must be one of {', '.join(DIFFERENTIATIONS)}, got "
                f"{self.differentiate!r}." + did_you_mean(str(self.differentiate), DIFFERENTIATIONS)
            )
        return options

    def _check_knowledge(self, clouds: Clouds, pairs, pair_weight, groups) -> Knowledge:
        n, m = len(clouds.source), len(clouds.target)
        with collected_warnings(clouds.warnings):
            table, weight = check_pairs(
                pairs, n, m, weight=pair_weight, many_to_many=self.many_to_many
            )
            members = check_groups(groups, np.asarray(clouds.a), np.asarray(clouds.b))
        return Knowledge(table, weight, members)

    def _training(
        self,
        clouds: Clouds,
        costs: Sequence[Cost],
        known: Knowledge,
        losses: Sequence[Weighted],
        penalties: Sequence[Weighted],
        options: TrainingOptions,
        held_out: NDArray[np.int64] | None = None,
    ) -> Training:
        """What there is to train from each of the costs."""
        dtype = clouds.x.dtype
        terms = [each.term for each in [*losses, *penalties]]
        _check_requirements(terms, known)
        epsilon, seed = options.epsilon, options.seed
        models = [
            cast(Model(cost, _started(terms, clouds, cost, epsilon[0], seed + k)), dtype)
            for k, cost in enumerate(costs)
        ]
        pairs = None if known.pairs is None else Pairs.of(
            known.pairs,
            jnp.asarray(known.pair_weight, dtype),
            also=None if held_out is None else held_out[:, 0],
        )  # fmt: skip
        problem = Problem(
            clouds.x, clouds.y, clouds.a, clouds.b,
            pairs=pairs,
            subsets=None if known.groups is None else Subsets(
                Subset.of(known.groups[0], clouds.a), Subset.of(known.groups[1], clouds.b)
            ),
            weight=placed(np.array([t.weight for t in [*losses, *penalties]], dtype)),
            n_losses=len(losses),
            epsilon=Schedule(*epsilon),
            learning_rate=Schedule(*options.learning_rate),
            diffeo_learning_rate=Schedule(*options.diffeo_learning_rate),
            max_iter=int(self.max_iter),
            dual_solver=DUALS[self.dual]() if isinstance(self.dual, str) else self.dual,
            differentiate=self.differentiate,
            validation=None if held_out is None else _validation(held_out, pairs, dtype),
            pair_dtype="float32" if self.dtype == "mixed" else None,
        )  # fmt: skip
        batches = self._batches(problem, seed) if self.max_iter else None
        return Training(problem, models, batches)

    def _train(
        self, training: Training, clouds: Clouds, checkpoint: Checkpoint | None = None
    ) -> list[Run]:
        """Train from each start; without steps they come back as they are."""
        max_iter = int(self.max_iter)
        if max_iter == 0:
            return [Run(model, np.inf, {}) for model in training.models]
        training.require_memory()
        require_plan_memory(clouds)  # or training would be in vain
        with (
            compiled_meanwhile(clouds, training.models[0].cost),
            TrainingBar(max_iter, enabled=bool(self.verbose)) as bar,
        ):
            return train(
                training.problem, training.models, batches=training.batches,
                checkpoint=checkpoint, on_interval=bar.update,
            )  # fmt: skip

    def _batches(self, problem: Problem, seed: int) -> Batches | None:
        if self.batch_size is None or self.batch_size >= max(len(problem.x), len(problem.y)):
            return None
        return Batches.of(problem, self.batch_size, seed)


def _validation(held_out: NDArray[np.int64], pairs: Pairs | None, dtype: Any) -> Pairs:
    """Pairs to choose by, in the shapes of the known ones so that all folds compile once."""
    size = max(len(held_out), 0 if pairs is None else len(pairs.source))
    table = np.concatenate([held_out, np.repeat(held_out[:1], size - len(held_out), axis=0)])
    chosen = Pairs.of(table, jnp.asarray(np.arange(size) < len(held_out), dtype))
    if pairs is None:
        return chosen
    return dataclasses.replace(chosen, rows=pairs.rows, columns=pairs.columns)


def check_terms(terms: Any, name: str) -> list[Weighted]:
    """Losses or penalties with their weights, from a list of objects and functions."""
    if isinstance(terms, Weighted) or callable(terms):
        terms = [terms]
    if not isinstance(terms, Sequence) or isinstance(terms, str):
        raise OptionError(
            f"{name} must be a list such as [Paired(), 0.1 * TargetFit()], got {terms!r}."
        )
    checked = []
    for entry in terms:
        weighted = entry if isinstance(entry, Weighted) else Weighted(entry)
        check_positive(float(weighted.weight), f"A weight in {name}", zero=True)
        term = weighted.term
        if isinstance(term, type) or not callable(term):
            hint = f" Write {term.__name__}()." if isinstance(term, type) else ""
            raise OptionError(f"{name} holds {term!r}, which is no loss or penalty.{hint}")
        checked.append(weighted)
    return checked


def _check_requirements(terms: Sequence[Any], known: Knowledge) -> None:
    """Refuse terms that need what was not given."""
    given = {"pairs": known.pairs, "groups": known.groups}
    for term in terms:
        requires = term.requires if isinstance(term, MapLoss | CostTerm) else None
        if requires is not None and given[requires] is None:
            raise DataError(
                f"{type(term).__name__}() needs {requires}: give fit(X, Y, {requires}=…), or leave "
                "it out."
            )


def _started(
    terms: Sequence[Any], clouds: Clouds, cost: Cost, epsilon: float, seed: int
) -> tuple[Any, ...]:
    """The terms, with the arrays of those that learn chosen for this cost."""
    if not any(isinstance(term, LearnedMapLoss) for term in terms):
        return tuple(terms)
    moves, weight = _first_displacements(clouds, cost, epsilon)
    return tuple(
        term.initialised(moves, weight, seed) if isinstance(term, LearnedMapLoss) else term
        for term in terms
    )


def _first_displacements(
    clouds: Clouds, cost: Cost, epsilon: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean displacements of the source points under the plan of a cost, and their weights."""
    P = np.asarray(solved_map(clouds, cost, epsilon).plan, np.float64)
    mass = P.sum(axis=1)
    mean = P @ np.asarray(clouds.y) / np.where(mass > 0, mass, 1.0)[:, None]
    return mean - np.asarray(clouds.x), mass
