"""Derivatives of every order: second ones against differences of the gradient, both modes alike."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mongefit import (
    Cost,
    DualProblem,
    Mahalanobis,
    SquaredEuclidean,
    build_map,
    inverse_gradient,
    solve_dual,
    transport_value,
)
from mongefit.errors import OptionError
from tests.contracts.families import CONVEX, DIFFEOS

N, M, DIM = 6, 5, 2
RNG = np.random.default_rng(0)
X, Y, A = RNG.normal(size=(N, DIM)), RNG.normal(size=(M, DIM)) + 0.5, RNG.dirichlet(np.ones(N))


def _network():
    return CONVEX["ICNN asymmetric"](DIM)


def _moved(tree, along, t):
    return jax.tree.map(lambda p, q: p + t * q if eqx.is_inexact_array(p) else p, tree, along)


def _direction(tree):
    """A direction in the parameters; a matrix d×d stays symmetric, as `Mahalanobis` needs."""

    def draw(leaf):
        drawn = np.random.default_rng(3).normal(size=jnp.shape(leaf)) / 5
        return drawn + drawn.T if drawn.shape == (DIM, DIM) else drawn

    return jax.tree.map(draw, tree)


def _of_dual(t):
    C = jnp.sum((X[:, None] * jnp.exp(t) - Y) ** 2, axis=-1)
    solved = solve_dual(DualProblem(C, A, eps=0.4))
    return jnp.sum(solved.f**2) + jnp.sum(jnp.sin(solved.g))


def _of_value(t):
    C = jnp.sum((X[:, None] * jnp.exp(t) - Y) ** 2, axis=-1)
    return transport_value(DualProblem(C, A, eps=0.4)).value ** 2


def _of_inverse(t):
    h, p = _network(), X
    moved = _moved(h, _direction(h), t)
    return jnp.sum(inverse_gradient(moved, p * (1 + t)).z ** 3)


def _of_map(h, t, *, reverse=False, flow=None):
    cost = Cost(h) if flow is None else Cost(h, flow, flow)
    cost = _moved(cost, _direction(cost), t)
    x, y = jnp.asarray(X), jnp.asarray(Y)
    # An absolute eps: the mean cost that it is relative to is held constant by definition.
    mean = A @ jax.lax.stop_gradient(cost.matrix(x, y)) @ jnp.full(M, 1 / M)
    fitted, _ = build_map(cost, x, y, a=A, epsilon=0.3 / mean)
    points = fitted.reverse(y * (1 + t)) if reverse else fitted.forward(x * (1 + t))
    return jnp.sum(points**3)


CASES = {
    "dual": _of_dual,
    "value": _of_value,
    "inverse gradient": _of_inverse,
    "map, quadratic": lambda t: _of_map(Mahalanobis(np.diag([1.0, 2.0])), t),
    "map in reverse, network": lambda t: _of_map(_network(), t, reverse=True),
    "map, flow": lambda t: _of_map(SquaredEuclidean(), t, flow=DIFFEOS["one block"](DIM)),
}


def _differences(function, at, step):
    """The derivative by central differences of fourth order."""
    near, far = (function(at + k * step) - function(at - k * step) for k in (1, 2))
    return (8 * near - far) / (12 * step)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_and_both_modes(name):
    with jax.enable_x64(True):
        function = CASES[name]
        at, step = jnp.asarray(0.1), 1e-3
        value_and_grad = jax.jit(jax.value_and_grad(function))
        gradient = value_and_grad(at)[1]
        second = jax.jit(jax.grad(jax.grad(function)))(at)
        differences = _differences(lambda t: value_and_grad(t)[1], at, step)
        assert abs(second - differences) <= 1e-5 * max(1.0, abs(differences))
        _, forward = jax.jit(lambda t: jax.jvp(function, (t,), (jnp.ones_like(t),)))(at)
        assert abs(forward - gradient) <= 1e-9 * max(1.0, abs(forward))
        first = _differences(lambda t: value_and_grad(t)[0], at, step)
        assert abs(gradient - first) <= 1e-5 * max(1.0, abs(first))


def test_a_misspelt_mode_is_refused():
    problem = DualProblem(jnp.ones((2, 2)), eps=0.1)
    with pytest.raises(OptionError, match=r"implict.*mean implicit"):
        solve_dual(problem, differentiate="implict")
    with pytest.raises(OptionError, match=r"implict.*mean implicit"):
        build_map(Cost(_network()), X, Y, differentiate="implict")


@pytest.mark.parametrize("epsilon", [0.0, -0.1, np.nan])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon):
    with pytest.raises(OptionError, match="epsilon must be positive"):
        build_map(Cost(_network()), X, Y, epsilon=epsilon)
