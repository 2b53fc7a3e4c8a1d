"""Gradients and derivatives over the pairs that carry mass, against those over all pairs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit import MongeMap, datasets
from mongefit.convex import ICNN
from mongefit.costs import pairwise_value_and_gradient
from mongefit.maps import conditional_mean, conditional_weights
from mongefit.sparse import LEFT_OUT, LEFT_OUT_SLOPE, gradients, pairwise
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


def means(C, G):
    """Means over rows and columns whose weights are mostly negligible, as numbers."""
    s, t = weights(C)
    return jnp.sum(jnp.cos(conditional_mean(s, G))) + jnp.sum(conditional_mean(t.T, swap(G)) ** 2)


def swap(G):
    return jnp.swapaxes(G, 0, 1)


def weights(C):
    s = conditional_weights(C, jnp.full(M, 1 / M), jnp.zeros(M), EPS)
    t = conditional_weights(C.T, jnp.full(N, 1 / N), jnp.zeros(N), EPS).T
    return s, t


def dense(arguments):
    return means(*pairwise_value_and_gradient(*arguments))


def sparse(arguments, dtype=None):
    C, token = pairwise(*arguments, dtype=dtype)
    return means(C, gradients(token, *arguments, *weights(C), dtype=dtype))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("symmetric", [True, False])
def test_value_and_derivative_agree_with_those_over_all_pairs(symmetric):
    arguments = latent(symmetric)
    s, t = weights(pairwise(*arguments)[0])
    kept = ~((s <= LEFT_OUT / M) & (t <= LEFT_OUT / N))
    assert 0.05 < np.mean(kept) < 0.8  # else this test shows nothing
    expected, slope = eqx.filter_value_and_grad(dense)(arguments)
    found, sparse_slope = eqx.filter_value_and_grad(sparse)(arguments)
    np.testing.assert_allclose(found, expected, rtol=100 * LEFT_OUT)
    difference = np.linalg.norm(flat(sparse_slope) - flat(slope)) / np.linalg.norm(flat(slope))
    assert difference <= 10 * LEFT_OUT_SLOPE


def test_derivatives_in_float32_keep_most_digits():
    arguments = latent()
    exact = flat(eqx.filter_grad(dense)(arguments))
    rounded = eqx.filter_grad(lambda arguments: sparse(arguments, "float32"))(arguments)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(rounded))
    assert np.linalg.norm(flat(rounded) - exact) <= 1e-4 * np.linalg.norm(exact)


def test_costs_are_exact_and_gradients_zero_where_nothing_is_carried():
    arguments = latent()
    C, G = pairwise_value_and_gradient(*arguments)
    found, token = pairwise(*arguments, dtype="float32")
    np.testing.assert_allclose(found, C, rtol=1e-13)
    s = jnp.zeros_like(C).at[3, 5].set(1.0)
    kept = gradients(token, *arguments, s, jnp.zeros_like(C))
    np.testing.assert_allclose(kept[3, 5], G[3, 5], rtol=1e-12)
    assert jnp.count_nonzero(kept) == 2
    assert not np.any(gradients(token, *arguments, 0 * C, 0 * C))


@pytest.mark.parametrize("slope", [jnp.nan, jnp.inf])
def test_a_slope_that_is_not_finite_is_never_left_out(slope):
    _, pull = eqx.filter_vjp(lambda arguments: pairwise(*arguments), latent())
    C_slope = jnp.zeros((N, M)).at[0, 0].set(slope)
    (found,) = pull((C_slope, jnp.zeros((N, M, 2))))
    assert np.all(np.isnan(flat(found)))


def test_nothing_asked_is_nothing():
    _, pull = eqx.filter_vjp(lambda arguments: pairwise(*arguments), latent())
    (found,) = pull((jnp.zeros((N, M)), jnp.zeros((N, M, 2))))
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
