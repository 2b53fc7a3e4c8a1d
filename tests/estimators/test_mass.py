"""Mass that grows and dies: what `tau_a` and `tau_b` do to fits, maps and files."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap, MongeMapCV, load
from mongefit.baselines import CouplingFit, ElasticMap, EuclideanMap, InverseOT
from mongefit.errors import OptionError
from mongefit.model_selection._choosing import Entry, check_strengths, pick
from mongefit.model_selection._judging import HeldOut, Judged, Taus
from mongefit.model_selection._training import Trainer

N = 60


def two_kinds(seed: int = 0, n: int = N):
    """Two kinds of points that move apart; of the first kind half dies, the second grows."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n) % 2
    x = rng.normal(size=(n, 2)) + 6.0 * kind[:, None]
    # For every two of the first kind one survives, and every one of the second becomes three.
    copies = np.where(kind == 0, rng.permutation(n) % 2 == 0, 3)
    source = np.repeat(np.arange(n), np.where(kind == 0, copies.astype(int), 1))
    source = np.concatenate([source, np.repeat(np.flatnonzero(kind == 1), 2)])
    y = x[source] + np.array([0.0, 3.0]) + 0.05 * rng.normal(size=(len(source), 2))
    return x, y, kind, source


def test_growth_is_found_where_kinds_grow_and_die():
    x, y, kind, source = two_kinds()
    # Relative to the mean, as both clouds have mass 1.
    true = np.bincount(source, minlength=len(x)) * len(x) / len(y)
    model = MongeMap(cost="sqeuclidean", epsilon=0.02, tau_a=0.9).fit(x, y)
    for each in (0, 1):
        assert model.growth_[kind == each].mean() == pytest.approx(
            true[kind == each].mean(), rel=0.1
        )
    kept = MongeMap(cost="sqeuclidean", epsilon=0.02).fit(x, y)
    assert np.all(kept.growth_ == 1) and kept.died_ == kept.unexplained_ == 0
    truth = x + np.array([0.0, 3.0])
    assert model.score(x, truth) > kept.score(x, truth) + 1
    assert 0.2 < model.died_ < 0.4 and model.unexplained_ < 1e-9


def test_growth_of_new_points_agrees_with_that_of_the_old():
    x, y, *_ = two_kinds()
    model = MongeMap(cost="sqeuclidean", epsilon=0.05, tau_a=0.9, tau_b=0.8).fit(x, y)
    np.testing.assert_allclose(model.growth(x), model.growth_, rtol=1e-9)
    P = model.coupling_
    np.testing.assert_allclose(P.sum(1) * len(x), model.growth_, rtol=1e-8)
    assert model.diagnostics_["converged"]
    # What is unexplained of the target, from the plan.
    lost = np.maximum(1 / len(y) - P.sum(0), 0).sum()
    assert model.unexplained_ == pytest.approx(lost, abs=1e-9)


def test_outliers_lose_their_mass_and_leave_the_others_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    y = x + np.array([0.0, 1.0])
    # A twentieth far away, on both sides in other places.
    far = 60 + rng.normal(size=(3, 2))
    both = np.r_[x, -far], np.r_[y, far]

    def error(clouds, eps, **options):
        """On all but the outliers, at an absolute eps."""
        mean = 0.5 * np.mean(np.sum((clouds[0][:, None] - clouds[1]) ** 2, axis=2))
        model = MongeMap(cost="sqeuclidean", epsilon=eps / mean, **options).fit(*clouds)
        return -model.score(x, y), model

    clean, _ = error((x, y), 0.05)
    # ρ = eps τ/(1 − τ) = 100, far above what the move costs and far below what outliers would.
    relaxed, model = error(both, 0.05, tau_a=0.9995, tau_b=0.9995)
    kept, _ = error(both, 0.05)
    assert np.all(model.growth_[-3:] < 1e-2) and np.all(model.growth_[:-3] > 0.9)
    assert relaxed < 1.1 * clean and kept > 2 * clean


