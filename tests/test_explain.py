"""What a cost has learned: closed forms, autodiff, and what the explanation prints."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas
import pytest
from sklearn.exceptions import NotFittedError

from mongefit import ICNN, AutoregressiveFlow, Mahalanobis, MongeMap, PowerNorm, explain
from mongefit._runtime import double_precision
from mongefit._training import learns
from mongefit.baselines import PairedRidge
from mongefit.errors import OptionError
from mongefit.explain import explain_cost
from tests.contracts.families import shaken

DIM = 3
N = 12
PAIRS = [[0, 0], [1, 1]]


def clouds(scale=1.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, DIM)) * [1.0, 2.0, 0.5]
    return scale * X, scale * rng.normal((3.0, 1.0, -1.0), size=(N, DIM))


def explained(cost, diffeo=None, *, scale=1.0, X=None, Y=None, **fit):
    """The explanation of a cost as it is given, and the model."""
    given_X, given_Y = clouds(scale)
    X, Y = given_X if X is None else X, given_Y if Y is None else Y
    trains = diffeo is not None or (not isinstance(cost, str) and learns(cost))
    model = MongeMap(cost, diffeo, epsilon=0.1, max_iter=0)
    model.fit(X, Y, pairs=PAIRS if trains else None, **fit)
    return explain_cost(model), model


def positive_matrix():
    root = np.random.default_rng(3).normal(size=(DIM, DIM))
    return root @ root.T + 0.5 * np.eye(DIM)


def network(*, symmetric):
    with double_precision():
        return shaken(ICNN(DIM, (6,), key=jr.key(0), gain=2.0, symmetric=symmetric))


def shares(found):
    return found.euclidean, found.anisotropy, found.variation


def test_squared_euclidean_has_nothing_to_tell():
    found, model = explained("sqeuclidean")
    np.testing.assert_allclose(found.hessian, np.eye(DIM), atol=1e-14)
    np.testing.assert_allclose(found.curvature, 1, rtol=1e-14)
    np.testing.assert_allclose(shares(found), (1, 0, 0), atol=1e-14)
    assert found.mean_asymmetry == 0
    assert not np.any(found.asymmetry)
    X, _ = clouds()
    np.testing.assert_allclose(found.displacements, X - model.transform(X), atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_mahalanobis_gives_its_matrix(scale):
    A = positive_matrix()
    found, model = explained(Mahalanobis(A), scale=scale)
    np.testing.assert_allclose(found.hessian, A * DIM / np.trace(A), rtol=1e-12)
    values, vectors = np.linalg.eigh(found.hessian)
    np.testing.assert_allclose(found.curvature, values[::-1], rtol=1e-12)
    np.testing.assert_allclose(np.abs(found.directions @ vectors[:, ::-1]), np.eye(DIM), atol=1e-8)
    expected = np.trace(A) ** 2 / (DIM * np.sum(A**2))
    np.testing.assert_allclose(shares(found), (expected, 1 - expected, 0), atol=1e-12)
    X, _ = clouds(scale)
    moves = model.transform(X) - X
    assert np.all(found.directions @ moves.mean(axis=0) >= 0)
    along = np.mean((moves @ found.directions.T) ** 2, axis=0)
    np.testing.assert_allclose(found.motion, along / along.sum(), rtol=1e-10)


def test_power_norm_varies_as_its_formula_says():
    found, model = explained(PowerNorm(3.0, 0.1), source_weight=np.arange(1, N + 1) / 78)
    weight = np.arange(1, N + 1) / 78
    second = 2 * np.abs(found.displacements / float(model.units_.scale)) + 0.1
    second /= np.mean(weight @ second)
    np.testing.assert_allclose(found.hessian, np.diag(weight @ second), rtol=1e-10, atol=1e-14)
    energy = weight @ np.sum(second**2, axis=1)
    varying = weight @ np.sum((second - weight @ second) ** 2, axis=1)
    np.testing.assert_allclose(found.variation, varying / energy, rtol=1e-9)
    np.testing.assert_allclose(sum(shares(found)), 1, rtol=1e-12)
    assert found.mean_asymmetry == 0


def test_asymmetry_compares_there_and_back():
    h = network(symmetric=False)
    found, model = explained(h)
    scale = float(model.units_.scale)
    with double_precision():
        z = jnp.asarray(found.displacements) / scale
        there, back = np.asarray(h.value(z)), np.asarray(h.value(-z))
        X, _ = clouds()
        moves = (model.transform(X) - X) / scale
        lengths = np.sqrt(np.mean((moves @ found.directions.T) ** 2, axis=0))
        steps = jnp.asarray(lengths[:, None] * found.directions)
        onwards, return_ = np.asarray(h.value(-steps)), np.asarray(h.value(steps))
    np.testing.assert_allclose(found.displacement_asymmetry, (there - back) / (there + back), 1e-9)
    np.testing.assert_allclose(found.asymmetry, (onwards - return_) / (onwards + return_), 1e-9)
    assert found.mean_asymmetry > 0.01


def test_a_symmetric_network_has_no_asymmetry():
    found, _ = explained(network(symmetric=True))
    np.testing.assert_allclose(found.displacement_asymmetry, 0, atol=1e-14)
    np.testing.assert_allclose(found.asymmetry, 0, atol=1e-14)
    assert found.variation > 1e-6


def test_turned_data_and_a_turned_cost_turn_the_explanation():
    """h(Rᵀz) for data turned by R."""
    h = network(symmetric=False)
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(DIM, DIM)))
    with double_precision():
        turned_h = eqx.tree_at(
            lambda h: (h.passthrough, h.quadratic),
            h,
            (tuple(V @ turn.T for V in h.passthrough), h.quadratic @ turn.T),
        )
    X, Y = clouds()
    plain, _ = explained(h)
    turned, _ = explained(turned_h, X=X @ turn.T, Y=Y @ turn.T)
    np.testing.assert_allclose(turned.hessian, turn @ plain.hessian @ turn.T, atol=1e-8)
    np.testing.assert_allclose(turned.directions, plain.directions @ turn.T, atol=1e-6)
    np.testing.assert_allclose(turned.asymmetry, plain.asymmetry, atol=1e-8)
    np.testing.assert_allclose(shares(turned), shares(plain), atol=1e-9)


def test_flows_are_pulled_back_where_points_land():
    """H_i is the Hessian in y of h(Φμ(x) − Φν(y_i) − J(y − y_i)), by automatic differentiation."""
    h = network(symmetric=False)
    with double_precision():
        flows = tuple(
            shaken(AutoregressiveFlow(DIM, key=jr.key(k), n_blocks=1, width=4), 0.2, seed=k)
            for k in (1, 2)
        )
        found, model = explained(h, flows)
        X, _ = clouds()
        x, y = (model.units_.into(side) for side in (X, model.transform(X)))

        @jax.jit
        def differentiate(x, y):
            u, v = flows[0].forward(x), flows[1].forward(y)
            J = jax.vmap(jax.jacrev(lambda point: flows[1].forward(point[None])[0]))(y)

            def cost(point, u, v, J, y):
                return h.value((u - v - J @ (point - y))[None])[0]

            return u, v, J, jax.vmap(jax.hessian(cost))(y, u, v, J, y)

        u, v, J, hessians = differentiate(x, y)
        hessians = np.array(hessians)
        lengths = np.sqrt(np.mean(((y - x) @ found.directions.T) ** 2, axis=0))
        steps = np.einsum("nab,kb->nka", J, lengths[:, None] * found.directions)
        ways = [
            np.reshape(h.value(jnp.asarray(sign * steps).reshape(-1, DIM)), (N, -1)).mean(axis=0)
            for sign in (-1, 1)
        ]
    hessians *= DIM / np.trace(hessians.mean(axis=0))
    np.testing.assert_allclose(found.hessian, hessians.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(found.displacements, (u - v) * model.units_.scale, atol=1e-8)
    energy = np.mean(np.sum(hessians**2, axis=(1, 2)))
    np.testing.assert_allclose(found.euclidean, DIM / energy, rtol=1e-8)
    np.testing.assert_allclose(found.asymmetry, (ways[0] - ways[1]) / (ways[0] + ways[1]), 1e-6)


def test_blocks_change_nothing(monkeypatch):
    h = network(symmetric=False)
    whole, _ = explained(h)
    monkeypatch.setattr(explain, "_BLOCK", 5)
    parts, _ = explained(h)
    np.testing.assert_allclose(parts.hessian, whole.hessian, rtol=1e-12)
    np.testing.assert_allclose(parts.displacements, whole.displacements, rtol=1e-12)
    np.testing.assert_allclose(shares(parts), shares(whole), atol=1e-12)


def test_chosen_points():
    _, model = explained(PowerNorm(3.0, 0.1))
    X, _ = clouds()
    some = explain_cost(model, X[:4])
    np.testing.assert_allclose(some.displacements, X[:4] - model.transform(X[:4]), atol=1e-10)
    np.testing.assert_allclose(some.weight, 0.25)


def test_one_dimension_and_points_that_stay():
    X = np.linspace(0, 1, 5)[:, None]
    found, _ = explained("sqeuclidean", X=X, Y=np.ones((1, 1)))
    assert found.curvature == found.motion == 1
    still = explain_cost(MongeMap("sqeuclidean").fit(np.ones((1, 2)), np.ones((1, 2))))
    np.testing.assert_array_equal(still.motion, 0)
    np.testing.assert_array_equal(still.asymmetry, 0)


def test_prints_directions_with_the_names_of_features():
    X, Y = (pandas.DataFrame(side, columns=["a", "b", "c"]) for side in clouds())
    found, _ = explained(Mahalanobis(np.diag([1.0, 4.0, 1.0])), X=X, Y=Y)
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["direction", "curvature"]
    assert lines[1].split()[:2] == ["1", "2"]
    assert lines[1].replace("-1.00", "+1.00").split("+1.00 ")[1].startswith("b,")
    assert "Curvature: 66.7% squared Euclidean, 33.3% a constant matrix" in lines[4]
    assert "Asymmetry of the displacements: 0 on average" in lines[5]
    assert "<table>" in found._repr_html_()


def test_refuses_what_has_no_cost():
    with pytest.raises(NotFittedError):
        explain_cost(MongeMap())
    with pytest.raises(OptionError, match="got PairedRidge"):
        explain_cost(PairedRidge())
