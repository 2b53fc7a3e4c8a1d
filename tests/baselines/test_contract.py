"""What every baseline must satisfy: one surface, and the same answer to good and bad input."""

from __future__ import annotations

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

from mongefit.errors import DataError, NotFittedError, OptionError
from tests.baselines.families import BASELINES, GROUPS, KNOWN, PAIRS, A, B, D, M, N, X, Y, Z

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]

every = pytest.mark.parametrize("name", BASELINES)

# What a baseline does not do, and why.
LEARNS_FROM_PAIRS = {"ridge on pairs", "nearest pair", "inverse, powers", "inverse, quadratic"}
LEARNS_FROM_SOMETHING = LEARNS_FROM_PAIRS | {"coupling", "Monge gap"}
# The others start from a cost that is given or fixed.
DRAWS_A_START = {"elastic", "Monge gap"}
# Pairs are not looked at, so one source with several targets does no harm.
TAKES_MANY_TO_MANY = {"Euclidean", "elastic"}
# A subspace of one dimension says nothing in one dimension.
REFUSES_ONE_FEATURE = {"elastic"}
# Networks see common units through rounding, and training magnifies it.
UNITS_TOLERANCE = {"coupling": 1e-6, "Monge gap": 1e-6}


def fit(estimator, x=X, y=Y, **changed):
    return estimator.fit(x, y, **(KNOWN | changed))


@functools.cache
def fitted(name):
    """Fitted once, and never changed."""
    return fit(BASELINES[name]())


def results(estimator):
    return [estimator.transform(Z), estimator.cost_matrix(Z, Y), estimator.coupling_]


def assert_same_bits(one, other):
    for found, expected in zip(results(one), results(other), strict=True):
        np.testing.assert_array_equal(found, expected)


# What comes out


@every
def test_shapes_types_and_finite_values(name):
    moved, C, P = results(fitted(name))
    assert (moved.shape, C.shape, P.shape) == ((N, D), (N, M), (N, M))
    for array in (moved, C, P):
        assert type(array) is np.ndarray and array.dtype == np.float64
        assert np.all(np.isfinite(array))
    assert fitted(name).n_features_in_ == D


@every
def test_the_coupling_has_the_given_marginals(name):
    P = fitted(name).coupling_
    assert P.min() >= 0
    np.testing.assert_allclose(P.sum(1), A, rtol=0, atol=1e-8)
    np.testing.assert_allclose(P.sum(0), B, rtol=0, atol=1e-8)


@every
def test_the_coupling_is_the_entropic_plan_of_the_cost(name):
    """log P is −C/eps up to a function of i and one of j, eps relative to the mean cost."""
    estimator = fitted(name)
    C, P = estimator.cost_matrix(X, Y), estimator.coupling_
    rest = np.log(P / np.outer(A, B)) + C / (estimator.epsilon * (A @ C @ B))
    rest = rest - A @ rest - (rest @ B)[:, None] + A @ rest @ B
    np.testing.assert_allclose(rest, 0, atol=1e-6)


@every
def test_score_is_minus_the_root_mean_square_error(name):
    estimator, truth = fitted(name), Z[::-1]
    error = np.linalg.norm(estimator.transform(Z) - truth, axis=1)
    score = estimator.score(Z, truth)
    assert type(score) is float
    assert score == pytest.approx(-np.sqrt(np.mean(error**2)), rel=1e-13)
    with pytest.raises(DataError, match=f"X has {N} rows and Y has {M}"):
        estimator.score(Z, Y)


@every
def test_results_do_not_depend_on_the_batch(name):
    estimator = fitted(name)
    together = estimator.transform(Z)
    for size in (9, 5, 1):
        for rows in (slice(0, size), slice(N - size, N)):
            moved = estimator.transform(Z[rows])
            np.testing.assert_allclose(moved, together[rows], rtol=0, atol=1e-12)


@every
def test_the_switch_of_the_process_is_left_alone(name):
    fit(BASELINES[name]())
    results(fitted(name))
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(()).dtype == jnp.float32


# scikit-learn's conventions


