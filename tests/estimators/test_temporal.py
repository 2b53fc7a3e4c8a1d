"""TemporalMap: several legs with one cost, alone and composed."""

from __future__ import annotations

import doctest
import importlib
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

from mongefit import MongeMap, TemporalMap, load
from mongefit._cli import cli
from mongefit._estimators.outcomes import chain_of
from mongefit._fitting.chains import mean_over
from mongefit.errors import DataError, OptionError
from mongefit.losses import Likelihood
from mongefit.metrics import energy_score, rmse
from mongefit.model_selection import cross_validate, growth_of_clones, leave_time_out

N = 24
FAST = {"cost": "matrix", "epsilon": 0.05, "max_iter": 10, "validation_fraction": 0.0}
SCALE = np.diag(np.sqrt([1.0, 12.0]))
TURNS = [np.array([[1.2, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.6], [-0.6, 0.9]])]


def sample(n=N, seed=0):
    """The same points at three times, under a cost that is not squared Euclidean."""
    clouds = [np.random.default_rng(seed).normal(size=(n, 2))]
    for turn in TURNS:
        clouds.append(clouds[-1] @ (np.linalg.inv(SCALE) @ turn @ SCALE).T)
    return clouds


def rows(count, start=0):
    return [[i, i] for i in range(start, start + count)]


@pytest.fixture(scope="module")
def fitted():
    clouds = sample()
    pairs = {(2, 4): rows(6), (4, 6): rows(4), (2, 6): rows(2, 8)}
    return TemporalMap(**FAST).fit(clouds, [2, 4, 6], pairs=pairs)


@pytest.fixture(scope="module")
def grown():
    """Three times, of different sizes, where mass may die and grow."""
    rng = np.random.default_rng(0)
    clouds = [rng.normal(0.5 * k, size=(size, 2)) for k, size in enumerate((20, 26, 23))]
    model = TemporalMap(cost="sqeuclidean", epsilon=0.1, tau_a=0.9, tau_b=0.8)
    return model.fit(clouds, [0, 1, 3])


def test_one_leg_is_a_monge_map_to_the_bit():
    X, Y, _ = sample()
    one = MongeMap(**FAST).fit(X, Y, pairs=rows(6))
    legs = TemporalMap(**FAST).fit([X, Y], pairs={(0, 1): rows(6)})
    np.testing.assert_array_equal(legs.history_["loss"], one.history_["loss"])
    np.testing.assert_array_equal(legs.transform(X), one.transform(X))
    np.testing.assert_array_equal(legs.legs_[0, 1].inverse_transform(Y), one.inverse_transform(Y))


def test_knowledge_of_one_leg_helps_the_other():
    clouds, new = sample(60), sample(60, seed=1)
    options = FAST | {"max_iter": 60, "epsilon": 0.03}
    first, second = (
        TemporalMap(**options).fit(clouds, pairs={leg: rows(20)}) for leg in ((0, 1), (1, 2))
    )
    euclidean = TemporalMap(cost="sqeuclidean", epsilon=0.03).fit(clouds)
    errors = [rmse(model.transform(new[1], 1, 2), new[2]) for model in (first, second, euclidean)]
    assert errors[0] <= 1.3 * errors[1] and errors[0] < 0.7 * errors[2]


def test_knowledge_of_the_ends_trains_the_composed_map():
    clouds, new = sample(60), sample(60, seed=1)
    options = FAST | {"max_iter": 60, "epsilon": 0.03}
    model = TemporalMap(**options).fit(clouds, pairs={(0, 2): rows(20)})
    euclidean = TemporalMap(cost="sqeuclidean", epsilon=0.03).fit(clouds)
    assert -model.score(new[0], new[2]) < -0.9 * euclidean.score(new[0], new[2])
    assert model.history_["loss"][-1] < model.history_["loss"][0]


