"""The training step and `EntropicMap` share one kernel: both give the same maps and weights."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._costs import Cost
from mongefit._duals import DualProblem, solve_dual
from mongefit._training import CostProblem, Model, Recipe
from mongefit._transport import build_map
from mongefit.losses import Term
from tests.contracts.families import CONVEX, DIFFEOS

N, M, DIM = 7, 6, 2


class Images(Term):
    """Keeps what the step computed; every term sees the same context."""

    def __call__(self, context):
        SEEN.append((context.forward, context.reverse, context.P))
        return jnp.sum(context.forward) + jnp.sum(context.reverse)


SEEN: list = []


# Every h as it is, and every arrangement of flows with two of them.
CASES = [
    *((name, "none") for name in ("ICNN asymmetric", "ICNN symmetric", "power 3", "Mahalanobis")),
    ("ICNN symmetric", "shared"), ("power 3", "shared"),
    ("ICNN asymmetric", "separate"), ("Mahalanobis", "separate"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "flows"), CASES)
def test_the_step_and_the_map_agree(name, flows):
    with jax.enable_x64(True):
        x, y = jr.normal(jr.key(0), (N, DIM)), jr.normal(jr.key(1), (M, DIM)) + 0.3
        a, b = (jax.nn.softmax(jr.normal(jr.key(k), (size,))) for k, size in ((2, N), (3, M)))
        first, second = DIFFEOS["one block"](DIM), DIFFEOS["three blocks"](DIM)
        phis = {"none": (), "shared": (first, first), "separate": (first, second)}[flows]
        cost = Cost(CONVEX[name](DIM), *phis)
        recipe = Recipe(["Images"], epsilon=(0.1, 0.1), learning_rate=(1e-3, 1e-3), max_iter=1)
        problem = CostProblem(
            x=x, y=y, a=a, b=b, pairs=None, subsets=None, recipe=recipe
        )  # fmt: skip
        model = Model(cost, (Images(),))

        @eqx.filter_jit
        def both(problem, model):
            cold = problem.cold_start(model)
            found = problem.evaluate(model, jnp.asarray(0.1), cold, jnp.asarray(0))
            fitted, dual = build_map(cost, x, y, epsilon=0.1, a=a, b=b)
            mapped = fitted.forward(x), fitted.reverse(y), fitted.plan()
            return found.ok & dual.converged, SEEN.pop(), mapped

        @eqx.filter_jit
        def by_the_formula(cost, mapped):
            """The same momentum twice, with nothing of ours but h and its flows."""
            u, v = cost.latent_source(x), cost.latent_target(y)
            z = u[:, None] - v
            C = cost.h.value(z.reshape(-1, DIM)).reshape(N, M)
            solved = solve_dual(DualProblem(C, a, b, eps=0.1 * (a @ C @ b)))
            s = jax.nn.softmax(jnp.log(b) + (solved.g - C) / (0.1 * (a @ C @ b)), axis=1)
            p = jnp.einsum("nm,nmd->nd", s, cost.h.gradient(z.reshape(-1, DIM)).reshape(z.shape))
            return cost.h.gradient(u - cost.latent_target(mapped)), p

        ok, seen, mapped = both(problem, model)
        assert ok
        for one, other, atol in zip(seen, mapped, (1e-9, 1e-9, 1e-11), strict=True):
            np.testing.assert_allclose(one, other, atol=atol)
        np.testing.assert_allclose(*by_the_formula(cost, mapped[0]), atol=1e-7)
