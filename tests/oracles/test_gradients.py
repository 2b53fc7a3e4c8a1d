"""θ-derivatives through dual, inverse gradient and flows against central differences."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from mongefit._convex import ICNN, SquaredEuclidean
from mongefit._costs import Cost
from mongefit._duals import DualSolver, NewtonDual, SinkhornDual
from mongefit._fitting.options import DIFFERENTIATIONS
from mongefit._flows import AutoregressiveFlow
from mongefit._inverse import ConjugateICNN, NewtonInverse
from mongefit._training import (
    CostProblem,
    Model,
    Recipe,
    initial_state,
    objective,
    run_interval,
    trainable,
)
from mongefit._transport import build_map
from mongefit.losses import (
    CorrectMass,
    Directional,
    Groups,
    Likelihood,
    LowRank,
    Paired,
    Pairs,
    Subset,
    Subsets,
    TargetFit,
    WrongMass,
)
from mongefit.penalties import CostSize
from tests.conftest import random_clouds
from tests.contracts.families import shaken

EPSILON = 0.1
# With rate 1 a step is minus the gradient that training uses. The rate is part of the state, and
# another one is not compiled for.
DESCENT = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)


def build_cost(flows, *, family="h", symmetric=True, seed=0):
    made = [
        shaken(AutoregressiveFlow(2, key=jr.key(k), n_blocks=2, width=4), 0.2, seed=k + 10 * seed)
        for k in (1, 2)
    ]
    arrangement = {"none": (None, None), "shared": (made[0], made[0]), "separate": tuple(made)}
    families = {"h": ICNN, "h*": ConjugateICNN, "fixed": lambda *_, **__: SquaredEuclidean()}
    h = families[family](2, (8, 6), key=jr.key(0), symmetric=symmetric, gain=1.0)
    return Cost(shaken(h, 0.2, seed=7 + seed), *arrangement[flows])


def build_problem(*, uniform, k, terms, seed=0, **options):
    x, y, a, b = map(jnp.asarray, random_clouds(12, 12, uniform=uniform, seed=seed))
    members = [np.arange(0, 5), np.arange(6, 9)], [np.arange(2, 8), np.arange(8, 12)]
    recipe = Recipe(
        [term.name for term in terms],
        weight=[1.0] * (len(terms) - 1) + [1e-3],
        n_losses=len(terms) - 1,
        epsilon=(EPSILON, EPSILON),
        learning_rate=(1.0, 1.0),
        max_iter=9,
        optimizer=DESCENT,
    )
    return CostProblem(
        recipe=recipe, x=x, y=y, a=a, b=b,
        pairs=Pairs.of(np.stack([np.arange(k), np.arange(k)[::-1]], axis=1), 1.0 + jnp.arange(k)),
        subsets=Subsets(Subset.of(members[0], a), Subset.of(members[1], b)),
        **options,
    )  # fmt: skip


@eqx.filter_jit
def differences(problem, model, directions):
    """Central differences of the training objective, with the mean cost behind eps frozen."""
    parameters, fixed = eqx.partition(model, trainable(model))
    scale, warm = mean_cost(problem, model), initial_state(problem, model).warm

    def value(t, direction):
        moved = jax.tree.map(lambda p, v: p + t * v, parameters, direction)
        model = eqx.combine(moved, fixed)
        epsilon = EPSILON * scale / mean_cost(problem, model)
        return objective(problem, model, epsilon, warm, jnp.asarray(0))[0]

    def along(direction):
        ahead, behind = jax.lax.map(lambda t: value(t, direction), jnp.asarray([1e-5, -1e-5]))
        return (ahead - behind) / 2e-5

    return jax.lax.map(along, directions)


def with_rate(state, rate):
    return eqx.tree_at(
        lambda state: state.optimizer.hyperparams["learning_rate"], state, jnp.asarray(rate, float)
    )


def mean_cost(problem, model):
    return problem.a @ model.cost.matrix(problem.x, problem.y) @ problem.b


class Case(NamedTuple):
    """One arrangement of everything that training can be made of."""

    flows: str
    family: str
    symmetric: bool
    differentiate: str
    dual: DualSolver
    uniform: bool
    losses: tuple


DIRECTIONAL = Directional(2, directions=np.array([[1.0, 0.2], [-0.3, 0.5]]))
NEWTON, SINKHORN = NewtonDual(1e-12), SinkhornDual(1e-12, 100_000)

# Every two settings of flows, family, symmetry, differentiation and dual solver meet in a case.
CASES = [
    Case("none", "h", True, "implicit", NEWTON, True, (Paired(),)),
    Case("none", "h*", False, "unrolled", SINKHORN, False, (Groups(),)),
    Case("shared", "h", False, "unrolled", NEWTON, False, (DIRECTIONAL, TargetFit())),
    Case("shared", "h*", True, "implicit", SINKHORN, True, (Paired(direction="reverse"),)),
    Case("separate", "h", True, "unrolled", SINKHORN, True, (LowRank(1), Paired())),
    Case("separate", "h*", False, "implicit", NEWTON, False, (TargetFit(direction="forward"),)),
    Case("separate", "fixed", True, "implicit", NEWTON, False, (Paired(),)),
    Case("none", "h", False, "implicit", SINKHORN, False, (CorrectMass(), WrongMass())),
    Case("shared", "h", True, "implicit", NEWTON, False, (Likelihood(), Paired())),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:4])))
def test_training_gradient_agrees_with_central_differences(case, campaign):
    # What is unrolled is only as good as its number of iterations is large for the problem.
    tried = campaign.pick(2, 70 if case.differentiate == "implicit" else 2)
    compared = sum(check_gradient(case, seed) for seed in range(tried))
    assert compared >= 0.95 * tried
    campaign.count("gradient problems, 3 directions each", compared)


def check_gradient(case, seed):
    """Compare; False where a solve said that it did not converge, so that there is no gradient."""
    cost = build_cost(case.flows, family=case.family, symmetric=case.symmetric, seed=seed)
    model = Model(cost, (*case.losses, CostSize()))
    problem = build_problem(
        uniform=case.uniform,
        k=12 if case.uniform else 3,
        terms=model.terms,
        dual_solver=case.dual,
        inverse_solver=NewtonInverse(1e-12),
        differentiate=DIFFERENTIATIONS[case.differentiate],
        seed=seed,
    )
    parameters = eqx.filter(model, trainable(model))
    keys = iter(jr.split(jr.key(3 + seed), 100))
    directions = jax.tree.map(lambda leaf: jr.normal(next(keys), (3, *leaf.shape)), parameters)
    start = initial_state(problem, model)
    stepped, info = run_interval(problem, start, 1)
    if not info.applied[0]:
        return False
    moved = eqx.filter(stepped.model, trainable(stepped.model))
    slopes = sum(
        jnp.einsum("...,k...->k", before - after, way)
        for before, after, way in zip(
            *map(jax.tree.leaves, (parameters, moved, directions)), strict=True
        )
    )
    expected = differences(problem, model, directions)
    assert np.any(np.abs(slopes) > 1e-4)
    np.testing.assert_array_less(np.abs(slopes - expected), 1e-6 * np.maximum(1, np.abs(slopes)))
    # A few steps, short enough that each of them must help.
    state, values = with_rate(start, float(1e-3 / info.gradient_norm[0])), []
    for _ in range(3):
        state, info = run_interval(problem, state, 1)
        assert info.applied[0]
        values.append(float(info.objective[0]))
    assert values[0] > values[1] > values[2]
    return True


def test_a_map_at_new_points_is_differentiable_in_the_cost():
    """`build_map` and `EntropicMap.forward` under one `jax.grad`."""
    cost = build_cost("none", symmetric=False)
    x, y, a, b = map(jnp.asarray, random_clouds(12, 12, uniform=False))
    queries = random_clouds(6, 6, seed=9).x  # of NumPy, into a map that is traced
    eps = EPSILON * (a @ cost.matrix(x, y) @ b)

    def value(log_gain):
        moved = eqx.tree_at(lambda c: c.h.log_gain, cost, log_gain)
        epsilon = jax.lax.stop_gradient(eps / (a @ moved.matrix(x, y) @ b))
        entropic_map, _ = build_map(
            moved, x, y, a=a, b=b, epsilon=epsilon,
            dual_solver=NewtonDual(1e-12), inverse_solver=NewtonInverse(1e-12),
        )  # fmt: skip
        return jnp.sum(jnp.cos(entropic_map.forward(queries)))

    slope = jax.jit(jax.grad(value))(cost.h.log_gain)
    ahead, behind = jax.jit(lambda at: jax.lax.map(value, at + jnp.asarray([1e-5, -1e-5])))(
        cost.h.log_gain
    )
    assert abs(slope) > 1e-4
    assert abs(slope - (ahead - behind) / 2e-5) <= 1e-6 * max(1, abs(slope))
