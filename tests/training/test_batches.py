"""Training on random subsets of the points."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit import MongeMap, datasets
from mongefit._convex import ICNN
from mongefit._costs import Cost
from mongefit._training import (
    BatchedProblem,
    CostProblem,
    Model,
    Recipe,
    initial_state,
    objective,
    train,
)
from mongefit.errors import DataError, OptionError
from mongefit.losses import Groups, Paired, Pairs, Subset, Subsets, TargetFit
from mongefit.penalties import CostSize
from tests.conftest import random_clouds

N, M, SIZE = 20, 17, 12
FIRST = jnp.asarray(0)
PAIRS = np.array([[3, 5], [18, 0], [7, 16]])
NAMES = ("Paired", "TargetFit", "Groups", "CostSize")


@pytest.fixture(autouse=True)
def _double(x64):
    pass


def problem(max_iter=12, **changes):
    x, y, a, b = map(jnp.asarray, random_clouds(N, M, uniform=False))
    members = [np.array([1, 3]), np.array([8])], [np.array([2]), np.array([5, 9])]
    recipe = Recipe(
        NAMES, weight=[1.0, 0.1, 0.1, 1e-7], n_losses=3, epsilon=(0.1, 0.1),
        learning_rate=(0.05, 0.05), max_iter=max_iter,
    )  # fmt: skip
    built = CostProblem(
        recipe=recipe, x=x, y=y, a=a, b=b,
        pairs=Pairs.of(PAIRS, jnp.asarray([1.0, 2.0, 3.0])),
        subsets=Subsets(Subset.of(members[0], a), Subset.of(members[1], b)),
    )  # fmt: skip
    return dataclasses.replace(built, **changes)


def model(terms=None):
    terms = (Paired(), TargetFit(), Groups(), CostSize()) if terms is None else terms
    return Model(Cost(ICNN(2, (6,), key=jr.key(0))), terms)


evaluate = eqx.filter_jit(objective)


def test_a_batch_holds_what_is_known_under_its_own_rows():
    whole = problem()
    batches = BatchedProblem.of(whole, SIZE, seed=0)
    part, rows, columns = batches.draw(jnp.asarray(4))
    assert part.x.shape == part.y.shape == (SIZE, 2)
    assert len(np.unique(rows)) == len(np.unique(columns)) == SIZE
    np.testing.assert_array_equal(part.x, whole.x[rows])
    np.testing.assert_array_equal(part.x[part.pairs.source], whole.x[whole.pairs.source])
    np.testing.assert_array_equal(part.y[part.pairs.target], whole.y[whole.pairs.target])
    np.testing.assert_array_equal(part.pairs.weight, whole.pairs.weight)
    for side, points in (("source", "x"), ("target", "y")):
        mine, theirs = (getattr(of.subsets, side) for of in (part, whole))
        real = np.asarray(theirs.weight) > 0
        np.testing.assert_array_equal(
            getattr(part, points)[mine.rows][real], getattr(whole, points)[theirs.rows][real]
        )
    again = batches.draw(jnp.asarray(4))[1]
    other = batches.draw(jnp.asarray(5))[1]
    assert np.array_equal(rows, again) and not np.array_equal(rows, other)


def test_weights_of_batches_are_right_on_average():
    """Where points have equal weights; of others the heavy ones count a little less."""
    whole = problem(a=jnp.full(N, 1 / N))
    batches = BatchedProblem.of(whole, SIZE, seed=0)

    def weights(step):
        part, rows, _ = batches.draw(step)
        return jnp.zeros(N).at[rows].set(part.a), jnp.sum(part.a)

    spread, total = jax.lax.map(weights, jnp.arange(4000))
    np.testing.assert_allclose(total, 1, rtol=1e-12)
    fixed = np.asarray(batches.source.fixed)
    np.testing.assert_allclose(spread[:, fixed], np.tile(whole.a[fixed], (4000, 1)), rtol=1e-12)
    # Drawn points share the mass of all that could be drawn.
    np.testing.assert_allclose(np.mean(spread, axis=0), whole.a, rtol=0.05)


def test_a_batch_of_all_points_is_the_whole_problem():
    whole, start = problem(), model()
    batches = BatchedProblem.of(whole, max(N, M), seed=0)
    part, *_ = batches.draw(jnp.asarray(0))
    warm = initial_state(whole, start).warm
    expected, _ = evaluate(whole, start, jnp.asarray(0.1), warm, FIRST)
    found, _ = evaluate(part, start, jnp.asarray(0.1), warm, FIRST)
    of_batches, _ = evaluate(
        batches, start, jnp.asarray(0.1), initial_state(batches, start).warm, FIRST
    )
    np.testing.assert_allclose(of_batches, expected, rtol=1e-7)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_training_on_batches_lowers_the_loss_of_all():
    whole, start = problem(max_iter=40), model()
    (run,) = train(BatchedProblem.of(whole, SIZE, seed=0), [start])
    assert np.all(run.history["applied"])
    warm = initial_state(whole, start).warm
    before, after = (
        evaluate(whole, each, jnp.asarray(0.1), warm, FIRST)[0] for each in (start, run.model)
    )
    assert after < 0.9 * before


OPTIONS = {"hidden_layer_sizes": (4,), "max_iter": 5, "epsilon": 0.1}


def test_points_without_weight_are_never_drawn():
    weight = jnp.zeros(N).at[jnp.asarray([2, 3, 11])].set(1 / 3)
    whole = problem(a=weight, subsets=None)
    batches = BatchedProblem.of(whole, 5, seed=0)
    for step in range(5):
        part, rows, _ = batches.draw(jnp.asarray(step))
        assert set(np.asarray(rows)) == {2, 3, 7, 11, 18}
        np.testing.assert_allclose(np.sum(part.a), 1)


def test_where_everything_is_known_a_batch_must_hold_it_all():
    rows = np.arange(M)
    whole = problem(pairs=Pairs.of(np.stack([rows, rows], axis=1), jnp.ones(M)), subsets=None)
    with pytest.raises(OptionError, match=f"at least {M + 1}: .* {M} of {N}"):
        BatchedProblem.of(whole, M, seed=0)
    part, rows, columns = BatchedProblem.of(whole, M + 1, seed=0).draw(jnp.asarray(0))
    assert len(rows) == M + 1 and np.array_equal(columns, np.arange(M))
    np.testing.assert_allclose(part.b, whole.b)


class TestEstimator:
    X, Y = datasets.t_shape(N, seed=0)

    def test_a_fit_on_batches_maps_all_points(self):
        pairs = np.stack([np.arange(4)] * 2, axis=1)
        found = MongeMap(**OPTIONS, batch_size=8).fit(self.X, self.Y, pairs=pairs)
        assert found.coupling_.shape == (N, N)
        assert found.diagnostics_["skipped_steps"] == 0

    def test_as_large_as_the_clouds_it_changes_nothing(self):
        pairs = np.stack([np.arange(4)] * 2, axis=1)
        whole, batched = (
            MongeMap(**OPTIONS, batch_size=size).fit(self.X, self.Y, pairs=pairs)
            for size in (None, N)
        )
        np.testing.assert_array_equal(batched.transform(self.X), whole.transform(self.X))

    def test_what_does_not_fit_into_memory_is_refused_before_it_is_tried(self, monkeypatch):
        pairs = np.stack([np.arange(4)] * 2, axis=1)
        monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**15)
        with pytest.raises(DataError, match=r"20 and 20 points .* GiB are free. Set batch_size"):
            MongeMap(**OPTIONS).fit(self.X, self.Y, pairs=pairs)
        with pytest.raises(DataError, match="The plan between 20 and 20 points"):
            MongeMap("sqeuclidean").fit(self.X, self.Y)

    @pytest.mark.parametrize(
        ("size", "said"), [(9, "batch_size must be at least 10"), (1, "whole number >= 2")]
    )
    def test_what_makes_no_sense_is_refused(self, size, said):
        pairs = np.stack([np.arange(9)] * 2, axis=1)
        with pytest.raises(OptionError, match=said):
            MongeMap(**OPTIONS, batch_size=size).fit(self.X, self.Y, pairs=pairs)


def test_without_steps_no_batch_is_too_small():
    X, Y = datasets.t_shape(16, seed=0)
    pairs = np.stack([np.arange(12)] * 2, axis=1)
    fitted = MongeMap(hidden_layer_sizes=(4,), max_iter=0, batch_size=4).fit(X, Y, pairs=pairs)
    assert fitted.n_iter_ == 0
