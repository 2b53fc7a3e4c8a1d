"""The energy score, and the distribution that a map predicts."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap
from mongefit.baselines import IdentityMap
from mongefit.metrics import energy_score
from mongefit.metrics._energy import energy_scores

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(20, 2)), rng.normal(size=(24, 2)) + 1
PAIRS = np.stack([np.arange(20)] * 2, axis=1)
NEW, TRUTH = rng.normal(size=(2, 6, 2))


def test_scores_are_their_definition():
    weights = rng.dirichlet(np.ones(5), size=3)
    points, truth = rng.normal(size=(5, 2)), rng.normal(size=(3, 2))
    for w, y, score in zip(weights, truth, energy_scores(weights, points, truth), strict=True):
        away = sum(w[j] * np.linalg.norm(points[j] - y) for j in range(5))
        apart = sum(
            w[j] * w[k] * np.linalg.norm(points[j] - points[k]) for j in range(5) for k in range(5)
        )
        assert score == pytest.approx(away - apart / 2)


def test_it_is_proper():
    """Of all spreads the true one has the least score on average."""
    grid = np.linspace(-6, 6, 241)[:, None]
    truth = rng.normal(size=(4000, 1))
    scores = []
    for spread in (0.5, 0.8, 1.0, 1.25, 2.0):
        weights = np.exp(-0.5 * (grid[:, 0] / spread) ** 2)
        weights = np.tile(weights / weights.sum(), (len(truth), 1))
        scores.append(energy_scores(weights, grid, truth).mean())
    assert np.argmin(scores) == 2


def test_a_predictor_of_points_has_its_mean_distance():
    weight = np.arange(1.0, 7)
    found = energy_score(IdentityMap().fit(X, Y), NEW, TRUTH, weight=weight)
    expected = np.average(np.linalg.norm(NEW - TRUTH, axis=1), weights=weight)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("options", [{}, {"debias": True}])
def test_a_map_has_the_score_of_its_distribution(options):
    model = MongeMap(cost="matrix", diffeo="affine", epsilon=0.2, max_iter=0, **options)
    model.fit(X, Y, pairs=PAIRS)
    weights = model.conditional(NEW).toarray()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    shift = model.transform(NEW) - weights @ Y
    assert (np.abs(shift).max() > 1e-3) == bool(options)
    rows = zip(weights, shift, TRUTH, strict=True)
    expected = np.mean([energy_scores(w[None], Y + t, y[None])[0] for w, t, y in rows])
    assert energy_score(model, NEW, TRUTH) == pytest.approx(expected, rel=1e-6)


def test_conditional_weights_are_the_rows_of_the_plan():
    model = MongeMap(cost="sqeuclidean", epsilon=0.1).fit(X, Y)
    plan = model.coupling_
    expected = plan / plan.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.conditional(X).toarray(), expected, atol=1e-7)
    few = model.conditional(X, drop=0.05)
    assert few.nnz < model.conditional(X).nnz
    np.testing.assert_allclose(few.sum(axis=1), 1)


def test_the_density_is_that_of_the_plan():
    from mongefit._fitting import log_density

    model = MongeMap(cost="matrix", diffeo="affine", epsilon=0.1, max_iter=0)
    model.fit(X, Y, pairs=PAIRS)
    found = log_density(model.map_, X, Y[:20])
    expected = np.log(np.diag(model.coupling_[:, :20]) * 20 * 24)
    np.testing.assert_allclose(found, expected, atol=1e-6)
