"""The metrics against closed forms, POT, OTT and exact linear programs, and at the edges."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import json
import pickle
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import ot
import pytest
from ott.geometry import costs
from ott.tools import sinkhorn_divergence as ott_divergence

from mongefit import (
    AutoregressiveFlow,
    Cost,
    EntropicMap,
    Mahalanobis,
    MongeMap,
    PowerNorm,
    metrics,
)
from mongefit._duals import soft_minimum
from mongefit._runtime import double_precision
from mongefit._transport import Units
from mongefit.baselines import IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.errors import ConvergenceWarning, DataError, NotFittedError, OptionError
from mongefit.metrics import (
    evaluate,
    incorrect_mass,
    incorrect_mass_floor,
    l2_uvp,
    map_plan_gap,
    recovered_pairs,
    rmse,
    sinkhorn_divergence,
)
from tests.conftest import random_clouds

pytestmark = pytest.mark.filterwarnings("error")
uniform_or_not = pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "weighted"])
N, M = 16, 12
X, Y, _, _ = random_clouds(N, M)


def halved_squares(x, y):
    return 0.5 * np.sum((x[:, None] - y[None]) ** 2, axis=-1)


def warned(call, words, category=ConvergenceWarning):
    """The result of a call that warns, at the line of the caller, with these words."""
    with pytest.warns(category, match=words) as caught:
        result = call()
    assert {warning.filename for warning in caught} == {__file__}
    return result


# Points


def test_rmse_by_hand():
    mapped, truth = [[0, 0], [1, 1]], [[3, 4], [1, 1]]
    assert rmse(mapped, truth) == pytest.approx(np.sqrt(25 / 2), rel=1e-15)
    assert rmse(mapped, truth, weight=[1, 4]) == pytest.approx(np.sqrt(5), rel=1e-15)
    assert rmse(truth, truth) == 0
    assert type(rmse(mapped, truth)) is float


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_rmse_neither_overflows_nor_vanishes(scale):
    assert rmse(scale * X, np.zeros_like(X)) == pytest.approx(scale * rmse(X, 0 * X), rel=1e-14)


def test_l2_uvp_is_zero_for_the_truth_and_100_for_the_mean():
    weight = np.arange(1.0, N + 1)
    mean = np.tile(weight @ X / weight.sum(), (N, 1))
    assert l2_uvp(X, X, X) == 0
    assert l2_uvp(mean, X, X, weight=weight, target_weight=weight) == pytest.approx(100, rel=1e-13)
    # Total variance: the features are added, not averaged.
    expected = 100 * rmse(X + 0.1, X) ** 2 / Y.var(axis=0).sum()
    assert l2_uvp(X + 0.1, X, Y) == pytest.approx(expected, rel=1e-13)
    assert l2_uvp(1e20 * X + 1e19, 1e20 * X, 1e20 * Y) == pytest.approx(expected, rel=1e-13)


POINT_FAULTS = {
    "unequal rows": (lambda: rmse(X, X[1:]), "16 and 15 rows"),
    "unequal features": (lambda: rmse(X, X[:, :1]), "mapped has 2 features and truth has 1"),
    "1-D": (lambda: rmse(X[0], X[0]), "two-dimensional"),
    "NaN": (lambda: rmse(np.where(X > 9, X, np.nan), X), "mapped contains NaN"),
    "negative weight": (lambda: rmse(X, X, weight=-np.ones(N)), "weight is negative at row 0"),
    "target of other features": (lambda: l2_uvp(X, X, Y[:, :1]), "target has 1"),
    "no variance": (lambda: l2_uvp(X, X, np.full((3, 2), 0.1)), "no variance to explain"),
}


@pytest.mark.parametrize(("call", "words"), POINT_FAULTS.values(), ids=POINT_FAULTS)
def test_points_that_cannot_be_compared(call, words):
    with pytest.raises(DataError, match=words):
        call()


# Sinkhorn divergence


def value_from_pot(x, y, a, b, eps):
    """⟨P, C⟩ + eps KL(P | a⊗b), which is the dual value, from POT's plan."""
    C = halved_squares(x, y)
    P = ot.bregman.sinkhorn_log(a, b, C, eps, numItermax=200_000, stopThr=1e-13)
    assert np.abs(P.sum(1) - a).sum() + np.abs(P.sum(0) - b).sum() <= 1e-12
    return np.sum(P * C) + eps * np.sum(P * np.log(P / np.outer(a, b)))


