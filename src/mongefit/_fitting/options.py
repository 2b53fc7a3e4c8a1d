"""Options of a fit: checked, and turned into costs, losses and solvers."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from mongefit._convex import (
    ICNN,
    ConvexFunction,
    LearnedMatrix,
    LowRankMatrix,
    SquaredEuclidean,
)
from mongefit._costs import Cost, LegCosts
from mongefit._duals import Differentiation, DualSolver, NewtonDual, SinkhornDual
from mongefit._fitting.data import Clouds, Leg
from mongefit._fitting.starting import STARTED, Start, source_map, start
from mongefit._flows import AutoregressiveFlow, Diffeo
from mongefit._inverse import ConjugateICNN
from mongefit._options import FitOptions
from mongefit._registry import is_ours
from mongefit._runtime import draw_on_cpu, filter_jit
from mongefit._validation import (
    check_choice,
    check_count,
    check_layers,
    check_positive,
    check_schedule,
    check_seed,
    check_switch,
    check_tau,
)
from mongefit.errors import DataError, OptionError, wrong_option
from mongefit.losses import FunctionTerm, Term, Weighted
from mongefit.penalties import CostSize, Departure

LEARNED: dict[str, Any] = {"icnn": ICNN, "conjugate_icnn": ConjugateICNN}
COSTS = (*LEARNED, "matrix", "sqeuclidean")
DIFFEOS = (*STARTED, "shared", "separate")
# Above so many features a learned matrix is diagonal plus low rank.
FULL_MATRIX = 64
DUALS = {"newton": NewtonDual, "sinkhorn": SinkhornDual}
# What training does for each way that users may ask for.
DIFFERENTIATIONS: dict[str, Differentiation] = {"implicit": "one_step", "unrolled": "unrolled"}
DTYPES = ("float64", "mixed", "float32")


class Checked(NamedTuple):
    """Options that were checked and brought to one form."""

    schedules: dict[str, Any]
    taus: dict[str, float]
    seed: int
    penalties: list[Weighted]
    dual_solver: DualSolver
    spared: float


def check_options(options: FitOptions) -> Checked:
    """Refuse options that make no sense, before any work."""
    for name in ("symmetric", "debias", "many_to_many", "normalize_weight", "strict"):
        check_switch(getattr(options, name), name)
    check_choice(options.dtype, "dtype", DTYPES)
    schedules = {
        name: check_schedule(getattr(options, name), name)
        for name in ("epsilon", "learning_rate", "diffeo_learning_rate")
    }
    taus = {name: check_tau(getattr(options, name), name) for name in ("tau_a", "tau_b")}
    seed = check_seed(options.random_state)
    check_count(options.max_iter, "max_iter")
    if options.batch_size is not None:
        check_count(options.batch_size, "batch_size", minimum=2)
    check_count(options.n_init, "n_init", minimum=1)
    dual = options.dual
    if not isinstance(dual, DualSolver):
        dual = DUALS[check_choice(dual, "dual", DUALS, others="a DualSolver")]()
    check_choice(options.differentiate, "differentiate", DIFFERENTIATIONS)
    if not isinstance(options.optimizer, optax.GradientTransformation | None):
        needed = "an optimizer of optax, such as optax.adam(0.01)"
        raise wrong_option("optimizer", needed, options.optimizer)
    penalties = options.penalties
    if penalties is None:
        started = isinstance(options.diffeo, str) and options.diffeo in STARTED
        penalties = [1e-7 * CostSize(), *([1e-3 * Departure()] if started else [])]
    spared = options.validation_fraction
    if isinstance(spared, bool) or not isinstance(spared, Real) or not 0 <= spared < 1:
        raise wrong_option("validation_fraction", "a number from 0 to below 1", spared)
    penalties = check_terms(penalties, "penalties")
    return Checked(schedules, taus, seed, penalties, dual, float(spared))


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
        own = term if isinstance(term, Term) else FunctionTerm(term)
        checked.append(Weighted(own, weighted.weight))
    return checked


@jax.jit
def _keys(seed: int) -> tuple[PRNGKeyArray, ...]:
    """Keys of the function and of two flows."""
    return tuple(jr.split(jr.key(seed), 3))


def _draw(
    family: type[ConvexFunction], dim: int, sizes: tuple[int, ...], seed: np.ndarray, **options: Any
) -> ConvexFunction:
    return family(dim, sizes, key=_keys(seed)[0], **options)


# As one, or each shape would be compiled for itself; and not optimised, for it runs once.
_drawn = filter_jit(_draw, compiler_options={"xla_backend_optimization_level": 0})


def build_costs(
    legs: Sequence[Leg], roles: Sequence[tuple[int, int]], options: FitOptions, seed: int
) -> LegCosts:
    """The costs of all legs at the start of training.

    ``roles`` numbers the clouds of each leg; those with one number share a flow if each has its
    own.
    """
    dim = legs[0].clouds.dim
    alpha = check_positive(options.alpha, "alpha")
    sizes = check_layers(options.hidden_layer_sizes)
    cost, diffeo = options.cost, options.diffeo
    kind = diffeo if isinstance(diffeo, str) and diffeo in STARTED else None
    begin = Start(None, None)
    if kind is not None or (isinstance(cost, str) and cost == "matrix"):
        begin = start(kind, legs)
    if isinstance(cost, ConvexFunction):
        h = cost
        try:
            eqx.filter_eval_shape(h.value_and_gradient, jax.ShapeDtypeStruct((1, dim), jnp.float64))
        except TypeError as error:
            raise DataError(
                f"The cost is made for another number of features than the {dim} of the data."
            ) from error
    elif check_choice(cost, "cost", COSTS, others="a ConvexFunction") in LEARNED:
        own = {"symmetric": options.symmetric, "alpha": alpha}
        h = draw_on_cpu(_drawn, LEARNED[cost], dim, sizes, np.asarray(seed), **own)
    elif cost == "matrix":
        # Twice α leaves the factor of each direction a derivative.
        A = begin.matrix(dim, 2 * alpha)
        if dim <= FULL_MATRIX:
            h = LearnedMatrix(dim, alpha=alpha, matrix=A)
        else:
            h = LowRankMatrix(dim, key=_keys(seed)[0], alpha=alpha, matrix=A)
    else:
        h = SquaredEuclidean()
    if diffeo is None:
        return LegCosts(h, (), ((None, None),) * len(legs))
    if isinstance(diffeo, Diffeo):
        return LegCosts(h, (diffeo,), ((0, 0),) * len(legs))
    is_pair = isinstance(diffeo, tuple) and len(diffeo) == 2
    if is_pair and all(isinstance(phi, Diffeo | None) for phi in diffeo):
        given = {id(phi): phi for phi in diffeo if isinstance(phi, Diffeo)}
        source, target = (None if phi is None else list(given).index(id(phi)) for phi in diffeo)
        return LegCosts(h, tuple(given.values()), ((source, target),) * len(legs))
    check_choice(diffeo, "diffeo", DIFFEOS, others="None, a Diffeo or a pair of them")
    if diffeo in STARTED:
        return LegCosts(h, (source_map(diffeo, begin.regression, legs),), ((0, None),) * len(legs))
    keys = _keys(seed)[1:]
    if diffeo == "shared":
        return LegCosts(h, (AutoregressiveFlow(dim, key=keys[0]),), ((0, 0),) * len(legs))
    count = 1 + max(max(pair) for pair in roles)
    keys += tuple(jr.fold_in(keys[-1], k) for k in range(2, count))
    flows = tuple(AutoregressiveFlow(dim, key=key) for key in keys[:count])
    return LegCosts(h, flows, tuple(roles))


def check_convex(cost: Cost, clouds: Clouds) -> None:
    """Refuse an own h that is not convex between points of the data."""
    h = cost.h
    if is_ours(type(h)):
        return
    # Always as many points, so that one program serves clouds of any size.
    u, v = (np.resize(np.asarray(each), (64, clouds.dim)) for each in (clouds.x, clouds.y))
    hessian = np.asarray(h.hessian(jnp.asarray(u - np.roll(v, 1, axis=0))))
    if not np.all(np.isfinite(hessian)):
        raise OptionError(f"The Hessian of {type(h).__name__} is not finite between the clouds.")
    eigenvalues = np.linalg.eigvalsh(hessian)
    if eigenvalues.min() < -1e-8 * max(eigenvalues.max(), 1.0):
        raise OptionError(
            f"{type(h).__name__} is not convex: between the clouds its Hessian has the eigenvalue "
            f"{eigenvalues.min():.3g}. The map needs a strictly convex h."
        )
