"""Problems with a known true map: that it is true, and that squared Euclidean misses it."""

from __future__ import annotations

import doctest
import importlib
import math
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from mongefit import MongeMap, datasets
from mongefit._convex import SquaredEuclidean
from mongefit._inverse import inverse_gradient
from mongefit.datasets import CostComparison, compare_costs, draw_ground_truth, make_ground_truth
from mongefit.errors import DataError, OptionError

FAMILIES = ["power", "mahalanobis", "icnn"]
N = 64


@eqx.filter_jit
def evaluate(cost, potential, x, y):
    """Costs of all pairs, potentials of the source, and latent points of both."""
    u, v = cost.latent_source(x), cost.latent_target(y)
    return cost.matrix(x, y), potential.value(u), u, v


def assert_true_map(problem):
    x, y = problem.sample(N, 0)
    with jax.enable_x64(True):
        C, f, u, v = map(np.asarray, evaluate(problem.cost, problem.potential, x, y))
    _, column = linear_sum_assignment(C)
    np.testing.assert_array_equal(column, np.arange(N))
    # A certificate: with g(y_j) = c(x_j, y_j) − f(x_j) no pair has f(x_i) + g(y_j) > c(x_i, y_j).
    slack = C - f[:, None] - (np.diag(C) - f)
    assert slack[~np.eye(N, dtype=bool)].min() > 0
    return (x, u), (y, v)


@pytest.mark.parametrize("dim", [2, 5, 10])
@pytest.mark.parametrize("h", FAMILIES)
def test_the_map_is_true(h, dim):
    assert_true_map(make_ground_truth(h, dim, seed=dim))


@pytest.mark.parametrize(("h", "dim"), [("power", 10), ("mahalanobis", 2), ("icnn", 5)])
def test_the_map_is_true_with_flows(h, dim):
    clouds = assert_true_map(make_ground_truth(h, dim, seed=dim, flows=True))
    # Neither flow is affine on its cloud.
    for points, image in clouds:
        design = np.column_stack([points, np.ones(N)])
        rest = image - design @ np.linalg.lstsq(design, image, rcond=None)[0]
        assert np.sum(np.var(rest, axis=0)) > 1e-3 * np.sum(np.var(image, axis=0))


@pytest.mark.parametrize("h", FAMILIES)
def test_the_map_is_the_formula(h, x64):
    problem = make_ground_truth(h, 5, seed=1)
    x, y = problem.sample(N, 0)
    gradient = jax.vmap(jax.grad(lambda u: problem.potential.value(u[None])[0]))(x)
    expected = x - inverse_gradient(problem.cost.h, gradient).z
    np.testing.assert_allclose(y, expected, atol=1e-10)


@pytest.mark.parametrize(("h", "flows"), [("mahalanobis", True), ("icnn", False)])
def test_inverse_map(h, flows):
    problem = make_ground_truth(h, 2, seed=1, flows=flows)
    x, y = problem.sample(N, 0)
    np.testing.assert_allclose(problem.inverse_map(y), x, atol=1e-9)


def test_inverse_map_where_coordinates_hardly_move():
    # There the curvature of a power norm is infinite, and Newton's method in z gets nowhere.
    problem = make_ground_truth("power", 5, seed=1)
    x, y = problem.sample(4096, 0)
    closest = np.argsort(np.abs(x - y).min(axis=1))[:N]
    assert np.abs(x - y)[closest].min() < 1e-4
    np.testing.assert_allclose(problem.inverse_map(y[closest]), x[closest], atol=1e-9)


def test_potential(x64):
    problem = make_ground_truth("mahalanobis", 5, seed=0)
    f = problem.potential
    u = jnp.asarray(problem.sample(16, 0)[0])

    def value(u):
        return f.value(u[None])[0]

    exponent = -u @ f.slopes.T / f.temperature
    by_hand = -f.temperature * jnp.log(jnp.sum(jnp.exp(exponent), axis=1))
    np.testing.assert_allclose(f.value(u), by_hand, rtol=1e-12)
    np.testing.assert_allclose(f.gradient(u), jax.vmap(jax.grad(value))(u), atol=1e-12)
    curvature = np.linalg.eigvalsh(jax.jit(jax.vmap(jax.jacfwd(jax.grad(value))))(u))
    assert np.all(curvature < 1e-10)
    assert np.any(curvature < -0.1)


def test_families(x64):
    power = make_ground_truth("power", 5, seed=3).cost.h
    assert power.exponent == 1.5
    assert 0 < power.alpha < 0.01
    matrices = [make_ground_truth("mahalanobis", 5, seed=seed).cost.h.matrix for seed in (0, 1)]
    for A in matrices:
        np.testing.assert_allclose(np.linalg.cond(A), 100)
    assert np.abs(matrices[0] - matrices[1]).max() > 0.1
    problem = make_ground_truth("icnn", 5, seed=3)
    icnn = problem.cost.h
    x, y = problem.sample(N, 0)
    z = jnp.asarray(x - y)
    assert np.abs(icnn.value(z) / icnn.value(-z) - 1).max() > 0.1
    trace = np.trace(icnn.hessian(z), axis1=1, axis2=2)
    assert trace.max() > 2 * trace.min()


def test_source():
    problem = make_ground_truth("power", 2, seed=0)
    x, _ = problem.sample(8000, 0)
    centres = np.asarray(problem.centres)
    np.testing.assert_allclose(centres.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.06)
    np.testing.assert_allclose(
        np.cov(x.T), np.eye(2) + centres.T @ centres / len(centres), atol=0.1
    )