@jax.jit
def value_from_ott(x, y, a, b, eps):
    half = jnp.sqrt(0.5)  # OTT's squared distances are not halved
    value, output = ott_divergence.sinkdiv(
        half * x, half * y, cost_fn=costs.SqEuclidean(), epsilon=eps, a=a, b=b,
        solve_kwargs={"threshold": 1e-12, "max_iterations": 100_000},
    )  # fmt: skip
    return value, output.converged


@uniform_or_not
def test_divergence_agrees_with_pot_and_ott(uniform, x64):
    x, y, a, b = random_clouds(N, M, uniform=uniform)
    found = sinkhorn_divergence(x, y, source_weight=a, target_weight=b, epsilon=0.2)
    eps = found.eps
    assert eps == pytest.approx(0.2 * (b @ halved_squares(y, y) @ b), rel=1e-12)
    pot = value_from_pot(x, y, a, b, eps) - 0.5 * (
        value_from_pot(x, x, a, a, eps) + value_from_pot(y, y, b, b, eps)
    )
    assert found == pytest.approx(pot, abs=1e-9)
    ott, converged = value_from_ott(x, y, a, b, eps)
    assert all(converged)
    assert found == pytest.approx(float(ott), abs=1e-9)


def test_divergence_of_a_translation_is_half_its_square():
    shift = np.array([3.0, -4.0])
    assert sinkhorn_divergence(X + shift, X) == pytest.approx(12.5, rel=1e-13)
    far = sinkhorn_divergence(X + 1e9 * shift, X)
    assert far == pytest.approx(12.5e18, rel=1e-13)


def test_divergence_of_equal_clouds_is_zero_and_of_others_positive():
    assert abs(sinkhorn_divergence(X, X)) < 1e-12
    assert abs(sinkhorn_divergence(X, X[::-1])) < 1e-12
    assert sinkhorn_divergence(1.1 * X, X) > 1e-4
    back_and_forth = [sinkhorn_divergence(*pair, eps=0.1) for pair in ((X, Y), (Y, X))]
    assert back_and_forth[0] == pytest.approx(back_and_forth[1], rel=1e-11)


@pytest.mark.parametrize(("scale", "offset"), [(1e20, 0), (1e-20, 0), (1, 1e8)])
def test_divergence_in_other_units(scale, offset):
    x, y = (np.round(points * 2**20) / 2**20 for points in (X, Y))
    plain = sinkhorn_divergence(x, y)
    moved = sinkhorn_divergence(scale * x + offset, scale * y + offset)
    assert moved == pytest.approx(scale**2 * plain, rel=1e-9)
    assert moved.eps == pytest.approx(scale**2 * plain.eps, rel=1e-9)


def test_divergence_does_not_see_order_splits_or_points_without_weight():
    plain = sinkhorn_divergence(X, Y)
    assert plain.eps == pytest.approx(0.05 * Y.var(axis=0).sum(), rel=1e-12)
    assert sinkhorn_divergence(X, Y, eps=0.2).eps == 0.2
    assert sinkhorn_divergence(X[::-1], Y) == pytest.approx(plain, abs=1e-11)
    split = sinkhorn_divergence(
        np.concatenate([X, X[:1]]), Y, source_weight=[1 / 32, *[1 / 16] * 15, 1 / 32]
    )
    assert split == pytest.approx(plain, abs=1e-11)
    outlier = sinkhorn_divergence(
        np.concatenate([X, [[1e3, 1e3]]]), Y, source_weight=[*[1 / 16] * 16, 0]
    )
    assert outlier == pytest.approx(plain, abs=1e-11)
    counts = np.arange(1, N + 1)
    weighted = sinkhorn_divergence(X, Y, source_weight=counts / counts.sum())
    assert weighted != pytest.approx(plain, abs=1e-3)
    assert weighted == sinkhorn_divergence(X, Y, source_weight=counts, normalize_weight=True)


