"""Unequal mass: plans, values, derivatives and growth where weights are not kept exactly."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest
from ott.geometry.geometry import Geometry
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn

from mongefit import (
    Cost,
    DualProblem,
    NewtonDual,
    SinkhornDual,
    SquaredEuclidean,
    build_map,
    solve_dual,
    transport_value,
)
from mongefit.errors import OptionError
from tests.conftest import random_clouds

TAUS = (0.5, 0.9, 0.99, 0.999, 1.0)
RELAXED = [pair for pair in itertools.product(TAUS, TAUS) if pair != (1.0, 1.0)]


def costs(n=30, m=20, *, uniform=False, seed=0):
    x, y, a, b = random_clouds(n, m, uniform=uniform, seed=seed)
    return 0.5 * ((x[:, None] - y) ** 2).sum(-1), a, b


def problem(C, a, b, epsilon=0.05, tau_a=1.0, tau_b=1.0):
    return DualProblem(C, a, b, eps=epsilon * (a @ C @ b), tau_a=tau_a, tau_b=tau_b)


solve = jax.jit(lambda problem, g=None: solve_dual(problem, g_init=g))


def rho(tau, eps):
    return np.inf if tau == 1 else eps * tau / (1 - tau)


@pytest.mark.parametrize(("tau_a", "tau_b"), RELAXED)
def test_plans_are_those_of_pot(tau_a, tau_b):
    C, a, b = costs()
    one = problem(C, a, b, tau_a=tau_a, tau_b=tau_b)
    found = solve(one)
    assert found.converged and found.error < 1e-12
    eps = float(one.eps)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        a, b, C, eps, (rho(tau_a, eps), rho(tau_b, eps)), reg_type="kl", numItermax=100_000,
        stopThr=1e-14,
    )  # fmt: skip
    np.testing.assert_allclose(one.plan(found.f, found.g), expected, atol=1e-9)


@pytest.mark.parametrize(("tau_a", "tau_b"), [(0.9, 0.9), (0.5, 1.0), (1.0, 0.99), (0.999, 0.5)])
def test_plans_and_values_are_those_of_ott(tau_a, tau_b):
    """OTT regularises by the entropy of the plan: its cost is ours less eps log(a_i b_j)."""
    C, a, b = costs()
    one = problem(C, a, b, tau_a=tau_a, tau_b=tau_b)
    found, eps = solve(one), float(one.eps)
    prior = eps * np.log(np.outer(a, b))
    other = LinearProblem(
        Geometry(cost_matrix=jnp.asarray(C - prior), epsilon=eps), a, b, tau_a=tau_a, tau_b=tau_b
    )
    theirs = Sinkhorn(threshold=1e-12, max_iterations=100_000)(other)
    P = one.plan(found.f, found.g)
    np.testing.assert_allclose(P, theirs.matrix, atol=1e-9)
    # The objective itself, from the plan: KL against a ⊗ b, and ρ KL of each marginal.

    def kl(p, q):
        return jnp.sum(p * jnp.log(p / q) - p + q)

    value = jnp.sum(P * C) + eps * kl(P, np.outer(a, b))
    for tau, mass, weight in ((tau_a, P.sum(1), a), (tau_b, P.sum(0), b)):
        value += 0 if tau == 1 else rho(tau, eps) * kl(mass, weight)
    np.testing.assert_allclose(transport_value(one).value, value, rtol=1e-9)


def test_with_tau_one_nothing_changes():
    C, a, b = costs()
    plain = DualProblem(C, a, b, eps=0.1)
    same = DualProblem(C, a, b, eps=0.1, tau_a=1, tau_b=1.0)
    assert same.tau_a is None and same.balanced
    for one, other in zip(jax.tree.leaves(solve(plain)), jax.tree.leaves(solve(same)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tau_that_goes_to_one_ends_in_the_plan_that_keeps_weights():
    C, a, b = costs()
    plain = problem(C, a, b)
    kept = plain.plan(solve(plain).f, solve(plain).g)
    gaps = []
    for tau in (0.9, 0.99, 0.999, 0.9999):
        one = problem(C, a, b, tau_a=tau, tau_b=tau)
        found = solve(one)
        gaps.append(float(jnp.abs(one.plan(found.f, found.g) - kept).sum()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 0.01


@pytest.mark.parametrize("bad", [0, -0.5, 1.5, np.nan, [0.5, 0.5]])
def test_strengths_outside_zero_to_one_are_refused(bad):
    C, a, b = costs()
    with pytest.raises(OptionError, match="tau_a must be a number above 0"):
        DualProblem(C, a, b, eps=0.1, tau_a=bad)


def test_both_solvers_agree():
    C, a, b = costs()
    one = problem(C, a, b, tau_a=0.8, tau_b=0.95)
    newton, sinkhorn = (solve_dual(one, solver=each) for each in (NewtonDual(), SinkhornDual()))
    assert newton.converged and sinkhorn.converged
    np.testing.assert_allclose(newton.f, sinkhorn.f, atol=1e-8)


def test_a_point_split_in_two_changes_nothing():
    C, a, b = costs()
    split = np.r_[C, C[:1]], np.r_[a, a[:1]] * np.r_[0.5, np.ones(len(a) - 1), 0.5], b
    first, second = (
        solve_dual(DualProblem(*each, eps=0.1, tau_a=0.9, tau_b=0.8)) for each in ((C, a, b), split)
    )
    np.testing.assert_allclose(first.f, second.f[:-1], atol=1e-9)
    np.testing.assert_allclose(first.g, second.g, atol=1e-9)


def test_reverse_problem_and_mass():
    C, a, b = costs()
    one = problem(C, a, b, tau_a=0.7, tau_b=0.95)
    forwards, back = solve(one), solve(one.transposed())
    np.testing.assert_allclose(forwards.f, back.g, atol=1e-9)
    P = one.plan(forwards.f, forwards.g)
    np.testing.assert_allclose(P.sum(1), one.source_mass(forwards.f), atol=1e-10)
    np.testing.assert_allclose(P.sum(0), one.target_mass(forwards.g), atol=1e-10)


def test_far_points_lose_their_mass():
    C, _, b = costs()
    far = np.r_[C, np.full((1, len(b)), 100 * C.mean())]
    weight = np.full(len(far), 1 / len(far))
    one = DualProblem(far, weight, b, eps=0.1 * C.mean(), tau_a=0.9)
    found = solve(one)
    assert found.converged
    growth = one.source_mass(found.f) / weight
    assert growth[-1] < 1e-6 < 0.1 < growth[:-1].min()
    np.testing.assert_allclose(one.plan(found.f, found.g).sum(), 1, atol=1e-9)


def test_no_more_iterations_than_with_weights_kept():
    """Cold, and warm after a change of the costs by a few per cent; summed over problems."""
    more = {"cold": 0, "warm": 0}
    for seed, epsilon in itertools.product(range(3), (0.2, 0.05, 0.01)):
        C, a, b = costs(seed=seed)
        noise = np.random.default_rng(seed).normal(size=C.shape)
        changed = C * (1 + 0.02 * noise)
        found = {}
        for taus in ((1.0, 1.0), (0.9, 1.0), (1.0, 0.9), (0.99, 0.99)):
            first = problem(C, a, b, epsilon, *taus)
            cold = solve(first)
            again = solve(DualProblem(changed, a, b, eps=first.eps, tau_a=taus[0], tau_b=taus[1]),
                          cold.g)  # fmt: skip
            assert cold.converged and again.converged
            found[taus] = int(cold.iterations), int(again.iterations)
        kept = found.pop((1.0, 1.0))
        for cold, warm in found.values():
            more["cold"] += cold - kept[0]
            more["warm"] += warm - kept[1]
    assert more["cold"] <= 0 and more["warm"] <= 0


CASES = [(ta, tb, seed) for seed in range(100) for ta, tb in ((0.9, 1.0), (1.0, 0.8), (0.7, 0.95))]


def test_derivatives(campaign):
    """Of potentials, values, growth and maps, in both modes, against central differences."""
    some = CASES[: campaign.pick(9, len(CASES))]
    checked = jax.jit(_slopes)
    for tau_a, tau_b, seed in some:
        x, y, a, b = map(jnp.asarray, random_clouds(10, 8, uniform=False, seed=seed))
        rng = np.random.default_rng(seed)
        way = jnp.asarray(rng.normal(size=x.shape))
        # Strengths of 1 are None: one program for each kind.
        taus = tuple(None if tau == 1 else jnp.asarray(tau) for tau in (tau_a, tau_b))
        slope, forward, difference = checked(x, y, a, b, taus, way)
        scale = np.maximum(1, np.abs(slope))
        np.testing.assert_array_less(np.abs(slope - difference), 1e-6 * scale)
        np.testing.assert_array_less(np.abs(slope - forward), 1e-9 * scale)
    campaign.count("derivatives with unequal mass, 4 functions each", len(some))


def _slopes(x, y, a, b, taus, way):
    """Reverse and forward derivatives along a way that the sources move, and differences."""
    solver, eps = NewtonDual(1e-13), 0.1
    cost = Cost(SquaredEuclidean())

    def values(t):
        moved = x + t * way
        C = cost.matrix(moved, y)
        one = DualProblem(C, a, b, eps=eps, tau_a=taus[0], tau_b=taus[1])
        dual = solve_dual(one, solver=solver)
        # So that eps, which follows the mean cost, stays the same.
        epsilon = jax.lax.stop_gradient(eps / (a @ C @ b))
        fitted, _ = build_map(
            cost, moved, y, epsilon=epsilon, a=a, b=b, tau_a=taus[0], tau_b=taus[1],
            dual_solver=solver,
        )  # fmt: skip
        return jnp.stack(
            [
                jnp.sum(jnp.cos(dual.f)) + jnp.sum(jnp.sin(dual.g)),
                transport_value(one, solver=solver).value,
                jnp.sum(jnp.cos(fitted.growth(x))) + jnp.sum(jnp.sin(one.target_mass(dual.g))),
                jnp.sum(jnp.cos(fitted.forward(y))) + jnp.sum(jnp.cos(fitted.reverse(y))),
            ]
        )

    ahead, behind = jax.lax.map(values, jnp.asarray([1e-5, -1e-5]))  # compiled once
    zero = jnp.asarray(0.0)
    return jax.jacrev(values)(zero), jax.jacfwd(values)(zero), (ahead - behind) / 2e-5


def test_second_derivatives():
    C, a, b = costs(10, 8)
    way = np.random.default_rng(1).normal(size=C.shape)

    @jax.jit
    def slope(t):
        def value(t):
            one = DualProblem(C + t * way, a, b, eps=0.1, tau_a=0.9, tau_b=0.8)
            dual = solve_dual(one, solver=NewtonDual(1e-13))
            return jnp.sum(jnp.cos(dual.g)) + transport_value(one).value

        return jax.grad(value)(t)

    second = jax.grad(lambda t: slope(t))(0.0)
    difference = (slope(1e-5) - slope(-1e-5)) / 2e-5
    assert abs(second - difference) < 1e-5 * max(1, abs(second))
