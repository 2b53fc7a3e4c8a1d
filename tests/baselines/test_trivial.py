"""The trivial predictors: closed forms, scikit-learn's conventions, and what bad input gets."""

from __future__ import annotations

import copy
import doctest
import pickle

import jax.numpy as jnp
import numpy as np
import ot
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks

from mongefit.baselines import (
    Baseline,
    IdentityMap,
    NearestPair,
    PairedRidge,
    TargetMean,
)
from mongefit.baselines import _trivial as trivial
from mongefit.errors import ConvergenceWarning, DataError, NotFittedError, OptionError
from tests.conftest import random_clouds

pytestmark = pytest.mark.filterwarnings("error")

N, M, D = 16, 12, 2
X, Y, A, B = random_clouds(N, M, uniform=False)
Z = random_clouds(20, 1, seed=9).x
PAIRS = np.column_stack([[0, 3, 5, 8, 11, 15], [2, 0, 7, 1, 11, 4]])
KINDS = [IdentityMap, TargetMean, PairedRidge, NearestPair]
every = pytest.mark.parametrize("kind", KINDS)


def fit(kind, **options):
    return kind(**({"epsilon": 0.2} | options)).fit(X, Y, pairs=PAIRS)


# What they predict


def test_identity():
    moved = fit(IdentityMap).transform(Z)
    np.testing.assert_array_equal(moved, Z)
    assert moved is not Z


def test_target_mean():
    np.testing.assert_allclose(fit(TargetMean).transform(Z), np.tile(Y.mean(0), (20, 1)))
    weighted = TargetMean().fit(X, Y, target_weight=B)
    np.testing.assert_allclose(weighted.transform(Z[:1])[0], np.average(Y, axis=0, weights=B))
    # No other constant has a smaller error on the target.
    best = fit(TargetMean).score(X[:M], Y)
    for shift in ([0.01, 0], [0, -0.01]):
        moved = Y.mean(0) + shift
        assert best > -np.sqrt(np.mean(np.sum((moved - Y) ** 2, axis=1)))


def test_ridge_has_the_smallest_leave_one_out_error():
    source, target = X[PAIRS[:, 0]], Y[PAIRS[:, 1]]
    centred = source - source.mean(0)
    found = fit(PairedRidge)
    errors = {}
    for strength in trivial._STRENGTHS:
        model = Ridge(strength * np.sum(centred**2))
        left_out = cross_val_predict(model, source, target, cv=LeaveOneOut())
        errors[strength] = np.mean((left_out - target) ** 2)
        if strength == found.strength_:
            expected = model.fit(source, target).predict(Z)
    assert found.strength_ == min(errors, key=errors.get)
    # Neither end of the range: there is a choice to get wrong.
    assert trivial._STRENGTHS[0] < found.strength_ < trivial._STRENGTHS[-1]
    np.testing.assert_allclose(found.transform(Z), expected, atol=1e-10)


@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (1e20, 0), (1e-20, 0), (1, 1e8)])
def test_ridge_recovers_an_affine_map_in_any_units(scale, offset):
    W, w = np.array([[0.0, 2.0], [-1.0, 0.5]]), np.array([3.0, 4.0])
    x, z = (scale * np.round(points * 2**20) / 2**20 + offset for points in (X, Z))
    ridge = PairedRidge().fit(x, x @ W.T + scale * w, pairs=np.column_stack([np.arange(N)] * 2))
    error = np.abs(ridge.transform(z) - (z @ W.T + scale * w)).max()
    assert error < 1e-6 * scale + 1e-15 * offset
    assert ridge.strength_ == trivial._STRENGTHS[0]


def test_ridge_where_nothing_can_be_learned_from_the_source():
    ridge = PairedRidge().fit(np.ones((N, D)), Y, pairs=PAIRS)
    np.testing.assert_allclose(ridge.transform(Z), np.tile(Y[PAIRS[:, 1]].mean(0), (20, 1)))


def test_ridge_with_more_features_than_pairs():
    x, y, _, _ = random_clouds(N, M, 9)
    moved = PairedRidge().fit(x, y, pairs=PAIRS[:2]).transform(x)
    assert moved.shape == (N, 9) and np.all(np.isfinite(moved))


