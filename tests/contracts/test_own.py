"""What users write themselves, in a few lines each: it trains, and is saved and read back."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import mongefit
from mongefit import ConvexFunction, Cost, Diffeo, MongeMap, Term, build_map, datasets

X, Y = datasets.t_shape(16, seed=0)
PAIRS = np.stack([np.arange(16)] * 2, axis=1)


class Quartic(ConvexFunction):
    """h(z) = ½‖z‖² + ½ Σ_k s_k z_k⁴ with learned s."""

    log_scale: jax.Array

    def value(self, z):
        return 0.5 * jnp.sum(z**2 + jnp.exp(self.log_scale) * z**4, axis=-1)

    @property
    def strong_convexity(self):
        return 1.0


class Stretch(Diffeo):
    """Φ(x) = e^s x, feature by feature."""

    log_scale: jax.Array

    def forward(self, x):
        return x * jnp.exp(self.log_scale)

    def inverse(self, u):
        return u * jnp.exp(-self.log_scale)

    def log_det(self, x):
        return jnp.broadcast_to(jnp.sum(self.log_scale), x.shape[:1])


class Towards(Term):
    """The mean squared distance of mapped points from a learned centre."""

    centre: jax.Array

    def __call__(self, context):
        return jnp.mean((context.forward - self.centre) ** 2)


OWN = {
    "h": {"cost": Quartic(jnp.array([-1.0, 0.5]))},
    "flow": {"cost": "sqeuclidean", "diffeo": Stretch(jnp.array([0.1, -0.1]))},
    "loss": {"losses": [Towards(jnp.array([0.3, 0.2])), mongefit.losses.Paired()]},
    "optimizer": {"optimizer": optax.sgd(1e-3)},
}


@pytest.mark.parametrize("name", OWN)
def test_own_parts_train_and_come_back(name, tmp_path):
    options = {"hidden_layer_sizes": (4,), "max_iter": 12, "epsilon": 0.2} | OWN[name]
    model = MongeMap(**options).fit(X, Y, pairs=PAIRS)
    assert model.history_["applied"].all()
    assert model.history_["loss"].min() < model.history_["loss"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an optimizer is a function and is left out
        model.save(tmp_path / "m")
    again = mongefit.load(tmp_path / "m", classes=[Quartic, Stretch, Towards])
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_what_an_own_loss_learns_is_kept(tmp_path):
    start = jnp.array([0.3, 0.2])
    model = MongeMap(
        hidden_layer_sizes=(4,), max_iter=12, epsilon=0.2, losses=[Towards(start)]
    ).fit(X, Y)
    learned = np.asarray(model.losses_[0].centre)
    assert np.all(learned != start)
    model.save(tmp_path / "m")
    again = mongefit.load(tmp_path / "m", classes=[Towards])
    np.testing.assert_array_equal(again.losses_[0].centre, learned)


@pytest.mark.parametrize(
    "cost",
    [
        Cost(Quartic(jnp.array([-1.0, 0.5]))),
        Cost(mongefit.SquaredEuclidean(), *[Stretch(jnp.array([0.1, -0.1]))] * 2),
    ],
    ids=["h", "flow"],
)
def test_own_parts_are_differentiated(cost):
    with jax.enable_x64(True):
        x, y = jnp.asarray(X) / 5, jnp.asarray(Y) / 5
        cost = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), cost)
        along = jax.tree.map(lambda leaf: jr.normal(jr.key(1), leaf.shape), cost)

        def loss(t):
            moved = jax.tree.map(lambda p, q: p + t * q, cost, along)
            return jnp.mean(build_map(moved, x, y, epsilon=0.2)[0].forward(x) ** 3)

        # eps follows the mean cost, which is held constant under differentiation.
        mean = jnp.mean(cost.matrix(x, y))

        def frozen(t):
            moved = jax.tree.map(lambda p, q: p + t * q, cost, along)
            epsilon = 0.2 * mean / jnp.mean(moved.matrix(x, y))
            return jnp.mean(build_map(moved, x, y, epsilon=epsilon)[0].forward(x) ** 3)

        step = 1e-5
        differences = (frozen(step) - frozen(-step)) / (2 * step)
        assert abs(jax.jit(jax.grad(loss))(0.0) - differences) <= 1e-6 * max(1, abs(differences))


def test_a_callback_sees_records_and_can_end_training():
    seen = []

    def callback(record):
        seen.append(record)
        if record.step >= 20:
            raise StopIteration

    model = MongeMap(hidden_layer_sizes=(4,), max_iter=200, epsilon=0.2).fit(
        X, Y, pairs=PAIRS, validation_pairs=None, callback=callback
    )
    assert [record.step for record in seen] == sorted(record.step for record in seen)
    assert 20 <= seen[-1].step < 40 and model.n_iter_ < 200
    assert seen[0].loss > seen[-1].loss and "Paired" in seen[0].terms
    assert seen[0].epsilon == pytest.approx(0.2)
    with pytest.raises(Exception, match=r"assign|frozen"):
        seen[0].loss = 0.0


def test_an_error_in_a_callback_ends_the_fit():
    def callback(record):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        MongeMap(hidden_layer_sizes=(4,), max_iter=20, epsilon=0.2).fit(
            X, Y, pairs=PAIRS, callback=callback
        )
