"""MongeMap: right results at the edges, warnings with flags, and scikit-learn's conventions."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.sparse
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from mongefit import (
    AutoregressiveFlow,
    Mahalanobis,
    MongeMap,
    SinkhornDual,
)
from mongefit._fitting import apply as programs
from mongefit._fitting import diagnose as diagnostics
from mongefit._fitting import training
from mongefit.errors import ConvergenceError, ConvergenceWarning, DataError, NotFittedError
from mongefit.metrics import map_plan_gap

N, D = 24, 2
RNG = np.random.default_rng(0)
# Multiples of 2⁻²⁰: a sum with 1e8 is then exact.
X, Y, Z = (np.round(RNG.normal(size=(N, D)) * 2**20) / 2**20 for _ in range(3))
PAIRS = np.stack([np.arange(N), RNG.permutation(N)], axis=1)
EPSILON = 0.1
LEARNED = {
    "validation_fraction": 0.0,
    "hidden_layer_sizes": (8, 8),
    "max_iter": 3,
    "epsilon": EPSILON,
}

pytestmark = pytest.mark.filterwarnings("error")


def fixed_cost(**options):
    return MongeMap(**({"cost": "sqeuclidean", "epsilon": EPSILON} | options))


@pytest.fixture(scope="module")
def euclidean():
    return fixed_cost().fit(X, Y)


@pytest.fixture(scope="module")
def learned():
    return MongeMap(**LEARNED).fit(X, Y, pairs=PAIRS)


@pytest.fixture(scope="module")
def flowing():
    flows = tuple(AutoregressiveFlow(D, key=jr.key(k), n_blocks=1, width=4) for k in range(2))
    return fixed_cost(diffeo=flows, max_iter=3).fit(X, Y, pairs=PAIRS)


@pytest.fixture(params=["euclidean", "learned", "flowing"])
def fitted(request):
    return request.getfixturevalue(request.param)


def uniform(size):
    return np.full(size, 1 / size)


class NumpyMap:
    """The entropic map of ½‖x − y‖² by Sinkhorn's algorithm, in plain NumPy: the truth."""

    def __init__(self, x, y, a=None, b=None, epsilon=EPSILON):
        self.x, self.y = x, y
        self.a = uniform(len(x)) if a is None else a
        self.b = uniform(len(y)) if b is None else b
        self.eps = 1.0
        self.eps = epsilon * (self.a @ self.cost(x, y) @ self.b)
        self.g = np.zeros(len(y))
        for _ in range(20_000):
            self.f = -logsumexp(self.g - self.cost(x, y), axis=1, b=self.b)
            self.g = -logsumexp(self.f - self.cost(y, x), axis=1, b=self.a)
            if np.abs(self.coupling.sum(1) - self.a).sum() < 1e-13:
                return
        raise AssertionError("Sinkhorn did not converge.")

    def cost(self, x, y):
        return 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1) / self.eps

    @property
    def coupling(self):
        exponent = self.f[:, None] + self.g - self.cost(self.x, self.y)
        return self.a[:, None] * self.b * np.exp(exponent)

    def transform(self, x):
        weight = softmax(np.log(self.b) + self.g - self.cost(x, self.y), axis=1)
        return weight @ self.y

    def inverse_transform(self, y):
        weight = softmax(np.log(self.a) + self.f - self.cost(y, self.x), axis=1)
        return weight @ self.x


def assert_is_entropic_map(estimator, x, y, *, tol=1e-10):
    truth = NumpyMap(x, y)
    np.testing.assert_allclose(estimator.coupling_, truth.coupling, rtol=0, atol=tol)
    for points in (x, y):
        for method in ("transform", "inverse_transform"):
            expected = getattr(truth, method)(points)
            np.testing.assert_allclose(getattr(estimator, method)(points), expected, atol=tol)
    means = truth.coupling @ y / truth.a[:, None]
    np.testing.assert_allclose(estimator.transform(x), means, rtol=0, atol=tol)


# What comes out is right


SHAPES = {
    "one point each": (1, 1, 2),
    "one source": (1, N, 2),
    "one feature": (N, N, 1),
    "more features than points": (3, 3, 5),
}