def test_maps_compose_there_and_back(fitted):
    X, Y, Z = sample()
    there = fitted.transform(X, 2, 4)
    np.testing.assert_allclose(fitted.transform(there, 4, 6), fitted.transform(X), atol=1e-12)
    np.testing.assert_array_equal(fitted.transform(Z, 6, 2), fitted.inverse_transform(Z))
    np.testing.assert_array_equal(fitted.transform(Y, 4, 4), Y)
    assert fitted.between(2, 6).score(X, Z) == fitted.score(X, Z)
    assert energy_score(fitted.between(2, 6), X, Z) < 3
    assert energy_score(fitted.between(2, 4), X, Y) == pytest.approx(
        energy_score(fitted.legs_[2, 4], X, Y)
    )


def test_interpolation_goes_from_points_to_their_images(fitted):
    X, _, Z = sample()
    np.testing.assert_array_equal(fitted.interpolate(X, at=2), X)
    np.testing.assert_allclose(fitted.interpolate(X, at=4), fitted.transform(X, 2, 4))
    np.testing.assert_allclose(fitted.interpolate(X, at=6), fitted.transform(X, 2, 6))
    middle = 0.5 * (fitted.transform(X, 2, 4) + fitted.transform(X, 2, 6))
    np.testing.assert_allclose(fitted.interpolate(X, at=5), middle)
    back = fitted.interpolate(Z, 6, 2, at=5)
    np.testing.assert_allclose(back, 0.5 * (Z + fitted.transform(Z, 6, 4)))


def test_with_a_shared_flow_points_move_along_its_lines():
    X, Y, _ = sample()
    model = TemporalMap(cost="sqeuclidean", diffeo="shared", epsilon=0.1, max_iter=0)
    model.fit([X, Y], [0, 1], pairs={(0, 1): rows(4)})
    half = model.interpolate(X, at=0.5)
    cost = model.legs_[0, 1].map_.cost
    units = model.units_
    latent = [
        np.asarray(cost.latent_source(units.into(each)))
        for each in (X, half, model.transform(X, 0, 1))
    ]
    np.testing.assert_allclose(latent[1], 0.5 * (latent[0] + latent[2]), atol=1e-6)


def test_plans_compose(fitted):
    X, _, Z = sample()
    first, second = fitted.coupling(2, 4), fitted.coupling(4, 6)
    P = fitted.coupling(2, 6)
    np.testing.assert_allclose(P, first @ (N * second), atol=1e-12)
    np.testing.assert_allclose(P.sum(1), 1 / N, atol=1e-8)
    way = fitted.between(2, 6)
    np.testing.assert_allclose(way.conditional(X).toarray(), N * P, atol=1e-7)
    back = fitted.conditional(Z, 2, 6, reverse=True).toarray()
    np.testing.assert_allclose(back, N * P.T, atol=1e-6)
    np.testing.assert_allclose(way.push(np.full(N, 1 / N)), P.sum(0), atol=1e-9)
    np.testing.assert_allclose(way.pull(np.full(N, 1 / N)), P.sum(1), atol=1e-6)
    values = np.random.default_rng(0).normal(size=N)
    np.testing.assert_allclose(way.pull(values, mean=True), N * P @ values, atol=1e-6)
    np.testing.assert_allclose(way.push(values, mean=True), N * P.T @ values, atol=1e-6)
    assert np.all(way.growth_ == 1) and np.all(fitted.growth(X) == 1)
    assert way.sample(X, 3, random_state=0).shape == (N, 3, 2)
    assert np.all(way.entropy(X) <= np.log(N))