def test_divergence_from_one_place():
    place = np.full((3, 2), 0.1)
    # One point each: there is one plan, and nothing to regularise.
    assert sinkhorn_divergence([[0.0, 0.0]], [[3.0, 4.0]]) == pytest.approx(12.5, rel=1e-14)
    assert sinkhorn_divergence(place, place) == 0
    found = sinkhorn_divergence(X, place, epsilon=0.5)
    assert found.eps == pytest.approx(0.5 * halved_squares(X, place).mean(), rel=1e-12)
    a, b = np.full(N, 1 / N), np.full(3, 1 / 3)
    expected = halved_squares(X, place).mean() - 0.5 * value_from_pot(X, X, a, a, found.eps)
    assert found == pytest.approx(expected, abs=1e-9)
    assert value_from_pot(X, place, a, b, found.eps) == pytest.approx(
        halved_squares(X, place).mean(), abs=1e-12
    )


@pytest.mark.parametrize("epsilon", [1e-9, 1e-300])
def test_an_epsilon_too_small_gives_the_smallest_that_converges(epsilon):
    found = warned(
        lambda: sinkhorn_divergence(X, Y, epsilon=epsilon), "did not converge at eps .* Raise"
    )
    variance = Y.var(axis=0).sum()
    assert epsilon * variance < found.eps < 1e-5
    assert found == sinkhorn_divergence(X, Y, eps=found.eps)
    # Next to nothing is regularised: the exact cost remains.
    exact = ot.emd2(np.full(N, 1 / N), np.full(M, 1 / M), halved_squares(X, Y))
    assert found == pytest.approx(exact, abs=1e-4)


def test_a_divergence_is_a_number_that_names_its_eps():
    found = metrics.Divergence(0.125, eps=0.5)
    assert repr(found) == "Divergence(0.125, eps=0.5)"
    assert str(found) == f"{found}" == json.dumps(found) == "0.125"
    assert f"{found:.2f}" == "0.12" and found * 2 == 0.25
    for twin in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):  # noqa: S301
        assert (twin, twin.eps) == (found, 0.5)
    text = io.StringIO()
    csv.writer(text).writerow([found])
    assert text.getvalue() == "0.125\r\n"


def test_a_request_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr("mongefit._runtime.memory.available_memory", lambda: 2**20)
    x = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.raises(DataError, match=r"200 and 200 points need .* GiB; 0.000977 GiB are free"):
        sinkhorn_divergence(x, x[:3])


DIVERGENCE_FAULTS = {
    "1-D": (lambda: sinkhorn_divergence(X[0], Y), "two-dimensional"),
    "features": (lambda: sinkhorn_divergence(X, Y[:, :1]), "X has 2 features and Y has 1"),
    "NaN": (lambda: sinkhorn_divergence(X, np.where(Y > 9, Y, np.nan)), "Y contains NaN"),
    "sum of weights": (lambda: sinkhorn_divergence(X, Y, source_weight=np.ones(N)), "has sum 16"),
    "too large": (lambda: sinkhorn_divergence(1e160 * X, Y), "squares overflow"),
    "epsilon 0": (lambda: sinkhorn_divergence(X, Y, epsilon=0), "epsilon must be positive"),
    "eps negative": (lambda: sinkhorn_divergence(X, Y, eps=-1.0), "eps must be positive"),
    "eps NaN": (lambda: sinkhorn_divergence(X, Y, eps=np.nan), "eps must be positive"),
}


@pytest.mark.parametrize(("call", "words"), DIVERGENCE_FAULTS.values(), ids=DIVERGENCE_FAULTS)
def test_what_has_no_divergence(call, words):
    with pytest.raises((DataError, OptionError), match=words):
        call()


