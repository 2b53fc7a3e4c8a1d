"""Choosing by the labels of held-out targets, and what labels are scored by."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from mongefit import MongeMap, MongeMapCV
from mongefit.errors import DataError, OptionError
from mongefit.metrics import label_scores

N = 40
BEATEN = "ignore:On held-out pairs the best map has"


@pytest.fixture(scope="module")
def problem():
    """Points move along the first axis; labels of targets depend on the second, blurred, one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * [1.0, 1.0, 2.0]
    Y = X + [3.0, 0.0, 0.0] + 0.2 * rng.normal(size=X.shape)
    Y[:, 2] = rng.permutation(Y[:, 2])
    labels = np.where(Y[:, 1] > 0, "up", "down").astype(object)
    labels[::7] = None
    pairs = np.stack([np.arange(24), np.arange(24)], axis=1)
    return X, Y, pairs, labels


@pytest.fixture(scope="module")
def candidates():
    own = {"max_iter": 0, "epsilon": 0.1}
    return {
        "sharp": MongeMap(cost="sqeuclidean", **own),
        "blurred": MongeMap(cost="sqeuclidean", **own | {"epsilon": 5.0}),
    }


def test_label_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 50)
    code, weight = rng.integers(0, 3, 50), rng.uniform(size=50)
    found = label_scores(p, code, names=["a", "b", "c"], weight=weight)
    assert found.log_loss == pytest.approx(log_loss(code, p, sample_weight=weight))
    each = [brier_score_loss(code == k, p[:, k], sample_weight=weight) for k in range(3)]
    assert found.brier == pytest.approx(sum(each))
    for k, name in enumerate("abc"):
        area = roc_auc_score(code == k, np.round(p[:, k], 1), sample_weight=weight)
        tied = label_scores(
            np.column_stack([np.round(p[:, k], 1), 1 - np.round(p[:, k], 1)]),
            (code != k).astype(int),
            weight=weight,
        )
        assert tied.auroc["0"] == pytest.approx(area)
        assert name in found.auroc
    assert min(found.auroc.values()) <= found.mean_auroc <= max(found.auroc.values())


def test_calibration_error_is_small_only_for_calibrated_probabilities():
    rng = np.random.default_rng(1)
    p = rng.uniform(size=20_000)
    both = np.column_stack([p, 1 - p])
    code = (rng.uniform(size=p.size) > p).astype(int)
    assert label_scores(both, code).calibration_error < 0.01
    sure = np.where(both > 0.5, 0.99, 0.01)
    assert label_scores(sure, code).calibration_error == pytest.approx(0.24, abs=0.01)


@pytest.mark.parametrize(
    ("p", "truth", "message"),
    [
        ([[0.5, 0.5]], [0, 1], "a row for each"),
        ([[0.5, 0.6]], [0], "rows that sum to 1"),
        ([[np.nan, 1.0]], [0], "non-negative"),
        ([[0.5, 0.5]], [2], "whole numbers from 0 to 1"),
        ([[0.5, 0.5]], [0.5], "whole numbers"),
    ],
)
def test_wrong_probabilities_are_refused(p, truth, message):
    with pytest.raises(DataError, match=message):
        label_scores(p, truth)


@pytest.mark.filterwarnings(BEATEN)
def test_labels_choose_and_are_reported(problem, candidates):
    X, Y, pairs, labels = problem
    model = MongeMapCV(candidates, scoring="fate", cv=4)
    model.fit(X, Y, pairs=pairs, labels=labels)
    assert model.best_params_["epsilon"] == (0.1, 0.1)
    rows = {row["name"]: row for row in model.report_.rows}
    assert {"class shares", "logistic regression", "nearest pairs", "sharp"} <= set(rows)
    assert (
        rows["sharp"]["log_loss"] < rows["blurred"]["log_loss"] < rows["class shares"]["log_loss"]
    )
    assert rows["logistic regression"]["auroc"] > 0.75 > 0.6 > rows["class shares"]["auroc"]
    assert rows["identity"]["log_loss"] is None and rows["class shares"]["rmse"] is None
    # The score is the log-loss of those targets alone that have a label.
    score = dict(zip(model.cv_results_["name"], model.cv_results_["mean_test_score"], strict=True))
    assert -score["sharp"] == pytest.approx(rows["sharp"]["log_loss"])
    assert "down, up" in str(model.report_)


@pytest.mark.filterwarnings(BEATEN)
def test_labels_change_nothing_but_the_report(problem, candidates):
    X, Y, pairs, labels = problem
    plain = MongeMapCV(candidates, cv=4).fit(X, Y, pairs=pairs)
    told = MongeMapCV(candidates, cv=4).fit(X, Y, pairs=pairs, labels=labels)
    np.testing.assert_array_equal(
        plain.cv_results_["mean_test_score"], told.cv_results_["mean_test_score"]
    )
    assert "log_loss" not in plain.report_.rows[0] and "log_loss" in told.report_.rows[0]


def test_a_choice_by_labels_goes_on_after_it_was_kept(problem, tmp_path):
    X, Y, pairs, labels = problem
    candidates = {"matrix": MongeMap(cost="matrix", epsilon=0.3, max_iter=2)}
    choice = MongeMapCV(candidates, scoring="fate", cv=2)
    first = choice.fit(X, Y, pairs=pairs, labels=labels, checkpoint=tmp_path).cv_results_
    again = choice.fit(X, Y, pairs=pairs, labels=labels, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(first["mean_test_score"], again.cv_results_["mean_test_score"])


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, OptionError, "Give labels="),
        (["a", "b"], DataError, r"shape \(2,\).*40 rows of Y"),
        (["a"] * N, DataError, "one label, 'a'"),
        ([None] * N, DataError, "no label"),
        ([None] * (N - 2) + ["a", "b"], DataError, "0 clones have a label"),
    ],
)
def test_labels_that_nothing_can_be_chosen_by(problem, candidates, labels, error, message):
    X, Y, pairs, _ = problem
    with pytest.raises(error, match=message):
        MongeMapCV(candidates, scoring="fate").fit(X, Y, pairs=pairs, labels=labels)
