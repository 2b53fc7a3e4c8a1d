"""Several starts in one fit, and how the best of them is chosen."""

from __future__ import annotations

import numpy as np
import pytest

import mongefit
from mongefit import MongeMap, datasets
from mongefit.errors import DataError, OptionError
from mongefit.metrics import rmse

N = 16
X, Y = datasets.t_shape(N, seed=0)
ROWS = np.arange(N)
PAIRS, HELD_OUT = (np.stack([rows, rows], axis=1) for rows in (ROWS[::2], ROWS[1::2]))
OPTIONS = {"hidden_layer_sizes": (4,), "max_iter": 12, "epsilon": 0.1}


@pytest.fixture(scope="module")
def alone():
    """The runs from three seeds, one by one."""
    return [MongeMap(**OPTIONS, random_state=seed).fit(X, Y, pairs=PAIRS) for seed in (5, 6, 7)]


def test_the_start_with_the_least_loss_is_kept(alone, tmp_path):
    found = MongeMap(**OPTIONS, random_state=5, n_init=3).fit(X, Y, pairs=PAIRS)
    expected = [run.scores_[0] for run in alone]
    np.testing.assert_allclose(found.scores_, expected, rtol=1e-9)
    best = alone[int(np.argmin(expected))]
    np.testing.assert_allclose(found.transform(X), best.transform(X), rtol=1e-7)
    np.testing.assert_allclose(found.history_["loss"], best.history_["loss"], rtol=1e-9)
    found.save(tmp_path / "model.mongefit")
    again = mongefit.load(tmp_path / "model.mongefit")
    np.testing.assert_array_equal(again.scores_, found.scores_)
    assert again.n_init == 3


def test_the_start_that_predicts_validation_pairs_best_is_kept(alone):
    found = MongeMap(**OPTIONS, random_state=5, n_init=3)
    found.fit(X, Y, pairs=PAIRS, validation_pairs=HELD_OUT)
    errors = [rmse(run.transform(X[HELD_OUT[:, 0]]), Y[HELD_OUT[:, 1]]) for run in alone]
    np.testing.assert_allclose(found.scores_, errors, rtol=1e-7)
    best = alone[int(np.argmin(errors))]
    np.testing.assert_allclose(found.transform(X), best.transform(X), rtol=1e-7)


@pytest.mark.parametrize(
    ("options", "validation_pairs", "error", "said"),
    [
        ({"n_init": 0}, None, OptionError, "n_init must be a whole number >= 1"),
        ({}, PAIRS[:3], DataError, "3 of 3 validation_pairs are trained on too"),
        ({}, [[0, N]], DataError, f"validation_pairs name a target row .* 0 to {N - 1}"),
        ({}, [[0.5, 1.0]], DataError, "validation_pairs holds values of type float64"),
        ({}, [0, 1], DataError, r"validation_pairs has shape \(2,\)"),
    ],
)
def test_what_makes_no_sense_is_refused(options, validation_pairs, error, said):
    with pytest.raises(error, match=said):
        MongeMap(**(OPTIONS | options)).fit(X, Y, pairs=PAIRS, validation_pairs=validation_pairs)


class TestEarlyStopping:
    def test_the_cost_that_predicts_validation_pairs_best_is_kept(self):
        fast = OPTIONS | {"max_iter": 30, "learning_rate": 0.5}
        model = MongeMap(**fast).fit(X, Y, pairs=PAIRS, validation_pairs=HELD_OUT)
        path = model.history_["validation_rmse"]
        best = int(np.argmin(path))
        # Neither the last one nor in the last tenth, from which it would be without these pairs.
        assert len(path) == 31 and best < 27 and path[best] < 0.95 * path[-1]
        found = rmse(model.transform(X[HELD_OUT[:, 0]]), Y[HELD_OUT[:, 1]])
        np.testing.assert_allclose(found, path[best], rtol=1e-6)
        stopped = MongeMap(**(fast | {"max_iter": best}))
        last = stopped.fit(X, Y, pairs=PAIRS, validation_pairs=HELD_OUT)
        np.testing.assert_allclose(last.transform(X), model.transform(X), rtol=1e-6)

    def test_pairs_without_weight_may_be_chosen_by(self):
        both = np.concatenate([PAIRS, HELD_OUT])
        weight = np.repeat([1.0, 0.0], [len(PAIRS), len(HELD_OUT)])
        plain = MongeMap(**OPTIONS).fit(X, Y, pairs=PAIRS, validation_pairs=HELD_OUT)
        found = MongeMap(**OPTIONS)
        found.fit(X, Y, pairs=both, pair_weight=weight, validation_pairs=HELD_OUT)
        np.testing.assert_allclose(found.history_["loss"], plain.history_["loss"], rtol=1e-9)
        np.testing.assert_allclose(found.transform(X), plain.transform(X), rtol=1e-7)

    def test_groups_can_be_stopped_by_pairs(self):
        labels = (ROWS < N // 2).astype(int)
        model = MongeMap(**OPTIONS).fit(X, Y, groups=(labels, labels), validation_pairs=HELD_OUT)
        assert np.all(np.isfinite(model.history_["validation_rmse"]))

    def test_batches_are_stopped_by_the_running_mean(self):
        fast = OPTIONS | {"learning_rate": 0.5, "batch_size": 12}
        known = {"pairs": PAIRS[:4], "validation_pairs": HELD_OUT[:4]}
        model = MongeMap(**(fast | {"max_iter": 40})).fit(X, Y, **known)
        path = model.history_["validation_rmse"]
        means = [path[0]]
        for error in path[1:]:
            means.append(0.9 * means[-1] + 0.1 * error)
        best = int(np.argmin(means))
        # Neither the luckiest draw nor the last step.
        assert best != np.argmin(path) and best < 40
        # The same batches, with the last step kept: pairs without weight are in all of them too.
        weight = np.repeat([1.0, 0.0], 4)
        both = np.concatenate([PAIRS[:4], HELD_OUT[:4]])
        stopped = MongeMap(**(fast | {"max_iter": best})).fit(X, Y, pairs=both, pair_weight=weight)
        np.testing.assert_allclose(stopped.transform(X), model.transform(X), rtol=1e-6)
