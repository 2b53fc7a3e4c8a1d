"""Mass that grows and dies: what `tau_a` and `tau_b` do to fits, maps and files."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap, load
from mongefit.baselines import EuclideanMap
from mongefit.errors import OptionError

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


def test_the_baseline_takes_them():
    x, y, *_ = two_kinds()
    model = EuclideanMap(epsilon=0.05, tau_a=0.9).fit(x, y)
    same = MongeMap(cost="sqeuclidean", epsilon=0.05, tau_a=0.9).fit(x, y)
    np.testing.assert_array_equal(model.growth_, same.growth_)
