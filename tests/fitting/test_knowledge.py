"""What users may know of a map, and how the estimator takes it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

import mongefit
from mongefit import MongeMap
from mongefit._duals import SinkhornDual
from mongefit._validation import check_groups, check_pairs
from mongefit.errors import DataError, OptionError
from mongefit.losses import Directional, Groups, LowRank, Paired, TargetFit
from mongefit.penalties import CostSize, DirichletEnergy
from tests.conftest import random_clouds

N, D = 12, 3
X, Y, *_ = random_clouds(N, N, D)
WEIGHT = np.full(N, 1 / N)
LABELS = np.arange(N) % 3
PAIRS = np.stack([np.arange(6)] * 2, axis=1)
SMALL = {"hidden_layer_sizes": (4,), "max_iter": 4, "epsilon": 0.1}


class TestGroups:
    def test_labels_become_rows_on_both_sides(self):
        labels = ["a", "b", None, "a"], ["b", "b", "a", None]
        rows, columns = check_groups(labels, np.full(4, 0.25), np.full(4, 0.25))
        assert [group.tolist() for group in rows] == [[0, 3], [1]]
        assert [group.tolist() for group in columns] == [[2], [0, 1]]

    def test_minus_one_marks_free_points_among_whole_numbers(self):
        rows, columns = check_groups(([0, -1], [-1, 0]), np.full(2, 0.5), np.full(2, 0.5))
        assert rows[0].tolist() == [0] and columns[0].tolist() == [1]

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (LABELS, "pair"),
            ((LABELS, LABELS[:-1]), r"\(11,\) labels for the 12 points of Y"),
            ((LABELS.astype(float) * np.nan, LABELS), "NaN for row 0 of X.*None"),
            ((["clone1"] * N, ["clone2"] * N), "'clone1' occurs in X only.*Did you mean clone2"),
            (([0] * 11 + [1], [0] * N), "The group 1 occurs in X only"),
            (([None] * N, [None] * N), "labels no point"),
        ],
    )
    def test_labels_that_cannot_be_used_are_named(self, labels, message):
        with pytest.raises(DataError, match=message):
            MongeMap(**SMALL).fit(X, Y, groups=labels)

    def test_a_group_without_mass_is_refused(self):
        weight = np.append(np.full(N - 1, 1 / (N - 1)), 0.0)
        labels = [0] * (N - 1) + [1]
        with pytest.raises(DataError, match="The group 1 has no mass in X"):
            check_groups((labels, labels), weight, WEIGHT)


class TestPairWeights:
    def test_repeated_pairs_keep_their_first_weight(self):
        with pytest.warns(UserWarning, match="1 of 3 pairs are repeated"):
            pairs, weight = check_pairs([[0, 1], [2, 3], [0, 1]], N, N, weight=[1, 3, 5])
        assert pairs.tolist() == [[0, 1], [2, 3]]
        assert weight[1] == pytest.approx(3 * weight[0])

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            ([1.0] * 5, r"shape \(5,\)"),
            ([1.0, -1.0, 1, 1, 1, 1], "negative at row 1"),
            ([np.nan] + [1.0] * 5, "NaN"),
            ([0.0] * 6, "zero everywhere"),
        ],
    )
    def test_weights_that_cannot_be_used_are_named(self, weight, message):
        with pytest.raises(DataError, match=message):
            MongeMap(**SMALL).fit(X, Y, pairs=PAIRS, pair_weight=weight)

    def test_weights_without_pairs_are_refused(self):
        with pytest.raises(DataError, match="without pairs"):
            MongeMap(**SMALL, losses=[TargetFit()]).fit(X, Y, pair_weight=[1.0])

    def test_a_pair_of_weight_zero_counts_for_nothing(self):
        both = [
            MongeMap(**SMALL).fit(X, moved, pairs=PAIRS, pair_weight=[1, 1, 1, 1, 1, 0])
            for moved in (Y, Y)
        ]
        heavy = MongeMap(**SMALL).fit(X, Y, pairs=PAIRS, pair_weight=[1, 1, 1, 1, 1, 9])
        np.testing.assert_array_equal(both[0].transform(X), both[1].transform(X))
        assert heavy.history_["loss"][0] != both[0].history_["loss"][0]


class TestLosses:
    def test_what_is_given_picks_the_losses(self):
        found = MongeMap(**SMALL).fit(X, Y, pairs=PAIRS, groups=(LABELS, LABELS))
        assert [type(loss) for loss in found.losses_] == [Paired, Groups]
        assert found.history_["losses"].shape == (5, 2)
        np.testing.assert_allclose(found.history_["losses"].sum(1), found.history_["loss"])

    def test_weights_count(self):
        losses = [LowRank(1), 0.25 * LowRank(2)]
        found = MongeMap(**SMALL, losses=losses, penalties=[]).fit(X, Y)
        history = found.history_
        np.testing.assert_allclose(history["losses"] @ [1, 0.25], history["loss"])
        np.testing.assert_allclose(history["objective"], history["loss"])

    def test_directions_are_learned_reported_and_saved(self, tmp_path):
        losses = [0.5 * Directional(2), 0.1 * TargetFit()]
        found = MongeMap(**SMALL, losses=losses, dual=SinkhornDual()).fit(X, Y)
        directions = np.asarray(found.losses_[0].unit_directions)
        assert directions.shape == (2, D)
        np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
        assert losses[0].term.directions is None  # what the user holds is not changed
        found.save(tmp_path / "model.mongefit")
        again = mongefit.load(tmp_path / "model.mongefit")
        np.testing.assert_array_equal(again.losses_[0].unit_directions, directions)
        assert again.losses[0].weight == 0.5
        assert again.losses[0].term == Directional(2)
        assert again.dual == SinkhornDual()
        assert again.transform(X).tobytes() == found.transform(X).tobytes()

    def test_robust_pairs_are_trained_and_saved(self, tmp_path):
        found = MongeMap(**SMALL, losses=[2 * Paired(huber=1.5)]).fit(X, Y, pairs=PAIRS)
        assert found.history_["loss"][-1] < found.history_["loss"][0]
        found.save(tmp_path / "model.mongefit")
        again = mongefit.load(tmp_path / "model.mongefit")
        assert again.losses[0].term == Paired(huber=1.5)
        assert again.losses_ == (Paired(huber=1.5),)

    def test_directions_start_where_points_move(self):
        ways = np.array([[0.6, 0.8, 0.0], [0.0, -1.0, 0.0]])
        moves = np.arange(1, N + 1)[:, None] * ways[np.arange(N) % 2]
        started = Directional(2).initialised(moves, WEIGHT, 0)
        nearest = np.max(ways @ np.asarray(started.unit_directions).T, axis=1)
        np.testing.assert_allclose(nearest, 1, atol=1e-4)

    @pytest.mark.parametrize("moves", [np.zeros((N, D)), np.ones((1, D))], ids=["none", "one"])
    def test_more_directions_than_points_move_in(self, moves):
        weight = np.full(len(moves), 1 / len(moves))
        started = Directional(3).initialised(moves, weight, 0)
        directions = np.asarray(started.unit_directions)
        np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-6)
        assert len(np.unique(directions, axis=0)) == 3

    def test_any_function_of_the_context_is_a_loss(self, tmp_path):
        def spread(context):
            return jnp.mean((context.forward - context.y) ** 2) + jnp.mean(context.reverse**2)

        model = MongeMap(**SMALL, losses=[spread], penalties=[1e-7 * CostSize()])
        found = clone(model).fit(X, Y)
        assert found.history_["loss"][-1] < found.history_["loss"][0]
        found.save(tmp_path / "model.mongefit")
        assert mongefit.load(tmp_path / "model.mongefit").losses is None

    def test_the_conjugate_family_trains_and_is_saved(self, tmp_path):
        penalties = [1e-7 * CostSize(), 1e-6 * DirichletEnergy()]
        model = MongeMap("conjugate_icnn", **SMALL, penalties=penalties).fit(X, Y, pairs=PAIRS)
        assert model.diagnostics_["skipped_steps"] == 0
        assert model.history_["loss"][-1] < model.history_["loss"][0]
        model.save(tmp_path / "model.mongefit")
        again = mongefit.load(tmp_path / "model.mongefit")
        assert again.transform(X).tobytes() == model.transform(X).tobytes()

    @pytest.mark.parametrize(
        ("options", "known", "error", "message"),
        [
            ({}, {}, DataError, "nothing to learn it from"),
            ({"losses": []}, {"pairs": PAIRS}, DataError, "nothing to learn it from"),
            ({"losses": [Paired()]}, {}, DataError, r"Paired\(\) needs pairs"),
            ({"losses": [Groups()]}, {"pairs": PAIRS}, DataError, r"Groups\(\) needs groups"),
            ({"losses": "paired"}, {}, OptionError, r"losses must be a list such as"),
            ({"losses": [3]}, {}, OptionError, "holds 3, which is no loss"),
            ({"losses": [TargetFit]}, {}, OptionError, r"Write TargetFit\(\)"),
            ({"losses": [-1 * TargetFit()]}, {}, OptionError, "weight in losses must be non-neg"),
            ({"losses": [LowRank(3)]}, {}, OptionError, r"LowRank\(3\) says nothing in 3"),
            ({"dual": "newtom"}, {"pairs": PAIRS}, OptionError, "Did you mean newton"),
            ({"differentiate": "none"}, {"pairs": PAIRS}, OptionError, "implicit, unrolled"),
            ({"symmetric": "no"}, {"pairs": PAIRS}, OptionError, "True or False"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, options, known, error, message):
        with pytest.raises(error, match=message):
            MongeMap(**(SMALL | options)).fit(X, Y, **known)

    @pytest.mark.parametrize("build", [lambda: LowRank(0), lambda: Directional(0)])
    def test_losses_check_their_own_options(self, build):
        with pytest.raises(OptionError, match="at least"):
            build()


def test_a_pair_of_weight_zero_is_as_good_as_left_out():
    pairs, weight = [[0, 0], [1, 1], [2, 2]], [2.0, 0.0, 2.0]
    _, confidence = check_pairs(pairs, 3, 3, weight=weight)
    np.testing.assert_array_equal(confidence, [1.0, 0.0, 1.0])