@pytest.mark.parametrize(("n", "m", "d"), SHAPES.values(), ids=SHAPES)
def test_small_shapes(n, m, d):
    rng = np.random.default_rng(0)  # its own: tests run in any order
    x, y = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    estimator = fixed_cost().fit(x, y)
    assert_is_entropic_map(estimator, x, y)
    if n == 1:
        np.testing.assert_allclose(estimator.transform(x)[0], y.mean(0), atol=1e-12)
    assert estimator.diagnostics_["converged"]


CLOUDS = {
    "in general position": (X, Y),
    "duplicate points": (X[np.arange(N) // 2], Y[np.arange(N) // 3]),
    "the same cloud": (X, X[::-1]),
}


@pytest.mark.parametrize(("x", "y"), CLOUDS.values(), ids=CLOUDS)
def test_fixed_cost_agrees_with_numpy(x, y):
    assert_is_entropic_map(fixed_cost().fit(x, y), x, y)


def test_a_cloud_onto_itself_is_nearly_the_identity():
    with pytest.warns(ConvergenceWarning, match="parts that exchange no mass"):
        estimator = fixed_cost(epsilon=1e-4).fit(X, X)
    np.testing.assert_allclose(estimator.transform(X), X, atol=1e-2)


def test_where_all_costs_are_zero_the_map_is_the_identity(learned):
    points = np.full((N, D), 3.25)
    for estimator in (fixed_cost(), clone(learned)):
        with pytest.warns(UserWarning, match="2 features are constant"):
            estimator.fit(points, points, pairs=None if estimator.cost != "icnn" else PAIRS)
        np.testing.assert_array_equal(estimator.transform(points), points)
        np.testing.assert_array_equal(estimator.inverse_transform(points), points)
        np.testing.assert_allclose(estimator.coupling_, 1 / N**2, rtol=1e-12)


def memory_map(array, folder):
    path = folder / "points.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


FORMS = {
    "integers": lambda points, _: np.round(4 * points).astype(np.int32),
    "unsigned": lambda points, _: np.round(4 * np.abs(points)).astype(np.uint8),
    "float16": lambda points, _: points.astype(np.float16),
    "float32": lambda points, _: points.astype(np.float32),
    "big-endian": lambda points, _: points.astype(">f8"),
    "Fortran order": lambda points, _: np.asfortranarray(points),
    "read-only": lambda points, _: read_only(points),
    "memory map": memory_map,
    "strided": lambda points, _: np.repeat(points, 2, axis=0)[::2],
    "list": lambda points, _: points.tolist(),
    "sparse": lambda points, _: scipy.sparse.csr_array(np.maximum(points, 0)),
}


def dense(points):
    points = points.toarray() if scipy.sparse.issparse(points) else points
    return np.array(points, dtype=np.float64, order="C")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_points_in_any_form_count_as_float64_and_stay_as_they_are(form, tmp_path):
    x, y = form(X, tmp_path), Y.astype(np.float32)
    plain_x, plain_y = dense(x), dense(y)
    given = fixed_cost().fit(x, y)
    plain = fixed_cost().fit(plain_x, plain_y)
    for result in (given.transform(x), given.transform(plain_x)):
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, plain.transform(plain_x))
    np.testing.assert_array_equal(given.inverse_transform(y), plain.inverse_transform(plain_y))
    np.testing.assert_array_equal(dense(x), plain_x)
    np.testing.assert_array_equal(y, plain_y)


@pytest.mark.parametrize(("scale", "offset"), [(1e20, 0), (1e-20, 0), (1, 1e8), (1e-20, 1e-12)])
@pytest.mark.parametrize("model", ["euclidean", "learned"])
def test_units_do_not_matter(model, scale, offset, request):
    plain = request.getfixturevalue(model)
    pairs = PAIRS if model == "learned" else None
    x, y, z = (scale * points + offset for points in (X, Y, Z))
    moved = clone(plain).fit(x, y, pairs=pairs)
    # One rounding of the largest number, and the accuracy of the solves.
    tol = 4 * np.finfo(float).eps * offset + 1e-8 * scale
    np.testing.assert_allclose(moved.transform(z), scale * plain.transform(Z) + offset, atol=tol)
    back = scale * plain.inverse_transform(Z) + offset
    np.testing.assert_allclose(moved.inverse_transform(z), back, rtol=0, atol=tol)


def test_points_of_weight_zero_are_as_good_as_absent():
    a, b = np.random.default_rng(1).uniform(1, 2, size=(2, N))
    a[[0, 5, 9, 23]] = 0
    b[[1, 2, 3, 4]] = 0
    a, b = a / a.sum(), b / b.sum()
    weighted = fixed_cost().fit(X, Y, source_weight=a, target_weight=b)
    without = NumpyMap(X[a > 0], Y[b > 0], a[a > 0], b[b > 0])
    for method in ("transform", "inverse_transform"):
        for points in (X, Z):
            expected = getattr(without, method)(points)
            np.testing.assert_allclose(getattr(weighted, method)(points), expected, atol=1e-10)
    assert not weighted.coupling_[a == 0].any() and not weighted.coupling_[:, b == 0].any()
    kept = weighted.coupling_[np.ix_(a > 0, b > 0)]
    np.testing.assert_allclose(kept, without.coupling, rtol=0, atol=1e-10)
    assert weighted.diagnostics_["plan_components"] == 1


def test_weights_are_normalised_on_request():
    a = np.arange(1, N + 1)
    given = fixed_cost(normalize_weight=True).fit(X, Y, source_weight=a)
    plain = fixed_cost().fit(X, Y, source_weight=a / a.sum())
    np.testing.assert_array_equal(given.transform(Z), plain.transform(Z))
    np.testing.assert_allclose(given.coupling_.sum(1), a / a.sum(), atol=1e-10)


def test_without_steps_the_initial_cost_is_mapped(learned):
    untrained = clone(learned).set_params(max_iter=0).fit(X, Y, pairs=PAIRS)
    assert untrained.diagnostics_["trained"] is False
    assert untrained.n_iter_ == 0 and untrained.history_ == {}
    assert learned.diagnostics_["trained"] is True and learned.n_iter_ == 3
    # h starts close to a multiple of ½‖z‖².
    np.testing.assert_allclose(
        untrained.transform(X), fixed_cost().fit(X, Y).transform(X), atol=0.1
    )
    assert not np.allclose(untrained.transform(X), learned.transform(X), atol=1e-6)


def test_training_lowers_the_loss(learned):
    loss = learned.history_["loss"]
    assert len(loss) == 4 and np.all(learned.history_["applied"])
    assert loss[-1] < loss[0]


# What is found is checked


def test_diagnostics_are_those_of_the_map(fitted):
    found, made = fitted.diagnostics_, fitted.map_
    assert found["converged"] and found["finite"] and found["dual_status"] == "converged"
    assert found["unsolved_source"] == found["unsolved_target"] == []
    assert found["checked_points"] == N
    P, a, b = fitted.coupling_, np.asarray(made.a), np.asarray(made.b)
    error = np.abs(P.sum(1) - a).sum() + np.abs(P.sum(0) - b).sum()
    np.testing.assert_allclose(found["marginal_error"], error, atol=1e-14)

    @eqx.filter_jit
    def examine(made, X):
        moved = made.transport(X)
        z = made.cost.latent_source(made.x) - made.cost.latent_target(made.units.into(moved.points))
        return moved, made.cost.h.hessian(z)

    with jax.enable_x64(True):
        moved, hessians = jax.tree.map(np.asarray, examine(made, X))
        least = np.linalg.eigvalsh(hessians).min()
    np.testing.assert_allclose(found["inverse_residual"], moved.residual.max(), atol=1e-13)
    np.testing.assert_allclose(found["round_trip"], moved.round_trip.max(), atol=1e-13)
    np.testing.assert_allclose(found["smallest_curvature"], least, rtol=1e-9)
    np.testing.assert_allclose(found["map_plan_gap"], map_plan_gap(fitted), atol=1e-9)


@pytest.mark.parametrize("what", ["inverse gradient", "flow", "not finite", "plan", "no plan"])
def test_a_map_that_fails_the_check_is_not_called_converged(euclidean, monkeypatch, what):
    def worse(*arguments, **options):
        moved = original(*arguments, **options)
        rows = np.arange(len(moved.points)) == 3
        if what == "inverse gradient":
            return eqx.tree_at(lambda t: t.converged, moved, ~rows)
        if what == "flow":
            return eqx.tree_at(lambda t: t.round_trip, moved, np.where(rows, 1e-3, 0.0))
        points = np.where(rows[:, None], np.nan, moved.points)
        return eqx.tree_at(lambda t: t.points, moved, points)

    if "plan" in what:
        original = training.solve_map
        other = np.where(np.arange(N) == 3, 1 + 1e-6 if what == "plan" else np.nan, 1.0)[:, None]

        def worse_plan(*arguments, **options):
            solved = original(*arguments, **options)
            return solved._replace(plan=other * np.asarray(solved.plan))

        monkeypatch.setattr(training, "solve_map", worse_plan)
    else:
        original = training.transport_points
        monkeypatch.setattr(training, "transport_points", worse)
    with pytest.raises(ConvergenceError, match=r"1 of 24 source points \(first: row 3"):
        fixed_cost(strict=True).fit(X, Y)
    estimator = warned(lambda: fixed_cost().fit(X, Y), "Try a larger alpha", ConvergenceWarning)
    assert not estimator.diagnostics_["converged"]
    assert estimator.diagnostics_["unsolved_source"] == [3]
    assert estimator.diagnostics_["finite"] == (what not in ("not finite", "no plan"))
    assert euclidean.diagnostics_["converged"]


def test_the_curvature_where_nothing_is_finite(learned):
    with jax.enable_x64(True):
        found = diagnostics._smallest_curvature(
            learned.map_, np.arange(N), np.where(np.arange(N)[:, None] == 3, np.nan, X)
        )
    assert np.isnan(found)


# What is questionable gets a warning, which names the caller's line, and a flag


def warned(call, words, category=UserWarning):
    """The result of a call that warns, at the line of the caller, with these words."""
    with pytest.warns(category, match=words) as caught:
        result = call()
    assert {warning.filename for warning in caught} == {__file__}
    return result


def test_clusters_too_far_apart_to_exchange_mass():
    far = np.where(np.arange(N) % 2, 1e4, 0.0)[:, None]
    x, y = X + far, Y + far
    estimator = warned(
        lambda: fixed_cost(epsilon=1e-3).fit(x, y),
        "2 parts that exchange no mass",
        ConvergenceWarning,
    )
    assert estimator.diagnostics_["plan_components"] == 2
    assert estimator.diagnostics_["converged"]
    moved = estimator.transform(x)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        np.testing.assert_allclose(moved[part].mean(0), y[part].mean(0), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-20, 1e-300])
