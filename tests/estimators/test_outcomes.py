"""Where mass goes and where it came from, against the plan that they are taken from."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.special import entr

from mongefit import EnsembleMap, MongeMap, MongeMapCV, load
from mongefit._fitting.outcomes import Conditional, draw_columns, entropies
from mongefit.baselines import CouplingFit, EuclideanMap
from mongefit.errors import ConvergenceError, DataError, NotFittedError, OptionError
from mongefit.metrics import energy_score
from mongefit.metrics._energy import energy_scores
from tests.conftest import random_clouds

N, M = 30, 25
X, Y, A, B = random_clouds(N, M, uniform=False)
A[0] = B[1] = 0.0
A, B = A / A.sum(), B / B.sum()
NEW = random_clouds(7, 7, seed=3).x
MASK = np.arange(N) % 3 == 1
PAIRS = np.stack([np.arange(12)] * 2, axis=1)
SMALL = {"cost": "matrix", "epsilon": 0.2, "max_iter": 2, "validation_fraction": 0.0}
rng = np.random.default_rng(0)

MODELS = {
    "plain": {},
    "growing": {"tau_a": 0.8},
    "relaxed": {"tau_a": 0.9, "tau_b": 0.7},
}


def fit(**options):
    model = MongeMap(**({"cost": "sqeuclidean", "epsilon": 0.05} | options))
    return model.fit(X, Y, source_weight=A, target_weight=B)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return fit(**MODELS[request.param])


@pytest.fixture(scope="module")
def plain():
    return fit()


@pytest.fixture(scope="module")
def ensemble():
    return EnsembleMap(MongeMap(**SMALL), n_members=3).fit(X, Y, pairs=PAIRS)


class TestOnePlan:
    def test_conditionals_are_normalised_rows_and_columns(self, model):
        P, some, others = model.coupling_, A > 0, B > 0
        forward = model.conditional(X, drop=0).toarray()
        np.testing.assert_allclose(forward[some], P[some] / P[some].sum(1)[:, None], atol=1e-14)
        back = model.conditional(Y, reverse=True, drop=0).toarray()
        np.testing.assert_allclose(back[others], (P[:, others] / P[:, others].sum(0)).T, atol=1e-14)
        assert np.all(forward[:, ~others] == 0) and np.all(back[:, ~some] == 0)

    def test_the_weights_push_to_the_sums_of_the_plan(self, model):
        P = model.coupling_
        np.testing.assert_allclose(model.push(A), P.sum(0), atol=1e-14)
        np.testing.assert_allclose(model.pull(B), P.sum(1), atol=1e-14)

    def test_sets_are_rows_and_columns_of_the_plan(self, model):
        P = model.coupling_
        both = np.stack([MASK, ~MASK], axis=1)
        expected = np.stack([P[each].sum(0) for each in both.T], axis=1)
        np.testing.assert_allclose(model.push(both), expected, atol=1e-14)
        np.testing.assert_allclose(model.push(MASK), expected[:, 0], atol=1e-14)
        np.testing.assert_allclose(model.pull(MASK[:M]), P[:, MASK[:M]].sum(1), atol=1e-14)
        sparse = scipy.sparse.csr_array(both)
        np.testing.assert_array_equal(model.push(sparse), model.push(both))

    def test_mass_anywhere_grows_as_the_plan_says(self, model):
        """Also on points without weight, of which the plan has no row."""
        mass = rng.uniform(size=(N, 2))
        assert np.all(mass[A == 0] > 0)
        sent = mass * model.growth(X)[:, None]
        expected = model.conditional(X, drop=0).T @ sent
        np.testing.assert_allclose(model.push(mass), expected, atol=1e-13)
        np.testing.assert_allclose(model.push(mass).sum(0), sent.sum(0), rtol=1e-12)

    def test_functions_have_their_mean_at_the_other_end(self, model):
        P = model.coupling_
        values = rng.normal(size=(M, 3))
        some, others = A > 0, B > 0
        expected = P[some] @ values / P[some].sum(1)[:, None]
        np.testing.assert_allclose(model.pull(values, mean=True)[some], expected, atol=1e-13)
        np.testing.assert_allclose(
            model.push(np.arange(N), mean=True)[others],
            (np.arange(N) @ P / np.where(others, P.sum(0), 1))[others],
            rtol=1e-12,
        )
        # Of a set, the probability to end in it.
        fate = model.conditional(X, drop=0)[:, MASK[:M]].sum(1)
        np.testing.assert_allclose(model.pull(MASK[:M], mean=True), fate, atol=1e-14)
        np.testing.assert_allclose(model.pull(np.ones(M), mean=True), 1, rtol=1e-14)

    def test_entropy(self, model):
        for points, reverse, other in ((NEW, False, B), (NEW, True, A)):
            weights = model.conditional(points, reverse=reverse, drop=0).toarray()
            found = model.entropy(points, reverse=reverse)
            np.testing.assert_allclose(found, entr(weights).sum(1), atol=1e-6)
            assert np.all(found >= 0) and np.all(found <= np.log(np.sum(other > 0)))

    def test_draws_have_the_frequencies_of_the_weights(self, model):
        points, rows = model.sample(NEW, 20_000, return_index=True, random_state=0)
        np.testing.assert_allclose(points, Y[rows], atol=1e-14)
        weights = model.conditional(NEW).toarray()
        shares = np.stack([np.bincount(row, minlength=M) / 20_000 for row in rows])
        # A share has a standard deviation of at most 0.0036.
        np.testing.assert_allclose(shares, weights, atol=0.02)
        again = model.sample(NEW, 20_000, random_state=0)
        np.testing.assert_array_equal(again, points)
        back, rows = model.sample(NEW, 3, reverse=True, return_index=True, random_state=0)
        assert back.shape == (7, 3, 2)
        np.testing.assert_allclose(back, X[rows], atol=1e-14)

    def test_a_saved_model_says_the_same(self, model, tmp_path):
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        for call in (
            lambda model: model.push(MASK),
            lambda model: model.pull(B),
            lambda model: model.entropy(NEW),
            lambda model: model.conditional(NEW).toarray(),
            lambda model: model.conditional(NEW, reverse=True).toarray(),
            lambda model: model.sample(NEW, random_state=1),
        ):
            np.testing.assert_array_equal(call(again), call(model))


def test_what_is_dropped_is_told(plain):
    every = plain.conditional(NEW, drop=0).toarray()
    weights, dropped = plain.conditional(NEW, drop=0.05, return_dropped=True)
    kept = np.where(every >= 0.05, every, 0)
    np.testing.assert_allclose(dropped, 1 - kept.sum(1), atol=1e-14)
    np.testing.assert_allclose(weights.toarray(), kept / kept.sum(1)[:, None], rtol=1e-12)
    assert isinstance(weights, scipy.sparse.csr_array) and np.any(dropped > 0.01)
    # A row of small weights keeps the largest.
    one = plain.conditional(NEW, drop=0.999)
    np.testing.assert_array_equal(one.indices, every.argmax(1))
    np.testing.assert_array_equal(one.data, 1)


def test_blocks_of_rows_are_joined(plain):
    many = np.tile(NEW, (300, 1))
    np.testing.assert_allclose(
        plain.conditional(many).toarray()[-7:], plain.conditional(NEW).toarray(), atol=1e-15
    )
    assert plain.sample(many, 2, random_state=0).shape == (2100, 2, 2)


def test_a_debiased_map_has_the_plan_that_it_has_without(plain):
    debiased = fit(debias=True)
    np.testing.assert_array_equal(debiased.push(MASK), plain.push(MASK))
    np.testing.assert_array_equal(debiased.entropy(NEW), plain.entropy(NEW))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_units_do_not_matter(plain, scale):
    moved = MongeMap(cost="sqeuclidean", epsilon=0.05).fit(
        scale * (X + 3), scale * (Y + 3), source_weight=A, target_weight=B
    )
    np.testing.assert_allclose(moved.push(MASK), plain.push(MASK), atol=1e-10)
    np.testing.assert_allclose(moved.entropy(scale * (NEW + 3)), plain.entropy(NEW), atol=1e-6)
    drawn, rows = moved.sample(scale * (NEW + 3), 4, return_index=True, random_state=0)
    np.testing.assert_allclose(drawn, scale * (Y + 3)[rows], rtol=1e-10)


def test_every_estimator_with_an_entropic_map_has_them():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = MongeMapCV(
            {"one": MongeMap(**SMALL), "two": MongeMap(**(SMALL | {"epsilon": 0.3}))}, cv=2
        ).fit(X, Y, pairs=PAIRS)
        models = [
            chosen,
            EuclideanMap(epsilon=0.1).fit(X, Y),
            CouplingFit("matrix", max_iter=1, epsilon=0.2).fit(X, Y, pairs=PAIRS),
            MongeMap(**(SMALL | {"diffeo": "affine", "dtype": "float32"})).fit(X, Y, pairs=PAIRS),
        ]
    np.testing.assert_array_equal(chosen.push(MASK), chosen.best_estimator_.push(MASK))
    for model in models:
        P = model.coupling_
        tol = 1e-5 if getattr(model, "dtype", "float64") == "float32" else 1e-12
        np.testing.assert_allclose(model.push(MASK), P[MASK].sum(0), atol=tol)
        np.testing.assert_allclose(model.pull(MASK[:M]), P[:, MASK[:M]].sum(1), atol=tol)
        assert np.all(np.isfinite(model.entropy(NEW)))
        assert model.sample(NEW, 2).dtype == np.float64


class TestEnsemble:
    def test_it_says_what_its_members_say_on_average(self, ensemble, tmp_path):
        values = rng.normal(size=M)
        ensemble.save(tmp_path / "model")
        for model in (ensemble, load(tmp_path / "model")):
            for call in (
                lambda model: model.conditional(NEW, drop=0).toarray(),
                lambda model: model.conditional(NEW, drop=0, reverse=True).toarray(),
                lambda model: model.push(MASK),
                lambda model: model.pull(np.abs(values)),
                lambda model: model.pull(values, mean=True),
            ):
                expected = np.mean([call(member) for member in ensemble.members_], axis=0)
                np.testing.assert_allclose(call(model), expected, atol=1e-14)
        weights = ensemble.conditional(NEW)
        np.testing.assert_allclose(ensemble.entropy(NEW), entropies(weights))
        assert ensemble.sample(NEW, 2, random_state=0).shape == (7, 2, 2)

    def test_its_energy_score_is_that_of_its_distribution(self, ensemble):
        truth = NEW + 1
        weights = ensemble.conditional(NEW).toarray()
        expected = energy_scores(weights, Y, truth).mean()
        assert energy_score(ensemble, NEW, truth) == pytest.approx(expected)

    def test_members_that_have_seen_other_points_answer_for_all(self, tmp_path):
        model = EnsembleMap(MongeMap(**SMALL), n_members=2, max_points=16).fit(X, Y, pairs=PAIRS)
        weights = model.conditional(NEW, drop=0.0).toarray()
        assert weights.shape == (len(NEW), len(Y)) and np.all(weights > 0)
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
        # Among the points that a member has seen, as it says itself.
        member = model.members_[0].map_
        seen = np.array([np.argmin(np.sum((Y - y) ** 2, 1)) for y in member.units.out_of(member.y)])
        alone = model.members_[0].conditional(NEW, drop=0.0).toarray()
        model.members_ = model.members_[:1]
        both = model.conditional(NEW, drop=0.0).toarray()[:, seen]
        share = np.asarray(member.b) * len(Y)
        expected = alone / share
        np.testing.assert_allclose(
            both / both.sum(1, keepdims=True), expected / expected.sum(1, keepdims=True), atol=1e-8
        )
        model.save(tmp_path / "ensemble.mongefit")
        read = load(tmp_path / "ensemble.mongefit")
        np.testing.assert_array_equal(
            read.conditional(NEW).toarray(), model.conditional(NEW).toarray()
        )


class TestChains:
    def test_two_legs_are_the_product_of_their_conditionals(self):
        first, second = (rng.dirichlet(np.ones(k), size=n) for n, k in ((5, 6), (6, 4)))
        one = Conditional.of(first, 0.0)
        both = one.then(Conditional.of(second, 0.0).weights, drop=0.0)
        np.testing.assert_allclose(both.weights.toarray(), first @ second, rtol=1e-12)
        np.testing.assert_allclose(both.dropped, 0, atol=1e-14)

    def test_what_is_dropped_adds_up(self):
        first, second = np.array([[0.9, 0.1]]), np.array([[0.8, 0.2], [0.0, 1.0]])
        one = Conditional.of(first, 0.2)
        assert one.dropped[0] == pytest.approx(0.1)
        both = one.then(scipy.sparse.csr_array(second), drop=0.3)
        np.testing.assert_allclose(both.weights.toarray(), [[1.0, 0.0]])
        assert both.dropped[0] == pytest.approx(1 - 0.9 * 0.8)

    def test_certain_rows_are_drawn_and_have_no_entropy(self):
        weights = scipy.sparse.csr_array(np.eye(2000)[:, ::-1])
        assert np.all(draw_columns(weights, 3, seed=0) == np.arange(2000)[::-1, None])
        assert np.all(entropies(weights) == 0)


class TestFaults:
    @pytest.mark.parametrize(
        ("mass", "words"),
        [
            (np.ones(N - 1), r"mass has shape \(29,\); one value for each of the 30 points"),
            (np.arange(5), "Mark a set by True and False"),
            (np.ones((N, 1, 1)), "mass has shape"),
            (np.zeros((N, 0)), "mass has shape"),
            (np.r_[np.ones(N - 1), np.nan], "mass is NaN or infinite at row 29"),
            (np.r_[-0.1, np.ones(N - 1)], r"mass is negative at row 0 \(-0\.1\).*mean=True"),
            (np.zeros(N), "mass is zero everywhere"),
            (np.eye(N)[:, :2] * [1, 0], "mass is zero everywhere in column 1"),
            (np.zeros(N, bool), "mass marks no point"),
            (A == 0, "marks points without weight only"),
            (["a"] * N, "True and False for a set"),
            (np.ma.masked_array(np.ones(N), MASK), "masked in 10 rows"),
        ],
    )
    def test_masses(self, plain, mass, words):
        with pytest.raises(DataError, match=words):
            plain.push(mass)

    def test_values(self, plain):
        with pytest.raises(DataError, match="mass is NaN or infinite at row 3"):
            plain.pull(np.where(np.arange(M) == 3, np.inf, 0), mean=True)
        with pytest.raises(DataError, match="marks no point"):
            plain.pull(np.zeros(M, bool), mean=True)
        np.testing.assert_array_equal(plain.pull(np.zeros(M), mean=True), 0)

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda model: model.conditional(NEW, drop=1.0), "drop"),
            (lambda model: model.conditional(NEW, drop=-1e-9), "drop"),
            (lambda model: model.conditional(NEW, drop=np.nan), "drop"),
            (lambda model: model.conditional(NEW, reverse="no"), "reverse"),
            (lambda model: model.conditional(NEW, return_dropped=1), "return_dropped"),
            (lambda model: model.sample(NEW, 0), "n must be a whole number >= 1"),
            (lambda model: model.sample(NEW, 1.5), "n must be a whole number >= 1"),
            (lambda model: model.sample(NEW, random_state="x"), "random_state"),
            (lambda model: model.push(A, mean="yes"), "mean"),
        ],
    )
    def test_options(self, plain, call, words):
        with pytest.raises(OptionError, match=words):
            call(plain)

    @pytest.mark.parametrize("method", ["conditional", "sample", "entropy", "push", "pull"])
    def test_an_ensemble_must_be_fitted_first(self, method):
        with pytest.raises(NotFittedError):
            getattr(EnsembleMap(), method)(NEW)

    def test_points_far_from_the_data_are_flagged(self, plain):
        with pytest.warns(UserWarning, match="1 of 8 points lie far outside .*row 7"):
            found = plain.conditional(np.r_[NEW, [[1e3, 1e3]]])
        np.testing.assert_allclose(found.sum(1), 1)

    @pytest.mark.filterwarnings("ignore:.*far outside")
    def test_where_no_weight_is_finite_is_refused(self, plain):
        with pytest.raises(ConvergenceError, match="not finite at row 1"):
            plain.entropy([[0.0, 0.0], [1e200, 0.0]])
