"""ElasticMap: a planted subspace is found, and the loss has the right value and derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest

from mongefit import Cost, Mahalanobis, SinkhornDual
from mongefit._duals import DualProblem, solve_dual
from mongefit.baselines._elastic import ElasticCost, OffSubspace
from mongefit.losses import Context
from tests.baselines.families import BASELINES, M, X

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]

GAMMA = 5.0


def test_a_planted_subspace_is_found():
    """The target is another sample of the source, moved in one direction by various lengths."""
    rng = np.random.default_rng(0)
    direction = np.array([0.6, -0.8])
    target = rng.normal(size=(M, 2)) + rng.uniform(2, 5, size=(M, 1)) * direction
    model = BASELINES["elastic"]()
    found = {}
    for steps in (0, 60):
        model.set_params(max_iter=steps).fit(X, target)
        np.testing.assert_allclose(model.basis_.T @ model.basis_, np.eye(1), atol=1e-12)
        found[steps] = abs(direction @ model.basis_[:, 0])
    assert found[0] < 0.9 and found[60] > 0.98
    assert model.history_["loss"][-1] < 0.5 * model.history_["loss"][0]
    # Movement out of the subspace is dearer, so there is less of it than without it.
    beside = np.array([[0.8], [0.6]])
    outside = np.abs((model.transform(X) - X) @ beside).mean()
    euclidean = BASELINES["Euclidean"]().fit(X, target)
    assert outside < 0.85 * np.abs((euclidean.transform(X) - X) @ beside).mean()


def test_the_cost_is_a_quadratic_form(x64):
    basis = np.random.default_rng(1).normal(size=(3, 2))
    projection = basis @ np.linalg.pinv(basis)
    matrix = np.eye(3) + GAMMA * (np.eye(3) - projection)
    z = np.random.default_rng(2).normal(size=(8, 3))
    found = ElasticCost(jnp.asarray(basis), GAMMA).value_and_gradient(z)
    for part, expected in zip(found, Mahalanobis(matrix).value_and_gradient(z), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)


def test_value_and_derivative_of_the_loss(x64):
    """⟨P, τ_A⟩ with the plan of POT; its derivative, through the plan and QR, by differences."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(6, 3)) + 1
    a, b = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(6))
    start, step = rng.normal(size=(2, 3, 2))
    eps = 0.5

    def loss(basis):
        cost = Cost(ElasticCost(basis, GAMMA))
        C = cost.matrix(x, y)
        problem = DualProblem(C, a, b, eps=eps)
        dual = solve_dual(problem, solver=SinkhornDual(tol=1e-13))
        P = problem.plan(dual.f, dual.g)
        return OffSubspace()(Context(cost, x, y, a, b, C, P, None, None, x, y))

    along = jax.jit(jax.value_and_grad(lambda t: loss(start + t * step)))
    value, slope = along(0.0)
    outside = (x[:, None] - y[None]) @ (np.eye(3) - start @ np.linalg.pinv(start))
    tau = 0.5 * np.sum(outside**2, axis=-1)
    C = 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1) + GAMMA * tau
    P = ot.bregman.sinkhorn_log(a, b, C, eps, numItermax=99_999, stopThr=1e-14)
    np.testing.assert_allclose(value, np.sum(P * tau), rtol=1e-9)
    difference = (along(1e-5)[0] - along(-1e-5)[0]) / 2e-5
    assert abs(slope) > 0.1
    assert abs(slope - difference) < 1e-6 * max(1, abs(difference))
