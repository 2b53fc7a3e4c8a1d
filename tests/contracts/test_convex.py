"""What every convex function must satisfy."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._convex import (
    ICNN,
    ConvexFunction,
    LearnedMatrix,
    LowRankMatrix,
    PowerNorm,
    network,
)
from mongefit._costs import pairwise_value
from mongefit._inverse import ConjugateICNN, LBFGSInverse, NewtonInverse, inverse_gradient
from mongefit._inverse.solvers import default_tolerance
from mongefit.errors import OptionError
from tests.contracts.families import CONVEX, as_float32, shaken

family = pytest.mark.parametrize("name", CONVEX.keys())
DIM = 3


def points():
    """Ordinary displacements, tiny ones, large ones, and zero in the last row."""
    z = 2 * jr.normal(jr.key(1), (24, DIM))
    return jnp.concatenate([z, 1e-3 * z[:8], 30 * z[8:16], jnp.zeros((1, DIM))])


@functools.cache
def measured(name):
    """Everything that the tests look at, in one compiled call per family."""
    h = CONVEX[name](DIM)

    @eqx.filter_jit
    def measure(h, z):
        value, gradient = h.value_and_gradient(z)
        inverse = inverse_gradient(h, gradient)
        return {
            "value": value,
            "gradient": gradient,
            "hessian": h.hessian(z),
            "together": h.gradient_and_hessian(z),
            "mirrored": h.value(-z),
            "pairs": pairwise_value(h, z[:5], z[5:9]),
            "values of pairs": h.value((z[:5, None] - z[5:9]).reshape(-1, DIM)).reshape(5, 4),
            "grad": jax.vmap(jax.grad(lambda z: h.value(z[None])[0]))(z),
            "jacobian": jax.vmap(jax.jacfwd(lambda z: h.gradient(z[None])[0]))(z),
            "inverse": inverse,
            "there and back": h.gradient(inverse.z),
            "inverse_jacobian": jax.vmap(jax.jacrev(lambda p: inverse_gradient(h, p[None]).z[0]))(
                gradient
            ),
        }

    return h, points(), measure(h, points())


@family
def test_normalised_at_zero_and_positive_elsewhere(name):
    _, _, found = measured(name)
    np.testing.assert_allclose(found["value"][-1], 0, atol=1e-13)
    np.testing.assert_allclose(found["gradient"][-1], 0, atol=1e-13)
    assert np.all(found["value"][:-1] > 0)


@family
def test_costs_of_all_pairs_are_values_of_displacements(name):
    _, _, found = measured(name)
    np.testing.assert_allclose(found["pairs"], found["values of pairs"], rtol=1e-10)


@family
def test_gradient_and_hessian_agree_with_autodiff(name):
    _, _, found = measured(name)
    np.testing.assert_allclose(found["gradient"], found["grad"], rtol=1e-11, atol=1e-11)
    # Not at zero, where a power below 2 has no second derivative.
    np.testing.assert_allclose(found["hessian"][:-1], found["jacobian"][:-1], rtol=1e-9, atol=1e-11)
    for one, name in zip(found["together"], ("gradient", "hessian"), strict=True):
        np.testing.assert_allclose(one, found[name], rtol=1e-13, atol=1e-13)


@family
def test_strongly_convex(name):
    h, z, found = measured(name)
    difference = z[:12] - z[12:24]
    gap = jnp.sum((found["gradient"][:12] - found["gradient"][12:24]) * difference, axis=1)
    assert jnp.all(gap > 0)
    assert jnp.all(gap - h.strong_convexity * jnp.sum(difference**2, axis=1) >= -1e-10)
    assert np.linalg.eigvalsh(found["hessian"]).min() >= h.strong_convexity - 1e-10


@family
def test_inverse_gradient_inverts_the_gradient(name):
    _, z, found = measured(name)
    inverse, p = found["inverse"], found["gradient"]
    residual = np.linalg.norm(found["there and back"] - p, axis=1)
    residual /= 1 + np.linalg.norm(p, axis=1)
    assert residual.max() <= 1e-10
    np.testing.assert_allclose(inverse.residual, residual, atol=1e-14)
    assert np.all(inverse.converged)
    np.testing.assert_allclose(inverse.z, z, atol=1e-8)


@family
def test_an_inverse_gradient_that_is_not_finite_is_not_called_found(name):
    h, z, found = measured(name)
    lost = np.isin(np.arange(len(z)), [3, 5])
    p = found["gradient"].at[3, 0].set(jnp.nan).at[5].set(jnp.inf)
    inverse = eqx.filter_jit(inverse_gradient)(h, p)
    assert np.all(np.asarray(inverse.converged) == ~lost)
    assert not np.any(inverse.residual[lost] <= 1)
    np.testing.assert_allclose(inverse.z[~lost], z[~lost], atol=1e-8)


def test_a_search_that_starts_where_nothing_is_finite_ends_there():
    h, z, found = measured("ICNN asymmetric")
    start = jnp.zeros_like(z).at[3].set(jnp.nan).at[5].set(1e200)
    inverse = eqx.filter_jit(inverse_gradient)(h, found["gradient"], start)
    lost = np.isin(np.arange(len(z)), [3, 5])
    assert np.all(np.asarray(inverse.converged) == ~lost)
    assert inverse.iterations == found["inverse"].iterations


@family
def test_inverse_gradient_derivative_is_the_inverse_hessian(name):
    _, _, found = measured(name)
    expected = np.linalg.inv(found["hessian"][:24])
    np.testing.assert_allclose(found["inverse_jacobian"][:24], expected, atol=1e-8)
    assert np.all(np.isfinite(found["inverse_jacobian"]))


@family
def test_symmetric_unless_it_says_otherwise(name):
    h, _, found = measured(name)
    gap = np.abs(found["value"] - found["mirrored"]).max()
    assert gap > 1e-3 if "asymmetric" in name else gap < 1e-9
    # Costs of baselines leave it unsaid.
    assert h.is_even == ("asymmetric" not in name) or "baselines" in type(h).__module__


def test_learned_matrices_start_at_the_identity():
    """Apart from the small random rows of one of them."""
    np.testing.assert_allclose(LearnedMatrix(DIM, alpha=0.3).matrix, np.eye(DIM), rtol=1e-14)
    h = LowRankMatrix(DIM, 2, key=jr.key(0), alpha=0.3)
    rows = np.asarray(h.factor)
    np.testing.assert_allclose(h.matrix, np.eye(DIM) + rows.T @ rows, rtol=1e-14)


def test_a_power_without_curvature_at_zero_is_inverted_there():
    np.testing.assert_array_equal(PowerNorm(3.0).inverse_gradient(jnp.zeros((1, 2))), 0.0)


def test_solves_say_how_many_iterations_they_took():
    _, _, found = measured("Mahalanobis")
    assert found["inverse"].iterations == 0  # a closed form

    class Bowl(ConvexFunction):
        def value(self, z):
            return jnp.sum(z**2, axis=-1)

    p = found["gradient"][:4]
    assert inverse_gradient(Bowl(), p).iterations == 1  # Newton's method on a quadratic
    assert inverse_gradient(Bowl(), p, 0.5 * p).iterations == 0


def test_a_newton_step_that_gains_nothing_is_not_taken():
    """From z to −z and back for ever, where the gradient grows as a square root."""

    class Root(ConvexFunction):
        def value(self, z):
            far = jnp.abs(z) > 0.25
            root = jnp.sqrt(jnp.where(far, jnp.abs(z), 1.0))
            return jnp.sum(jnp.where(far, 2 / 3 * root**3 - 1 / 48, z * z), axis=-1)

    found = inverse_gradient(Root(), jnp.zeros((1, 1)), jnp.ones((1, 1)))
    assert found.converged.all() and found.iterations < 5


def test_defaults_are_part_of_the_interface():
    assert (NewtonInverse(), LBFGSInverse()) == (NewtonInverse(None, 200), LBFGSInverse(None, 500))
    assert default_tolerance(jnp.float64) == 1e-10
    assert default_tolerance(jnp.float32) == 1e-5
    h, k = ConjugateICNN(2, key=jr.key(0)), network.ICNN(2, key=jr.key(0))
    assert [len(layer) for layer in h.network.bias] == [len(layer) for layer in k.bias] == [64, 64]
    assert (h.alpha, h.network.alpha, k.alpha) == (0.01, 0.01, 0.01)


@family
def test_float32_stays_float32_and_inverts(name):
    h = as_float32(CONVEX[name](DIM))

    @eqx.filter_jit
    def measure(h, z):
        value, gradient = h.value_and_gradient(z)
        return value, gradient, h.hessian(z), inverse_gradient(h, gradient)

    value, gradient, hessian, inverse = measure(h, points()[:24].astype(jnp.float32))
    dtypes = {value.dtype, gradient.dtype, hessian.dtype, inverse.z.dtype}
    assert dtypes == {jnp.dtype("float32")}
    assert inverse.residual.max() <= 1e-5


NETWORKS = [name for name in CONVEX if name.startswith("ICNN")]
# Every two of network, number of features and precision meet.
THIN = [
    (name, dim, ("float64", "float32")[(k + dim) % 2])
    for k, name in enumerate(NETWORKS)
    for dim in (2, 3, 4)
]


@pytest.mark.parametrize(("name", "dim", "dtype"), THIN)
def test_thin_products_are_plain_products(name, dim, dtype, monkeypatch):
    """Values, gradients and what training differentiates are those of plain products."""
    h = CONVEX[name](dim)
    h = as_float32(h) if dtype == "float32" else h
    z, along = jr.normal(jr.key(2), (2, 9, dim), dtype)

    def measure(h, z):
        def directional(moving):
            h, z = moving
            value, change = jax.jvp(h.value, (z,), (along,))
            return jnp.sum(value * change) + jnp.sum(h.gradient(z) ** 2)

        return {
            "value": h.value(z),
            "gradient": h.gradient(z),
            "pairs": pairwise_value(h, z, along),
            "derivatives": eqx.filter_grad(directional)((h, z)),
            "side by side": jax.vmap(lambda z: eqx.filter_grad(directional)((h, z)))(
                jnp.stack([z, 2 * z])
            ),
        }

    few = network.FEW
    monkeypatch.setattr(network, "FEW", 0)
    plain = eqx.filter_jit(measure)(h, z)
    monkeypatch.setattr(network, "FEW", few)
    tol = 1e-11 if dtype == "float64" else 2e-4
    for accelerated in (False, True):
        monkeypatch.setattr(network, "on_cpu", lambda accelerated=accelerated: not accelerated)
        # Another function: what was traced before would be found again.
        thin = eqx.filter_jit(lambda h, z: measure(h, z))(h, z)
        for one, other in zip(*map(jax.tree.leaves, (plain, thin)), strict=True):
            assert other.dtype == dtype
            np.testing.assert_allclose(other, one, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", NETWORKS)
def test_more_axes_are_more_rows(name):
    h = CONVEX[name](2)
    z = jr.normal(jr.key(3), (3, 4, 2))
    rows = z.reshape(-1, 2)
    np.testing.assert_allclose(h.value(z).ravel(), h.value(rows), rtol=1e-12)
    np.testing.assert_allclose(h.gradient(z).reshape(-1, 2), h.gradient(rows), rtol=1e-12)


def test_curvature_bound_of_three_layers_is_its_formula():
    h = shaken(network.ICNN(2, (4, 3, 5), key=jr.key(0), gain=2.0))
    (first, second), out = h._positive_weights()
    lengths = [np.linalg.norm(weight, axis=1) for weight in h.passthrough]
    lengths[1] += first @ lengths[0]
    lengths[2] += second @ lengths[1]
    squares = [length**2 for length in lengths]
    trace = out @ squares[2] + out @ second @ squares[1] + out @ second @ first @ squares[0]
    rows = np.abs(h.quadratic.T @ h.quadratic).sum(axis=1)
    expected = h.alpha + 0.25 * trace + rows.max()
    np.testing.assert_allclose(h.curvature_bound(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accelerated", [True, False])
def test_squareplus_and_its_slope_are_never_negative(accelerated, dtype, monkeypatch):
    """Or h would not be convex."""
    monkeypatch.setattr(network, "on_cpu", lambda: not accelerated)
    t = -jnp.logspace(0, 9, 2000, dtype=dtype)
    for found in network._squareplus(t):
        assert jnp.all(found >= 0)


@pytest.mark.parametrize("accelerated", [True, False])
def test_another_number_of_features_is_an_error(accelerated, monkeypatch):
    monkeypatch.setattr(network, "on_cpu", lambda: not accelerated)
    h = CONVEX["ICNN symmetric"](2)
    for evaluate in (h.value, h.gradient):
        with pytest.raises(TypeError):
            evaluate(jnp.ones((4, 3)))


def test_lbfgs_finds_the_same_inverse_as_newton():
    h, z, found = measured("ICNN asymmetric")
    solve = jax.jit(lambda p: inverse_gradient(h, p, solver=LBFGSInverse()))
    inverse = solve(found["gradient"])
    assert np.all(inverse.converged)
    assert inverse.residual.max() <= 1e-10
    np.testing.assert_allclose(inverse.z, z, atol=1e-8)


def test_costs_start_from_a_matrix():
    A = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(LearnedMatrix(2, matrix=A).matrix, A, rtol=1e-12)
    # Of a low-rank one the large directions, and the mean of the others.
    B = np.diag([9.0, 4.0, 1.5, 0.5])
    found = np.asarray(LowRankMatrix(4, 2, key=jr.key(0), matrix=B).matrix)
    np.testing.assert_allclose(np.diag(found), [9.0, 4.0, 1.0, 1.0], atol=0.6)
    # An ICNN is close to it, and exact in its quadratic part.
    h = ICNN(2, (4,), key=jr.key(0), matrix=A, gain=1e-9)
    z = jr.normal(jr.key(1), (5, 2))
    np.testing.assert_allclose(h.value(z), 0.5 * jnp.sum(z @ A * z, axis=1), rtol=1e-6)
    for wrong in (A[:1], [[1.0, 0.2], [0.0, 1.0]], np.eye(3)):
        with pytest.raises(OptionError, match="matrix must be symmetric"):
            LearnedMatrix(2, matrix=wrong)
    with pytest.raises(OptionError, match="eigenvalue"):
        LearnedMatrix(2, alpha=0.5, matrix=0.1 * np.eye(2))
    with pytest.raises(OptionError, match="without its quadratic"):
        ICNN(2, (4,), key=jr.key(0), quadratic=False, matrix=A)