# Couplings and costs


ONE_TO_ONE = np.array([[0, 3], [5, 0], [7, 7]])
MANY_TO_MANY = np.array([[0, 3], [0, 4], [1, 3], [5, 0], [6, 0], [7, 7], [8, 7], [8, 8], [9, 8]])


def known_wrong(n, m, pairs):
    """The definition, entry by entry."""
    known = {tuple(pair) for pair in pairs.tolist()}
    rows, columns = ({pair[side] for pair in known} for side in (0, 1))
    wrong = np.zeros((n, m))
    for i, j in itertools.product(range(n), range(m)):
        wrong[i, j] = (i in rows or j in columns) and (i, j) not in known
    return wrong


@pytest.mark.parametrize("pairs", [ONE_TO_ONE, MANY_TO_MANY, ONE_TO_ONE[:1]])
def test_incorrect_mass_by_its_definition(pairs):
    coupling = np.random.default_rng(0).dirichlet(np.ones(N * M)).reshape(N, M)
    expected = np.sum(coupling * known_wrong(N, M, pairs))
    assert incorrect_mass(coupling, pairs) == pytest.approx(expected, rel=1e-13)
    assert 0 < expected < 1


@uniform_or_not
@pytest.mark.parametrize("pairs", [ONE_TO_ONE, MANY_TO_MANY, ONE_TO_ONE[:1]])
@pytest.mark.parametrize("shape", [(N, M), (M, N)])
def test_the_floor_of_incorrect_mass_is_that_of_a_linear_program(pairs, shape, uniform):
    _, _, a, b = random_clouds(*shape, uniform=uniform, seed=3)
    # Transport with cost 1 on wrong entries: the least incorrect mass by definition.
    wrong = known_wrong(*shape, pairs)
    best = ot.emd(a, b, wrong)
    floor = incorrect_mass_floor(*shape, pairs, source_weight=a, target_weight=b)
    assert floor == pytest.approx(np.sum(best * wrong), abs=1e-12)
    assert floor == pytest.approx(incorrect_mass(best, pairs), abs=1e-12)
    if uniform and len(pairs) < len(MANY_TO_MANY):
        assert floor == pytest.approx(len(pairs) * abs(1 / M - 1 / N), rel=1e-12)
        assert floor == pytest.approx(incorrect_mass_floor(*shape, pairs), rel=1e-12)


def test_the_floor_is_zero_where_a_perfect_coupling_exists():
    pairs = np.column_stack([np.arange(5), np.arange(5)[::-1]])
    assert incorrect_mass_floor(9, 9, pairs) == 0
    assert incorrect_mass(np.eye(5)[::-1] / 5, pairs) == 0
    assert incorrect_mass(np.eye(5) / 5, pairs) == pytest.approx(0.8, rel=1e-14)


def test_many_to_many_floors_of_many_points():
    # A star: one source for all m targets but one. It can carry a_0 = 1/n of their (m − 1)/m.
    n, m = 2000, 500
    star = np.column_stack([np.zeros(m - 1, int), np.arange(m - 1)])
    assert incorrect_mass_floor(n, m, star) == pytest.approx((m - 1) / m - 1 / n, rel=1e-9)


def test_repeated_pairs_count_once():
    coupling = np.full((N, M), 1 / (N * M))
    twice = np.concatenate([ONE_TO_ONE, ONE_TO_ONE])
    words = "3 of 6 pairs are repeated"
    found = warned(lambda: incorrect_mass(coupling, twice), words, UserWarning)
    assert found == incorrect_mass(coupling, ONE_TO_ONE)
    found = warned(lambda: incorrect_mass_floor(N, M, twice), words, UserWarning)
    assert found == incorrect_mass_floor(N, M, ONE_TO_ONE)