def test_seeds_and_types():
    problem = make_ground_truth("power", 2, seed=0)
    x, y = problem.sample(N, 0)
    assert x.shape == y.shape == (N, 2)
    assert x.dtype == y.dtype == np.float64
    assert x.flags.writeable
    assert y.flags.writeable
    again = make_ground_truth("power", 2, seed=0)
    np.testing.assert_array_equal(again.sample(N, 0), (x, y))
    np.testing.assert_array_equal(again.map(x), y)
    other = make_ground_truth("power", 2, seed=1)
    assert not np.any(np.isclose(problem.sample(N, 1)[0], x))
    assert not np.any(np.isclose(other.sample(N, 0)[0], x))
    assert not np.array_equal(other.map(x), y)


def test_comparison_against_the_estimator():
    # A Mahalanobis cost is the same in any units, so that the estimator can be given it.
    problem = make_ground_truth("mahalanobis", 2, seed=0)
    found = compare_costs(problem, n=N, epsilons=(0.1, 0.03), seed=2)
    x, _ = problem.sample(N, 6)
    _, y = problem.sample(N, 7)
    x_new, y_new = problem.sample(N, 8)
    best = []
    for h in (problem.cost.h, SquaredEuclidean()):
        errors = {}
        for epsilon in (0.1, 0.03):
            mapped = MongeMap(cost=h, epsilon=epsilon).fit(x, y).transform(x_new)
            errors[epsilon] = 100 * np.mean(np.sum((mapped - y_new) ** 2, axis=1))
        epsilon = min(errors, key=errors.__getitem__)
        best += [errors[epsilon] / np.sum(np.var(y_new, axis=0)), epsilon]
    np.testing.assert_allclose([found.true_uvp, found.true_epsilon], best[:2], rtol=1e-5)
    np.testing.assert_allclose([found.euclidean_uvp, found.euclidean_epsilon], best[2:], rtol=1e-5)
    assert found.ratio == found.euclidean_uvp / found.true_uvp
    moved, size = y_new - x_new, np.sqrt(np.sum(np.var(x_new, axis=0)))
    displacement = np.sqrt(np.mean(np.sum(moved**2, axis=1))) / size
    np.testing.assert_allclose(found.displacement, displacement)
    np.testing.assert_allclose(found.variation, np.sqrt(np.sum(np.var(moved, axis=0))) / size)


def test_ratio_of_an_unsolved_problem():
    assert math.isnan(CostComparison(math.inf, 10.0, 0.1, 0.1, 1.0, 1.0).ratio)
    assert math.isnan(CostComparison(1.0, math.inf, 0.1, 0.1, 1.0, 1.0).ratio)


def test_draw():
    options = dict(seed=2, n=N, epsilons=(0.01,))
    first = draw_ground_truth("power", 2, ratio=1e-6, **options)
    assert first.problem.seed == 2000
    assert first.rejected == {}
    assert first.comparison == compare_costs(first.problem, n=N, epsilons=(0.01,))
    # One that asks for more than the first problem gives must go on to another.
    ratio = 1.01 * first.comparison.ratio
    second = draw_ground_truth("power", 2, ratio=ratio, **options)
    assert second.comparison.ratio >= ratio
    assert list(second.rejected) == list(range(2000, second.problem.seed))
    assert second.rejected[2000] == first.comparison
    assert all(rejected.ratio < ratio for rejected in second.rejected.values())
    with pytest.raises(RuntimeError, match=r"ratio 1e\+06 with n=64.*2000: .*2001: .*max_draws"):
        draw_ground_truth("power", 2, ratio=1e6, max_draws=2, **options)


def test_errors():
    with pytest.raises(OptionError, match=r"got 'mahalanobi'\. Did you mean mahalanobis"):
        make_ground_truth("mahalanobi", 2, seed=0)
    with pytest.raises(OptionError, match="dim must be a whole number >= 2, got 1"):
        make_ground_truth("power", 1, seed=0)
    with pytest.raises(OptionError, match="seed must be a whole number"):
        make_ground_truth("power", 2, seed=-1)
    problem = make_ground_truth("power", 2, seed=0)
    with pytest.raises(OptionError, match="n must be a whole number >= 1"):
        problem.sample(0, 0)
    with pytest.raises(DataError, match="x has 3 features; the problem has 2"):
        problem.map(np.zeros((1, 3)))
    with pytest.raises(DataError, match="y contains NaN"):
        problem.inverse_map([[0.0, np.nan]])
    with pytest.raises(OptionError, match="epsilons needs at least one"):
        compare_costs(problem, n=N, epsilons=())
    with pytest.raises(OptionError, match="max_draws must be at most 1000"):
        draw_ground_truth("power", 2, max_draws=1001)


def test_toys_come_without_jax():
    code = (
        "import sys; from mongefit import datasets; datasets.moon; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    assert set(datasets.__all__) <= set(dir(datasets))
    for name in datasets.__all__:
        assert getattr(datasets, name) is not None
    with pytest.raises(AttributeError, match="attribute sun"):
        _ = datasets.sun


def test_examples_run():
    found = doctest.testmod(importlib.import_module("mongefit.datasets._ground_truth"))
    assert found.attempted > 0
    assert found.failed == 0