def test_plans_compose_where_mass_grows_and_dies(grown):
    first, second = grown.coupling(0, 1), grown.coupling(1, 3)
    middle = first.shape[1]
    P = grown.coupling(0, 3)
    np.testing.assert_allclose(P, first @ (middle * second), atol=1e-10)
    way = grown.between(0, 3)
    X, Z = (leg_points(grown, key, end) for key, end in (((0, 1), "x"), ((1, 3), "y")))
    np.testing.assert_allclose(way.growth(X), P.sum(1) * len(P), rtol=1e-7)
    np.testing.assert_allclose(way.growth_, way.growth(X), rtol=1e-9)
    np.testing.assert_allclose(
        way.conditional(X, drop=0).toarray(), P / P.sum(1, keepdims=True), atol=1e-8
    )
    back = way.conditional(Z, reverse=True, drop=0).toarray()
    np.testing.assert_allclose(back, (P / P.sum(0)).T, atol=1e-8)
    values = np.random.default_rng(0).normal(size=len(Z))
    np.testing.assert_allclose(way.pull(values, mean=True), P @ values / P.sum(1), atol=1e-8)
    chain, new = chain_of(way), X[:5] + 0.1
    expected = way.conditional(new, drop=0) @ values[:, None]
    found = mean_over(chain, values[:, None], points=new)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    new, before = Z[:5] + 0.1, np.arange(len(X), dtype=float)[:, None]
    expected = way.conditional(new, reverse=True, drop=0) @ before
    found = mean_over(chain, before, reverse=True, points=new)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    mass = np.random.default_rng(1).uniform(size=len(X))
    np.testing.assert_allclose(way.push(mass), P.T @ (mass * len(X)), atol=1e-9)
    np.testing.assert_allclose(
        way.push(mass - 0.5, mean=True), P.T @ (mass - 0.5) / P.sum(0), atol=1e-8
    )
    mass = np.random.default_rng(1).uniform(size=len(Z))
    np.testing.assert_allclose(way.pull(mass), P @ (mass * len(Z)), atol=1e-9)


def leg_points(model, key, end):
    fitted = model.legs_[key].map_
    return np.asarray(fitted.units.out_of(getattr(fitted, end)))


def test_conditions_stand_side_by_side():
    X, Y, Z = sample()
    legs = {"one": (X, Y), "other": (Y[:20], Z)}
    model = TemporalMap(**FAST).fit(legs=legs, pairs={"one": rows(6)})
    assert list(model.legs_) == ["one", "other"] and model.times_ == ()
    assert model.legs_["other"].transform(Y).shape == Y.shape
    costs = [leg.cost_matrix(X, Y) for leg in model.legs_.values()]
    np.testing.assert_allclose(*costs)
    with pytest.raises(OptionError, match="conditions"):
        model.transform(X)
    separate = TemporalMap(**FAST | {"diffeo": "separate", "max_iter": 1})
    separate.fit(legs=legs, pairs={"one": rows(6)})
    assert separate.legs_["one"].cost_matrix(X, Y).shape == (N, N)


@pytest.mark.parametrize("diffeo", ["affine", "shared", "separate"])
def test_flows_are_of_all_legs_or_of_each_time(diffeo):
    clouds = sample()
    model = TemporalMap(**FAST | {"diffeo": diffeo, "max_iter": 1, "many_to_many": True})
    # Maps over both legs take long to compile with networks as flows.
    more = {"affine": {(0, 2): rows(3)}, "separate": {(1, 2): rows(3)}, "shared": {}}[diffeo]
    model.fit(clouds, pairs={(0, 1): rows(4)} | more)
    first, second = (leg.map_.cost for leg in model.legs_.values())
    x = np.zeros((1, 2))
    if diffeo == "separate":
        # The flow of the time at which the legs meet is that of both.
        np.testing.assert_allclose(first.latent_target(x), second.latent_source(x))
        assert not np.allclose(first.latent_source(x), second.latent_target(x))
    else:
        np.testing.assert_allclose(first.latent_source(x), second.latent_source(x))


