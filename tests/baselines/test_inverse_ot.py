"""InverseOT: J is the likelihood that it claims to be, and planted costs are found again."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import ot
import pytest
from scipy.special import xlogy

from mongefit import Mahalanobis, PowerNorm
from mongefit.baselines import InverseOT
from mongefit.baselines import _inverse_ot as inverse_ot
from mongefit.baselines._inverse_ot import Observed
from mongefit.baselines._linear_costs import POWERS, PowersCost, QuadraticCost
from mongefit.errors import ConvergenceError, ConvergenceWarning, DataError, OptionError
from tests.baselines.families import EPSILON, KNOWN, PAIRS, M, X, Y

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]

ALPHA = 0.01
EVERY_PAIR = np.stack(np.meshgrid(np.arange(M), np.arange(M), indexing="ij"), -1).reshape(-1, 2)


def standardised(x, y):
    """Two clouds with centre 0 and scale 1, which are their own common units."""
    centre = 0.5 * (x.mean(0) + y.mean(0))
    x, y = x - centre, y - centre
    scale = np.sqrt(0.5 * np.mean(np.mean(x**2, axis=0) + np.mean(y**2, axis=0)))
    return x / scale, y / scale


U, V = standardised(X, Y)
DISPLACEMENT = U[:M, None] - V[None]
POWER = np.stack([np.abs(DISPLACEMENT) ** q / q for q in POWERS], axis=-2)
QUADRATIC = 0.5 * np.sum(DISPLACEMENT**2, axis=-1)
EPS = EPSILON * QUADRATIC.mean()


def pot_plan(C, a=None, b=None, eps=EPS):
    a, b = (np.full(M, 1 / M) if side is None else side for side in (a, b))
    return ot.bregman.sinkhorn_log(a, b, C, eps, numItermax=99_999, stopThr=1e-14)


def kl(P, Q):
    return np.sum(xlogy(P, P) - xlogy(P, Q))


def fit(features, plan, **options):
    """Inverse OT from a plan between the first M sources and the targets, exact or counted."""
    model = InverseOT(features, alpha=ALPHA, epsilon=EPSILON, many_to_many=True, **options)
    plan = plan.ravel()
    return model.fit(U, V, pairs=EVERY_PAIR[plan > 0], pair_weight=plan[plan > 0])


# The objective


@pytest.fixture(scope="module")
def observed():
    """A plan π̂ that no cost of the family has."""
    rng = np.random.default_rng(5)
    return rng.dirichlet(np.full(M * M, 0.3)).reshape(M, M)


def objective(h, observed, penalty=0.0):
    data = Observed.of(U, V, EVERY_PAIR, observed.ravel())
    # From the optimum of another cost, which must not matter.
    return inverse_ot.objective(h, data, jnp.asarray(EPS), jnp.asarray(penalty), jnp.arange(M) / M)


THETA = np.array([[0.3, 0.0], [0.2, 1.0], [0.0, 0.4]])
ROOT = np.array([[1.0, 0.3], [-0.4, 0.8]])
COSTS = {
    "powers": (
        lambda t: PowersCost(jnp.asarray(THETA + t), ALPHA),
        lambda t: POWER,
        np.sum((THETA) * POWER, axis=(-2, -1)) + ALPHA * QUADRATIC,
    ),
    "quadratic": (
        lambda t: QuadraticCost(jnp.asarray(ROOT + t), ALPHA),
        # ½ zᵀLLᵀz has the derivative z zᵀL.
        lambda t: np.einsum("ijk,ijl->ijkl", DISPLACEMENT, DISPLACEMENT @ ROOT),
        0.5 * np.sum((DISPLACEMENT @ ROOT) ** 2, axis=-1) + ALPHA * QUADRATIC,
    ),
}
every_cost = pytest.mark.parametrize(("build", "features", "C"), COSTS.values(), ids=COSTS)


@every_cost
def test_the_objective_is_a_divergence_up_to_a_constant(build, features, C, observed, x64):
    """J = eps (KL(π̂ | P) − KL(π̂ | a⊗b)), with the plan of POT."""
    a, b = observed.sum(1), observed.sum(0)
    P = pot_plan(C, a, b)
    constant = kl(observed, np.outer(a, b))
    found = objective(build(0.0), observed)
    assert found.converged
    assert found.value == pytest.approx(EPS * (kl(observed, P) - constant), rel=1e-8)
    assert found.value + EPS * constant > 0
    penalised = objective(build(0.0), observed, penalty=0.7)
    size = {"PowersCost": THETA.sum(), "QuadraticCost": np.sum(ROOT**2)}[type(build(0.0)).__name__]
    assert penalised.value - found.value == pytest.approx(0.7 * size, rel=1e-10)


@every_cost
def test_the_objective_is_least_at_the_plan_itself(build, features, C, x64):
    """There KL(π̂ | P) is zero, and so is the derivative."""
    P = pot_plan(C)
    found = objective(build(0.0), P)
    assert found.value == pytest.approx(-EPS * kl(P, np.full((M, M), 1 / M**2)), rel=1e-8)
    np.testing.assert_allclose(found.gradient, 0, atol=1e-8)


@every_cost
def test_the_derivative_is_the_mean_of_the_features_under_the_difference(
    build, features, C, observed, x64
):
    """⟨π̂ − P, φ_k⟩ with the plan of POT, and central differences of J."""
    P = pot_plan(C, observed.sum(1), observed.sum(0))
    found = objective(build(0.0), observed)
    expected = np.einsum("ij,ij...->...", observed - P, features(0.0))
    np.testing.assert_allclose(found.gradient, expected, rtol=0, atol=1e-8)
    assert np.abs(expected).max() > 1e-2
    step = np.random.default_rng(6).normal(size=found.gradient.shape)
    after, before = (objective(build(t * step), observed).value for t in (1e-5, -1e-5))
    slope = np.sum(found.gradient * step)
    assert abs((after - before) / 2e-5 - slope) < 1e-6 * max(1, abs(slope))


# What is found


def test_a_plan_of_powers_gives_back_its_powers():
    """|z|^1.5 in one coordinate, |z|² in the other: θ is found, exactly as the plan is exact."""
    theta = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    C = np.sum(theta * POWER, axis=(-2, -1)) + ALPHA * QUADRATIC
    model = fit("powers", pot_plan(C), penalty=0.0)
    np.testing.assert_allclose(model.theta_ / model.eps_, theta / EPS, atol=1e-2)
    assert model.eps_ == pytest.approx(EPS, rel=1e-10)
    assert model.diagnostics_["likelihood_converged"] and model.n_iter_ > 3
    assert np.all(np.diff(model.history_["objective"]) <= 0)
    assert model.objective_ == model.history_["objective"][-1]


FEATURES = [Mahalanobis(np.diag(scale)) for scale in ([1, 1e-6], [1e-6, 1])] + [PowerNorm(3.0)]


def test_sampled_pairs_give_back_a_sparse_cost():
    """2000 pairs drawn from the plan: the features in the cost are found, in their order."""
    C = 1.5 * POWER[..., 1, 0] + 0.5 * POWER[..., 1, 1] + ALPHA * QUADRATIC
    drawn = np.random.default_rng(7).multinomial(2000, pot_plan(C).ravel())
    model = fit(FEATURES, drawn.reshape(M, M), penalty=2e-3)
    np.testing.assert_allclose(model.theta_, [1.5, 0.5, 0.0], atol=0.2)
    assert model.theta_[0] > 2 * model.theta_[1] > 0 and model.theta_[2] < 0.05
    C = 1.5 * POWER[..., 1, 0] + ALPHA * QUADRATIC
    drawn = np.random.default_rng(8).multinomial(2000, pot_plan(C).ravel())
    alone = fit(FEATURES, drawn.reshape(M, M), penalty=2e-3).theta_
    assert alone[0] > 1.2 and alone[1:].max() < 0.05


def test_a_plan_of_low_rank_gives_back_its_direction():
    direction = np.array([0.6, -0.8])
    plan = pot_plan((DISPLACEMENT @ direction) ** 2 + ALPHA * QUADRATIC)
    exact = fit("quadratic", plan, penalty=0.0)
    np.testing.assert_allclose(exact.theta_, 2 * np.outer(direction, direction), atol=1e-3)
    drawn = np.random.default_rng(9).multinomial(2000, plan.ravel()).reshape(M, M)
    eigenvalues, vectors = np.linalg.eigh(fit("quadratic", drawn, penalty=1e-3).theta_)
    assert eigenvalues[1] > 20 * eigenvalues[0] >= -1e-12
    assert abs(vectors[:, 1] @ direction) > 0.99


def test_a_larger_penalty_gives_a_smaller_cost():
    sizes = [
        InverseOT("powers", epsilon=EPSILON, penalty=penalty).fit(X, Y, **KNOWN).theta_.sum()
        for penalty in (1e-4, 1e-2, 1.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2] >= 0


def test_a_pair_seen_twice_counts_twice():
    """Weights are counts; which of its parts a pair of weight zero has does not matter."""
    model = InverseOT("quadratic", epsilon=EPSILON, many_to_many=True)
    weight = np.append(np.ones(M), 0.0)
    extra = np.concatenate([PAIRS, [[0, PAIRS[1, 1]]]])
    with_nothing = model.fit(X, Y, pairs=extra, pair_weight=weight).theta_
    np.testing.assert_allclose(with_nothing, model.fit(X, Y, pairs=PAIRS).theta_, rtol=1e-12)


def test_the_precision_of_the_map_leaves_the_cost_alone():
    double = InverseOT("quadratic", epsilon=EPSILON).fit(X, Y, **KNOWN)
    single = InverseOT("quadratic", epsilon=EPSILON, dtype="float32").fit(X, Y, **KNOWN)
    np.testing.assert_allclose(single.theta_, double.theta_, rtol=1e-4)
    assert single.map_.f.dtype == jnp.float32
    np.testing.assert_allclose(single.coupling_, double.coupling_, atol=1e-3)


# Edges


def test_a_likelihood_that_is_not_maximised_is_reported():
    model = InverseOT("quadratic", epsilon=EPSILON, max_iter=1)
    with pytest.warns(ConvergenceWarning, match="not maximised in 1 iterations") as caught:
        model.fit(X, Y, **KNOWN)
    assert {warning.filename for warning in caught} == {__file__}
    assert model.diagnostics_["likelihood_converged"] is False and model.n_iter_ == 1
    with pytest.raises(ConvergenceError, match="not maximised"):
        InverseOT("quadratic", epsilon=EPSILON, max_iter=1, strict=True).fit(X, Y, **KNOWN)


def test_where_all_points_are_one_there_is_nothing_to_learn(x64):
    data = Observed.of(0 * U, 0 * V, PAIRS, np.ones(M))
    start = QuadraticCost(jnp.eye(2), ALPHA)
    found = inverse_ot._minimise(start, data, epsilon=EPSILON, penalty=1e-3, max_iter=20)
    assert found.converged and found.eps > 0
    assert np.all(np.isfinite(found.cost.root)) and np.all(np.isfinite(found.history["objective"]))


def test_features_made_for_other_data_are_refused():
    with pytest.raises(DataError, match="feature at place 1 is made for another number"):
        InverseOT([PowerNorm(2.0), Mahalanobis(np.eye(3))]).fit(X, Y, **KNOWN)
    with pytest.raises(OptionError, match="Did you mean quadratic"):
        InverseOT("quadratics").fit(X, Y, **KNOWN)
    with pytest.raises(OptionError, match="no ConvexFunction at place 1"):
        InverseOT([PowerNorm(2.0), PowerNorm]).fit(X, Y, **KNOWN)


def test_a_search_that_goes_too_far_comes_back(monkeypatch):
    """Where J cannot be evaluated the search takes a shorter step, and claims no success."""
    solved = inverse_ot.objective

    def only_small(h, *arguments):
        found = solved(h, *arguments)
        return found._replace(converged=found.converged and float(h.size) < 6)

    plan = pot_plan((DISPLACEMENT @ [2.0, 0.0]) ** 2 + ALPHA * QUADRATIC)
    free = fit("quadratic", plan, penalty=0.0)
    assert np.trace(free.theta_) == pytest.approx(8, abs=0.01)
    monkeypatch.setattr(inverse_ot, "objective", only_small)
    with pytest.warns(ConvergenceWarning, match="not maximised"):
        held = fit("quadratic", plan, penalty=0.0)
    assert 5.5 < np.trace(held.theta_) < 6
    assert free.objective_ < held.objective_ < held.history_["objective"][0]