@pytest.mark.parametrize("shape", [(5, 5), (4, 6)])
def test_recovered_pairs_by_trying_all_assignments(shape):
    rng = np.random.default_rng(0)
    n, m = shape
    for _ in range(5):
        C = rng.uniform(size=shape)
        best = min(itertools.permutations(range(m), n), key=lambda p: C[range(n), p].sum())
        truth = rng.permutation(m)[:n]
        assert recovered_pairs(C, truth) == np.mean(np.array(best) == truth)
        assert recovered_pairs(C) == np.mean(np.array(best) == np.arange(n))
        assert recovered_pairs(C, np.array(best)) == 1


def test_a_cost_that_knows_nothing_recovers_next_to_nothing():
    assert recovered_pairs(np.zeros((200, 200))) < 0.05
    columns_only = np.tile(np.random.default_rng(0).uniform(size=200), (200, 1))
    assert recovered_pairs(columns_only) < 0.05


def test_rows_that_cannot_be_assigned_are_not_recovered():
    assert recovered_pairs([[0.0], [1.0], [2.0], [3.0]], truth=[0, 0, 0, 0]) == 0.25


COUPLING = np.full((N, M), 1 / (N * M))
COUPLING_FAULTS = {
    "negative": (lambda: incorrect_mass(COUPLING - 1, ONE_TO_ONE), "negative at row 0 column 0"),
    "sum": (lambda: incorrect_mass(2 * COUPLING, ONE_TO_ONE), "sum 2, not 1"),
    "1-D": (lambda: incorrect_mass(COUPLING[0], ONE_TO_ONE), "two-dimensional"),
    "no pairs": (lambda: incorrect_mass(COUPLING, []), "pairs is empty"),
    "outside": (lambda: incorrect_mass(COUPLING, [[0, M]]), "numbered 0 to 11"),
    "negative index": (lambda: incorrect_mass(COUPLING, [[-1, 0]]), "row -1"),
    "float index": (lambda: incorrect_mass(COUPLING, [[0.0, 1.0]]), "integer row numbers"),
    "floor outside": (lambda: incorrect_mass_floor(N, M, [[N, 0]]), "numbered 0 to 15"),
    "floor of none": (lambda: incorrect_mass_floor(N, M, None), "pairs is empty"),
    "floor size": (lambda: incorrect_mass_floor(0, M, ONE_TO_ONE), "n must be a whole number"),
    "floor weights": (
        lambda: incorrect_mass_floor(N, M, ONE_TO_ONE, source_weight=np.ones(3)),
        r"source_weight has shape \(3,\)",
    ),
    "more rows": (lambda: recovered_pairs(np.zeros((3, 2))), "row 2 has no column"),
    "truth length": (lambda: recovered_pairs(np.eye(3), [0, 1]), "must hold 3 integers"),
    "truth type": (lambda: recovered_pairs(np.eye(2), [0.0, 1.0]), "must hold 2 integers"),
    "truth outside": (lambda: recovered_pairs(np.eye(2), [0, 2]), "row 1 to column 2"),
    "truth negative": (lambda: recovered_pairs(np.eye(2), [0, -1]), "row 1 to column -1"),
}


@pytest.mark.parametrize(("call", "words"), COUPLING_FAULTS.values(), ids=COUPLING_FAULTS)
def test_couplings_costs_and_pairs_that_cannot_be_used(call, words):
    with pytest.raises((DataError, OptionError), match=words):
        call()


@eqx.filter_jit
def entropic_map(cost):
    """The map of some potentials: those of a solved problem are not needed here."""
    x, y, a, b = (jnp.asarray(part) for part in random_clouds(N, M, uniform=False))
    a = a.at[3].set(0.0) / (1 - a[3])
    g, eps = jnp.sin(jnp.arange(M, dtype=float)), jnp.asarray(0.5)
    f = soft_minimum(cost.matrix(x, y), b, g, eps)
    return EntropicMap(cost, x, y, a, b, f, g, eps, Units.none(2))


