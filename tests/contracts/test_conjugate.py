"""What a convex function that is given by its conjugate must satisfy besides the contracts."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._convex import ICNN
from mongefit._inverse import ConjugateICNN, NewtonInverse
from tests.contracts.families import CONVEX, as_float32, shaken

DIM = 3
FAMILIES = [name for name in CONVEX if name.startswith("conjugate")]


@eqx.filter_jit
def evaluate(h, z, guess=None):
    """Value, gradient, the solve behind them, and the conjugate at the gradient."""
    value, gradient = h.value_and_gradient(z, guess)
    return {
        "value": value,
        "gradient": gradient,
        "solve": h.solve(z, guess),
        "conjugate": h.conjugate.value(gradient),
    }


hessian = eqx.filter_jit(lambda h, z: h.hessian(z))


@functools.cache
def points(rows=24):
    return 2 * jr.normal(jr.key(1), (rows, DIM))


def quadratic(h, root):
    """h with the network switched off and the given Q."""
    parts = (jnp.asarray(-1e3), jnp.asarray(root))
    return eqx.tree_at(lambda h: (h.network.log_gain, h.network.quadratic), h, parts)


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_a_quadratic_conjugate_gives_the_inverse_quadratic(alpha):
    """k(p) = ½ pᵀBp has h(z) = ½ zᵀB⁻¹z, with B scaled down where it exceeds 1/α."""
    root = np.random.default_rng(0).normal(size=(DIM, DIM))
    beta = 0.1
    h = quadratic(ConjugateICNN(DIM, (4,), key=jr.key(0), alpha=alpha, beta=beta), root)
    square = root.T @ root
    scale = min(1, (1 / alpha - beta) / np.abs(square).sum(axis=1).max())
    assert (scale < 1) == (alpha == 0.5)
    inverse = np.linalg.inv(scale * square + beta * np.eye(DIM))
    found = evaluate(h, points())
    expected = 0.5 * np.einsum("ni,ij,nj->n", points(), inverse, points())
    np.testing.assert_allclose(found["value"], expected, rtol=1e-11)
    np.testing.assert_allclose(found["gradient"], points() @ inverse, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(hessian(h, points()), np.tile(inverse, (24, 1, 1)), rtol=1e-11)
    assert found["solve"].iterations == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_value_is_the_largest_of_its_tangents(name):
    """h(z) ≥ ⟨p, z⟩ − k(p) for every p, with equality at p = ∇h(z)."""
    h, z = CONVEX[name](DIM), points()
    found = evaluate(h, z)
    p = found["gradient"]
    np.testing.assert_allclose(found["value"], jnp.sum(p * z, axis=1) - found["conjugate"], 1e-12)
    tangents = p @ z.T - found["conjugate"][:, None]
    assert np.all(found["value"] >= tangents - 1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_parameter_derivatives_agree_with_central_differences(name):
    """Of the value, and of the gradient, whose derivative is not zero."""
    h, z = CONVEX[name](DIM), points()
    weights, rest = eqx.partition(h, eqx.is_inexact_array)
    direction = shaken(jax.tree.map(jnp.zeros_like, weights), size=1.0, seed=11)

    def along(t):
        moved = jax.tree.map(lambda leaf, step: leaf + t * step, weights, direction)
        value, gradient = eqx.combine(moved, rest).value_and_gradient(z)
        return jnp.stack([jnp.mean(value), jnp.mean(gradient * jr.normal(jr.key(3), z.shape))])

    derivative = jax.jit(jax.jacrev(along))(0.0)
    after, before = jax.jit(jax.vmap(along))(jnp.array([1e-5, -1e-5]))
    difference = (after - before) / 2e-5
    assert np.abs(derivative).min() > 1e-2
    np.testing.assert_array_less(
        np.abs(derivative - difference), 1e-6 * np.maximum(1, np.abs(difference))
    )


def test_a_warm_start_gives_the_same_answer_in_fewer_iterations():
    h = CONVEX["conjugate ICNN asymmetric"](DIM)
    cold = evaluate(h, points())
    guess = evaluate(shaken(h, size=1e-3), points())["gradient"]
    warm = evaluate(h, points(), guess)
    np.testing.assert_allclose(warm["value"], cold["value"], rtol=1e-12)
    np.testing.assert_allclose(warm["gradient"], cold["gradient"], rtol=1e-10)
    assert 0 < warm["solve"].iterations < cold["solve"].iterations
    assert evaluate(h, points(), cold["gradient"])["solve"].iterations == 0


def test_a_guess_that_is_not_finite_is_replaced():
    h = CONVEX["conjugate ICNN asymmetric"](DIM)
    cold = evaluate(h, points())
    warm = evaluate(h, points(), cold["gradient"].at[:5, 0].set(jnp.nan).at[7].set(jnp.inf))
    np.testing.assert_allclose(warm["gradient"], cold["gradient"], rtol=1e-10)


def test_what_was_not_solved_is_nan():
    h = CONVEX["conjugate ICNN asymmetric"](DIM)
    short = eqx.tree_at(lambda h: h.solver, h, NewtonInverse(max_iter=1))
    z = points().at[-1].set(0)
    found = evaluate(short, z)
    lost = ~np.asarray(found["solve"].converged)
    assert np.all(lost[:-1]) and not lost[-1]
    assert np.all(np.isnan(found["value"]) == lost)
    assert np.all(np.isnan(found["gradient"]) == lost[:, None])
    assert np.all(np.isnan(hessian(short, z)) == lost[:, None, None])


def test_curvature_stays_between_its_bounds_however_large_the_weights():
    start = ConjugateICNN(2, (8, 6), key=jr.key(0), alpha=0.2, beta=0.05)
    p = jnp.concatenate([jnp.zeros((1, 2)), jr.normal(jr.key(2), (200, 2))])
    measure = eqx.filter_jit(
        lambda h: (h.network.curvature_bound(), h.network.hessian(p), h.conjugate.hessian(p))
    )
    for size in (0.3, 3.0, 30.0):
        bound, unscaled, scaled = measure(shaken(start, size=size))
        assert (bound > 1 / 0.2) == (size > 1)
        assert np.linalg.eigvalsh(unscaled).max() <= bound * (1 + 1e-12)
        eigenvalues = np.linalg.eigvalsh(scaled)
        assert eigenvalues.min() >= 0.05 - 1e-12
        assert eigenvalues.max() <= 1 / 0.2 + 1e-12


@pytest.mark.parametrize("activation", ["squareplus", "softplus"])
def test_curvature_bound_is_attained_by_a_single_unit_at_its_kink(activation):
    network = ICNN(1, (1,), key=jr.key(0), activation=activation, gain=3.0)
    network = eqx.tree_at(lambda h: h.bias, network, (jnp.zeros(1),))
    hessian = network.hessian(jnp.zeros((1, 1)))[0, 0, 0]
    np.testing.assert_allclose(hessian, network.curvature_bound(), rtol=1e-13)


def test_starts_close_to_squared_euclidean():
    h = ConjugateICNN(DIM, key=jr.key(0), beta=0.01)
    expected = 0.5 * jnp.sum(points() ** 2, axis=1) / 1.01
    np.testing.assert_allclose(evaluate(h, points())["value"], expected, rtol=0.05)


def test_float32_finds_what_float64_finds():
    h = CONVEX["conjugate ICNN asymmetric"](DIM)
    single = evaluate(as_float32(h), points().astype(jnp.float32))
    double = evaluate(h, points())
    assert single["value"].dtype == single["gradient"].dtype == jnp.float32
    np.testing.assert_allclose(single["value"], double["value"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(single["gradient"], double["gradient"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"beta": np.inf}, {"alpha": 2, "beta": 0.5}])
def test_refuses_impossible_constants(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ConjugateICNN(2, (4,), key=jr.key(0), **options)
