"""Random diffeomorphisms of the cube: what they are, and that anyone draws the same ones."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit.datasets import limited_pairs


def inverse(phi, v):
    """Φ⁻¹, block by block."""
    half = v.shape[1] // 2
    a, b = (v[:, :half], v[:, half:]) if len(phi.blocks) % 2 == 0 else (None, None)
    for W, w, V, t in reversed(phi.blocks):
        moved, kept = a, b
        a, b = kept, (moved - np.tanh(kept @ V.T + t)) / np.exp(0.5 * np.tanh(kept @ W.T + w))
    return (np.concatenate([a, b], axis=1) + 1) / 2


@pytest.mark.parametrize("dim", [2, 3, 4, 6])
def test_maps_are_invertible(dim):
    problem = limited_pairs(16, 20, 4, dim, seed=3)
    u = np.random.default_rng(0).uniform(size=(50, dim))
    for phi in (problem.phi_1, problem.phi_2):
        np.testing.assert_allclose(inverse(phi, phi(u)), u, atol=1e-12)


def test_pairs_and_new_points_follow_the_true_map():
    problem = limited_pairs(16, 20, 6, 4, seed=1)
    assert problem.x.shape == (16, 4) and problem.y.shape == (20, 4)
    rows, columns = problem.pairs.T
    true = problem.phi_2(inverse(problem.phi_1, problem.x[rows]))
    np.testing.assert_allclose(true, problem.y[columns], atol=1e-10)
    new_x, new_y = problem.sample(8, seed=5)
    np.testing.assert_allclose(problem.phi_2(inverse(problem.phi_1, new_x)), new_y, atol=1e-10)
    alone = problem.phi_2(inverse(problem.phi_1, problem.x[6:]))
    assert np.min(np.linalg.norm(alone[:, None] - problem.y[None, 6:], axis=2)) > 1e-6


def test_more_pairs_contain_fewer_ones():
    few, many = (limited_pairs(16, 20, k, 2, seed=0) for k in (4, 8))
    np.testing.assert_array_equal(few.x[:4], many.x[:4])
    np.testing.assert_array_equal(few.x[8:], many.x[8:])
    np.testing.assert_array_equal(few.y[8:], many.y[8:])


def test_first_point_by_hand():
    """The definition of the docstring, written out for d = 2."""
    problem = limited_pairs(3, 3, 1, 2, seed=7)
    rng = np.random.default_rng(7)
    parameters = [[rng.standard_normal(s) for s in ((1, 1), 1, (1, 1), 1)] for _ in range(8)]
    u = rng.uniform(size=(3, 2))[0]
    v = 2 * u - 1
    for k, (W, w, V, t) in enumerate(parameters[:4]):
        from_, to = (0, 1) if k % 2 == 0 else (1, 0)
        scale = np.exp(0.5 * np.tanh(W[0, 0] * v[from_] + w[0]))
        v[to] = v[to] * scale + np.tanh(V[0, 0] * v[from_] + t[0])
    np.testing.assert_allclose(problem.x[0], v, rtol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((4, 4, 5, 2), "n_pairs must be between 0 and 4"), ((4, 4, 1, 1), "dim must be at least 2")],
)
def test_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        limited_pairs(*arguments)