def test_weights_batches_starts_and_other_losses():
    clouds = sample()
    options = FAST | {"max_iter": 2, "n_init": 2, "batch_size": 12, "cost": "icnn"}
    model = TemporalMap(**options, hidden_layer_sizes=(4,), losses=[Likelihood()])
    weight = np.linspace(1, 2, N)
    model.fit(
        clouds,
        ["a", "b", "c"],
        pairs={("a", "b"): rows(4), ("a", "c"): [[4, 4], [4, 5]]},
        groups={("b", "c"): ([0] * 5 + [-1] * (N - 5), [0] * 6 + [-1] * (N - 6))},
        source_weight={("a", "b"): weight / weight.sum()},
    )
    assert len(model.scores_) == 2 and np.all(np.isfinite(model.history_["loss"]))
    np.testing.assert_allclose(model.coupling("a", "b").sum(1), weight / weight.sum(), atol=1e-6)
    with pytest.raises(OptionError, match="numbers"):
        model.interpolate(clouds[0], at=1)


def test_early_stopping_holds_out_clones_of_all_legs():
    clouds = sample(60)
    model = TemporalMap(**FAST | {"validation_fraction": 0.2})
    model.fit(clouds, pairs={(0, 1): rows(30), (1, 2): rows(10, 30), (0, 2): rows(5, 45)})
    assert len(model.history_["validation_rmse"]) == 11
    assert np.all(np.isfinite(model.history_["validation_rmse"]))


def test_files_keep_every_leg(fitted, grown, tmp_path):
    X = sample()[0]
    for k, model in enumerate((fitted, grown)):
        model.save(tmp_path / f"{k}.mongefit")
        read = load(tmp_path / f"{k}.mongefit")
        assert read.times_ == model.times_ and list(read.legs_) == list(model.legs_)
        np.testing.assert_array_equal(read.transform(X), model.transform(X))
        np.testing.assert_array_equal(read.coupling(), model.coupling())
        assert read.get_params()["epsilon"] == model.epsilon
    legs = TemporalMap(cost="sqeuclidean", epsilon=0.1).fit(legs={"a": (X, X + 1)})
    legs.save(tmp_path / "legs.mongefit")
    assert list(load(tmp_path / "legs.mongefit").legs_) == ["a"]
    for name, leg in (("0", "leg 2 to 4"), ("legs", "leg a")):
        said = CliRunner().invoke(cli, ["info", str(tmp_path / f"{name}.mongefit"), "--cost"])
        assert said.exit_code == 0 and leg in said.output and "curvature" in said.output


def test_a_pickle_keeps_every_bit(fitted):
    X = sample()[0]
    read = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    np.testing.assert_array_equal(read.transform(X), fitted.transform(X))
    assert read.units_.scale.dtype == fitted.units_.scale.dtype == np.float64


def test_held_out_clones_over_legs():
    clouds = sample()
    pairs = {(0, 1): rows(12), (0, 2): rows(6)}
    found = cross_validate(TemporalMap(**FAST | {"max_iter": 2}), clouds, None, pairs=pairs)
    names = [row["name"] for row in found.table.rows]
    assert names[:4] == ["learned", "each leg alone", "target mean", "ridge on pairs"]
    assert set(found.table.headers) == {"name", "(0, 1)", "(0, 2)"}
    assert len(found.squared_errors["learned"]) == len(found.folds) == 18
    # Points 0 to 5 are in pairs of both: one clone each.
    np.testing.assert_array_equal(found.folds[:6], found.folds[12:])
    assert found.difference("target mean").mean < 0


def test_a_time_left_out():
    clouds = [sample()[0] + [k, 0] for k in range(3)]
    model = TemporalMap(cost="sqeuclidean", epsilon=0.01)
    table = leave_time_out(model, clouds, [0, 1, 2], time=1, pairs={(0, 1): rows(3)})
    found = {row["name"]: row["divergence"] for row in table.rows}
    assert found["interpolation"] < 0.1 < found["cells of 0"]
    with pytest.raises(OptionError, match="before and after"):
        leave_time_out(model, clouds, [0, 1, 2], time=2)


