"""Choosing by clones that were held out, and saying how good the choice is."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pytest

from mongefit import EnsembleMap, MongeMap, datasets, load
from mongefit._io.tensors import write_tensors
from mongefit.errors import ConvergenceWarning, DataError, OptionError, TrainingError
from mongefit.metrics import rmse
from mongefit.model_selection import (
    CrossValidation,
    _selecting,
    cross_validate,
    default_candidates,
    select,
)
from mongefit.model_selection._folds import Known, Thinned, check_max_points
from mongefit.model_selection._selecting import _table, best_choice, held_out_path, stopped

N = 48
X, Y = datasets.t_shape(N, seed=0)
Y = Y[::-1].copy()  # so that a row of one is not taken for that of the other
PAIRS = np.stack([np.arange(0, N, 2), N - 1 - np.arange(0, N, 2)], axis=1)
CLONES = np.arange(len(PAIRS)) // 2
OPTIONS = {"hidden_layer_sizes": (4,), "epsilon": 0.1, "learning_rate": 0.05, "max_iter": 12}
CANDIDATES = {
    "learns": MongeMap(**OPTIONS),
    "hardly learns": MongeMap(**(OPTIONS | {"learning_rate": 1e-5})),
}


@pytest.fixture(scope="module")
def selection():
    return select(
        CANDIDATES, X, Y, pairs=PAIRS, clones=CLONES, n_folds=3, max_points=None, random_state=1
    )


@pytest.fixture(scope="module")
def validation():
    return cross_validate(CANDIDATES, X, Y, pairs=PAIRS, clones=CLONES, n_folds=3, max_points=None)


class TestKnown:
    def test_pairs_that_share_a_point_belong_together(self):
        known = Known.of(X, Y, [[0, 0], [0, 1], [2, 1], [3, 3]], None, None)
        assert known.clone.tolist() == [0, 0, 0, 1]

    def test_clones_stay_in_one_fold_and_folds_are_of_like_sizes(self):
        known = Known.of(X, Y, PAIRS, None, CLONES)
        folds = known.folds(5, seed=3)
        for clone in np.unique(CLONES):
            assert len(set(folds[clone == CLONES])) == 1
        sizes = np.bincount(folds[::2])
        assert sizes.max() - sizes.min() <= 1

    def test_few_clones_are_left_out_one_by_one(self):
        known = Known.of(X, Y, PAIRS[:6], None, None)
        assert sorted(known.folds(None, seed=0)) == list(range(6))

    @pytest.mark.parametrize(
        ("arguments", "error", "said"),
        [
            ({"pairs": []}, DataError, "no pairs to choose by"),
            ({"clones": [0, 1]}, DataError, "one label for each of the 24 pairs"),
            ({"clones": np.zeros(24)}, DataError, "one clone"),
            ({"n_folds": 99}, OptionError, "n_folds is 99, and there are 12 clones"),
            ({"n_folds": 1}, OptionError, "n_folds must be a whole number >= 2"),
            ({"max_points": 0}, OptionError, "max_points"),
            ({"max_points": 1}, OptionError, "max_points must be a whole number >= 2"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, arguments, error, said):
        with pytest.raises(error, match=said):
            select(CANDIDATES, X, Y, **({"pairs": PAIRS, "clones": CLONES} | arguments))

    @pytest.mark.parametrize("candidates", [{}, [3], {"a": "b"}])
    def test_candidates_are_maps(self, candidates):
        with pytest.raises(OptionError, match=r"candidate|MongeMap"):
            select(candidates, X, Y, pairs=PAIRS)


class TestThinned:
    known = Known.of(X, Y, PAIRS[:6], None, None)

    def test_pairs_keep_their_points_and_their_weight(self):
        part = Thinned.of(self.known, 20, seed=0)
        assert part.x.shape == part.y.shape == (20, 2)
        assert len(np.unique(part.x, axis=0)) == len(np.unique(part.y, axis=0)) == 20
        rows, columns = part.pairs.T
        np.testing.assert_array_equal(part.x[rows], X[PAIRS[:6, 0]])
        np.testing.assert_array_equal(part.y[columns], Y[PAIRS[:6, 1]])
        np.testing.assert_allclose(part.a[rows], 1 / N)
        np.testing.assert_allclose([part.a.sum(), part.b.sum()], 1.0)

    def test_it_is_a_fair_sample(self):
        means = [
            part.a @ part.x for part in (Thinned.of(self.known, 20, seed) for seed in range(400))
        ]
        error = np.std(means, axis=0) / np.sqrt(len(means))
        assert np.all(np.abs(np.mean(means, axis=0) - X.mean(axis=0)) < 4 * error)

    def test_two_points_may_be_asked_for(self):
        assert check_max_points(2) == 2

    def test_points_without_weight_stand_for_nothing(self):
        weight = np.zeros(N)
        weight[PAIRS[:6, 0]] = 1 / 6
        known = Known.of(X, Y, PAIRS[:6], None, None, weight, None)
        part = Thinned.of(known, 20, seed=0)
        np.testing.assert_allclose(part.a[part.pairs[:, 0]], 1 / 6)
        np.testing.assert_allclose(part.a.sum(), 1.0)

    def test_small_clouds_are_taken_whole(self):
        part = Thinned.of(self.known, 1000, seed=0)
        np.testing.assert_array_equal(part.x, X)
        np.testing.assert_allclose(part.a, 1 / N)


def test_folds_with_other_numbers_of_points_compile_nothing_new(caplog):
    """In folds of one clone each: of one pair, of two, and of two that share a point."""
    pairs = [[0, 0], [1, 1], [2, 2], [3, 3], [3, 4], [5, 5], [5, 6], [7, 7]]
    clones = np.array([0, 1, 1, 2, 2, 3, 3, 4])
    known = Known.of(X, Y, pairs, None, clones)
    estimator = MongeMap(**(OPTIONS | {"hidden_layer_sizes": (5,), "max_iter": 2}))
    with caplog.at_level(logging.WARNING, logger="jax"), jax.log_compiles():
        path = held_out_path(estimator, known, clones, None, 0)
    assert np.all(np.isfinite(path))
    lines = [line.split(" with ")[0] for line in caplog.messages if line.startswith("Compiling")]
    compiled = [line for line in lines if "jit(_interval)" in line]
    assert len(compiled) == 1


class TestSelect:
    def test_more_points_in_pairs_than_are_asked_for(self):
        pairs = np.stack([np.arange(30)] * 2, axis=1)
        found = select(MongeMap(**OPTIONS), X, Y, pairs=pairs, n_folds=2, max_points=20)
        assert found.model.batch_size == 45

    def test_the_candidate_that_learns_is_chosen_and_fitted_on_all(self, selection):
        assert selection.choice.name == "learns"
        assert selection.choice.steps > 0
        assert selection.model.n_iter_ == selection.choice.steps
        assert selection.model.n_features_in_ == 2
        assert not hasattr(CANDIDATES["learns"], "map_")

    def test_the_path_is_that_of_training_without_the_fold(self, selection):
        squares = np.zeros(OPTIONS["max_iter"] + 1)
        for fold in range(3):
            out = selection.folds == fold
            model = MongeMap(**OPTIONS)
            model.fit(X, Y, pairs=PAIRS[~out], validation_pairs=PAIRS[out])
            squares += out.sum() * model.history_["validation_rmse"] ** 2
        np.testing.assert_allclose(
            selection.paths["learns"], np.sqrt(squares / len(PAIRS)), rtol=1e-6
        )

    def test_the_table_has_what_no_map_should_lose_to(self, selection):
        rows = {row["name"]: row for row in selection.table.rows}
        mean = rmse(np.tile(Y.mean(0), (len(PAIRS), 1)), Y[PAIRS[:, 1]])
        np.testing.assert_allclose(rows["target mean"]["rmse"], mean)
        np.testing.assert_allclose(rows["identity"]["rmse"], rmse(X[PAIRS[:, 0]], Y[PAIRS[:, 1]]))
        assert "squared Euclidean, epsilon 0.1" in rows
        assert "Chosen: learns" in str(selection)

    def test_few_clones_are_warned_of(self):
        with pytest.warns(UserWarning, match="Only 3 clones are known"):
            select(MongeMap(**(OPTIONS | {"max_iter": 2})), X, Y, pairs=PAIRS[:3])

    def test_without_steps_the_first_cost_is_judged(self):
        found = select(MongeMap(**(OPTIONS | {"max_iter": 0})), X, Y, pairs=PAIRS, clones=CLONES)
        assert found.choice.steps == 0
        assert found.model.n_iter_ == 0

    def test_default_candidates_are_fresh(self):
        first, second = default_candidates(), default_candidates()
        names = [f"layers {layers}" for layers in ("(32,), epsilon 0.1", "(32,), epsilon 0.2")]
        assert list(first) == list(second) == [*names, "layers (64, 64), epsilon 0.1"]
        for model in first.values():
            assert not hasattr(model, "map_") and model.max_iter == 60
        assert all(first[name] is not second[name] for name in first)

    def test_stopping_keeps_the_schedule(self):
        model = MongeMap(max_iter=100, epsilon=(0.4, 0.1), learning_rate=0.02)
        ended = stopped(model, 50, batch_size=None)
        np.testing.assert_allclose(ended.epsilon, (0.4, 0.2))
        np.testing.assert_allclose(ended.learning_rate, (0.02, 0.02))
        assert (ended.max_iter, ended.verbose, ended.many_to_many) == (50, 0, True)

    def test_a_candidate_that_cannot_be_trained_is_not_chosen(self):
        good, bad = np.array([3.0, 2.0, 4.0]), np.full(3, np.inf)
        assert best_choice({"bad": bad, "good": good}).name == "good"
        with pytest.raises(TrainingError, match="No candidate"):
            best_choice({"bad": bad})

    def test_a_candidate_that_fails_late_is_judged_before(self, selection):
        known = Known.of(X, Y, PAIRS, None, CLONES)
        late = np.where(np.arange(13) < 8, selection.paths["learns"], np.inf)
        paths = {"late": late, "never": np.full(13, np.inf)}
        found = _table(known, selection.folds, None, 0, paths, best_choice(paths), selection.model)
        assert [row["name"] for row in found.rows if row["steps"] is not None] == ["late"]

    def test_progress_counts_every_fit(self, capsys, monkeypatch):
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        monkeypatch.setattr("mongefit._progress.SECONDS", 0.0)
        model = MongeMap(**(OPTIONS | {"max_iter": 0}))
        select(model, X, Y, pairs=PAIRS, clones=CLONES, n_folds=2, max_points=None, verbose=1)
        lines = capsys.readouterr().err.splitlines()
        assert [line.partition(",")[0] for line in lines] == [
            "MongeMap 1/3", "MongeMap 2/3", "fitting 3/3",
        ]  # fmt: skip


FEW_FOLDS = {"pairs": PAIRS, "clones": CLONES, "n_folds": 2, "max_points": None}


class TestKeeping:
    def test_what_was_judged_is_not_judged_again(self, tmp_path, monkeypatch):
        model = MongeMap(**(OPTIONS | {"max_iter": 2}))
        first = select(model, X, Y, **FEW_FOLDS, checkpoint=tmp_path / "kept")
        with pytest.raises(DataError, match="Go on with it"):
            select(model, X, Y, **FEW_FOLDS, checkpoint=tmp_path / "kept")
        with pytest.raises(DataError, match="other data or folds"):
            select(model, X + 1, Y, **FEW_FOLDS, checkpoint=tmp_path / "kept", resume=True)
        monkeypatch.setattr(_selecting, "held_out_path", None)
        again = select(model, X, Y, **FEW_FOLDS, checkpoint=tmp_path / "kept", resume=True)
        np.testing.assert_array_equal(again.paths["MongeMap"], first.paths["MongeMap"])
        np.testing.assert_array_equal(again.model.transform(X), first.model.transform(X))

    def test_a_file_of_another_kind_is_refused(self, tmp_path):
        (tmp_path / "kept").mkdir()
        write_tensors(tmp_path / "kept/paths.safetensors", {"format": "other"}, {})
        with pytest.raises(DataError, match="it holds no choice"):
            select(CANDIDATES, X, Y, **FEW_FOLDS, checkpoint=tmp_path / "kept", resume=True)

    def test_a_folder_is_needed_to_go_on_from(self):
        with pytest.raises(OptionError, match="resume needs checkpoint"):
            select(CANDIDATES, X, Y, **FEW_FOLDS, resume=True)


class TestCrossValidate:
    def test_held_out_clones_change_nothing_before_they_are_judged(self, validation):
        assert isinstance(validation, CrossValidation)
        out = validation.folds == 0
        # The same folds and pairs, but the first fold's pairs are wrong: its own errors change,
        # what is learned for it does not.
        wrong = PAIRS.copy()
        wrong[out, 1] = np.roll(wrong[out, 1], 1)
        again = cross_validate(
            CANDIDATES, X, Y, pairs=wrong, clones=CLONES, n_folds=3, max_points=None
        )
        assert again.choices[0].name == validation.choices[0].name
        assert again.choices[0].steps == validation.choices[0].steps
        np.testing.assert_allclose(again.choices[0].rmse, validation.choices[0].rmse, rtol=1e-6)

    def test_errors_are_those_of_maps_that_did_not_see_the_clones(self, validation):
        out, choice = validation.folds == 0, validation.choices[0]
        model = stopped(CANDIDATES[choice.name], choice.steps, batch_size=None)
        model.fit(X, Y, pairs=PAIRS, pair_weight=np.where(out, 0.0, 1.0))
        miss = model.transform(X[PAIRS[out, 0]]) - Y[PAIRS[out, 1]]
        found = validation.squared_errors["learned"][out]
        np.testing.assert_allclose(found, np.sum(miss**2, axis=1), rtol=1e-6)

    def test_errors_are_those_of_the_table(self, validation):
        rows = {row["name"]: row["rmse"] for row in validation.table.rows}
        for name, value in rows.items():
            np.testing.assert_allclose(validation.rmse(name), value)
        assert validation.rmse() < validation.rmse("identity")

    def test_the_bootstrap_is_paired_and_by_clone(self, validation):
        found = validation.difference("identity")
        assert found.low <= found.mean <= found.high
        assert found.mean == validation.rmse() - validation.rmse("identity")
        none = validation.difference("learned")
        assert (none.mean, none.low, none.high) == (0.0, 0.0, 0.0)
        with pytest.raises(OptionError, match=r"Did you mean"):
            validation.difference("identiti")


@pytest.fixture(scope="module")
def ensemble():
    model = MongeMap(**(OPTIONS | {"max_iter": 4}))
    return EnsembleMap(model, n_members=6, max_points=32).fit(X, Y, pairs=PAIRS, clones=CLONES)


class TestEnsemble:
    def test_the_mean_of_the_members_is_predicted(self, ensemble):
        each = np.stack([member.transform(X) for member in ensemble.members_])
        np.testing.assert_allclose(ensemble.transform(X), each.mean(axis=0))
        away = ((each - each.mean(axis=0)) ** 2).sum(axis=2).mean(axis=0)
        np.testing.assert_allclose(ensemble.spread(X) ** 2, away)

    def test_scores_are_of_members_that_did_not_see_the_clone(self, ensemble):
        clone = int(np.flatnonzero(np.any(ensemble.counts_ == 0, axis=0))[0])
        pairs = PAIRS[clone == CLONES]
        mean = np.mean(
            [
                member.transform(X[pairs[:, 0]])
                for member, count in zip(ensemble.members_, ensemble.counts_, strict=True)
                if count[clone] == 0
            ],
            axis=0,
        )
        distance = np.linalg.norm(mean - Y[pairs[:, 1]], axis=1).max()
        np.testing.assert_allclose(ensemble.scores_[0], distance)

    def test_the_radius_is_the_conformal_quantile(self, ensemble):
        scores = np.sort(ensemble.scores_)
        assert ensemble.radius(0.5) == scores[int(np.ceil((len(scores) + 1) * 0.5)) - 1]
        with pytest.raises(DataError, match=r"too few for a radius at level 0\.99"):
            ensemble.radius(0.99)
        with pytest.raises(OptionError, match="level"):
            ensemble.radius(1.0)

    def test_points_far_from_known_sources_are_told(self, ensemble):
        near = X[PAIRS[:, 0]]
        assert np.all(ensemble.informed(near))
        assert not np.any(ensemble.informed(near + 1e3))

    def test_it_comes_back_from_its_file(self, ensemble, tmp_path):
        ensemble.save(tmp_path / "model.mongefit")
        again = load(tmp_path / "model.mongefit")
        for method in ("transform", "inverse_transform", "spread", "informed"):
            found, expected = (getattr(each, method)(X) for each in (again, ensemble))
            np.testing.assert_array_equal(found, expected)
        assert again.radius() == ensemble.radius() and again.n_members == 6

    @pytest.mark.parametrize("options", [{"n_members": 1}, {"estimator": 3}, {"max_points": -1}])
    def test_what_makes_no_sense_is_refused(self, options):
        with pytest.raises(OptionError):
            EnsembleMap(**options).fit(X, Y, pairs=PAIRS)


UNSOLVED = MongeMap(**(OPTIONS | {"max_iter": 0, "epsilon": 1e-9}))
KNOWN = {"pairs": PAIRS, "clones": CLONES}


@pytest.mark.parametrize(
    "call",
    [
        lambda: EnsembleMap(UNSOLVED, n_members=3).fit(X, Y, **KNOWN),
        lambda: select(UNSOLVED, X, Y, **KNOWN, n_folds=2, max_points=None),
        lambda: cross_validate(UNSOLVED, X, Y, **KNOWN, n_folds=2, max_points=None),
    ],
    ids=["ensemble", "select", "cross_validate"],
)
def test_what_fits_warn_of_is_said_once(call):
    with pytest.warns(ConvergenceWarning) as caught:
        call()
    said = [str(each.message) for each in caught if each.category is ConvergenceWarning]
    assert len(said) == len(set(said)) <= 3
    assert all(text.count("such warnings from") == 1 for text in said)
    assert {each.filename for each in caught} == {__file__}