def test_nearest_pair():
    found = fit(NearestPair)
    source, target = X[PAIRS[:, 0]], Y[PAIRS[:, 1]]
    np.testing.assert_allclose(found.transform(source), target, atol=1e-15)
    nearest = np.argmin(np.linalg.norm(Z[:, None] - source[None], axis=-1), axis=1)
    assert len(np.unique(nearest)) > 2
    np.testing.assert_allclose(found.transform(Z), Z + (target - source)[nearest], atol=1e-15)


def test_several_targets_of_one_source():
    pairs = [[0, 0], [0, 1], [1, 2]]
    nearest = NearestPair(many_to_many=True).fit(X, Y, pairs=pairs)
    np.testing.assert_allclose(nearest.transform(X[:1])[0], Y[:2].mean(0), atol=1e-15)
    np.testing.assert_allclose(nearest.transform(X[1:2])[0], Y[2], atol=1e-15)
    ridge = PairedRidge(many_to_many=True).fit(X, Y, pairs=pairs)
    assert np.all(np.isfinite(ridge.transform(X)))
    for kind in KINDS:
        with pytest.raises(DataError, match="paired with 2 targets"):
            kind().fit(X, Y, pairs=pairs)


# Cost, plan and score


@every
def test_cost_plan_and_score_belong_to_the_map(kind):
    found = kind(epsilon=0.2).fit(X, Y, pairs=PAIRS, source_weight=A, target_weight=B)
    moved = found.transform(Z)
    C = 0.5 * np.sum((moved[:, None] - Y[None]) ** 2, axis=-1)
    np.testing.assert_allclose(found.cost_matrix(Z, Y), C, rtol=1e-12, atol=1e-15)
    C = found.cost_matrix(X, Y)
    expected = ot.bregman.sinkhorn_log(A, B, C, 0.2 * (A @ C @ B), numItermax=9999, stopThr=1e-13)
    np.testing.assert_allclose(found.coupling_, expected, rtol=0, atol=1e-9)
    truth = Z[::-1]
    error = np.sqrt(np.mean(np.sum((moved - truth) ** 2, axis=1)))
    assert found.score(Z, truth) == pytest.approx(-error, rel=1e-13)
    assert jnp.zeros(()).dtype == jnp.float32


def test_the_plan_of_the_mean_knows_nothing():
    found = TargetMean(epsilon=0.2).fit(X, Y, source_weight=A, target_weight=B)
    np.testing.assert_allclose(found.coupling_, np.outer(A, B), atol=1e-10)


def test_the_plan_where_all_costs_are_zero():
    found = IdentityMap().fit(np.ones((N, D)), np.ones((M, D)), source_weight=A)
    np.testing.assert_allclose(found.coupling_, np.outer(A, np.full(M, 1 / M)), rtol=1e-13)


def test_an_epsilon_too_small_gives_the_smallest_that_converges():
    with pytest.warns(ConvergenceWarning, match="the plan is that of epsilon") as caught:
        coupling = fit(IdentityMap, epsilon=1e-12).coupling_
    assert {warning.filename for warning in caught} == {__file__}
    C = 0.5 * np.sum((X[:, None] - Y[None]) ** 2, axis=-1)
    exact = ot.emd2(np.full(N, 1 / N), np.full(M, 1 / M), C)
    assert np.sum(coupling * C) == pytest.approx(exact, rel=1e-6)


def test_a_matrix_larger_than_memory_is_refused(monkeypatch):
    found = fit(IdentityMap)
    monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**20)
    points = np.zeros((1000, D))
    with pytest.raises(DataError, match=r"1000 and 1000 points need .* GiB"):
        found.cost_matrix(points, points)


# Conventions


@every
def test_points_in_any_form_and_left_as_they_are(kind):
    x, y = X.astype(np.float32), Y.astype(np.float32)
    plain = kind().fit(x.astype(float), y.astype(float), pairs=PAIRS).transform(Z)
    given = kind().fit(np.asfortranarray(x), scipy.sparse.csr_array(y), pairs=PAIRS.tolist())
    np.testing.assert_array_equal(given.transform(Z), plain)
    np.testing.assert_array_equal(x, X.astype(np.float32))
    assert given.transform(np.arange(4).reshape(2, 2)).dtype == np.float64
    x[:] = y[:] = 0
    np.testing.assert_array_equal(given.transform(Z), plain)