def test_training_sees_the_strengths(tmp_path):
    x, y, _, source = two_kinds()
    pairs = np.stack([source, np.arange(len(y))], axis=1)[::4]
    fits = {
        tau: MongeMap(cost="matrix", epsilon=0.05, tau_a=tau, max_iter=5, many_to_many=True).fit(
            x, y, pairs=pairs
        )
        for tau in (1.0, 0.8)
    }
    first = {tau: model.history_["loss"][0] for tau, model in fits.items()}
    assert abs(first[1.0] - first[0.8]) > 1e-3
    model = fits[0.8]
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.tau_a == 0.8
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    np.testing.assert_array_equal(again.growth(y), model.growth(y))
    np.testing.assert_array_equal(again.coupling_, model.coupling_)


def test_batches_and_debiased_maps_take_strengths_too():
    x, y, _, source = two_kinds()
    pairs = np.stack([source, np.arange(len(y))], axis=1)[::6]
    model = MongeMap(
        cost="matrix", epsilon=0.05, tau_a=0.9, tau_b=0.9, debias=True, batch_size=40, max_iter=3,
        many_to_many=True,
    ).fit(x, y, pairs=pairs)  # fmt: skip
    assert model.diagnostics_["converged"] and np.all(np.isfinite(model.inverse_transform(y)))


@pytest.mark.parametrize("bad", [0, 1.2, np.nan, "0.9", True, None])
def test_other_strengths_are_refused(bad):
    with pytest.raises(OptionError, match="tau_b must be a number above 0 and at most 1"):
        MongeMap(tau_b=bad).fit(*two_kinds()[:2])


def test_baselines_that_solve_a_dual_take_them():
    x, y, _, source = two_kinds()
    taus = {"epsilon": 0.05, "tau_a": 0.9}
    euclidean = EuclideanMap(**taus).fit(x, y)
    same = MongeMap(cost="sqeuclidean", **taus).fit(x, y)
    np.testing.assert_array_equal(euclidean.growth_, same.growth_)
    told = {"pairs": some_pairs(x, y, source, 6)}
    inverse = InverseOT("quadratic", many_to_many=True, **taus).fit(x, y, **told)
    # The cost is that of the balanced fit; its map lets mass grow.
    kept = InverseOT("quadratic", many_to_many=True, epsilon=0.05).fit(x, y, **told)
    np.testing.assert_array_equal(inverse.theta_, kept.theta_)
    assert inverse.died_ > 0.1 > kept.died_
    for model in (
        ElasticMap(max_iter=2, **taus).fit(x, y),
        CouplingFit("matrix", max_iter=2, many_to_many=True, **taus).fit(x, y, **told),
    ):
        assert model.died_ > 0.1 and model.diagnostics_["converged"]


def some_pairs(x, y, source, step=3):
    """The descendants of every so many of the sources that have any."""
    sources = np.unique(source)[::step]
    return np.stack([source, np.arange(len(y))], axis=1)[np.isin(source, sources)]