@eqx.filter_jit
def bent_flow(key):
    """A flow that is not the identity, as a new one is."""
    flow = AutoregressiveFlow(2, key=key, n_blocks=1, width=4)
    return jax.tree.map(
        lambda leaf: (
            leaf + 0.3 * jr.normal(key, leaf.shape) if eqx.is_inexact_array(leaf) else leaf
        ),
        flow,
    )


def test_a_quadratic_map_is_the_mean_of_its_plan():
    with double_precision():
        # Of the flows only the target's has a part in the gap.
        matrix = jnp.array([[2.0, 0.3], [0.3, 0.5]])
        quadratic = Cost(Mahalanobis(matrix), None, bent_flow(jr.key(1)))
        found = entropic_map(quadratic)
    assert map_plan_gap(found) < 1e-8


def test_the_gap_of_another_map_by_its_definition():
    with double_precision():
        found = entropic_map(Cost(PowerNorm(1.5)))
        y, a, P = map(np.asarray, (found.y, found.a, found.plan()))
        moved = np.asarray(eqx.filter_jit(EntropicMap.forward)(found, found.x))
    kept = a > 0
    means = P[kept] @ y / a[kept, None]
    expected = np.sqrt(a[kept] @ np.sum((moved[kept] - means) ** 2, axis=1))
    assert expected > 1e-2
    assert map_plan_gap(found) == pytest.approx(expected, rel=1e-9)


TRAIN_X = random_clouds(N, N, seed=5).x
TRAIN_Y = TRAIN_X @ np.array([[0.0, 1.0], [-1.0, 0.3]]) + 2.0
TRAIN_PAIRS = np.column_stack([np.arange(0, N, 3)] * 2)
TRAIN = (TRAIN_X, TRAIN_Y, TRAIN_PAIRS)


@pytest.fixture(scope="module")
def euclidean():
    return MongeMap(cost="sqeuclidean", epsilon=0.1).fit(TRAIN_X, TRAIN_Y)


def test_the_gap_of_an_estimator_is_in_common_units(euclidean):
    assert map_plan_gap(euclidean) < 1e-10
    assert map_plan_gap(euclidean) == map_plan_gap(euclidean.map_)
    with pytest.raises(NotFittedError):
        map_plan_gap(MongeMap())
    with pytest.raises(DataError, match="got IdentityMap"):
        map_plan_gap(IdentityMap().fit(X, Y))


# One table


class Shift:
    """A map without a cost, of no library."""

    def __init__(self, shift):
        self.shift = shift

    def transform(self, X):
        return np.asarray(X) + self.shift


PAIRS = np.column_stack([[0, 5, 7, 2], [3, 0, 7, 8]])
NAMES = ["euclidean", "shift", "identity", "target mean", "ridge on pairs", "nearest pair"]


@pytest.fixture(scope="module")
def fitted(euclidean):
    return {
        "euclidean": euclidean,
        "shift": Shift(0.5),
        "identity": IdentityMap().fit(*TRAIN[:2]),
        "target mean": TargetMean().fit(*TRAIN[:2]),
        "ridge on pairs": PairedRidge().fit(*TRAIN[:2], pairs=TRAIN_PAIRS),
        "nearest pair": NearestPair().fit(*TRAIN[:2], pairs=TRAIN_PAIRS),
    }


@pytest.fixture(scope="module")
def table(fitted):
    own = {name: fitted[name] for name in ("euclidean", "shift")}
    weights = {"source_weight": np.arange(1, N + 1), "target_weight": np.arange(1, M + 1)}
    return evaluate(
        own, X, Y, pairs=PAIRS, train=TRAIN, truth=X + 1, **weights, normalize_weight=True,
        plan_epsilon=0.2,
    )  # fmt: skip


