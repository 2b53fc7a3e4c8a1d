"""Regressions on pairs, and the maps and matrices that start from them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.covariance import OAS
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from mongefit import MongeMap
from mongefit._fitting.starting import Start
from mongefit._regression import (
    Knobs,
    folds,
    kernel_regression,
    linear_regression,
    median_distance,
    regress,
    residuals,
    shrunk_covariance,
)
from mongefit._runtime import double_precision

N, D = 40, 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)) * [1.0, 2.0, 0.5]
    y = x @ rng.normal(size=(D, D)) + np.sin(x) + 0.1 * rng.normal(size=(N, D)) + 2
    return x, y, rng.uniform(0.5, 2.0, N), np.arange(N)


@pytest.mark.parametrize("moves", [False, True])
def test_linear_is_ridge_regression(data, moves):
    x, y, weight, _ = data
    mean = weight / weight.mean()
    found = regress(x, y, weight, Knobs(moves, None, 1.0, 0.3))
    # The linear kernel is divided by the mean square of the sources.
    spread = np.mean(mean * ((x - np.average(x, axis=0, weights=mean)) ** 2).sum(1))
    expected = Ridge(0.3 * spread).fit(x, y - moves * x, sample_weight=mean)
    new = np.random.default_rng(1).normal(size=(7, D))
    np.testing.assert_allclose(found(new), expected.predict(new) + moves * new, atol=1e-9)


@pytest.mark.parametrize("moves", [False, True])
def test_kernel_is_kernel_ridge_regression(data, moves):
    x, y, weight, _ = data
    mean, width = weight / weight.mean(), 1.3
    found = regress(x, y, weight, Knobs(moves, width, 0.0, 0.2))
    rest = y - moves * x
    centre = np.average(rest, axis=0, weights=mean)
    expected = KernelRidge(alpha=0.2, kernel="rbf", gamma=0.5 / width**2)
    expected.fit(x, rest - centre, sample_weight=mean)
    new = np.random.default_rng(1).normal(size=(7, D))
    answer = expected.predict(new) + centre + moves * new
    np.testing.assert_allclose(found(new), answer, atol=1e-9)


def test_strength_is_chosen_by_cross_validation(data):
    x, y, weight, groups = data
    found = linear_regression(x, y, weight, groups)
    errors = []
    for strength in (found.knobs.strength, 1e3):
        knobs = found.knobs._replace(strength=strength)
        errors.append(np.sum(weight[:, None] * residuals(x, y, weight, groups, knobs) ** 2))
    assert errors[0] < errors[1]
    # Nothing to learn from: towards the mean displacement or target, whichever is better.
    noise = np.random.default_rng(2).normal(size=(N, D))
    assert np.abs(linear_regression(x, noise, weight, groups).weight).max() < 0.3


def test_several_targets_of_a_source_are_their_mean(data):
    x, y, weight, groups = data
    both, mean = np.r_[y + 1, y - 1], np.r_[y, y]
    twice = [np.r_[each, each] for each in (x, weight, groups)]
    first, second = (linear_regression(twice[0], each, *twice[1:]) for each in (both, mean))
    np.testing.assert_allclose(first(x), second(x), atol=1e-9)


def test_residuals_are_of_pairs_that_were_not_seen(data):
    x, y, weight, _ = data
    groups = np.arange(N) // 4
    knobs = kernel_regression(x, y, weight, groups).knobs
    found = residuals(x, y, weight, groups, knobs)
    changed = y.copy()
    changed[groups == 3] += 100.0
    # A group's own targets do not change what is said of it.
    other = residuals(x, changed, weight, groups, knobs)
    np.testing.assert_allclose((other - found)[groups == 3], 100.0, atol=1e-8)


def test_groups_stay_together():
    groups = np.repeat(np.arange(7), 3)
    parts = np.array(list(folds(groups, 5)))
    assert parts.shape == (5, 21) and np.all(parts.sum(axis=0) == 1)
    assert all(len(set(parts[:, groups == k].argmax(axis=0))) == 1 for k in range(7))


def test_shrinking_is_that_of_scikit_learn(data):
    x, *_ = data
    found = shrunk_covariance(x, np.ones(N), np.arange(N))
    np.testing.assert_allclose(found, OAS().fit(x).covariance_, rtol=1e-10)
    # One group says nothing of directions.
    alone = shrunk_covariance(x, np.ones(N), np.zeros(N, int))
    np.testing.assert_allclose(alone, np.trace(alone) / D * np.eye(D), atol=1e-12)


def test_a_matrix_starts_at_the_inverse_of_what_the_regression_leaves(data):
    x, y, weight, groups = data
    start = Start.of("affine", x, y, weight, groups)
    matrix = start.matrix(D, 1e-9)
    expected = np.linalg.inv(start.covariance)
    np.testing.assert_allclose(matrix, expected / np.trace(expected) * D, rtol=1e-8)
    assert np.linalg.eigvalsh(start.matrix(D, 0.9))[0] >= 0.9 - 1e-12
    nothing = Start.of("affine", x[:0], y[:0], weight[:0], groups[:0])
    np.testing.assert_array_equal(nothing.matrix(D, 0.1), np.eye(D))


@pytest.mark.parametrize("kind", ["affine", "kernel"])
def test_an_estimator_starts_there(data, kind):
    x, y, weight, _ = data
    pairs = np.stack([np.arange(N)] * 2, axis=1)
    options = {"cost": "matrix", "diffeo": kind, "epsilon": 0.1, "max_iter": 0}
    model = MongeMap(**options).fit(x, y, pairs=pairs, pair_weight=weight)
    cost, units = model.map_.cost, model.units_
    with double_precision():
        u, v = (np.asarray(units.into(each)) for each in (x, y))
        start = Start.of(kind, u, v, weight, np.arange(N))
        np.testing.assert_allclose(cost.phi_mu.forward(u), start.regression(u), atol=1e-8)
        np.testing.assert_allclose(cost.h.matrix, start.matrix(D, 0.02), atol=1e-9)


def test_clones_decide_what_is_held_out():
    # Twins: with them in other folds, a rough kernel looks best.
    rng = np.random.default_rng(0)
    x, y = (np.repeat(rng.normal(size=(12, 2)), 4, axis=0) for _ in range(2))
    x = x + 1e-3 * rng.normal(size=x.shape)
    clones, weight = np.repeat(np.arange(12), 4), np.ones(48)
    rough, smooth = (kernel_regression(x, y, weight, each) for each in (None, clones))
    assert rough.error < 0.1 < smooth.error


def test_median_distance():
    assert median_distance(np.array([[0.0], [1.0], [3.0]])) == 2.0
    assert median_distance(np.zeros((4, 2))) == 1.0