@pytest.fixture(scope="module")
def fitted():
    """A choice among three strengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "judge", lambda *args: [])
        x, y, _, source = two_kinds()
        model = MongeMapCV(tau_a=[0.9, 1, 0.99], cv=2)
        return model.fit(x, y, pairs=some_pairs(x, y, source))


class TestChosen:
    """`MongeMapCV` with strengths to choose among."""

    @pytest.fixture(autouse=True)
    def untrained(self, monkeypatch):
        """Candidates in closed form alone: nothing to compile for training."""
        monkeypatch.setattr(Trainer, "judge", lambda *args: [])

    def test_growth_is_found_by_held_out_pairs(self, fitted):
        x, y, kind, source = two_kinds()
        true = np.bincount(source, minlength=len(x)) * len(x) / len(y)
        for each in (0, 1):
            expected = true[kind == each].mean()
            assert fitted.growth_[kind == each].mean() == pytest.approx(expected, rel=0.1)
        kept = MongeMapCV(cv=2).fit(x, y, pairs=some_pairs(x, y, source))
        truth = x + np.array([0.0, 3.0])
        assert fitted.score(x, truth) > kept.score(x, truth) / 3
        assert fitted.best_params_["tau_a"] < 1 and "tau_b" not in fitted.best_params_

    def test_what_was_chosen_is_reported(self, fitted):
        found = fitted.cv_results_
        assert set(found["tau_a"]) == {1.0, 0.99, 0.9} and "tau_b" not in found
        names = [row["name"] for row in fitted.report_.rows if row["kind"] == "candidate"]
        tau = fitted.best_params_["tau_a"]
        chosen = next(row["name"] for row in fitted.report_.rows if row["chosen"])
        assert chosen.endswith(f", tau_a {tau:g}")
        # Of the kind that was chosen, every strength.
        kind = chosen.removesuffix(f", tau_a {tau:g}")
        assert {kind, f"{kind}, tau_a 0.99", f"{kind}, tau_a 0.9"} <= set(names)
        assert fitted.died_ > 0.1

    def test_it_is_the_map_with_the_options_that_it_names(self, fitted):
        x, y, _, source = two_kinds()
        same = MongeMap(**fitted.best_params_).fit(x, y, pairs=some_pairs(x, y, source))
        np.testing.assert_allclose(fitted.growth_, same.growth_, atol=1e-9)

    def test_saved_and_read_back(self, fitted, tmp_path):
        x = two_kinds()[0]
        fitted.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert again.best_params_ == fitted.best_params_
        assert list(again.tau_a) == [0.9, 1, 0.99] and again.tau_b == 1.0
        np.testing.assert_array_equal(again.growth(x), fitted.growth(x))
        np.testing.assert_array_equal(again.cv_results_["tau_a"], fitted.cv_results_["tau_a"])

    def test_where_nothing_grows_weights_are_kept(self):
        x = two_kinds()[0]
        y = x + np.array([0.0, 3.0])
        pairs = np.stack([np.arange(N)] * 2, axis=1)[::2]
        model = MongeMapCV(tau_a=[1, 0.9], cv=2).fit(x, y, pairs=pairs)
        assert "tau_a" not in model.best_params_ and np.all(model.growth_ == 1)

    def test_a_number_holds_for_every_candidate(self):
        x, y, _, source = two_kinds()
        model = MongeMapCV(tau_a=0.9, tau_b=np.float64(0.95), cv=2)
        model.fit(x, y, pairs=some_pairs(x, y, source))
        assert set(model.cv_results_["tau_a"]) == {0.9}
        assert set(model.cv_results_["tau_b"]) == {0.95}
        assert (model.best_params_["tau_a"], model.best_params_["tau_b"]) == (0.9, 0.95)
        with pytest.warns(UserWarning, match="No pairs are known"):
            assert MongeMapCV(tau_a=[0.9, 0.5]).fit(x, y).best_params_["tau_a"] == 0.9

    def test_a_run_that_was_cut_off_goes_on(self, tmp_path, monkeypatch):
        from mongefit.model_selection import _best

        x, y, _, source = two_kinds()
        told = {"pairs": some_pairs(x, y, source), "checkpoint": tmp_path / "kept"}
        judge, calls = _best.judge_family, []

        def stop_at_the_third(family, *args, **kwargs):
            calls.append(family)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return judge(family, *args, **kwargs)

        monkeypatch.setattr(_best, "judge_family", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            MongeMapCV(tau_a=[1, 0.9], cv=2).fit(x, y, **told)
        # The strengths that were judged are known by their names.
        resumed = MongeMapCV(tau_a=[1, 0.9], cv=2).fit(x, y, **told, resume=True)
        assert len(calls) == 3 + 2 * len(_best.FAMILIES) - 2
        assert resumed.best_params_["tau_a"] == 0.9


def test_candidates_of_ones_own_take_strengths():
    x, y, _, source = two_kinds()
    pairs = some_pairs(x, y, source)
    own = MongeMap(cost="sqeuclidean", epsilon=0.02, tau_a=0.9)
    model = MongeMapCV(own).fit(x, y, pairs=pairs)
    assert model.best_params_["tau_a"] == 0.9 and len(model.cv_results_["name"]) == 1
    model = MongeMapCV(own, tau_a=[0.9, 0.5], tau_b=[1, 0.99]).fit(x, y, pairs=pairs)
    assert len(model.cv_results_["name"]) == 4
    assert own.tau_a == 0.9 and own.tau_b == 1


def test_closed_forms_say_what_fitted_maps_say(monkeypatch):
    """Of new points: what a point grows to does not make where it goes more likely."""
    x, y, _, source = two_kinds()
    pairs = some_pairs(x, y, source)
    options = {"tau_a": 0.8, "tau_b": 0.9, "scoring": "likelihood", "cv": 2}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "judge", lambda *args: [])
        chosen = MongeMapCV(**options).fit(x, y, pairs=pairs).cv_results_
    for k in (0, 3):
        assert chosen["name"][k].startswith("Euclidean, epsilon")
        own = MongeMapCV(MongeMap(**chosen["params"][k]), scoring="likelihood", cv=2).fit(
            x, y, pairs=pairs
        )
        assert own.best_score_ == pytest.approx(chosen["mean_test_score"][k], rel=1e-6)


def test_the_least_strict_is_taken_where_pairs_reject_the_strictest():
    """Of strengths that pairs cannot tell apart; the strictest where they say nothing."""
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(40)] * 2, axis=1)
    y, noise = rng.normal(size=(2, 40, 2))
    weight, fold = np.ones(40), np.zeros((1, 40), int)
    none = np.zeros((40, 0))  # no labels
    share = weight / 40
    held = HeldOut(y, y, share, share, pairs, weight, np.arange(40), fold, y @ y.T, none)

    def entry(error, *taus):
        missed = error * (1 + 0.01 * rng.normal(size=40))
        judged = Judged(y + missed[:, None] * noise, missed, missed, none)
        return Entry("", {}, "Euclidean", judged, Taus(*taus))

    def best(*entries):
        return pick(entries, held, "energy", lambda points: points).taus

    def like(other, kind, *taus):
        return Entry("", {}, kind, other.judged, Taus(*taus))

    good, poor = entry(0.1), entry(0.3)
    relaxed = [like(good, "Euclidean", tau) for tau in (0.9, 0.7, 0.5)]
    assert best(good, *relaxed, like(poor, "Euclidean", 0.1)) == (1, 1)
    assert best(poor, *relaxed, like(poor, "Euclidean", 0.1)) == (0.5, 1)
    # Another kind of cost explains the pairs with weights kept.
    assert best(poor, *relaxed, like(good, "matrix")) == (1, 1)


def test_strengths_are_tried_from_the_strictest_on():
    assert [tuple(each) for each in check_strengths([0.9, 1], (1, 0.5, 1.0))] == [
        (1, 1), (0.9, 1), (1, 0.5), (0.9, 0.5),
    ]  # fmt: skip
    assert [tuple(each) for each in check_strengths(1, np.array([0.9]))] == [(1, 0.9)]


@pytest.mark.parametrize("bad", [[], [1, 1.2], [0.9, "1"], "0.9", [np.nan], None, True, [[0.9]]])
def test_other_strengths_cannot_be_chosen_among(bad):
    x, y, _, source = two_kinds()
    with pytest.raises(OptionError, match="tau_a"):
        MongeMapCV(tau_a=bad).fit(x, y, pairs=some_pairs(x, y, source))