@every
def test_fit_returns_the_estimator_and_the_same_seed_gives_the_same_bits(name):
    estimator = clone(fitted(name))
    assert not vars(estimator).keys() - estimator.get_params().keys()
    assert fit(estimator) is estimator
    assert_same_bits(estimator, fitted(name))
    moved = clone(estimator).fit_transform(X, Y, **KNOWN)
    np.testing.assert_array_equal(moved, estimator.transform(X))


@every
def test_another_seed_gives_another_map(name):
    if name not in DRAWS_A_START:
        pytest.skip("nothing is drawn")
    other = fit(clone(fitted(name)).set_params(random_state=1))
    assert np.abs(other.transform(Z) - fitted(name).transform(Z)).max() > 1e-6
    drawn = [fit(clone(other).set_params(random_state=np.random.RandomState(5))) for _ in range(2)]
    assert_same_bits(*drawn)


@every
def test_parameters_can_be_read_and_set(name):
    estimator = BASELINES[name]()
    options = estimator.get_params()
    assert clone(estimator).get_params() == options
    assert estimator.set_params(epsilon=0.3) is estimator and estimator.epsilon == 0.3
    assert type(estimator)(**options).get_params() == options
    with pytest.raises(ValueError, match="Invalid parameter 'epsilom'"):
        estimator.set_params(epsilom=0.3)


@every
def test_copies_give_the_same_bits(name):
    estimator = fitted(name)
    for twin in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):  # noqa: S301
        assert_same_bits(twin, estimator)
        assert vars(twin).keys() == vars(estimator).keys()


@every
def test_a_second_fit_forgets_the_first(name):
    estimator = fit(BASELINES[name](), Z, Y[::-1])
    assert np.abs(estimator.cost_matrix(X, Y) - fitted(name).cost_matrix(X, Y)).max() > 1e-6 or (
        name == "identity"
    )
    assert_same_bits(fit(estimator), fitted(name))
    assert vars(estimator).keys() == vars(fitted(name)).keys()


@every
def test_inputs_are_not_changed_nor_looked_at_again(name):
    given = {"x": X.copy(), "y": Y.copy(), "pairs": PAIRS.copy(), "source_weight": A.copy()}
    estimator = fit(BASELINES[name](), **given)
    for array, original in zip(given.values(), (X, Y, PAIRS, A), strict=True):
        np.testing.assert_array_equal(array, original)
        array[:] = 1
    assert_same_bits(estimator, fitted(name))
    query = Z.copy()
    estimator.transform(query)[:] = 7
    np.testing.assert_array_equal(query, Z)


@every
def test_points_in_any_form(name):
    x, y, z = (np.round(8 * points) for points in (X, Y, Z))
    plain = fit(BASELINES[name](), x, y)
    given = fit(BASELINES[name](), np.asfortranarray(x, np.float32), scipy.sparse.csr_array(y))
    assert_same_bits(given, plain)
    np.testing.assert_array_equal(given.transform(z.astype(int).tolist()), plain.transform(z))


@every
def test_names_of_features(name):
    pandas = pytest.importorskip("pandas")
    x, y = (pandas.DataFrame(points, columns=["u", "v"]) for points in (X, Y))
    estimator = fit(BASELINES[name](), x, y)
    assert estimator.feature_names_in_.tolist() == ["u", "v"]
    assert_same_bits(fit(estimator), fitted(name))
    assert not hasattr(estimator, "feature_names_in_")
    with pytest.raises(ValueError, match="feature names"):
        fit(estimator, x, y).transform(x[["v", "u"]])
    with pytest.raises(DataError, match="columns of X and Y differ"):
        fit(estimator, x, y[["v", "u"]])


UNFITTED = {
    "transform": lambda estimator: estimator.transform(X),
    "cost_matrix": lambda estimator: estimator.cost_matrix(X, Y),
    "score": lambda estimator: estimator.score(X, X),
    "coupling_": lambda estimator: estimator.coupling_,
}


@pytest.mark.parametrize("call", UNFITTED.values(), ids=UNFITTED)
@every
def test_nothing_works_before_fit(name, call):
    with pytest.raises(NotFittedError, match="fit"):
        call(BASELINES[name]())


# Edges


