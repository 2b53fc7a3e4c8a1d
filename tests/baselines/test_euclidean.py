"""EuclideanMap against Sinkhorn's method of POT."""

from __future__ import annotations

import numpy as np
import ot
import pytest
from scipy.special import softmax

from mongefit.baselines import EuclideanMap, InverseOT
from mongefit.errors import OptionError
from tests.baselines.families import EPSILON, KNOWN, A, B, X, Y, Z

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]


def half_squares(x, y):
    return 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1)


@pytest.fixture(scope="module")
def by_pot():
    """The plan, eps and the logarithm of the second scaling."""
    C = half_squares(X, Y)
    eps = EPSILON * (A @ C @ B)
    P, log = ot.bregman.sinkhorn_log(A, B, C, eps, numItermax=99_999, stopThr=1e-14, log=True)
    return P, eps, log["log_v"]


@pytest.fixture(scope="module")
def euclidean():
    return EuclideanMap(epsilon=EPSILON).fit(X, Y, source_weight=A, target_weight=B)


def test_at_the_source_it_is_the_barycentric_projection(euclidean, by_pot):
    P, _, _ = by_pot
    np.testing.assert_allclose(euclidean.coupling_, P, rtol=0, atol=1e-9)
    np.testing.assert_allclose(euclidean.transform(X), P @ Y / A[:, None], rtol=0, atol=1e-8)
    back = P.T @ X / B[:, None]
    np.testing.assert_allclose(euclidean.inverse_transform(Y), back, rtol=0, atol=1e-8)


def test_at_new_points_it_is_the_mean_under_the_potential(euclidean, by_pot):
    _, eps, log_v = by_pot
    expected = softmax(log_v - half_squares(Z, Y) / eps, axis=1) @ Y
    np.testing.assert_allclose(euclidean.transform(Z), expected, rtol=0, atol=1e-8)


def test_a_cost_that_another_estimator_learned_gives_its_map():
    other = InverseOT("quadratic", epsilon=EPSILON).fit(X, Y, **KNOWN)
    same = EuclideanMap(other.map_.cost.h, epsilon=EPSILON).fit(X, Y, **KNOWN)
    np.testing.assert_array_equal(same.transform(Z), other.transform(Z))
    np.testing.assert_array_equal(same.coupling_, other.coupling_)


@pytest.mark.parametrize("cost", ["icnn", "conjugate_icnn"])
def test_a_cost_that_is_not_there_yet_is_refused(cost):
    """Before this was asked for, the map was that of a network as it was drawn."""
    with pytest.raises(OptionError, match="belong to MongeMap or CouplingFit"):
        EuclideanMap(cost).fit(X, Y)
