"""The dual solvers against POT, OTT, closed forms and their own optimality conditions."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest
from ott.geometry import geometry
from ott.solvers import linear

from mongefit._duals import DualProblem, NewtonDual, SinkhornDual, SymmetricDual, semidual
from mongefit._duals import solve_dual as solve_problem
from mongefit._numerics import Status
from tests.conftest import random_clouds


def solve_dual(C, a, b, eps, **options):
    return solve_problem(DualProblem(C, a, b, eps=eps), **options)


def plan(C, a, b, eps, f, g):
    return DualProblem(C, a, b, eps=eps).plan(f, g)


solve = eqx.filter_jit(solve_dual)
uniform_or_not = pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "weighted"])


def squared_distances(clouds):
    return 0.5 * np.sum((clouds.x[:, None] - clouds.y[None]) ** 2, axis=-1)


def problem(n=16, m=12, *, uniform=True, epsilon=0.01, seed=0):
    clouds = random_clouds(n, m, uniform=uniform, seed=seed)
    C = squared_distances(clouds)
    return C, clouds.a, clouds.b, epsilon * (clouds.a @ C @ clouds.b)


@uniform_or_not
@pytest.mark.parametrize("epsilon", [0.1, 0.01])
@pytest.mark.parametrize("solver", [NewtonDual(1e-12), SinkhornDual(1e-12, 200_000)])
def test_plan_agrees_with_pot_and_ott(uniform, epsilon, solver):
    C, a, b, eps = problem(uniform=uniform, epsilon=epsilon)
    dual = solve(C, a, b, eps, solver=solver)
    P = plan(C, a, b, eps, dual.f, dual.g)
    assert dual.converged
    pot = ot.bregman.sinkhorn_log(a, b, C, eps, numItermax=200_000, stopThr=1e-13)
    np.testing.assert_allclose(P, pot, atol=1e-8)
    ott = linear.solve(
        geometry.Geometry(jnp.asarray(C), epsilon=eps), jnp.asarray(a), jnp.asarray(b),
        threshold=1e-12, max_iterations=200_000,
    )  # fmt: skip
    np.testing.assert_allclose(P, ott.matrix, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.1, 0.01, 0.002])
@pytest.mark.parametrize("seed", range(3))
def test_transport_cost_lies_between_the_exact_one_and_its_entropic_bound(epsilon, seed):
    C, a, b, eps = problem(epsilon=epsilon, seed=seed)
    dual = solve(C, a, b, eps)
    gap = jnp.sum(plan(C, a, b, eps, dual.f, dual.g) * C) - ot.emd2(a, b, C)
    slack = 1e-9 * C.max()
    assert -slack <= gap <= eps * np.log(min(C.shape)) + slack


@pytest.mark.parametrize("epsilon", [0.05, 0.001])
def test_cold_solves_at_128_points_converge(epsilon, campaign):
    for seed in campaign.cases("cold solves at 128 points", short=2, long=20):
        C, a, b, eps = problem(128, 128, uniform=seed % 2 == 0, epsilon=epsilon, seed=seed)
        dual = solve(C, a, b, eps)
        assert dual.converged
        assert dual.iterations < 100
        # Rounding in C/eps alone moves the marginals by about max(C)/eps · 2e-16.
        assert dual.error < 1e-11
        recomputed = DualProblem(C, a, b, eps=eps).marginal_error(dual.f, dual.g)
        np.testing.assert_allclose(dual.error, recomputed, atol=1e-13)


def test_warm_start_takes_one_or_two_iterations():
    C, a, b, eps = problem(128, 128)
    dual = solve(C, a, b, eps)
    nudged = C + 1e-3 * np.random.default_rng(0).normal(size=C.shape) * C.mean()
    assert solve(nudged, a, b, eps, g_init=dual.g).iterations <= 4
    assert solve(C, a, b, eps, g_init=dual.g).iterations <= 1


def test_a_misleading_warm_start_is_recovered_from():
    C, a, b, eps = problem(128, 128, epsilon=0.002)
    wild = 1e3 * np.random.default_rng(0).normal(size=128)
    dual = solve(C, a, b, eps, g_init=jnp.asarray(wild))
    assert dual.converged
    cold = solve(C, a, b, eps)
    np.testing.assert_allclose(
        plan(C, a, b, eps, dual.f, dual.g), plan(C, a, b, eps, cold.f, cold.g), atol=1e-10
    )


@uniform_or_not
def test_disconnected_plans_are_solved(uniform):
    clouds = random_clouds(16, 12, uniform=uniform)
    x = np.concatenate([clouds.x, clouds.x + 1e3])
    y = np.concatenate([clouds.y, clouds.y + 1e3])
    a, b = np.tile(clouds.a, 2) / 2, np.tile(clouds.b, 2) / 2
    C = 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1)
    eps = 0.01 * (clouds.a @ squared_distances(clouds) @ clouds.b)
    dual = solve(C, a, b, eps)
    assert dual.converged
    block = solve(squared_distances(clouds), clouds.a, clouds.b, eps)
    expected = plan(squared_distances(clouds), clouds.a, clouds.b, eps, block.f, block.g) / 2
    P = plan(C, a, b, eps, dual.f, dual.g)
    np.testing.assert_allclose(P[:16, :12], expected, atol=1e-10)
    np.testing.assert_array_equal(P[:16, 12:], 0)
    gradient = jax.jit(jax.grad(lambda C: jnp.sum(jnp.cos(solve_dual(C, a, b, eps).g))))(C)
    assert jnp.all(jnp.isfinite(gradient))


def test_weights_are_uniform_unless_they_are_given():
    found = DualProblem(jnp.ones((3, 2)), eps=0.1)
    np.testing.assert_allclose(found.a, 1 / 3)
    np.testing.assert_allclose(found.b, 1 / 2)


def test_sinkhorn_takes_the_steps_of_sinkhorn():
    C, a, b, eps = map(jnp.asarray, problem(uniform=False, epsilon=0.1))
    start = jnp.asarray(np.random.default_rng(0).normal(size=12))
    dual = solve(C, a, b, eps, g_init=start, solver=SinkhornDual(0.0, 3))
    assert dual.iterations == 3 and dual.status == Status.MAX_ITER
    exact, g = DualProblem(C, a, b, eps=eps), start
    errors = []
    for _ in range(4):
        f = exact.source_potential(g)
        errors.append(exact.marginal_error(f, g))
        last, g = g, exact.target_potential(f)
    np.testing.assert_allclose(dual.error, errors[-1], rtol=1e-9)
    np.testing.assert_allclose(dual.g - dual.g[0], last - last[0], atol=1e-10)


@pytest.mark.parametrize("epsilon", [0.1, 0.01])
def test_a_cloud_with_itself_takes_tens_of_steps(epsilon):
    x, _, a, _ = random_clouds(16, 16, uniform=False)
    C = 0.5 * np.sum((x[:, None] - x) ** 2, axis=-1)
    dual = solve(C, a, a, epsilon * (a @ C @ a), solver=SymmetricDual())
    assert dual.converged and dual.iterations < 40
    np.testing.assert_allclose(dual.f, dual.g, atol=1e-3)  # apart where nothing is exchanged


def test_potentials_to_start_from_may_depend_on_what_is_differentiated():
    """Nothing flows through them."""
    C, a, b, eps = map(jnp.asarray, problem(epsilon=0.1))
    away = jnp.asarray(np.random.default_rng(0).normal(size=12))

    def value(C, start):
        return away @ solve_dual(C, a, b, eps, g_init=start(C)).g

    slopes = [
        jax.jit(jax.grad(lambda C, start=start: value(C, start)))(C)
        for start in (lambda C: C[0], lambda C: jax.lax.stop_gradient(C[0]))
    ]
    np.testing.assert_array_equal(*slopes)


def test_duplicate_points_share_their_mass():
    C, a, b, eps = problem()
    doubled = solve(np.concatenate([C, C], axis=1), a, np.tile(b, 2) / 2, eps)
    dual = solve(C, a, b, eps)
    np.testing.assert_allclose(doubled.g[:12], doubled.g[12:], atol=1e-10)
    np.testing.assert_allclose(doubled.f, dual.f, atol=1e-8)


def test_zero_weights_change_nothing():
    C, a, b, eps = problem()
    padded = np.random.default_rng(1).uniform(0, 3, size=(20, 17))
    padded[:16, :12] = C
    dual = solve(C, a, b, eps)
    larger = solve(padded, np.pad(a, (0, 4)), np.pad(b, (0, 5)), eps)
    assert larger.converged
    np.testing.assert_allclose(larger.f[:16], dual.f, atol=1e-10)
    np.testing.assert_allclose(larger.g[:12], dual.g, atol=1e-10)
    assert jnp.all(jnp.isfinite(larger.f)) and jnp.all(jnp.isfinite(larger.g))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("solver", [NewtonDual(), SinkhornDual()])
def test_a_poisoned_cost_is_reported_and_nothing_is_nan(poison, solver):
    C, a, b, eps = problem()
    C[3, 4] = poison
    dual = solve(C, a, b, eps, solver=solver)
    assert dual.status == Status.NON_FINITE
    assert jnp.all(jnp.isfinite(dual.f)) and jnp.all(jnp.isfinite(dual.g))


def test_no_convergence_is_claimed_that_was_not_reached():
    C, a, b, eps = problem(epsilon=0.001)
    dual = solve(C, a, b, eps, solver=SinkhornDual(max_iter=5))
    assert dual.status == Status.MAX_ITER
    assert dual.error > 1e-3


@eqx.filter_jit
def slope_and_difference(problem, direction, weights):
    """Derivative along a direction by the library and by central differences."""

    def along(t):
        C, a, b, eps = jax.tree.map(lambda at, towards: at + t * towards, problem, direction)
        dual = solve_dual(C, a, b, eps, solver=NewtonDual(1e-12))
        return weights[0] @ dual.f + weights[1] @ dual.g

    ahead, behind = jax.lax.map(along, jnp.asarray([1e-5, -1e-5]))
    return jax.grad(along)(0.0), (ahead - behind) / 2e-5


@uniform_or_not
@pytest.mark.parametrize("seed", range(3))
def test_derivatives_of_the_potentials_agree_with_central_differences(uniform, seed):
    C, a, b, eps = problem(uniform=uniform, epsilon=0.05, seed=seed)
    rng = np.random.default_rng(seed)
    towards_a, towards_b = a * rng.normal(size=16), b * rng.normal(size=12)
    direction = (
        rng.normal(size=C.shape),
        towards_a - a * towards_a.sum(),
        towards_b - b * towards_b.sum(),
        eps,
    )
    weights = (rng.normal(size=16), rng.normal(size=12))
    slope, difference = slope_and_difference((C, a, b, eps), direction, weights)
    assert abs(slope - difference) <= 1e-6 * max(1, abs(slope))


def test_unrolled_and_implicit_derivatives_agree():
    C, a, b, eps = problem(epsilon=0.1)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=12))

    def gradient(differentiate):
        def value(C):
            return weights @ solve_dual(C, a, b, eps, differentiate=differentiate).g

        return jax.jit(jax.grad(value))(jnp.asarray(C))

    implicit = gradient("implicit")
    np.testing.assert_allclose(gradient("unrolled"), implicit, atol=1e-6 * jnp.abs(implicit).max())
    np.testing.assert_array_equal(gradient("none"), 0)


def test_float32_converges_to_its_own_tolerance():
    C, a, b, eps = (jnp.asarray(part, jnp.float32) for part in problem(epsilon=0.01))
    dual = solve(C, a, b, eps)
    assert dual.converged and dual.f.dtype == dual.g.dtype == jnp.float32
    reference = solve(*problem(epsilon=0.01))
    np.testing.assert_allclose(dual.g, reference.g, atol=1e-3 * np.abs(reference.g).max())


@pytest.mark.parametrize(("epsilon", "n", "m"), [(0.05, 16, 12), (0.01, 48, 40), (0.002, 48, 40)])
def test_conjugate_gradients_give_the_potentials_and_slopes_of_a_factorisation(
    epsilon, n, m, monkeypatch
):
    C, a, b, eps = map(jnp.asarray, problem(n, m, uniform=False, epsilon=epsilon))
    away = jnp.asarray(np.random.default_rng(0).normal(size=m))

    def found(C, b, eps):
        dual = solve_dual(C, a, b, eps, g_init=0.01 * away)
        return jnp.sum(dual.g * away) + jnp.sum(jnp.sin(dual.f)), dual

    def solved():
        slopes = jax.jit(jax.value_and_grad(lambda *args: found(*args), (0, 1, 2), has_aux=True))
        return slopes(C, b, eps)

    (value, dual), slopes = solved()
    monkeypatch.setattr(semidual, "LARGEST_FACTORISED", 0)
    (found_value, iterated), found_slopes = solved()
    assert dual.converged and iterated.converged
    np.testing.assert_allclose(found_value, value, rtol=1e-7)
    np.testing.assert_allclose(iterated.g, dual.g, atol=1e-8 * float(jnp.max(C)))
    for ours, expected in zip(found_slopes, slopes, strict=True):
        difference = ours - expected
        if expected.ndim == 1:  # of b only changes count that keep its sum
            difference = difference - jnp.mean(difference)
        assert jnp.max(jnp.abs(difference)) <= 1e-6 * jnp.max(jnp.abs(expected))


@pytest.mark.parametrize("largest", [100, 0], ids=["factorised", "iterated"])
def test_forward_and_reverse_agree_for_a_weight_that_changes_alone(largest, monkeypatch):
    """A change of b that adds mass has a part along the constants, the null vector of the Hessian.

    Only there it matters that these are deflated: without it every solve takes the same steps, and
    slopes along changes that keep the mass are the same.
    """
    monkeypatch.setattr(semidual, "LARGEST_FACTORISED", largest)
    C, a, b, eps = map(jnp.asarray, problem(uniform=False, epsilon=0.1))
    weights, change = (np.random.default_rng(1).normal(size=size) for size in (16, 12))

    def value(b):
        return weights @ solve_dual(C, a, b, eps).f

    forward = jax.jit(lambda: jax.jvp(value, (b,), (jnp.asarray(change),))[1])()
    reverse = jax.jit(jax.grad(value))(b) @ change
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)


def test_conjugate_gradients_solve_a_singular_system_that_is_consistent():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 20))
    matrix, solution = jnp.asarray(root @ root.T), jnp.asarray(root @ rng.normal(size=20))
    found = semidual.conjugate_gradients(
        lambda vector: matrix @ vector, matrix @ solution, rtol=1e-10, atol=0.0
    )
    np.testing.assert_allclose(found, solution, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 16, 17, 100, 128])
def test_triangular_inverse_by_blocks(size):
    """As accelerators compute it, beside NumPy's; the factor of a matrix of condition 1e6."""
    rotation = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0]
    factor = np.linalg.cholesky(rotation @ np.diag(np.logspace(0, -6, size)) @ rotation.T)
    found = np.asarray(semidual.triangular_inverse(jnp.asarray(factor)))
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_allclose(found, np.linalg.inv(factor), rtol=1e-8, atol=1e-8)