def test_where_epsilon_is_too_small_the_smallest_that_converges_is_taken(epsilon):
    words = f"did not converge at epsilon {epsilon:g}; the map is that of epsilon"
    with pytest.warns(ConvergenceWarning, match="24 parts"):
        estimator = warned(lambda: fixed_cost(epsilon=epsilon).fit(X, Y), words, ConvergenceWarning)
    found = estimator.diagnostics_
    assert found["converged"] and found["epsilon_requested"] == epsilon
    assert epsilon < found["epsilon"] < 1e-5
    with pytest.warns(ConvergenceWarning, match="24 parts"):
        same = fixed_cost(epsilon=found["epsilon"]).fit(X, Y)
    np.testing.assert_array_equal(estimator.transform(Z), same.transform(Z))
    with pytest.raises(ConvergenceError, match=f"epsilon {found['epsilon']:g}, the smallest"):
        fixed_cost(epsilon=epsilon, strict=True).fit(X, Y)


def test_repeated_pairs_count_once(learned):
    repeated = np.concatenate([PAIRS, PAIRS[:5]])
    again = warned(lambda: clone(learned).fit(X, Y, pairs=repeated), "5 of 29 pairs are repeated")
    np.testing.assert_array_equal(again.transform(Z), learned.transform(Z))
    np.testing.assert_array_equal(again.history_["loss"], learned.history_["loss"])


