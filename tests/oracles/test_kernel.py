"""The training step and `EntropicMap` share one kernel: both give the same maps and weights."""

from __future__ import annotations

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


@pytest.mark.parametrize("flows", ["none", "shared", "separate"])
@pytest.mark.parametrize("name", ["ICNN asymmetric", "ICNN symmetric", "power 3", "Mahalanobis"])
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
        SEEN.clear()
        found = problem.evaluate(model, jnp.asarray(0.1), problem.cold_start(model), jnp.asarray(0))
        forward, reverse, P = SEEN[-1]
        assert found.ok
        fitted, dual = build_map(cost, x, y, epsilon=0.1, a=a, b=b)
        assert dual.converged
        np.testing.assert_allclose(forward, fitted.forward(x), atol=1e-9)
        np.testing.assert_allclose(reverse, fitted.reverse(y), atol=1e-9)
        np.testing.assert_allclose(P, fitted.plan(), atol=1e-11)
        # Against the formula, with nothing of ours but h and its flows.
        u, v = cost.latent_source(x), cost.latent_target(y)
        z = u[:, None] - v
        C = cost.h.value(z.reshape(-1, DIM)).reshape(N, M)
        solved = solve_dual(DualProblem(C, a, b, eps=0.1 * (a @ C @ b)))
        s = jax.nn.softmax(jnp.log(b) + (solved.g - C) / (0.1 * (a @ C @ b)), axis=1)
        p = jnp.einsum("nm,nmd->nd", s, cost.h.gradient(z.reshape(-1, DIM)).reshape(z.shape))
        moved = u - cost.latent_target(fitted.forward(x))
        np.testing.assert_allclose(cost.h.gradient(moved), p, atol=1e-7)
