"""MongeMapCV: what it chooses, on what grounds, and that it is then the map it chose."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from mongefit import MongeMap, MongeMapCV, datasets, load, metrics, plotting
from mongefit.errors import DataError, OptionError
from mongefit.model_selection._training import Trainer

N = 30
ROWS = np.stack([np.arange(N)] * 2, axis=1)


def rotated(seed: int = 0, noise: float = 0.02):
    """A cloud and its rotation, of which the first rows are known to belong together."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2)) * [2.0, 0.5]
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    return X, X @ turn.T + noise * rng.normal(size=X.shape), turn


@pytest.fixture(scope="module")
def fitted():
    X, Y, turn = rotated()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="On held-out pairs")
        model = MongeMapCV().fit(X, Y, pairs=ROWS[:20])
    return model, X, Y, turn


@pytest.fixture
def untrained(monkeypatch):
    """Candidates in closed form alone: nothing to compile for training."""
    monkeypatch.setattr(Trainer, "judge", lambda *args: [])


def test_no_option_is_needed(fitted):
    model, _, _, turn = fitted
    new = rotated(1)[0]
    assert metrics.rmse(model.transform(new), new @ turn.T) < 0.1
    assert metrics.rmse(model.inverse_transform(new @ turn.T), new) < 0.1
    assert model.best_params_["diffeo"] in ("affine", "kernel")


def test_it_is_the_map_with_the_options_that_it_names(fitted):
    model, X, Y, _ = fitted
    same = MongeMap(**model.best_params_).fit(X, Y, pairs=ROWS[:20])
    np.testing.assert_allclose(model.transform(X), same.transform(X), atol=1e-9)
    np.testing.assert_array_equal(model.coupling_, model.best_estimator_.coupling_)
    assert model.diagnostics_["converged"] and model.n_features_in_ == 2


def test_results_and_report(fitted):
    model = fitted[0]
    found = model.cv_results_
    size = len(found["params"])
    assert {len(column) for column in found.values()} == {size}
    assert sorted(found["rank_test_score"]) == list(range(1, size + 1))
    best = int(np.argmax(found["mean_test_score"] == model.best_score_))
    assert found["energy"][best] == pytest.approx(-model.best_score_)
    rows = model.report_.rows
    assert sum(row["chosen"] for row in rows) == 1
    names = {row["name"] for row in rows}
    assert {"Euclidean", "ridge on pairs", "target mean", "nearest pair"} <= names
    assert all(np.isfinite(row["divergence"]) for row in rows if row["kind"] == "simple")
    assert re.search(r"Chosen: \w+, (affine|kernel) source", str(model.report_))
    axes = plotting.plot_choice(model)
    assert [label.get_text() for label in axes.get_yticklabels()] == [r["name"] for r in rows[::-1]]


def test_saved_and_read_back(fitted, tmp_path):
    model, X, Y, _ = fitted
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, MongeMapCV)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.inverse_transform(Y), model.inverse_transform(Y))
    assert again.report_ == model.report_ and again.best_score_ == model.best_score_
    assert again.best_params_ == model.best_params_
    for name, column in model.cv_results_.items():
        np.testing.assert_array_equal(again.cv_results_[name], column)
    again.save(tmp_path / "again")


