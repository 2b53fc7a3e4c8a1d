"""Fits with `Likelihood`: what they accept, in all kinds of fits, and that both fates are found."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mongefit import MongeMap, MongeMapCV, load
from mongefit.errors import DataError
from mongefit.losses import Likelihood, Paired
from mongefit.metrics import energy_score
from tests.conftest import random_clouds

X, Y, *_ = random_clouds(24, 24)
CLONES = np.arange(24) // 2  # two sources and two targets in each of 12
PAIRS = np.argwhere(CLONES[:, None] == CLONES)
SMALL = {"cost": "matrix", "epsilon": 0.2, "max_iter": 3}

pytestmark = pytest.mark.filterwarnings("error")


def fit(losses=None, *, pairs=PAIRS, **options):
    losses = [Likelihood()] if losses is None else losses
    return MongeMap(**(SMALL | options), losses=losses).fit(X, Y, pairs=pairs)


def log_likelihood(model):
    """The loss from the plan itself, all weights being equal."""
    P = model.coupling_ * 24
    clones = CLONES[:, None] == CLONES
    ways = (np.log(np.where(clones, P, 0).sum(axis) * 24 / 2).mean() for axis in (0, 1))
    return -np.mean(list(ways))


def test_several_targets_are_taken_and_the_loss_is_that_of_the_plan():
    model = fit(max_iter=0)
    trained = fit()
    expected = [log_likelihood(each) for each in (model, trained)]
    assert trained.history_["loss"][0] == pytest.approx(expected[0], rel=1e-6)
    assert expected[1] < expected[0]


def test_with_paired_several_targets_must_be_asked_for():
    with pytest.raises(DataError, match="many_to_many"):
        fit([Paired(), Likelihood()])
    model = fit([Paired(), 0.1 * Likelihood()], many_to_many=True)
    assert [type(each) for each in model.losses_] == [Paired, Likelihood]


def test_it_needs_pairs():
    with pytest.raises(DataError, match=r"Likelihood\(\) needs pairs"):
        MongeMap(losses=[Likelihood()]).fit(X, Y)


def test_no_rmse_stops_a_fit_to_several_targets():
    """From twenty clones on some would be held out."""
    clones = np.arange(24)
    several = np.concatenate([np.stack([clones] * 2, 1), [[0, 1]]])
    assert "validation_rmse" not in fit(pairs=several).history_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of simple predictors
        assert "validation_rmse" in fit(pairs=several[:-1]).history_


@pytest.mark.parametrize(
    "options",
    [
        {"tau_a": 0.8, "tau_b": 0.9},
        {"debias": True},
        {"dtype": "float32"},
        {"dtype": "mixed", "cost": "icnn", "hidden_layer_sizes": (4,), "n_init": 2},
        {"batch_size": 20},
        {"cost": "conjugate_icnn", "hidden_layer_sizes": (4,), "diffeo": "affine"},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.filterwarnings("ignore:.*ridge regression on the other pairs")
def test_it_trains_in_every_kind_of_fit(options, tmp_path):
    # In batches some points must be in no pair.
    pairs = PAIRS[CLONES[PAIRS[:, 0]] < 6] if "batch_size" in options else PAIRS
    model = fit(pairs=pairs, **options)
    assert model.diagnostics_["converged"] and model.diagnostics_["skipped_steps"] == 0
    assert np.all(np.isfinite(model.history_["loss"]))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.losses == [Likelihood()]
    np.testing.assert_array_equal(again.conditional(X).toarray(), model.conditional(X).toarray())


def test_a_pair_with_a_point_without_weight_does_no_harm():
    weight = np.r_[np.zeros(1), np.full(23, 1 / 23)]
    model = MongeMap(**SMALL, losses=[Likelihood()]).fit(
        X, Y, pairs=PAIRS, source_weight=weight, target_weight=weight
    )
    assert model.diagnostics_["skipped_steps"] == 0 and np.all(np.isfinite(model.transform(X)))


def test_it_is_chosen_among_others():
    candidates = {
        name: MongeMap(**SMALL, losses=[loss])
        for name, loss in {"paired": Paired(), "likelihood": Likelihood()}.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MongeMapCV(candidates, cv=2).fit(X, Y, pairs=PAIRS)
    assert np.all(np.isfinite(model.cv_results_["energy"]))


def test_both_fates_of_mixed_clones_are_found():
    """Soft pairs ask for the mean of both, where nothing is."""
    rng = np.random.default_rng(0)
    fate = np.repeat([1.0, -1.0], 16)
    x = rng.normal(size=(32, 2)) * [0.3, 1] + np.stack([2 * fate, 0 * fate], axis=1)
    move = np.stack([-4 * fate, 0 * fate], axis=1)  # the two halves change places
    y = x + move
    clones = rng.permutation(32) // 4
    pairs = np.argwhere(clones[:, None] == clones)
    options = {"hidden_layer_sizes": (8,), "epsilon": (0.5, 0.02), "max_iter": 150}
    scores = [
        energy_score(model, x, y)
        for model in (
            MongeMap(**options, losses=[Likelihood()]).fit(x, y, pairs=pairs),
            MongeMap(**options, many_to_many=True).fit(x, y, pairs=pairs),
        )
    ]
    assert scores[0] < 0.5 * scores[1]