def test_two_sources_to_one_target(learned):
    pairs = PAIRS.copy()
    pairs[0, 1] = pairs[1, 1]
    estimator = warned(
        lambda: clone(learned).fit(X, Y, pairs=pairs), f"first: target row {pairs[1, 1]}"
    )
    assert np.all(np.isfinite(estimator.history_["loss"]))
    assert estimator.history_["loss"][0] != learned.history_["loss"][0]


def test_several_targets_of_one_source_are_fitted_on_request(learned):
    pairs = PAIRS.copy()
    pairs[0, 0] = pairs[1, 0]
    with pytest.raises(DataError, match="paired with 2 targets"):
        clone(learned).fit(X, Y, pairs=pairs)
    estimator = clone(learned).set_params(many_to_many=True).fit(X, Y, pairs=pairs)
    assert np.all(np.isfinite(estimator.history_["loss"]))


def test_one_pair(learned):
    estimator = clone(learned).set_params(max_iter=0)
    warned(lambda: estimator.fit(X, Y, pairs=PAIRS[:1]), "Only one pair is known")
    assert np.all(np.isfinite(estimator.transform(X)))


def test_pairs_are_not_used_where_nothing_is_learned(euclidean):
    estimator = warned(lambda: fixed_cost().fit(X, Y, pairs=PAIRS), "losses are not used")
    np.testing.assert_array_equal(estimator.transform(Z), euclidean.transform(Z))