def test_the_table_holds_what_each_metric_says(table, fitted):
    a, b = (np.arange(1, size + 1) / np.arange(1, size + 1).sum() for size in (N, M))
    weights = {"source_weight": a, "target_weight": b}
    floor = incorrect_mass_floor(N, M, PAIRS, **weights)
    assert 0 < floor < 1
    assert [row["name"] for row in table.rows] == NAMES
    for row in table.rows:
        predictor = fitted[row["name"]]
        mapped = predictor.transform(X)
        distance = sinkhorn_divergence(mapped, Y, **weights)
        assert row["rmse"] == pytest.approx(rmse(mapped[PAIRS[:, 0]], Y[PAIRS[:, 1]]), rel=1e-13)
        assert row["sinkhorn_divergence"] == pytest.approx(distance, rel=1e-10)
        assert row["eps"] == distance.eps
        assert row["l2_uvp"] == l2_uvp(mapped, X + 1, Y, weight=a, target_weight=b)
        assert row["incorrect_mass_floor"] == floor
        if row["name"] == "shift":
            assert row["incorrect_mass"] is None and row["recovered_pairs"] is None
            continue
        C = predictor.cost_matrix(X, Y)
        P = ot.bregman.sinkhorn_log(a, b, C, 0.2 * (a @ C @ b), numItermax=10_000, stopThr=1e-13)
        assert row["incorrect_mass"] == pytest.approx(incorrect_mass(P, PAIRS), abs=1e-9)
        assert row["incorrect_mass"] >= floor
        paired = C[np.ix_(PAIRS[:, 0], PAIRS[:, 1])]
        assert row["recovered_pairs"] == recovered_pairs(paired)


def test_the_table_as_text(table):
    row = table.rows[0]
    titles = list(table.headers.values())
    assert titles == [
        "", "RMSE", f"S (eps {row['eps']:.3g})",
        f"incorrect mass (floor {row['incorrect_mass_floor']:.3g})", "recovered pairs",
        "L2-UVP (%)",
    ]  # fmt: skip
    printed = [f"{row[key]:.4g}" for key in list(table.headers)[1:]]
    lines = str(table).splitlines()
    assert all(title in lines[0] for title in titles)
    assert lines[1].split() == ["euclidean", *printed]
    assert lines[2].split()[0] == "shift" and lines[2].split()[3:5] == ["–", "–"]
    assert any(f"eps {row['eps']:.4g}" in note for note in table.notes)
    assert all(note in lines for note in table.notes)
    markdown = table.to_markdown().splitlines()
    assert markdown[2] == f"| euclidean | {' | '.join(printed)} |"
    assert {line.count("|") for line in markdown[:8]} == {7}
    assert table._repr_markdown_() == table.to_markdown()
    assert "".join(f"<td>{cell}</td>" for cell in printed) in table._repr_html_()


def test_the_table_as_values(table):
    pandas = pytest.importorskip("pandas")
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    for row, text in zip(table.rows, read, strict=True):
        assert row.keys() == text.keys()
        for key, value in row.items():
            if key != "name":
                assert (float(text[key]) if text[key] else None) == value
    frame = pandas.DataFrame(table.rows).set_index("name")
    assert frame.loc["identity", "rmse"] == table.rows[2]["rmse"]


def test_names_do_not_break_the_table():
    table = metrics.Table(({"name": "a|<b>", "rmse": 1.0},), {"name": "", "rmse": "RMSE"})
    assert "a\\|<b>" in table.to_markdown()
    assert "a|&lt;b&gt;" in table._repr_html_() and "<b>" not in table._repr_html_()


def test_without_pairs_or_training_data_less_is_said(euclidean):
    table = evaluate(euclidean, X, Y)
    assert [row["name"] for row in table.rows] == ["MongeMap", "identity"]
    assert list(table.headers) == ["name", "sinkhorn_divergence"]
    assert "target mean, ridge on pairs, nearest pair" in table.notes[-1]
    assert "train=(X, Y, pairs)" in table.notes[-1]


def test_one_training_pair_is_enough_for_the_nearest_but_not_for_ridge():
    table = evaluate({}, X, Y, train=(TRAIN_X, TRAIN_Y, TRAIN_PAIRS[:1]))
    assert [row["name"] for row in table.rows] == ["identity", "target mean", "nearest pair"]
    assert "ridge on pairs." in table.notes[-1]
    mean = table.rows[1]["sinkhorn_divergence"]
    assert mean == pytest.approx(
        sinkhorn_divergence(np.tile(TRAIN_Y.mean(0), (N, 1)), Y), rel=1e-12
    )


