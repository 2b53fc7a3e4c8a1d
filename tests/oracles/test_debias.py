"""Debiased maps, in both directions: T(x) with x − S(x) added in the latent space."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit import MongeMap, datasets, load
from mongefit._convex import SquaredEuclidean
from mongefit._costs import Cost
from mongefit._transport import build_map
from tests.contracts.families import CONVEX, DIFFEOS, shaken

N, M, DIM = 9, 8, 2


def clouds():
    x, y = jr.normal(jr.key(0), (N, DIM)), jr.normal(jr.key(1), (M, DIM)) + 0.3
    a, b = (jax.nn.softmax(jr.normal(jr.key(k), (size,))) for k, size in ((2, N), (3, M)))
    return x, y, a, b


@jax.jit
def moved_by(x, y, a, epsilon, new):
    """Images of new points in both directions, for the squared distance and the same weights."""
    fitted, dual = build_map(Cost(SquaredEuclidean()), x, y, a=a, b=a, epsilon=epsilon, debias=True)
    return fitted.forward(new), fitted.reverse(new), dual.converged


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 5.0])
def test_a_shift_is_found_exactly_at_any_epsilon(epsilon):
    # T(x) = S(x) + t for the squared distance, so nothing of the bias is left.
    x, _, a, _ = clouds()
    shift = jnp.array([1.5, -0.7])
    new = jr.normal(jr.key(4), (5, DIM))
    forward, reverse, converged = moved_by(x, x + shift, a, epsilon, new)
    assert converged
    np.testing.assert_allclose(forward, new + shift, atol=1e-7)
    np.testing.assert_allclose(reverse, new - shift, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "flows"),
    [
        ("ICNN asymmetric", "separate"),
        ("ICNN symmetric", "none"),
        ("learned matrix", "none"),
        ("learned matrix", "separate"),
    ],
)
def test_the_correction_is_the_map_of_a_cloud_to_itself(name, flows):
    x, y, a, b = clouds()
    first, second = shaken(DIFFEOS["one block"](DIM)), shaken(DIFFEOS["affine"](DIM))
    cost = Cost(CONVEX[name](DIM), *((first, second) if flows == "separate" else ()))

    @eqx.filter_jit
    def both_ways(cost):
        """Images of the debiased map, in both directions, and what they should be."""
        fitted, _ = build_map(cost, x, y, a=a, b=b, epsilon=0.2, debias=True)
        plain = eqx.tree_at(lambda m: m.own, fitted, None, is_leaf=lambda leaf: leaf is None)
        u, v = cost.latent_source(x), cost.latent_target(y)
        h = Cost(cost.h)
        relative = [fitted.eps / (w @ h.matrix(z, z) @ w) for z, w in ((u, a), (v, b))]
        S_u, _ = build_map(h, u, u, a=a, b=a, epsilon=relative[0])
        S_v, _ = build_map(h, v, v, a=b, b=b, epsilon=relative[1])
        forward = cost.latent_target(plain.forward(x)) + u - S_u.forward(u)
        reverse = cost.latent_source(plain.reverse(y)) + v - S_v.reverse(v)
        found = cost.latent_target(fitted.forward(x)), cost.latent_source(fitted.reverse(y))
        return found, (forward, reverse)

    for found, expected in zip(*both_ways(cost), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("name", ["ICNN asymmetric", "learned matrix"])
def test_derivatives_agree_with_differences(name):
    x, y, a, b = clouds()
    cost = Cost(CONVEX[name](DIM), shaken(DIFFEOS["affine"](DIM)))
    C = cost.matrix(x, y)
    scale = a @ C @ b  # eps is held constant

    def moved(cost):
        epsilon = 0.2 * scale / jax.lax.stop_gradient(a @ cost.matrix(x, y) @ b)
        fitted, _ = build_map(cost, x, y, a=a, b=b, epsilon=epsilon, debias=True)
        return jnp.sum(jnp.sin(fitted.forward(x))) + jnp.sum(jnp.sin(fitted.reverse(y)))

    parameters, fixed = eqx.partition(cost, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(parameters)
    direction = [jr.normal(jr.key(k), leaf.shape) for k, leaf in enumerate(leaves)]

    @jax.jit
    @jax.value_and_grad
    def along(t):
        at = [leaf + t * step for leaf, step in zip(leaves, direction, strict=True)]
        return moved(eqx.combine(jax.tree.unflatten(structure, at), fixed))

    (_, slope), (ahead, _), (behind, _) = map(along, (0.0, 1e-5, -1e-5))
    difference = (ahead - behind) / 2e-5
    assert abs(slope - difference) <= 1e-6 * max(1.0, abs(difference))


def test_an_estimator_debiases_saves_and_maps_in_blocks(tmp_path):
    X, Y = datasets.t_shape(48, seed=0)
    pairs = np.stack([np.arange(48)] * 2, axis=1)
    options = {"cost": "matrix", "diffeo": "affine", "epsilon": 0.1, "max_iter": 0}
    plain = MongeMap(**options).fit(X, Y, pairs=pairs)
    model = MongeMap(**options, debias=True).fit(X, Y, pairs=pairs)
    assert model.diagnostics_["converged"]
    assert np.abs(model.transform(X) - plain.transform(X)).max() > 0.1
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.debias
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.inverse_transform(Y), model.inverse_transform(Y))
    many = np.repeat(X, 60, axis=0)
    np.testing.assert_allclose(model.transform(many)[::60], model.transform(X), atol=1e-9)