def test_a_constant_column_is_kept_and_changes_nothing():
    x, y = X.copy(), Y.copy()
    x[:, 1] = y[:, 1] = 7.5
    estimator = warned(lambda: fixed_cost().fit(x, y), r"1 features are constant.*columns 1")
    without = fixed_cost().fit(x[:, :1], y[:, :1]).transform(x[:, :1])
    np.testing.assert_allclose(estimator.transform(x)[:, :1], without, atol=1e-9)
    np.testing.assert_allclose(estimator.transform(x)[:, 1], 7.5, rtol=1e-15)


def test_epsilon_that_rises(learned):
    estimator = clone(learned).set_params(epsilon=(0.05, 0.2))
    warned(lambda: estimator.fit(X, Y, pairs=PAIRS), "epsilon rises from 0.05 to 0.2")
    np.testing.assert_allclose(estimator.history_["epsilon"], np.geomspace(0.05, 0.2, 4))
    assert estimator.diagnostics_["epsilon"] == 0.2


def test_epsilon_goes_geometrically_from_start_to_end(learned):
    estimator = clone(learned).set_params(epsilon=(0.5, 0.1)).fit(X, Y, pairs=PAIRS)
    np.testing.assert_allclose(estimator.history_["epsilon"], np.geomspace(0.5, 0.1, 4))
    assert estimator.diagnostics_["epsilon"] == 0.1


def flags(estimator):
    """What the diagnostics say besides how well the map was found."""
    found = estimator.diagnostics_.items()
    return {k: v for k, v in found if not isinstance(v, float) and k != "dual_iterations"}


CONSTANT = np.array([1.0, 0.0])
QUESTIONABLE = {
    "repeated pairs": ({}, X, Y, np.concatenate([PAIRS, PAIRS[:5]])),
    "two sources to one target": ({}, X, Y, np.minimum(PAIRS, [N, N - 2])),
    "one pair": ({}, X, Y, PAIRS[:1]),
    "constant column": ({}, X * CONSTANT, Y * CONSTANT, PAIRS),
    "rising epsilon": ({"epsilon": (0.05, EPSILON)}, X, Y, PAIRS),
}


@pytest.mark.parametrize(("options", "x", "y", "pairs"), QUESTIONABLE.values(), ids=QUESTIONABLE)
def test_what_is_questionable_is_flagged(learned, options, x, y, pairs):
    clean = clone(learned).set_params(max_iter=0).fit(X, Y, pairs=PAIRS)
    questionable = clone(clean).set_params(**options)
    with pytest.warns(UserWarning):
        questionable.fit(x, y, pairs=pairs)
    assert flags(questionable) != flags(clean)


def test_a_flow_needs_pairs(flowing):
    with pytest.raises(DataError, match="give pairs"):
        clone(flowing).fit(X, Y)


# Queries


BAD_QUERIES = {
    "1-D": (X[0], "two-dimensional"),
    "wrong dimension": (X[:, :1], "1 features, but MongeMap is expecting 2"),
    "no points": (X[:0], "no points"),
    "NaN": (np.where(np.arange(N)[:, None] == 4, np.nan, X), "row 4 column 0"),
    "strings": (X.astype(str), "real numbers are needed"),
}


@pytest.mark.parametrize(
    "method",
    ["transform", "inverse_transform", "score", "cost_matrix", "conditional", "sample", "entropy"],
)
@pytest.mark.parametrize(("points", "words"), BAD_QUERIES.values(), ids=BAD_QUERIES)
def test_queries_that_cannot_be_used(euclidean, method, points, words):
    arguments = (X, points) if method in ("score", "cost_matrix") else (points,)
    with pytest.raises(ValueError, match=words):
        getattr(euclidean, method)(*arguments)