@pytest.mark.parametrize(("scale", "offset"), [(1e20, 0), (1e-20, 0), (1, 1e8)])
@every
def test_units_do_not_matter(name, scale, offset):
    # Multiples of 2⁻²⁰: a sum with 1e8 is then exact.
    x, y, z = (np.round(points * 2**20) / 2**20 for points in (X, Y, Z))
    plain = fit(BASELINES[name](), x, y).transform(z)
    x, y, z = (scale * points + offset for points in (x, y, z))
    moved = fit(BASELINES[name](), x, y).transform(z)
    tolerance = scale * UNITS_TOLERANCE.get(name, 1e-7) + 4 * np.finfo(float).eps * offset
    np.testing.assert_allclose(moved, scale * plain + offset, rtol=0, atol=tolerance)


@every
def test_points_of_weight_zero_get_no_mass(name):
    a = np.where(np.arange(N) == 3, 0, A)
    estimator = fit(BASELINES[name](), source_weight=a / a.sum())
    P = estimator.coupling_
    assert not P[3].any() and P[[2, 4]].any()
    assert np.all(np.isfinite(estimator.transform(Z)))


@every
def test_weights_are_normalised_on_request(name):
    a, b = np.arange(1, N + 1), np.arange(1, M + 1)
    with pytest.raises(DataError, match="source_weight has sum 136, not 1"):
        fit(BASELINES[name](), source_weight=a, target_weight=b)
    estimator = BASELINES[name]().set_params(normalize_weight=True)
    fit(estimator, source_weight=a, target_weight=b)
    np.testing.assert_allclose(estimator.coupling_.sum(1), a / a.sum(), atol=1e-8)


@every
def test_without_steps_it_is_marked_untrained(name):
    estimator = BASELINES[name]()
    if "max_iter" not in estimator.get_params():
        pytest.skip("there are no steps")
    fit(estimator.set_params(max_iter=0))
    assert estimator.diagnostics_["trained"] is False and estimator.n_iter_ == 0
    assert np.all(np.isfinite(estimator.transform(Z)))
    assert fitted(name).diagnostics_["trained"] is True and fitted(name).n_iter_ > 0
    assert np.abs(estimator.transform(Z) - fitted(name).transform(Z)).max() > 1e-6


# Bad input


def with_nan(points):
    points = points.copy()
    points[4, 1] = np.nan
    return points


PAIR = [[0, 0], [1, 1]]
BAD_FITS = {
    "1-D": ({"x": X[0]}, "X must be two-dimensional"),
    "3-D": ({"y": Y[None]}, "Y must be two-dimensional"),
    "no points": ({"x": X[:0]}, "no points"),
    "features": ({"y": Y[:, :1]}, "X has 2 features and Y has 1"),
    "NaN": ({"x": with_nan(X)}, "X contains NaN or infinity in 1 rows: row 4 column 1"),
    "infinity": ({"y": np.where(np.isnan(with_nan(Y)), np.inf, Y)}, "Y contains.*row 4 column 1"),
    "strings": ({"x": X.astype(str)}, "real numbers are needed"),
    "negative weight": ({"source_weight": -A}, "source_weight is negative"),
    "length of weights": ({"target_weight": A}, "one weight per point"),
    "pair outside": ({"pairs": [[0, M], [1, 1]]}, "numbered 0 to 11"),
    "negative pair": ({"pairs": [[-1, 0], [1, 1]]}, "row -1"),
    "float pairs": ({"pairs": [[0.0, 1.0], [1.0, 1.0]]}, "integer row numbers"),
    "shape of pairs": ({"pairs": [0, 1]}, r"\(k, 2\) is needed"),
    "pair weights": ({"pairs": PAIR, "pair_weight": [1, -1]}, "pair_weight is negative at row 1"),
    "no pairs to weigh": ({"pairs": None, "pair_weight": [1, 1]}, "without pairs"),
    "group on one side": ({"groups": (GROUPS[0], np.full(M, 1))}, "The group 0 occurs in X only"),
    "number of labels": ({"groups": (GROUPS[0], GROUPS[0])}, "labels for the 12 points of Y"),
}


