"""θ-derivatives through dual, inverse gradient and flows against central differences."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit.conjugate import NewtonInverse
from mongefit.convex import ICNN, SquaredEuclidean
from mongefit.costs import Cost
from mongefit.diffeos import AutoregressiveFlow
from mongefit.duals import NewtonDual, SinkhornDual
from mongefit.losses import Paired, Pairs
from mongefit.maps import build_map
from mongefit.penalties import CostSize
from mongefit.training import Problem, Schedule, WarmStart, objective, trainable
from tests.conftest import random_clouds
from tests.contracts.families import shaken

EPSILON = 0.05


def build_cost(flows, *, symmetric, learned=True):
    h = ICNN(2, (8, 6), key=jr.key(0), symmetric=symmetric, gain=1.0)
    made = [
        shaken(AutoregressiveFlow(2, key=jr.key(k), n_blocks=2, width=4), 0.2, seed=k)
        for k in (1, 2)
    ]
    arrangement = {"none": (None, None), "shared": (made[0], made[0]), "separate": tuple(made)}
    return Cost(shaken(h, 0.2) if learned else SquaredEuclidean(), *arrangement[flows])


def paired_problem(clouds, k, **options):
    x, y, a, b = map(jnp.asarray, clouds)
    return Problem(
        x, y, a, b,
        pairs=Pairs(jnp.arange(k), jnp.arange(k)[::-1], 1.0 + jnp.arange(k)),
        terms=((1.0, Paired()), (1e-3, CostSize())),
        epsilon=Schedule(EPSILON, EPSILON),
        learning_rate=Schedule(0.01, 0.01),
        diffeo_learning_rate=Schedule(0.01, 0.01),
        max_iter=1,
        **options,
    )  # fmt: skip


@eqx.filter_jit
def slopes_and_differences(problem, cost, directions):
    """Directional derivatives of the training objective and their central differences."""
    parameters, fixed = eqx.partition(cost, trainable(cost))
    scale = objective_scale(problem, cost)
    warm = WarmStart(
        jnp.zeros_like(problem.b), jnp.zeros((2 * len(problem.pairs.source), problem.x.shape[1]))
    )

    def value(parameters):
        cost = eqx.combine(parameters, fixed)
        # The mean cost behind eps is held constant by definition, so hold it for both sides.
        frozen = EPSILON * scale / objective_scale(problem, cost)
        return objective(problem, cost, jax.lax.stop_gradient(frozen), warm)[0]

    def along(direction):
        ahead, behind = jax.lax.map(
            lambda t: value(jax.tree.map(lambda p, v: p + t * v, parameters, direction)),
            jnp.asarray([1e-5, -1e-5]),
        )
        return (ahead - behind) / 2e-5

    gradient = jax.grad(value)(parameters)
    slopes = jax.vmap(
        lambda direction: sum(
            jnp.vdot(g, v)
            for g, v in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
        )
    )(directions)
    return slopes, jax.lax.map(along, directions)


def objective_scale(problem, cost):
    return problem.a @ cost.matrix(problem.x, problem.y) @ problem.b


CASES = {
    # (flows, symmetric, uniform weights, all pairs known, dual solver)
    "no flow, symmetric, uniform": ("none", True, True, True, NewtonDual(1e-12)),
    "no flow, asymmetric, weighted, few pairs": ("none", False, False, False, NewtonDual(1e-12)),
    "shared, symmetric, weighted": ("shared", True, False, True, NewtonDual(1e-12)),
    "separate, asymmetric, uniform, few pairs": (
        "separate", False, True, False, SinkhornDual(1e-12, 100_000),
    ),
    "separate, fixed h, weighted": ("separate", None, False, True, NewtonDual(1e-12)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_training_gradient_agrees_with_central_differences(case):
    flows, symmetric, uniform, full, solver = case
    cost = build_cost(flows, symmetric=bool(symmetric), learned=symmetric is not None)
    problem = paired_problem(
        random_clouds(12, 12, uniform=uniform),
        12 if full else 3,
        dual_solver=solver,
        inverse_solver=NewtonInverse(1e-12),
    )
    parameters = eqx.filter(cost, trainable(cost))
    keys = iter(jr.split(jr.key(3), 100))
    directions = jax.tree.map(lambda leaf: jr.normal(next(keys), (4, *leaf.shape)), parameters)
    slopes, differences = slopes_and_differences(problem, cost, directions)
    assert np.all(np.abs(slopes) > 1e-4)
    np.testing.assert_array_less(np.abs(slopes - differences), 1e-6 * np.maximum(1, np.abs(slopes)))


def test_a_map_at_new_points_is_differentiable_in_the_cost():
    """`build_map` and `EntropicMap.forward` under one `jax.grad`."""
    cost = build_cost("none", symmetric=False)
    x, y, a, b = map(jnp.asarray, random_clouds(12, 12, uniform=False))
    queries = jnp.asarray(random_clouds(6, 6, seed=9).x)
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