def test_queries_far_outside_the_data_are_mapped_and_flagged(euclidean):
    far = np.concatenate([X[:3], [[40.0, 0.0]]])
    for method in (euclidean.transform, euclidean.inverse_transform):
        mapped = warned(lambda method=method: method(far), r"1 of 4 points .* \(first: row 3")
        assert np.all(np.isfinite(mapped))
    with jax.enable_x64(True):
        distance = np.asarray(euclidean.map_.transport(far).distance)
        scale = float(euclidean.units_.scale)
    # To rounding: by the difference of squares.
    np.testing.assert_allclose(distance[:3], 0.0, atol=1e-6)
    nearest = np.linalg.norm(X - far[3], axis=1).min()
    np.testing.assert_allclose(distance[3], nearest / scale, rtol=1e-9)


def test_queries_whose_images_are_not_finite_are_refused(fitted):
    far = np.concatenate([X[:3], [[1e160, 0.0]]])
    for method in (fitted.transform, fitted.inverse_transform):
        with pytest.raises(ConvergenceError, match=r"not finite at 1 of 4 points \(first: row 3\)"):
            method(far)
    with jax.enable_x64(True):
        moved = eqx.filter_jit(type(fitted.map_).transport)(fitted.map_, far)
    assert np.array_equal(moved.converged, [True, True, True, False])


def test_results_do_not_depend_on_the_batch(learned):
    many = np.concatenate([X, Y, Z, Z + 0.5])
    np.testing.assert_allclose(learned.transform(many)[:N], learned.transform(X), atol=1e-12)


def test_cost_matrix_is_in_common_units(euclidean):
    expected = (
        0.5 * np.sum((Z[:, None] - Y[None]) ** 2, axis=-1) / float(euclidean.units_.scale) ** 2
    )
    np.testing.assert_allclose(euclidean.cost_matrix(Z, Y), expected, rtol=1e-12)


def test_score_is_minus_the_root_mean_square_error(fitted):
    error = np.sum((fitted.transform(X) - Y) ** 2, axis=1)
    assert fitted.score(X, Y) == pytest.approx(-np.sqrt(error.mean()), rel=1e-12)
    with pytest.raises(DataError, match="X has 24 rows and Y has 23"):
        fitted.score(X, Y[1:])


# Precision


@pytest.mark.parametrize("model", ["euclidean", "learned"])
def test_the_switch_of_the_process_is_left_alone(model, request, tmp_path):
    fitted = request.getfixturevalue(model)
    assert jnp.zeros(()).dtype == jnp.float32
    clone(fitted).set_params(max_iter=0).fit(X, Y, pairs=PAIRS if fitted.history_ else None)
    fitted.save(tmp_path / "model.safetensors")
    results = [
        fitted.transform(X),
        fitted.inverse_transform(Y),
        fitted.cost_matrix(X, Y),
        fitted.coupling_,
        copy.deepcopy(fitted).transform(X),
    ]
    assert {(type(result), result.dtype) for result in results} == {(np.ndarray, np.dtype("f8"))}
    assert isinstance(fitted.score(X, Y), float)
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(()).dtype == jnp.float32


def test_the_map_itself_computes_in_float64_outside_any_context(euclidean):
    entropic_map = euclidean.map_
    results = {
        name: getattr(entropic_map, name)(points)
        for name, points in {"forward": X, "reverse": Y, "f_hat": X, "g_hat": Y}.items()
    } | {"plan": entropic_map.plan()}
    assert {name: str(result.dtype) for name, result in results.items()} == dict.fromkeys(
        results, "float64"
    )
    for name, expected in {
        "forward": euclidean.transform(X),
        "reverse": euclidean.inverse_transform(Y),
        "f_hat": entropic_map.f,
        "g_hat": entropic_map.g,
        "plan": euclidean.coupling_,
    }.items():
        np.testing.assert_allclose(results[name], expected, rtol=0, atol=1e-8, err_msg=name)


