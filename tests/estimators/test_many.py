"""Several fits at once: each is what it is alone."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap, datasets
from mongefit._estimators import many
from mongefit._estimators.many import Fit, fit_many
from mongefit._fitting import training
from mongefit.baselines import CouplingFit, EuclideanMap
from mongefit.errors import DataError, TrainingError
from mongefit.losses import CorrectMass

N = 16
ROWS = np.arange(N)
PAIRS = np.stack([ROWS[::2]] * 2, axis=1)
OPTIONS = {"hidden_layer_sizes": (4,), "max_iter": 12, "epsilon": 0.1}


def told(seed: int, **more):
    X, Y = datasets.t_shape(N, seed=seed)
    return {"X": X, "Y": Y, "pairs": PAIRS} | more


def same(one, other):
    X, _ = datasets.t_shape(N, seed=99)
    np.testing.assert_allclose(one.transform(X), other.transform(X), rtol=1e-7)
    for name, column in one.history_.items():
        np.testing.assert_allclose(column, other.history_[name], rtol=1e-6, atol=1e-12)
    assert one.diagnostics_["converged"] == other.diagnostics_["converged"]
    assert one.data_sha256_ == other.data_sha256_


def test_each_is_what_it_is_alone():
    """Other data, another seed, other rates and another epsilon are other numbers only."""
    plans = [
        (OPTIONS, told(0)),
        (OPTIONS | {"random_state": 7}, told(1)),
        (OPTIONS | {"epsilon": 0.2, "learning_rate": 0.01}, told(2)),
    ]
    fits = [Fit(MongeMap(**options), arguments) for options, arguments in plans]
    assert fit_many(fits, side_by_side=True) == [None] * 3
    for (options, arguments), fit in zip(plans, fits, strict=True):
        same(fit.estimator, MongeMap(**options).fit(**arguments))


def test_batches_and_validation_pairs():
    validation = np.stack([ROWS[1::2]] * 2, axis=1)
    plans = [
        (OPTIONS | {"batch_size": 14, "random_state": k}, told(k, validation_pairs=validation[:4]))
        for k in range(2)
    ]
    fits = [Fit(MongeMap(**options), arguments) for options, arguments in plans]
    assert fit_many(fits, side_by_side=True) == [None] * 2
    for (options, arguments), fit in zip(plans, fits, strict=True):
        same(fit.estimator, MongeMap(**options).fit(**arguments))


def test_what_is_not_alike_is_fitted_too():
    X, Y = datasets.t_shape(8, seed=3)
    fits = [
        Fit(MongeMap(**OPTIONS), told(0)),
        Fit(MongeMap(**OPTIONS), {"X": X, "Y": Y, "pairs": PAIRS[:3]}),
        Fit(MongeMap(**(OPTIONS | {"max_iter": 3})), told(1)),
        Fit(MongeMap(**OPTIONS, n_init=2), told(1)),
        Fit(MongeMap(**(OPTIONS | {"max_iter": 0})), told(2)),
        Fit(CouplingFit(**OPTIONS, losses=[CorrectMass()]), told(2)),
        Fit(EuclideanMap(), told(2)),
    ]
    assert fit_many(fits, side_by_side=True) == [None] * len(fits)
    assert [fit.estimator.n_iter_ for fit in fits] == [12, 12, 3, 12, 0, 12, 0]


@pytest.mark.parametrize("side_by_side", [True, False])
def test_one_that_cannot_be_trained_does_not_stop_the_others(side_by_side):
    def hopeless(context):
        return context.C[0, 0] * np.nan

    fits = [
        Fit(MongeMap(**(OPTIONS | {"max_iter": 40, "losses": [loss]})), told(0))
        for loss in (hopeless, CorrectMass())
    ]
    failed, fine = fit_many(fits, side_by_side=side_by_side)
    assert isinstance(failed, TrainingError) and "Training stopped at step" in str(failed)
    assert fine is None and fits[1].estimator.n_iter_ == 40
    assert not hasattr(fits[0].estimator, "map_")


def test_one_of_several_alike_fails():
    """A rate at which the first step overflows."""
    fits = [
        Fit(MongeMap(**(OPTIONS | {"max_iter": 60, "learning_rate": rate})), told(0))
        for rate in (0.01, 1e200)
    ]
    fine, failed = fit_many(fits, side_by_side=True)
    assert fine is None and isinstance(failed, TrainingError)


def test_wrong_data_are_refused():
    with pytest.raises(DataError, match="pairs name a target row"):
        fit_many([Fit(MongeMap(**OPTIONS), told(0, pairs=[[0, N]]))] * 2, side_by_side=True)


@pytest.mark.parametrize(("least", "calls"), [(24, 0), (23, 1)])
def test_by_default_it_is_done_for_many_steps_on_an_accelerator(least, calls, monkeypatch):
    """Two fits of 12 steps: side by side from 24 on, with the same outcome."""
    called, train_each = [], training.train_each
    monkeypatch.setattr(many, "LEAST_STEPS", least)
    monkeypatch.setattr(many, "on_cpu", lambda: False)
    monkeypatch.setattr(
        training, "train_each", lambda *given: called.append(1) or train_each(*given)
    )
    fits = [Fit(MongeMap(**OPTIONS), told(k)) for k in range(2)]
    assert fit_many(fits) == [None, None]
    assert len(called) == calls
    same(fits[1].estimator, MongeMap(**OPTIONS).fit(**told(1)))