@pytest.mark.usefixtures("untrained")
def test_pairs_that_were_held_out_were_not_seen():
    """Where the pairs say nothing of each other, no candidate looks better than the mean."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 60, 3))
    model = MongeMapCV().fit(X, Y, pairs=np.stack([np.arange(60)] * 2, axis=1))
    spread = np.sqrt(np.mean(np.sum((Y - Y.mean(0)) ** 2, axis=1)))
    assert model.cv_results_["rmse"].min() > 0.93 * spread


@pytest.mark.usefixtures("untrained")
def test_whole_clones_are_held_out():
    # Ten clones of four twins each: with twins in other folds, nearest pair would be exact.
    rng = np.random.default_rng(0)
    X, Y = (np.repeat(rng.normal(size=(10, 2)), 4, axis=0) for _ in range(2))
    X, Y = X + 1e-3 * rng.normal(size=X.shape), Y + 1e-3 * rng.normal(size=Y.shape)
    pairs = np.stack([np.arange(40)] * 2, axis=1)
    told = MongeMapCV().fit(X, Y, pairs=pairs, clones=np.repeat(np.arange(10), 4))
    untold = MongeMapCV().fit(X, Y, pairs=pairs)

    def error(model):
        return next(r["rmse"] for r in model.report_.rows if r["name"] == "nearest pair")

    assert error(untold) < 0.01 < 0.5 < error(told)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("scoring", ["rmse", "likelihood", lambda y, p: np.abs(y - p).sum(1)])
def test_other_scores(scoring):
    X, Y, turn = rotated()
    model = MongeMapCV(scoring=scoring).fit(X, Y, pairs=ROWS[:12])
    new = rotated(1)[0]
    assert metrics.rmse(model.transform(new), new @ turn.T) < 0.3
    assert np.isfinite(model.best_score_)


def test_candidates_of_ones_own():
    X, Y, _ = rotated()
    own = {
        "plain": MongeMap(cost="sqeuclidean", epsilon=0.05),
        "trained": MongeMap(cost="matrix", diffeo="affine", epsilon=0.05, max_iter=3),
    }
    for candidates in (own, list(own.values())):
        model = MongeMapCV(candidates).fit(X, Y, pairs=ROWS[:12])
        assert model.best_params_["diffeo"] == "affine"
        assert len(model.cv_results_["params"]) == 2


@pytest.mark.usefixtures("untrained")
def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    X, Y, _ = rotated()
    told = {"pairs": ROWS[:12]}
    whole = MongeMapCV().fit(X, Y, **told)
    from mongefit.model_selection import _best

    judge, calls = _best.judge_family, []

    def stop_at_the_third(family, *args, **kwargs):
        calls.append(family)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return judge(family, *args, **kwargs)

    monkeypatch.setattr(_best, "judge_family", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        MongeMapCV().fit(X, Y, **told, checkpoint=tmp_path / "kept")
    resumed = MongeMapCV().fit(X, Y, **told, checkpoint=tmp_path / "kept", resume=True)
    assert len(calls) == 3 + len(_best.FAMILIES) - 2
    assert resumed.best_params_["diffeo"] == whole.best_params_["diffeo"]
    for name in ("rmse", "energy"):
        found, expected = resumed.cv_results_[name], whole.cv_results_[name]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(resumed.transform(X), whole.transform(X), atol=1e-9)


@pytest.mark.usefixtures("untrained")
class TestFewPairs:
    def test_two(self):
        X, Y, _ = rotated()
        with pytest.warns(UserWarning, match="Only 2 clones are known"):
            model = MongeMapCV().fit(X, Y, pairs=ROWS[:2])
        assert np.isfinite(model.transform(X)).all()

    def test_one(self):
        X, Y, _ = rotated()
        with (
            pytest.warns(UserWarning, match="none can be held out to choose by"),
            pytest.warns(UserWarning, match="Only one pair is known"),
        ):
            model = MongeMapCV().fit(X, Y, pairs=ROWS[:1])
        assert model.report_ is None and model.best_params_["cost"] == "sqeuclidean"
        with pytest.raises(DataError, match="nothing to draw"):
            plotting.plot_choice(model)

    def test_none(self, tmp_path):
        X, Y, _ = rotated()
        with pytest.warns(UserWarning, match="No pairs are known"):
            model = MongeMapCV().fit(X, Y)
        model.save(tmp_path / "model")
        assert load(tmp_path / "model").report_ is None

    def test_groups_alone(self):
        X, Y, _ = rotated()
        labels = (X[:, 0] > 0).astype(int)
        with pytest.warns(UserWarning, match="trained on the groups with fixed options"):
            model = MongeMapCV().fit(X, Y, groups=(labels, labels))
        assert model.n_iter_ > 0

    def test_a_plain_warning_where_a_simple_predictor_is_better(self):
        # Two samples of different clouds: no balanced map can be as good as ridge regression.
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 1))
        Y = np.concatenate([X[:20], 30 + rng.normal(size=(60, 1))])
        with pytest.warns(UserWarning, match=r"RMSE of \S+, and .* has"):
            MongeMapCV().fit(X, Y, pairs=np.stack([np.arange(20)] * 2, axis=1))


@pytest.mark.usefixtures("untrained")
def test_weights_units_and_large_clouds():
    """Data in other units gives the same map; points of weight 0 say nothing."""
    X, Y, _ = rotated()
    first = MongeMapCV().fit(X, Y, pairs=ROWS[:12])
    second = MongeMapCV().fit(1e3 * X + 7, 1e3 * Y + 7, pairs=ROWS[:12])
    moved = 1e3 * first.transform(X) + 7
    np.testing.assert_allclose(second.transform(1e3 * X + 7), moved, rtol=1e-5)
    weight = np.r_[np.full(N, 1 / N), 0.0]
    more = np.r_[X, [[3.0, 3.0]]]
    far = MongeMapCV(max_points=None).fit(more, Y, pairs=ROWS[:12], source_weight=weight)
    np.testing.assert_allclose(far.transform(X), first.transform(X), atol=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scoring": "mse"}, "scoring must be one of energy, rmse, likelihood"),
        ({"cv": 1}, "n_folds"),
        ({"candidates": [3]}, "must be a MongeMap, got int"),
        ({"max_points": 1}, "max_points"),
        ({"scoring": lambda y, p: 1.0}, "a loss for every row"),
    ],
)
def test_options_that_cannot_be_used(options, words):
    X, Y, _ = rotated()
    with pytest.raises(OptionError, match=words):
        MongeMapCV(**options).fit(X, Y, pairs=ROWS[:12])


def test_clone_and_repr():
    model = clone(MongeMapCV(scoring="rmse", cv=3))
    assert model.scoring == "rmse" and model.get_params()["cv"] == 3
    assert "scoring='rmse'" in repr(model)


def test_moons_are_found_without_an_option():
    X, Y = datasets.moon(40, seed=0)
    model = MongeMapCV().fit(X, Y, pairs=np.stack([np.arange(40)] * 2, axis=1))
    new_X, new_Y = datasets.moon(30, seed=1)
    assert -model.score(new_X, new_Y) < 0.01