def test_single_precision_agrees_with_double(euclidean):
    single = fixed_cost(dtype="float32").fit(X, Y)
    assert single.map_.x.dtype == single.map_.f.dtype == jnp.float32
    assert single.diagnostics_["converged"]
    for method in ("transform", "inverse_transform"):
        result = getattr(single, method)(Z)
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, getattr(euclidean, method)(Z), atol=1e-3)
    assert single.coupling_.dtype == np.float64
    np.testing.assert_allclose(single.coupling_.sum(1), 1 / N, atol=1e-4)


# scikit-learn


def test_the_same_seed_gives_the_same_bits(learned):
    twin = clone(learned).fit(X, Y, pairs=PAIRS)
    np.testing.assert_array_equal(twin.transform(Z), learned.transform(Z))
    np.testing.assert_array_equal(twin.inverse_transform(Z), learned.inverse_transform(Z))
    assert twin.data_sha256_ == learned.data_sha256_
    other = clone(learned).set_params(random_state=1).fit(X, Y, pairs=PAIRS)
    assert np.abs(other.transform(Z) - learned.transform(Z)).max() > 1e-6
    generators = [np.random.RandomState(5) for _ in range(2)]
    drawn = [
        clone(learned).set_params(random_state=generator, max_iter=0).fit(X, Y, pairs=PAIRS)
        for generator in generators
    ]
    np.testing.assert_array_equal(drawn[0].transform(Z), drawn[1].transform(Z))


def test_inputs_are_not_changed():
    x, y, pairs, a = X.copy(), Y.copy(), PAIRS.copy(), uniform(N)
    MongeMap(**LEARNED).fit(x, y, pairs=pairs, source_weight=a).transform(x)
    for given, original in ((x, X), (y, Y), (pairs, PAIRS), (a, uniform(N))):
        np.testing.assert_array_equal(given, original)


def test_parameters_can_be_read_set_and_cloned(fitted):
    options = fitted.get_params()
    twin = clone(fitted)
    assert twin.get_params().keys() == options.keys() == MongeMap().get_params().keys()
    assert twin.epsilon == EPSILON
    assert not hasattr(twin, "map_")
    assert twin.set_params(epsilon=0.3, symmetric=False) is twin
    assert (twin.epsilon, twin.symmetric) == (0.3, False)
    assert fitted.epsilon == EPSILON


def test_cloning_keeps_the_precision_of_a_cost():
    matrix = np.array([[2.0, 0.3], [0.3, 1 / 3]])
    copied = clone(MongeMap(Mahalanobis(matrix)))
    np.testing.assert_array_equal(copied.cost.matrix, matrix)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(copied)).cost.matrix, matrix)  # noqa: S301


UNFITTED = {
    "transform": lambda estimator, _: estimator.transform(X),
    "inverse_transform": lambda estimator, _: estimator.inverse_transform(Y),
    "cost_matrix": lambda estimator, _: estimator.cost_matrix(X, Y),
    "score": lambda estimator, _: estimator.score(X, Y),
    "coupling_": lambda estimator, _: estimator.coupling_,
    "conditional": lambda estimator, _: estimator.conditional(X),
    "sample": lambda estimator, _: estimator.sample(X),
    "entropy": lambda estimator, _: estimator.entropy(X),
    "push": lambda estimator, _: estimator.push(np.ones(N)),
    "pull": lambda estimator, _: estimator.pull(np.ones(N)),
    "save": lambda estimator, folder: estimator.save(folder / "model.safetensors"),
}