def test_growth_against_the_sizes_of_clones():
    growth = [0.5, 0.5, 2.0, 1.0]
    source = ["a", "a", "b", "c"]
    table = growth_of_clones(growth, source, ["a", "b", "b", "b", "c", "c", None])
    assert [row["ratio"] for row in table.rows] == [0.5, 3.0, 2.0]
    assert "1" in table.notes[0]
    with pytest.raises(DataError, match="source_clones"):
        growth_of_clones(growth, source[:2], source)
    with pytest.raises(DataError, match="clone"):
        growth_of_clones([1.0], [None], source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs clouds"),
        ({"clouds": sample()[:1]}, "two clouds"),
        ({"clouds": sample(), "times": [0, 1]}, "3 clouds and 2 times"),
        ({"clouds": sample(), "times": [0, 2, 1]}, "increase"),
        ({"clouds": sample(), "times": [0, 1, 1]}, "differ"),
        ({"clouds": sample(), "times": [0, 1, np.nan]}, "finite"),
        ({"clouds": sample(), "times": [0, 1, None]}, "numbers or texts"),
        ({"clouds": sample(), "legs": {"a": sample()[:2]}}, "not both"),
        ({"legs": {}}, "dictionary"),
        ({"legs": {"a": sample()}}, "pair: its source"),
        ({"clouds": sample(), "pairs": rows(3)}, "dictionary by leg"),
        ({"clouds": sample(), "pairs": {(0, 3): rows(3)}}, r"no such leg.*Did you mean"),
        ({"clouds": sample(), "source_weight": {(0, 2): np.ones(N) / N}}, "no such leg"),
        ({"clouds": sample(), "pairs": {(0, 1): [[0, 99]]}}, r"Leg \(0, 1\): .*99"),
        ({"clouds": [*sample()[:2], np.zeros((4, 3))], "pairs": {(0, 1): rows(3)}}, "Leg"),
        ({"clouds": [*sample()[:2], [[np.nan, 0.0]]], "pairs": {(0, 1): rows(3)}}, "Leg.*NaN"),
        (
            {"clouds": sample(), "pairs": {(0, 1): rows(3), (1, 2): rows(3)},
             "clones": {(0, 1): [0, 1, 2]}},
            "every leg with pairs, or for none",
        ),
        ({"clouds": sample(), "clones": {(0, 1): [0]}}, "without pairs"),
    ],
)  # fmt: skip
def test_faults_are_named(arguments, message):
    with pytest.raises(DataError, match=message):
        TemporalMap(**FAST).fit(**arguments)


def test_faults_of_queries_are_named(fitted):
    X = sample()[0]
    with pytest.raises(OptionError, match="no time 3"):
        fitted.transform(X, 2, 3)
    with pytest.raises(OptionError, match="does not come after"):
        fitted.conditional(X, 6, 2)
    with pytest.raises(OptionError, match="from 2 to 4"):
        fitted.interpolate(X, 2, 4, at=5)
    with pytest.raises(ValueError, match="features"):
        fitted.transform(X[:, :1])


@pytest.mark.parametrize("module", ["_estimators.temporal", "model_selection._legs"])
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"mongefit.{module}"))
    assert found.attempted > 5 and found.failed == 0


def test_training_that_was_cut_off_goes_on_to_the_same_bits(tmp_path):
    clouds, pairs = sample(), {(0, 1): rows(6), (1, 2): rows(3, 8)}
    options = FAST | {"cost": "icnn", "hidden_layer_sizes": (4,), "max_iter": 25}
    whole = TemporalMap(**options).fit(clouds, pairs=pairs)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TemporalMap(**options).fit(clouds, pairs=pairs, checkpoint=tmp_path / "c", callback=stop)
    again = TemporalMap(**options).fit(clouds, pairs=pairs, checkpoint=tmp_path / "c", resume=True)
    np.testing.assert_array_equal(again.history_["loss"], whole.history_["loss"])
    np.testing.assert_array_equal(again.transform(clouds[0]), whole.transform(clouds[0]))
