"""Gradients and derivatives over the pairs that carry mass, against those over all pairs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit import MongeMap, datasets
from mongefit._convex import ICNN, SquaredEuclidean
from mongefit._costs import pairwise_value_and_gradient
from mongefit._pairs import (
    LEFT_OUT,
    LEFT_OUT_SLOPE,
    PairCosts,
    PairRequest,
    gradients,
    pairwise,
    sweeps,
)
from mongefit._pairs.request import negligible
from mongefit._transport import Potentials, Units, conditional_weights, displace
from tests.conftest import random_clouds
from tests.contracts.families import shaken

N, M = 40, 37  # more pairs than one chunk, and no multiple of it
EPS = 0.02


@pytest.fixture(autouse=True)
def _double(x64):
    pass


def latent(symmetric=True):
    h = shaken(ICNN(2, (8, 6), key=jr.key(0), symmetric=symmetric), 0.2)
    x, y, *_ = random_clouds(N, M)
    return h, jnp.asarray(x), jnp.asarray(y)


REQUESTS = {
    "all": (np.arange(N), np.arange(M)),
    "rows": (np.arange(N), np.arange(0)),
    "some": (np.array([3, 7, 30]), np.array([0, 7, 20, 36])),
    "some rows": (np.array([0, 39]), np.arange(0)),
    "nothing": (np.arange(0), np.arange(0)),
}


def requested(name="all"):
    return PairRequest(*map(jnp.asarray, REQUESTS[name]), N, M)


def means(C, of_rows, of_columns, s, t):
    """Numbers made of costs, and of means over rows and columns with mostly negligible weights."""
    rows, columns = (jnp.einsum("Nm,Nmd->Nd", *each) for each in ((s, of_rows), (t, of_columns)))
    return jnp.sum(jnp.cos(rows)) + jnp.sum(columns**2) + jnp.sum(C[:5, :4] ** 2)


def weights(C, rows, columns):
    s = conditional_weights(C[rows], jnp.full(M, 1 / M), jnp.zeros(M), EPS)
    t = conditional_weights(C.T[columns], jnp.full(N, 1 / N), jnp.zeros(N), EPS)
    return s, t


@eqx.filter_jit
def dense(arguments, name="all"):
    C, G = pairwise_value_and_gradient(*arguments)
    rows, columns = REQUESTS[name]
    return means(C, G[rows], G.swapaxes(0, 1)[columns], *weights(C, rows, columns))


@eqx.filter_jit
def sparse(arguments, name="all", dtype=None):
    C, token = pairwise(*arguments, requested(name), dtype=dtype)
    s, t = weights(C, *REQUESTS[name])
    return means(C, *gradients(token, *arguments, requested(name), s, t, dtype=dtype), s, t)


def with_slope(function):
    """The function's value and derivative, in one compiled program."""
    return eqx.filter_jit(eqx.filter_value_and_grad(function))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def agree(found, expected, slopes):
    np.testing.assert_allclose(found, expected, rtol=1000 * LEFT_OUT["float64"])
    ours, exact = map(flat, slopes)
    assert np.linalg.norm(ours - exact) <= 100 * LEFT_OUT_SLOPE["float64"] * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("name", "symmetric"), [*((name, True) for name in REQUESTS), ("all", False)]
)
def test_value_and_derivative_agree_with_those_over_all_pairs(name, symmetric):
    arguments = latent(symmetric)
    expected, slope = with_slope(dense)(arguments, name)
    found, sparse_slope = with_slope(sparse)(arguments, name)
    agree(found, expected, (sparse_slope, slope))


@pytest.mark.parametrize("name", REQUESTS)
def test_vectors_are_numbered_as_they_are_listed(name):
    request, (_, u, v) = requested(name), latent()
    rows, columns = request.pair(jnp.arange(request.count))
    np.testing.assert_array_equal(u[rows] - v[columns], request.displacements(u, v))


def test_many_pairs_are_left_out():
    s, t = weights(pairwise(*latent(), requested())[0], *REQUESTS["all"])
    kept = requested().weighted(s, t, LEFT_OUT["float64"])
    assert 0.05 < np.mean(kept) < 0.8  # else the test above shows nothing


@pytest.mark.parametrize("name", ["all", "some"])
def test_blocks_of_pairs_give_what_all_at_once_do(name, monkeypatch):
    arguments = latent()
    expected, slope = eqx.filter_value_and_grad(sparse)(arguments, name)
    monkeypatch.setattr("mongefit._pairs.derivatives.one_chunk", lambda pairs: False)
    monkeypatch.setattr(sweeps, "SEARCHED", 7 * M)
    monkeypatch.setattr(sweeps, "chunk_size", lambda pairs: min(pairs, 64))
    jax.clear_caches()
    found, in_blocks = eqx.filter_value_and_grad(sparse)(arguments, name)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    np.testing.assert_allclose(flat(in_blocks), flat(slope), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REQUESTS)