@every
def test_writing_into_the_data_afterwards_changes_nothing(kind):
    x, y = X.copy(), Y.copy()
    found = kind(epsilon=0.2).fit(x, y, pairs=PAIRS)
    moved, coupling = found.transform(Z), found.coupling_
    x[:], y[:] = 7.0, 8.0
    np.testing.assert_array_equal(found.transform(Z), moved)
    np.testing.assert_array_equal(found.coupling_, coupling)


@pytest.mark.parametrize("kind", [IdentityMap, TargetMean, NearestPair])
def test_one_point_each(kind):
    x, y = np.array([[0.0, 1.0]]), np.array([[2.0, 3.0]])
    with pytest.warns(UserWarning, match="Only one pair"):
        found = kind().fit(x, y, pairs=[[0, 0]])
    np.testing.assert_array_equal(found.transform(x), x if kind is IdentityMap else y)
    np.testing.assert_allclose(found.coupling_, [[1.0]])


@every
def test_copies_predict_the_same(kind):
    found = fit(kind)
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):  # noqa: S301
        np.testing.assert_array_equal(twin.transform(Z), found.transform(Z))
    fresh = clone(found)
    assert fresh.get_params() == found.get_params() and not hasattr(fresh, "source_")
    np.testing.assert_array_equal(fresh.fit_transform(X, Y, pairs=PAIRS), found.transform(X))


@every
def test_names_of_features(kind):
    pandas = pytest.importorskip("pandas")
    x, y = (pandas.DataFrame(points, columns=["u", "v"]) for points in (X, Y))
    found = kind().fit(x, y, pairs=PAIRS)
    assert found.feature_names_in_.tolist() == ["u", "v"] and found.n_features_in_ == D
    with pytest.raises(ValueError, match="feature names"):
        found.transform(x[["v", "u"]])
    with pytest.raises(DataError, match="columns of X and Y differ"):
        kind().fit(x, y[["v", "u"]], pairs=PAIRS)


@pytest.mark.parametrize("call", ["transform", "cost_matrix", "score", "coupling_"])
@every
def test_nothing_works_before_fit(kind, call):
    arguments = {"transform": (X,), "coupling_": None}.get(call, (X, X))
    with pytest.raises(NotFittedError, match="fit"):
        attribute = getattr(kind(), call)
        attribute(*arguments)


BAD_FITS = {
    "1-D": ({"X": X[0]}, "X must be two-dimensional"),
    "3-D": ({"Y": Y[None]}, "Y must be two-dimensional"),
    "no points": ({"X": X[:0]}, "no points"),
    "features": ({"Y": Y[:, :1]}, "X has 2 features and Y has 1"),
    "NaN": ({"Y": np.where(np.arange(M)[:, None] == 4, np.nan, Y)}, "row 4 column 0"),
    "strings": ({"X": X.astype(str)}, "real numbers are needed"),
    "negative weight": ({"source_weight": -A}, "source_weight is negative"),
    "sum of weights": ({"target_weight": 2 * B}, "has sum 2, not 1"),
    "pair outside": ({"pairs": [[0, M], [1, 1]]}, "numbered 0 to 11"),
    "negative pair": ({"pairs": [[-1, 0], [1, 1]]}, "row -1"),
    "float pairs": ({"pairs": [[0.0, 1.0], [1.0, 1.0]]}, "integer row numbers"),
}


@pytest.mark.parametrize(("changed", "words"), BAD_FITS.values(), ids=BAD_FITS)
@every
def test_data_that_cannot_be_fitted_leave_the_last_fit(kind, changed, words):
    found = fit(kind)
    before = found.transform(Z)
    with pytest.raises(DataError, match=words):
        found.fit(**({"X": X, "Y": Y, "pairs": PAIRS} | changed))
    np.testing.assert_array_equal(found.transform(Z), before)


