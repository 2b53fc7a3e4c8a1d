"""MongeGapMap: the gap against POT, a cost that finds its pairs, a map that finds its target."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest
from scipy.special import xlogy

from mongefit.baselines import MongeGapMap
from mongefit.baselines import _monge_gap as monge_gap
from mongefit.errors import ConvergenceWarning, DataError, TrainingError
from tests.baselines.families import BASELINES, EPSILON, GROUPS, KNOWN, PAIRS, A, B, M, N, X, Y, Z

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]


def half_squares(x, y):
    return 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1)


# The gap


@pytest.fixture(scope="module")
def gap():
    @jax.jit
    def evaluate(C, a, eps):
        (value, dual), slope = jax.value_and_grad(monge_gap.monge_gap, has_aux=True)(C, a, eps)
        return value, dual.converged, slope

    def call(C, eps):
        with jax.enable_x64(True):
            value, converged, slope = evaluate(jnp.asarray(C), jnp.asarray(A), jnp.asarray(eps))
        assert converged
        return float(value), np.asarray(slope)

    return call


MAPS = {
    "translation": X + np.array([3.0, -1.0]),
    "gradient of a convex function": X @ [[2.0, 0.5], [0.5, 1.0]],
    "reflection": -X,
    "rotation": X @ [[0.0, 1.0], [-1.0, 0.0]],
}
OPTIMAL = {"translation", "gradient of a convex function"}


@pytest.mark.parametrize("name", MAPS)
def test_the_gap_is_zero_for_optimal_maps_and_positive_for_others(gap, name):
    C, eps = half_squares(X, MAPS[name]), 0.5
    value, slope = gap(C, eps)
    entropy = -np.sum(A * np.log(A))
    # Without regularisation, by linear programming.
    exact = A @ np.diag(C) - ot.emd2(A, A, C)
    assert exact == pytest.approx(0, abs=1e-12) if name in OPTIMAL else exact > 0.2
    assert exact - eps * entropy <= value <= exact + 1e-9
    P = ot.bregman.sinkhorn_log(A, A, C, eps, numItermax=99_999, stopThr=1e-14)
    divergence = np.sum(xlogy(A, A)) - A @ np.log(np.diag(P))
    assert value == pytest.approx(eps * (divergence - entropy), rel=1e-7)
    np.testing.assert_allclose(slope, np.diag(A) - P, rtol=0, atol=1e-9)


def test_with_less_regularisation_the_gap_of_an_optimal_map_rises_to_zero(gap):
    values = [gap(half_squares(X, MAPS["translation"]), eps)[0] for eps in (1.0, 0.5, 0.25)]
    assert values[0] < 1.3 * values[1] < 1.3**2 * values[2] < 0


# The networks


def test_the_networks_are_of_the_widths_asked_for():
    model = MongeGapMap(hidden_layer_sizes=(5, 3), max_iter=0).fit(X, Y, pairs=PAIRS)
    weight, bias = model.cost_.network.weight, model.cost_.network.bias
    assert [part.shape for part in weight] == [(5, 4), (3, 5), (1, 3)]
    assert [part.shape for part in model.map_.network.weight] == [(5, 2), (3, 5), (2, 3)]
    # The cost is a network of both points.
    x, y = ((points - model.units_.centre) / model.units_.scale for points in (X, Y))
    both = np.concatenate([np.repeat(x, M, axis=0), np.tile(y, (N, 1))], axis=1)
    for k in range(3):
        both = both @ weight[k].T + bias[k]
        both = gelu(both) if k < 2 else np.log1p(np.exp(both))
    np.testing.assert_allclose(model.cost_matrix(X, Y), both.reshape(N, M), rtol=1e-12)
    # The map is the identity before it is trained.
    np.testing.assert_allclose(model.transform(Z), Z, rtol=1e-13, atol=1e-14)


def gelu(t):
    return 0.5 * t * (1 + np.tanh(np.sqrt(2 / np.pi) * (t + 0.044715 * t**3)))


# What is learned


@pytest.fixture(scope="module")
def moved():
    """A target far from the source, and what is learned of it."""
    model = BASELINES["Monge gap"]().set_params(max_iter=40, learning_rate=0.05)
    return model.fit(X, Y + 5, **KNOWN)


def test_the_map_lands_on_the_target(moved):
    def distance(points):
        return ot.emd2(A, B, half_squares(points, Y + 5))

    assert distance(moved.transform(X)) < 0.1 * distance(X)
    # At points that it was not trained on, too.
    assert distance(moved.transform(Z)) < 0.3 * distance(Z)


def test_the_cost_finds_its_pairs_and_groups(moved):
    untrained = BASELINES["Monge gap"]().set_params(max_iter=0).fit(X, Y + 5, **KNOWN)
    before, after = untrained.coupling_, moved.coupling_
    rows, columns = PAIRS.T
    assert after[rows, columns].sum() > 1.5 * before[rows, columns].sum()
    wrong = (GROUPS[0][:, None] != GROUPS[1][None]) & (GROUPS[1] >= 0)
    assert after[wrong].sum() < before[wrong].sum()


def test_history_tells_the_losses(moved):
    history = moved.history_
    assert set(history) == {"cost_loss", "cost_applied", "map_loss", "map_applied"}
    assert all(len(column) == 41 for column in history.values())
    assert moved.n_iter_ == 40 and moved.diagnostics_ == {"trained": True, "skipped_steps": 0}
    for name in ("cost_loss", "map_loss"):
        assert history[name][-1] < history[name][0]
    # The last entry is that of the cost which is kept: − w·P over the pairs + Σ P² elsewhere.
    C = moved.cost_matrix(X, Y + 5)
    P = ot.bregman.sinkhorn_log(A, B, C, EPSILON * (A @ C @ B), numItermax=99_999, stopThr=1e-13)
    weight = KNOWN["pair_weight"] / KNOWN["pair_weight"].mean()
    wrong = (GROUPS[0][:, None] != GROUPS[1][None]) & (GROUPS[1] >= 0)
    loss = -weight @ P[PAIRS[:, 0], PAIRS[:, 1]] + np.sum(P[wrong] ** 2)
    assert history["cost_loss"][-1] == pytest.approx(loss, abs=1e-7)


def test_nothing_known_is_refused():
    with pytest.raises(DataError, match="give pairs or groups"):
        MongeGapMap().fit(X, Y)


# Progress, and steps that fail


class Recorder:
    """A progress bar that remembers what it was shown."""

    bars: ClassVar[list] = []

    def __init__(self, total, *, enabled):
        self.total, self.enabled, self.shown = total, enabled, []
        Recorder.bars.append(self)

    def report(self, infos):
        self.shown.append((int(infos.step[-1]), float(infos.loss[-1]), infos.epsilon[-1]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("verbose", [0, 1])
def test_each_network_has_a_bar(verbose, monkeypatch):
    monkeypatch.setattr(monge_gap, "TrainingBar", Recorder)
    Recorder.bars.clear()
    model = BASELINES["Monge gap"]().set_params(max_iter=12, verbose=verbose).fit(X, Y, **KNOWN)
    for bar, name in zip(Recorder.bars, ("cost_loss", "map_loss"), strict=True):
        assert bar.enabled == bool(verbose) and bar.total == 12
        assert [step for step, _, _ in bar.shown] == [9, 12]
        assert bar.shown[1] == (12, model.history_[name][-1], EPSILON)


def test_training_that_cannot_go_on_names_the_network(monkeypatch):
    def fail(*arguments, **options):
        raise TrainingError("Training stopped at step 9.")

    monkeypatch.setattr(monge_gap, "train", fail)
    with pytest.raises(TrainingError, match="The cost: Training stopped at step 9"):
        BASELINES["Monge gap"]().fit(X, Y, **KNOWN)


def test_skipped_steps_are_counted_and_warned_of(monkeypatch):
    train = monge_gap.train

    def with_failures(*arguments, **options):
        (run,) = train(*arguments, **options)
        run.history["applied"][2] = False
        return [run]

    monkeypatch.setattr(monge_gap, "train", with_failures)
    with pytest.warns(ConvergenceWarning, match="2 training steps could not be solved") as caught:
        model = BASELINES["Monge gap"]().fit(X, Y, **KNOWN)
    assert {warning.filename for warning in caught} == {__file__}
    assert model.diagnostics_["skipped_steps"] == 2


def test_where_all_points_are_one_the_map_is_the_identity():
    points = np.full((N, 2), 3.25)
    model = BASELINES["Monge gap"]().fit(points, points[:M], **KNOWN)
    np.testing.assert_allclose(model.transform(points), points, atol=0.1)
    np.testing.assert_allclose(model.coupling_.sum(1), A, atol=1e-8)