@pytest.mark.parametrize("call", UNFITTED.values(), ids=UNFITTED)
def test_nothing_works_before_fit(call, tmp_path):
    with pytest.raises(NotFittedError, match="fit"):
        call(MongeMap(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_second_fit_forgets_the_first(learned, euclidean):
    pandas = pytest.importorskip("pandas")
    estimator = clone(learned).fit(pandas.DataFrame(X, columns=["u", "v"]), Y, pairs=PAIRS)
    assert estimator.history_ and hasattr(estimator, "feature_names_in_")
    estimator.set_params(cost="sqeuclidean").fit(X, Y)
    assert estimator.history_ == {} and estimator.n_iter_ == 0
    assert not hasattr(estimator, "feature_names_in_")
    assert estimator.diagnostics_ == euclidean.diagnostics_
    np.testing.assert_array_equal(estimator.transform(Z), euclidean.transform(Z))


def test_a_fit_that_fails_keeps_the_last_one(euclidean):
    estimator = fixed_cost().fit(X, Y)
    with pytest.raises(DataError):
        estimator.set_params(cost="icnn").fit(X[:, :1], Y[:, :1])
    assert estimator.n_features_in_ == D
    np.testing.assert_array_equal(estimator.transform(Z), euclidean.transform(Z))


def test_fit_transform(euclidean):
    estimator = fixed_cost()
    np.testing.assert_array_equal(estimator.fit_transform(X, Y), euclidean.transform(X))
    assert estimator.fit(X, Y) is estimator


def test_names_of_features(euclidean):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["u", "v"])
    estimator = fixed_cost().fit(frame, Y)
    assert estimator.n_features_in_ == D
    assert estimator.feature_names_in_.tolist() == ["u", "v"]
    np.testing.assert_array_equal(estimator.transform(frame), euclidean.transform(X))
    with pytest.raises(ValueError, match="feature names"):
        estimator.transform(frame[["v", "u"]])


def assert_same_map(twin, fitted):
    np.testing.assert_array_equal(twin.transform(Z), fitted.transform(Z))
    np.testing.assert_array_equal(twin.inverse_transform(Z), fitted.inverse_transform(Z))
    assert twin.diagnostics_ == fitted.diagnostics_
    assert isinstance(twin.map_.x, jax.Array)
    assert all(type(column) is np.ndarray for column in twin.history_.values())


def test_a_copy_maps_to_the_same_bits(fitted):
    assert_same_map(copy.deepcopy(fitted), fitted)


def test_a_pickled_estimator_maps_to_the_same_bits(fitted):
    assert_same_map(pickle.loads(pickle.dumps(fitted)), fitted)  # noqa: S301


def turned(points):
    """Another cloud of the same kind, for checks that know one only."""
    points = points.toarray() if scipy.sparse.issparse(points) else np.asarray(points)
    return points[:, ::-1] + 1 if points.ndim == 2 and points.dtype.kind == "f" else points


class OntoTurned(MongeMap):
    """The map of a cloud onto its turned self, with the signature that generic checks know."""

    def fit(self, X, y=None):
        return super().fit(X, turned(X))

    def score(self, X, y=None):
        return super().score(X, turned(X))


SOLVE_BY_SINKHORN = eqx.filter_jit(partial(programs._map_and_plan, dual_solver=SinkhornDual()))
DOES_NOT_APPLY = {
    "check_dtype_object": "arrays of objects are refused, not searched for numbers",
    "check_transformer_n_iter": "with a fixed cost there is nothing to iterate: n_iter_ is 0",
}


@pytest.fixture
def quick_solver(monkeypatch):
    """Sinkhorn's algorithm: the checks come in a dozen shapes, and Newton's compiles slowly."""
    monkeypatch.setattr(programs, "_solve", SOLVE_BY_SINKHORN)


@pytest.mark.usefixtures("quick_solver")
@parametrize_with_checks(
    [OntoTurned("sqeuclidean", epsilon=1.0)],
    expected_failed_checks=lambda _: DOES_NOT_APPLY,
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_a_map_that_loses_to_ridge_regression_says_so():
    """A cloud turned by half a turn: squared Euclidean, hardly trained, is far off."""
    points = np.random.default_rng(0).normal(size=(40, 2))
    pairs = np.stack([np.arange(40)] * 2, axis=1)
    with pytest.warns(UserWarning, match="kept from training") as caught:
        MongeMap("matrix", max_iter=2).fit(points, 3.0 - points, pairs=pairs)
    found = caught[0].message.message.fields
    assert found["best"].startswith("ridge regression")
    assert found["own"] > 1 and found["least"] < 1e-6


@pytest.mark.parametrize(("sign", "count"), [(1, 40), (-1, 19)])
def test_a_map_that_is_right_or_not_judged_does_not(sign, count):
    """Where targets are sources the map is right. Of fewer than 20 pairs none are kept."""
    points = np.random.default_rng(0).normal(size=(40, 2))
    pairs = np.stack([np.arange(count)] * 2, axis=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = MongeMap("matrix", epsilon=0.001, max_iter=2)
        model.fit(points, sign * points, pairs=pairs)
    assert not any("kept from training" in str(each.message) for each in caught)
