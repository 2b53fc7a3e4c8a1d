"""The toy data sets against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from mongefit.datasets import displaced, moon, spiral, t_shape

ALL = [t_shape, moon, spiral]
TURN = np.array([[np.cos(180), np.sin(180)], [-np.sin(180), np.cos(180)]])


@pytest.mark.parametrize("make", ALL)
def test_shapes_and_seeds(make):
    x, y = make()
    assert x.shape == y.shape == (128, 2)
    assert x.dtype == y.dtype == np.float64
    again = make(seed=0)
    np.testing.assert_array_equal(x, again[0])
    np.testing.assert_array_equal(y, again[1])
    other = make(seed=1)
    assert not np.array_equal(x, other[0])
    assert not np.array_equal(y, other[1])
    assert make(6)[0].shape == (6, 2)
    assert make(np.int64(2))[1].shape == (2, 2)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("n", [0, -2, 2.0, True, "4", None])
def test_bad_count(make, n):
    with pytest.raises(ValueError, match="n must be a positive whole number"):
        make(n)


@pytest.mark.parametrize("make", [t_shape, moon])
def test_odd_count(make):
    with pytest.raises(ValueError, match=r"n must be even.*got 7\. Try 8"):
        make(7)


def test_spiral_takes_odd_count():
    assert spiral(7)[0].shape == (7, 2)


def test_t_shape_definition():
    x, y = t_shape(20, seed=3)
    np.testing.assert_allclose((y - x)[:10], np.tile([14.4, 0.0], (10, 1)), atol=1e-12)
    np.testing.assert_allclose((y - x)[10:], np.tile([0.0, -10.1], (10, 1)), atol=1e-12)
    left, top = x[:10], x[10:]
    np.testing.assert_allclose(left[:, 1], np.linspace(2.6, 5.0, 10))
    np.testing.assert_allclose(top[:, 0], np.linspace(-1.2, 1.2, 10))
    assert np.all((left[:, 0] >= -7.4) & (left[:, 0] <= -7.0))
    assert np.all((top[:, 1] >= 4.6) & (top[:, 1] <= 5.0))


def test_t_shape_fills_its_bars():
    x, _ = t_shape(2000)
    np.testing.assert_allclose(x[:1000, 0].min(), -7.4, atol=2e-3)
    np.testing.assert_allclose(x[:1000, 0].max(), -7.0, atol=2e-3)
    np.testing.assert_allclose(x[1000:, 1].min(), 4.6, atol=2e-3)
    np.testing.assert_allclose(x[1000:, 1].max(), 5.0, atol=2e-3)


def test_moon_definition():
    x, y = moon(4000)
    np.testing.assert_allclose(x, y @ TURN.T, atol=1e-12)
    t = np.linspace(0, np.pi, 2000)
    lower = 10 * np.column_stack([np.cos(t) + 0.5, -np.sin(t) + 0.2])
    upper = 10 * np.column_stack([np.cos(t) - 0.5, np.sin(t) - 0.2])
    noise = 3 * y - np.concatenate([lower, upper])
    np.testing.assert_allclose(noise.std(axis=0), 0.5, rtol=0.05)
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=0.03)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.05


def test_spiral_definition():
    x, y = spiral(4000)
    p = y / 0.8
    np.testing.assert_allclose(x, p @ TURN.T, atol=1e-12)
    # On the spiral the radius t + π fixes the angle t; noise of ¼ moves the radius by ¼.
    radius = np.linalg.norm(p, axis=1)
    assert np.pi / 2 - 1 < radius.min() < np.pi / 2 + 1
    assert 3.5 * np.pi - 1 < radius.max() < 3.5 * np.pi + 1
    far = radius > 4
    t = radius[far] - np.pi
    unturned = p[far] - radius[far, None] * np.column_stack([np.cos(t), np.sin(t)])
    along = np.column_stack([np.cos(t), np.sin(t)])
    across = np.column_stack([-np.sin(t), np.cos(t)])
    assert np.sqrt(np.mean(np.sum(unturned * along, axis=1) ** 2)) < 0.6
    # A step of s in the radius is seen as an error of radius·s across the spiral.
    scaled = np.sum(unturned * across, axis=1) / (1 + radius[far])
    np.testing.assert_allclose(np.sqrt(np.mean(scaled**2)), 0.25, rtol=0.2)
    # √U: the share of points with t below its midpoint is the square of one half.
    assert abs(np.mean(radius < 2 * np.pi) - 0.25) < 0.03


@pytest.mark.parametrize(("make", "rmse"), [(t_shape, 11.6), (moon, 6.2), (spiral, 11.1)])
def test_squared_euclidean_assignment_is_wrong(make, rmse):
    x, y = make()
    _, column = linear_sum_assignment(cdist(x, y, "sqeuclidean"))
    error = np.sqrt(np.mean(np.sum((y[column] - y) ** 2, axis=1)))
    np.testing.assert_allclose(error, rmse, atol=0.1)


UP = np.array([1.0, 2.0, 2.0]) / 3
FIRST, SECOND = np.array([2.0, 1.0, -2.0]) / 3, np.array([-2.0, 2.0, -1.0]) / 3
HEADINGS = [0.5 * FIRST + side * np.sqrt(0.75) * SECOND for side in (1, -1)]


def least_energy(moves):
    """The share of the smallest singular value in the squared displacements."""
    energy = np.linalg.svd(moves, compute_uv=False) ** 2
    return energy[-1] / energy.sum()


def closeness(moves, directions):
    """Mean cosine to the nearest direction."""
    unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
    return np.mean(np.max(unit @ np.transpose(directions), axis=1))


def assigned(x, y, across):
    """Displacements of the best assignment when moving along UP costs ``across`` times more."""
    stretch = np.eye(3) + (np.sqrt(across) - 1) * np.outer(UP, UP)
    _, column = linear_sum_assignment(cdist(x @ stretch, y @ stretch, "sqeuclidean"))
    return y[column] - x


class TestDisplaced:
    @pytest.mark.parametrize("kind", ["low_rank", "directional"])
    def test_shapes_and_seeds(self, kind):
        x, y = displaced(kind=kind)
        assert x.shape == y.shape == (128, 3)
        np.testing.assert_array_equal(x, displaced(128, kind, seed=0)[0])
        assert not np.array_equal(x, displaced(128, kind, seed=1)[0])
        with pytest.raises(ValueError, match="positive whole number"):
            displaced(0, kind)

    def test_bad_kind_and_odd_count(self):
        with pytest.raises(ValueError, match="one of low_rank, directional, got 'plane'"):
            displaced(8, "plane")
        with pytest.raises(ValueError, match="Try 8"):
            displaced(7, "directional")
        assert displaced(7)[0].shape == (7, 3)

    def test_the_pile_slides_layer_by_layer(self):
        x, y = displaced(500)
        axes = np.stack([FIRST, SECOND, UP])
        np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
        for cloud in (x, y):
            # One point in each of 500 layers.
            layer = np.floor(500 * (cloud @ UP / 4 + 0.5))
            np.testing.assert_array_equal(layer, np.arange(500))
        angle = np.deg2rad(225) * (y @ UP) / 4
        back = y - 2 * (np.outer(np.cos(angle), FIRST) + np.outer(np.sin(angle), SECOND))
        for cloud in (x, back):
            flat = cloud @ axes[:2].T
            assert np.all(np.abs(flat) <= 1) and np.all(np.ptp(flat, axis=0) > 1.9)

    def test_the_bars_cross(self):
        x, y = displaced(1000, "directional")
        for k, heading in enumerate(HEADINGS):
            rows = slice(500 * k, 500 * (k + 1))
            length = np.cross(UP, heading)
            for cloud, ahead in ((x[rows], -1.5), (y[rows], 1.5)):
                middles = [(heading, ahead, 1), (length, 0, 4), (UP, 1.75 - 3.5 * k, 1)]
                for axis, middle, width in middles:
                    along = cloud @ axis - middle
                    assert np.all(np.abs(along) <= width / 2) and np.ptp(along) > 0.95 * width

    def test_squared_euclidean_leaves_the_plane_and_a_plane_exists(self):
        x, y = displaced()
        assert least_energy(assigned(x, y, 1)) > 0.08
        assert least_energy(assigned(x, y, 100)) < 0.005

    def test_squared_euclidean_scatters_and_two_directions_exist(self):
        x, y = displaced(kind="directional")
        assert closeness(assigned(x, y, 1), HEADINGS) < 0.95
        assert closeness(assigned(x, y, 100), HEADINGS) > 0.98