@pytest.mark.parametrize(("changed", "words"), BAD_FITS.values(), ids=BAD_FITS)
@every
def test_data_that_cannot_be_fitted_leave_the_last_fit(name, changed, words):
    estimator = fitted(name)
    before = dict(vars(estimator))
    if "pairs" in changed:
        changed = {"pair_weight": None} | changed
    with pytest.raises(DataError, match=words):
        fit(estimator, **changed)
    assert vars(estimator) == before


@every
def test_one_source_to_two_targets(name):
    pairs = np.concatenate([PAIRS, [[0, PAIRS[1, 1]]]])
    known = {"pairs": pairs, "pair_weight": None}
    if name in TAKES_MANY_TO_MANY:
        assert_same_bits(fit(BASELINES[name](), **known), fitted(name))
    else:
        with pytest.raises(DataError, match="paired with 2 targets"):
            fit(BASELINES[name](), **known)


@every
def test_what_is_needed_is_asked_for(name):
    if name in LEARNS_FROM_SOMETHING:
        with pytest.raises(DataError, match=r"pairs"):
            BASELINES[name]().fit(X, Y)
    if name in LEARNS_FROM_PAIRS:
        with pytest.raises(DataError, match=r"pairs"):
            BASELINES[name]().fit(X, Y, groups=GROUPS)
    if name not in LEARNS_FROM_SOMETHING:
        alone = BASELINES[name]().fit(X, Y, source_weight=A, target_weight=B)
        assert_same_bits(alone, fitted(name))


BAD_QUERIES = {
    "1-D": (X[0], "two-dimensional"),
    "features": (X[:, :1], "1 features, but"),
    "no points": (X[:0], "no points"),
    "NaN": (with_nan(X), "row 4 column 1"),
}


@pytest.mark.parametrize("method", ["transform", "cost_matrix", "score"])
@pytest.mark.parametrize(("points", "words"), BAD_QUERIES.values(), ids=BAD_QUERIES)
@every
def test_queries_that_cannot_be_used(name, method, points, words):
    arguments = (points,) if method == "transform" else (X, points)
    with pytest.raises(ValueError, match=words):
        getattr(fitted(name), method)(*arguments)


# Only those that an estimator has are tried.
BAD_OPTIONS = [
    *[("epsilon", value) for value in (0, -0.1, np.nan, np.inf, "small", True, None)],
    *[("max_iter", value) for value in (-1, 2.5, "many", None)],
    *[("learning_rate", value) for value in (0, -1e-3, np.nan)],
    *[("hidden_layer_sizes", value) for value in ((), (4, 0), (4, -1), "wide", None)],
    *[("alpha", value) for value in (0, -0.01, np.nan)],
    *[("penalty", value) for value in (-1e-3, np.inf, "l1")],
    *[("gap_weight", value) for value in (-1, np.nan)],
    *[("gamma", value) for value in (0, -1, np.inf)],
    *[("rank", value) for value in (0, -1, D, D + 1, 1.5)],
    *[("features", value) for value in ("power", [], [1.0], 3, None)],
    *[("cost", value) for value in ("sqeuclid", None, 2.0)],
    *[("dual", value) for value in ("newtons", None)],
    *[("differentiate", value) for value in ("none", None)],
    *[("dtype", value) for value in ("float16", None)],
    ("random_state", "seed"),
]


@every
def test_options_that_make_no_sense_are_refused(name):
    estimator = fitted(name)
    options = estimator.get_params()
    tried = [(option, value) for option, value in BAD_OPTIONS if option in options]
    assert len(tried) >= 7
    before = dict(vars(estimator))
    for option, value in tried:
        with pytest.raises(OptionError, match=option):
            fit(clone(estimator).set_params(**{option: value}))
    assert vars(estimator) == before


@every
def test_one_feature(name):
    x, y = X[:, :1], Y[:, :1]
    if name in REFUSES_ONE_FEATURE:
        with pytest.raises(OptionError, match="says nothing in 1 dimensions"):
            fit(BASELINES[name](), x, y)
    elif name in ("identity", "target mean", "ridge on pairs", "nearest pair"):
        assert fit(BASELINES[name](), x, y).transform(x).shape == (N, 1)
    else:
        pytest.skip("it would be compiled anew")
