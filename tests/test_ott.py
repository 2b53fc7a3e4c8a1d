"""The adapter: OTT's own Sinkhorn and potentials with a fitted h give our map."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

pytest.importorskip("ott", reason="OTT-JAX is not installed")

from ott.geometry import pointcloud
from ott.problems.linear import potentials
from ott.solvers import linear

from mongefit import Cost, build_map
from mongefit._convex import ICNN
from mongefit._flows import AutoregressiveFlow
from mongefit.ott import ConvexCost
from tests.conftest import random_clouds
from tests.contracts.families import shaken

pytestmark = pytest.mark.usefixtures("x64")


def build(seed=0):
    h = shaken(ICNN(2, (8, 6), key=jr.key(seed), symmetric=False, gain=2.0))
    flows = (
        shaken(AutoregressiveFlow(2, key=jr.key(k), n_blocks=2, width=4), seed=k) for k in (1, 2)
    )
    return Cost(h, *flows)


def test_ott_solves_and_transports_with_a_fitted_h_on_latent_points():
    cost = build()
    # Uniform weights: OTT's forward map counts other target weights twice.
    x, y, _, _ = map(jnp.asarray, random_clouds(12, 12))

    @eqx.filter_jit
    def ours(cost):
        entropic_map, _ = build_map(cost, x, y, epsilon=0.05)
        plan = entropic_map.plan()
        return plan, entropic_map.forward(x), entropic_map.reverse(y), entropic_map.eps

    @eqx.filter_jit
    def theirs(cost, eps):
        u, v = cost.latent_source(x), cost.latent_target(y)
        geometry = pointcloud.PointCloud(u, v, cost_fn=ConvexCost(cost.h), epsilon=eps)
        solution = linear.solve(geometry, threshold=1e-12, max_iterations=50_000)
        duals = solution.to_dual_potentials()
        forward = cost.target_from_latent(duals.transport(u))
        return solution.matrix, forward, cost.source_from_latent(duals.transport(v, forward=False))

    plan, forward, reverse, eps = ours(cost)
    ott_plan, ott_forward, ott_reverse = theirs(cost, eps)
    np.testing.assert_allclose(ott_plan, plan, atol=1e-8)
    np.testing.assert_allclose(ott_forward, forward, atol=1e-7)
    np.testing.assert_allclose(ott_reverse, reverse, atol=1e-7)


def test_legendre_transform_is_the_conjugate():
    h = build().h
    adapter = ConvexCost(h)
    z = jr.normal(jr.key(3), (5, 2))
    p, value = h.gradient(z), h.value(z)
    conjugate, slope = jax.jit(jax.vmap(jax.value_and_grad(adapter.h_legendre)))(p)
    # Fenchel–Young: equality at p = ∇h(z).
    np.testing.assert_allclose(conjugate + value, jnp.sum(z * p, axis=1), atol=1e-9)
    np.testing.assert_allclose(slope, z, atol=1e-9)


def test_maps_of_otts_potentials_have_a_derivative_in_h():
    h = build().h
    point = jnp.asarray([[0.3, -0.2]])

    @jax.jit
    def moved(log_gain):
        adapter = ConvexCost(eqx.tree_at(lambda h: h.log_gain, h, log_gain))
        duals = potentials.DualPotentials(lambda x: jnp.sum(x**2), None, cost_fn=adapter)
        return jnp.sum(duals.transport(point))

    slope = float(jax.grad(moved)(h.log_gain))
    difference = float(moved(h.log_gain + 1e-5) - moved(h.log_gain - 1e-5)) / 2e-5
    assert abs(slope) > 1e-3
    assert slope == pytest.approx(difference, rel=1e-6)