def test_pairs_by_row_and_pairs_of_many():
    by_row = evaluate({}, X[:M], Y, pairs="rows", plan_epsilon=0.2)
    identity = np.column_stack([np.arange(M)] * 2)
    assert by_row.rows == evaluate({}, X[:M], Y, pairs=identity, plan_epsilon=0.2).rows
    assert by_row.rows[0]["rmse"] == pytest.approx(rmse(X[:M], Y), rel=1e-14)
    many = evaluate({}, X, Y, pairs=MANY_TO_MANY, plan_epsilon=0.2)
    assert many.rows[0]["recovered_pairs"] is None
    assert many.rows[0]["incorrect_mass"] > many.rows[0]["incorrect_mass_floor"] > 0


def test_an_epsilon_too_small_is_raised_for_all_rows_and_named():
    table = warned(lambda: evaluate({"shift": Shift(1.0)}, X, Y, epsilon=1e-9), "at eps")
    assert len({row["eps"] for row in table.rows}) == 1
    assert table.rows[0]["eps"] > 1e-9 * Y.var(axis=0).sum()
    assert f"{table.rows[0]['eps']:.3g}" in table.headers["sinkhorn_divergence"]
    table = warned(lambda: evaluate({}, X, Y, pairs=PAIRS, plan_epsilon=1e-12), "plan of identity")
    assert 0 <= table.rows[0]["incorrect_mass"] <= 1


class Broken:
    def transform(self, X):
        return np.full((len(X), 2), np.nan)


EVALUATION_FAULTS = {
    "no transform": (lambda: evaluate(3, X, Y), "int cannot be evaluated"),
    "a class": (lambda: evaluate(IdentityMap, X, Y), "no transform method"),
    "name taken": (lambda: evaluate({"identity": Shift(1)}, X, Y), "another name"),
    "rows": (lambda: evaluate({}, X, Y, pairs="rows"), "16 and 12 rows"),
    "word": (lambda: evaluate({}, X, Y, pairs="row"), "'rows' or None, got 'row'"),
    "pairs outside": (lambda: evaluate({}, X, Y, pairs=[[0, M], [1, 1]]), "numbered 0 to 11"),
    "train alone": (lambda: evaluate({}, X, Y, train=TRAIN_X), r"train must be \(X, Y\)"),
    "train pairs": (lambda: evaluate({}, X, Y, train=(X, Y, [[0, M]])), "numbered 0 to 11"),
    "train features": (lambda: evaluate({}, X, Y, train=(X[:, :1], Y[:, :1])), "expecting 1"),
    "truth": (lambda: evaluate({}, X, Y, truth=Y), "truth are compared row by row"),
    "not finite": (lambda: evaluate(Broken(), X, Y), r"T\(X\) of Broken contains NaN"),
    "other shape": (lambda: evaluate({"s": Shift(X[:, :1])}, X[:5], Y), "broadcast"),
    "plan_epsilon": (lambda: evaluate({}, X, Y, plan_epsilon=0), "plan_epsilon must be positive"),
    "features": (lambda: evaluate({}, X, Y[:, :1]), "X has 2 features and Y has 1"),
}


@pytest.mark.parametrize(("call", "words"), EVALUATION_FAULTS.values(), ids=EVALUATION_FAULTS)
def test_what_cannot_be_evaluated(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_estimator_that_is_not_fitted():
    with pytest.raises(NotFittedError):
        evaluate(MongeMap(), X, Y)


def test_the_switch_of_the_process_is_left_alone(euclidean):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sinkhorn_divergence(X, Y)
        map_plan_gap(euclidean)
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(()).dtype == jnp.float32


def test_what_the_docstrings_show():
    import doctest

    for module in (metrics._divergence, metrics._evaluation):
        found = doctest.testmod(module)
        assert found.attempted > 0 and found.failed == 0