@every
@pytest.mark.parametrize("epsilon", [0, -1, np.nan, "small"])
def test_an_epsilon_that_makes_no_sense(kind, epsilon):
    with pytest.raises(OptionError, match="epsilon must be"):
        fit(kind, epsilon=epsilon)


def test_weights_are_normalised_on_request():
    found = TargetMean(normalize_weight=True).fit(X, Y, target_weight=5 * B)
    np.testing.assert_allclose(found.mean_, B @ Y, rtol=1e-13)


def test_too_few_pairs_say_what_to_do():
    with pytest.raises(DataError, match=r"at least 2 known pairs, and 0 are given.*NearestPair"):
        PairedRidge().fit(X, Y)
    with (
        pytest.warns(UserWarning, match="Only one pair"),
        pytest.raises(DataError, match="and 1 are given"),
    ):
        PairedRidge().fit(X, Y, pairs=PAIRS[:1])
    with pytest.raises(DataError, match=r"no pairs are given.*IdentityMap or TargetMean"):
        NearestPair().fit(X, Y, pairs=[])


BAD_QUERIES = {
    "1-D": (X[0], "two-dimensional"),
    "features": (X[:, :1], "1 features, but"),
    "NaN": (np.where(np.arange(N)[:, None] == 4, np.nan, X), "row 4 column 0"),
}


@pytest.mark.parametrize("method", ["transform", "cost_matrix", "score"])
@pytest.mark.parametrize(("points", "words"), BAD_QUERIES.values(), ids=BAD_QUERIES)
def test_queries_that_cannot_be_used(method, points, words):
    arguments = (points,) if method == "transform" else (X, points)
    with pytest.raises(ValueError, match=words):
        getattr(fit(IdentityMap), method)(*arguments)


def test_a_score_needs_rows_in_pairs():
    with pytest.raises(DataError, match="X has 16 rows and Y has 12"):
        fit(IdentityMap).score(X, Y)


def test_warnings_name_the_line_of_the_caller():
    with pytest.warns(UserWarning, match="repeated") as caught:
        found = PairedRidge().fit(X, Y, pairs=np.concatenate([PAIRS, PAIRS]))
    assert {warning.filename for warning in caught} == {__file__}
    np.testing.assert_array_equal(found.transform(Z), fit(PairedRidge).transform(Z))


def test_a_class_is_abstract_or_final():
    surface = {name for base in (Baseline, trivial.TrivialPredictor) for name in vars(base)}
    for kind in KINDS:
        overridden = {name for name in vars(kind) if callable(vars(kind)[name])} & surface
        assert overridden == trivial.TrivialPredictor.__abstractmethods__
    for abstract in (Baseline, trivial.TrivialPredictor):
        with pytest.raises(TypeError, match="abstract"):
            abstract()


def test_what_the_docstrings_show():
    found = doctest.testmod(trivial)
    assert found.attempted >= 8 and found.failed == 0


def turned(points):
    """Another cloud of the same kind, for checks that know one only."""
    points = points.toarray() if scipy.sparse.issparse(points) else np.asarray(points)
    return points[:, ::-1] + 1 if points.ndim == 2 and points.dtype.kind == "f" else points


class OntoTurned:
    """From a cloud to its turned self, with the signature that generic checks know."""

    def fit(self, X, y=None):
        target = turned(X)
        rows = np.arange(len(np.atleast_1d(target)))
        return super().fit(X, target, pairs=np.column_stack([rows, rows]))

    def score(self, X, y=None):
        return super().score(X, turned(X))


class TurnedIdentity(OntoTurned, IdentityMap):
    pass


class TurnedMean(OntoTurned, TargetMean):
    pass


class TurnedRidge(OntoTurned, PairedRidge):
    pass


class TurnedNearest(OntoTurned, NearestPair):
    pass


DOES_NOT_APPLY = {"check_dtype_object": "arrays of objects are refused, not searched for numbers"}


@parametrize_with_checks(
    [TurnedIdentity(), TurnedMean(), TurnedRidge(), TurnedNearest()],
    expected_failed_checks=lambda estimator: (
        DOES_NOT_APPLY
        | ({"check_fit2d_1sample": "needs two pairs"} if isinstance(estimator, PairedRidge) else {})
    ),
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)