def test_all_pairs_at_once_are_all_pairs(name, monkeypatch):
    """As an accelerator takes few pairs: none is left out."""
    monkeypatch.setattr("mongefit._pairs.derivatives.one_chunk", lambda pairs: True)
    arguments = latent()
    expected, slope = with_slope(dense)(arguments, name)
    # Another function: what was traced before would be found again.
    found, at_once = with_slope(lambda arguments: sparse.__wrapped__(arguments, name))(arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(flat(at_once), flat(slope), rtol=1e-9, atol=1e-11)


def test_points_without_flows_have_no_slopes_and_h_has_the_same():
    h, u, v = latent()
    both = eqx.filter_grad(sparse)((h, u, v))[0]
    alone = eqx.filter_grad(lambda h: sparse((h, u, v)))(h)
    np.testing.assert_allclose(flat(alone), flat(both), rtol=1e-10)


@pytest.mark.parametrize("left_out", [1e-2, 1e-6])
def test_what_is_negligible_adds_up_to_no_more_than_is_allowed(left_out):
    size = jnp.exp(5 * jr.normal(jr.key(0), (50, 60)))
    for axis in (None, 1):
        small = jnp.where(size <= negligible(size, left_out, axis), size, 0.0)
        assert np.all(small.sum(axis) <= left_out * size.sum(axis))
        # Far more is left out than by the bound that would do were all of one size.
        crude = left_out * size.sum(axis, keepdims=True) / (size.size if axis is None else 60)
        assert np.sum(small > 0) > np.sum(size <= crude)


def test_derivatives_in_float32_keep_most_digits():
    arguments = latent()
    exact = flat(eqx.filter_grad(dense)(arguments))
    rounded = eqx.filter_grad(lambda arguments: sparse(arguments, dtype="float32"))(arguments)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(rounded))
    assert np.linalg.norm(flat(rounded) - exact) <= 1e-4 * np.linalg.norm(exact)


def test_costs_are_exact_and_gradients_zero_where_nothing_is_carried():
    arguments = latent()
    C, G = pairwise_value_and_gradient(*arguments)
    found, token = pairwise(*arguments, requested(), dtype="float32")
    np.testing.assert_allclose(found, C, rtol=1e-13)
    s = jnp.zeros_like(C).at[3, 5].set(1.0)
    kept, same = gradients(token, *arguments, requested(), s, jnp.zeros_like(C).T)
    np.testing.assert_allclose(kept[3, 5], G[3, 5], rtol=1e-12)
    np.testing.assert_array_equal(same, kept.swapaxes(0, 1))
    assert jnp.count_nonzero(kept) == 2


def test_quadratic_costs_are_inverted_without_iterations():
    _, x, y = latent()
    costs = PairCosts(SquaredEuclidean(), x, y, requested("some"))
    a, b = jnp.full(N, 1 / N), jnp.full(M, 1 / M)
    moved = displace(costs, Potentials(a, b, jnp.zeros(N), jnp.zeros(M), jnp.asarray(EPS)))
    assert moved.iterations == 0 and np.all(moved.converged) and not np.any(moved.residual)


@pytest.mark.parametrize("slope", [jnp.nan, jnp.inf])
def test_a_slope_that_is_not_finite_is_never_left_out(slope):
    _, pull = eqx.filter_vjp(lambda arguments: pairwise(*arguments, requested()), latent())
    C_slope = jnp.zeros((N, M)).at[0, 0].set(slope)
    (found,) = pull((C_slope, jnp.zeros((N * M, 2))))
    assert np.all(np.isnan(flat(found)))


def test_nothing_asked_is_nothing():
    _, pull = eqx.filter_vjp(lambda arguments: pairwise(*arguments, requested()), latent())
    (found,) = pull((jnp.zeros((N, M)), jnp.zeros((N * M, 2))))
    assert not np.any(flat(found))


def test_mixed_precision_trains_as_well():
    X, Y = datasets.t_shape(16, seed=0)
    pairs = np.stack([np.arange(16)] * 2, axis=1)
    options = {"hidden_layer_sizes": (8,), "max_iter": 10, "epsilon": 0.05}
    exact, mixed = (
        MongeMap(**options, dtype=dtype).fit(X, Y, pairs=pairs) for dtype in ("float64", "mixed")
    )
    np.testing.assert_allclose(mixed.history_["loss"], exact.history_["loss"], rtol=1e-3)
    assert mixed.map_.x.dtype == jnp.float64


def test_units_of_clouds_of_very_different_sizes():
    """Divided by the smaller one, the squares of the larger would overflow."""
    x = np.array([[-1.0], [0.0], [1.0]])
    y, third = 1e200 * x, np.full(3, 1 / 3)
    for first, second in ((x, y), (y, x)):
        units = Units.of((first, third), (second, third))
        np.testing.assert_allclose(units.scale, np.sqrt(1 / 3) * 1e200)


def test_units_of_clouds_at_one_place():
    points, half = np.full((2, 3), 0.5), np.full(2, 0.5)
    units = Units.of((points, half), (points, half))
    np.testing.assert_array_equal(units.scale, 1.0)
    np.testing.assert_array_equal(units.into(points), 0.0)
