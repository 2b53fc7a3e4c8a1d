"""Training: what a step applies, what it refuses, and what a run returns."""

from __future__ import annotations

import dataclasses
from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._convex import ICNN, SquaredEuclidean
from mongefit._costs import Cost
from mongefit._flows import AutoregressiveFlow
from mongefit._registry import NonTrainable
from mongefit._training import CostProblem, Info, Model, Recipe, run, train
from mongefit._training.costs import extrapolate
from mongefit._training.problem import Schedule
from mongefit._training.state import initial_state
from mongefit._training.step import step
from mongefit.errors import TrainingError
from mongefit.losses import Paired, Pairs, Term
from mongefit.penalties import CostSize
from tests.conftest import random_clouds

pytestmark = pytest.mark.usefixtures("x64")


def problem(max_iter, *, k=4, rate=0.05, epsilon=(0.1, 0.05)):
    x, y, a, b = map(jnp.asarray, random_clouds(12, 12, uniform=False))
    recipe = Recipe(
        ["Paired", "penalty"], weight=[1.0, 1e-7], n_losses=1, epsilon=epsilon,
        learning_rate=(rate, rate), diffeo_learning_rate=(0.01, 0.01), max_iter=max_iter,
    )  # fmt: skip
    pairs = Pairs.of(np.stack([np.arange(k)] * 2, axis=1), jnp.ones(k))
    return CostProblem(recipe=recipe, x=x, y=y, a=a, b=b, pairs=pairs, subsets=None)


def model(cost=None, penalty=None):
    cost = Cost(ICNN(2, (8, 6), key=jr.key(0))) if cost is None else cost
    return Model(cost, (Paired(), CostSize() if penalty is None else penalty))


def alone(problem, model):
    (found,) = train(problem, [model])
    return found


class Cliff(Term):
    """Finite down to a mean cost, NaN below it."""

    limit: NonTrainable[jax.Array]

    def __call__(self, context):
        size = jnp.mean(context.C)
        return jnp.where(size < self.limit.tree, jnp.nan, size)


class Poison(Term):
    """A loss that is finite and has a gradient that is not."""

    def __call__(self, context):
        return jnp.sqrt(0.0 * jnp.sum(context.C))


def is_finite(tree):
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


def test_the_loss_falls_and_history_describes_every_update():
    best, _, history, _ = alone(problem(25), model())
    assert history["loss"][-1] < 0.97 * history["loss"][0]
    assert np.array_equal(history["step"], np.arange(26))
    assert np.all(history["applied"])
    assert history["epsilon"][0] == pytest.approx(0.1)
    assert history["epsilon"][-1] == pytest.approx(0.05)
    # The last entry is the loss of what would be returned, had no earlier one been better.
    assert is_finite(eqx.filter(best, eqx.is_inexact_array))
    np.testing.assert_array_equal(history["losses"][:, 0], history["loss"])


def test_the_best_of_the_last_tenth_is_returned():
    """Not the last, nor an earlier one: at a high rate the objective falls and rises."""
    fast = {"rate": 0.3, "epsilon": (0.1, 0.1)}
    found = alone(problem(30, **fast), model())
    path = found.history["objective"]
    best = 27 + int(np.argmin(path[27:]))
    assert best < 30 and np.argmin(path) < 27
    assert found.objective == path[best]
    again = alone(problem(0, **fast), found.model).history["objective"]
    np.testing.assert_allclose(again, path[best : best + 1], rtol=1e-9)


@pytest.mark.parametrize(("lost", "expected"), [((), 2.0), ((9, 10), 3.0), (range(11), np.inf)])
def test_the_objective_of_a_run_that_ends_badly_is_that_of_its_last_good_step(lost, expected):
    objective = np.array([9.0, 1.0, 5, 5, 5, 5, 5, 5, 3.0, 2.0, 4.0])
    applied = ~np.isin(np.arange(11), list(lost))
    nothing = {field.name: np.zeros(11) for field in fields(Info)}
    nothing |= {name: np.zeros(11, int) for name in ("dual_iterations", "inverse_iterations")}
    infos = Info(
        **nothing
        | {"step": np.arange(11), "objective": objective, "applied": applied, "solved": applied}
        | {"terms": np.zeros((11, 2))}
    )
    assert run._final_objective(infos, 10, mean=False) == expected


def test_schedules_stay_where_they_end():
    schedule = Schedule(0.4, 0.1)
    found = [schedule(jnp.asarray(t)) for t in (-1.0, 0.0, 0.5, 1.0, 2.0)]
    np.testing.assert_allclose(found, [0.4, 0.4, 0.2, 0.1, 0.1])


def test_the_same_start_gives_the_same_bits():
    runs = [alone(problem(12), model()).history["loss"] for _ in range(2)]
    np.testing.assert_array_equal(*runs)


def test_each_of_several_runs_is_what_it_is_alone():
    starts = [model(Cost(ICNN(2, (8, 6), key=jr.key(seed)))) for seed in range(3)]
    together = train(problem(12), starts)
    for start, found in zip(starts, together, strict=True):
        single = alone(problem(12), start)
        np.testing.assert_allclose(found.history["loss"], single.history["loss"], rtol=1e-10)
        assert found.objective == pytest.approx(single.objective, rel=1e-9)
    losses = [found.history["loss"][-1] for found in together]
    assert len(set(losses)) == 3


def test_a_run_that_gives_up_does_not_stop_the_others(monkeypatch):
    limit = jnp.mean(model().cost.matrix(problem(40).x, problem(40).y))
    # One start is below its cliff from the beginning, the other far above it.
    starts = [model(penalty=Cliff(NonTrainable(scale * limit))) for scale in (2.0, 1e-3)]
    monkeypatch.setattr(run, "MAX_FAILURES", 5)
    fallen, good = train(problem(40), starts)
    assert "Training stopped at step 9" in str(fallen.failure) and fallen.objective == np.inf
    assert good.failure is None and np.isfinite(good.objective)
    assert not np.any(fallen.history["applied"]) and np.all(good.history["applied"])
    assert is_finite(eqx.filter(good.model, eqx.is_inexact_array))


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_step_leaves_to_the_next_one(fails):
    """After a failure: half the way back, epsilon held up, and the failure counted."""
    trained = problem(40)
    state = initial_state(trained, model(penalty=Poison() if fails else None))
    good = state.parameters + 0.01
    state = dataclasses.replace(
        state, good=good, epsilon_floor=jnp.asarray(0.2), failures=jnp.asarray(3)
    )
    new, info = eqx.filter_jit(step)(trained, state)
    assert info.applied == (not fails) and info.epsilon == 0.2 and new.step == 1
    if fails:
        np.testing.assert_allclose(new.parameters, state.parameters + 0.005, atol=1e-12)
        np.testing.assert_array_equal(new.good, good)
        assert new.failures == 4 and new.epsilon_floor == pytest.approx(0.25)
    else:
        moved = np.abs(new.parameters - state.parameters)
        assert np.median(moved) == pytest.approx(0.05, rel=1e-3)  # the rate: Adam's first step
        assert np.max(moved) <= 0.05
        np.testing.assert_array_equal(new.good, state.parameters)
        assert new.failures == 0 and new.epsilon_floor == pytest.approx(0.19)


def test_a_poisoned_gradient_is_never_applied(monkeypatch):
    seen = []
    monkeypatch.setattr(run, "MAX_FAILURES", 20)
    with pytest.raises(TrainingError, match=r"step 19: .*gradient .*not finite.*learning_rate"):
        train(problem(200), [model(penalty=Poison())], on_interval=seen.append)
    assert not np.any(np.concatenate([infos.applied for infos in seen]))


def test_training_backs_off_from_a_cliff_and_goes_on():
    start, plain = model().cost, problem(60, rate=0.3)
    limit = 0.95 * jnp.mean(start.matrix(plain.x, plain.y))
    best, _, history, _ = alone(plain, model(start, Cliff(NonTrainable(limit))))
    applied = history["applied"]
    assert not np.all(applied)
    assert np.sum(applied) > 20
    assert is_finite(eqx.filter(best, eqx.is_inexact_array))
    assert np.min(history["loss"][applied]) < history["loss"][0]
    # Never two dozen failures in a row: the way back is short.
    assert "0" * 24 not in "".join("1" if ok else "0" for ok in applied)


def test_a_fixed_h_stays_while_its_flows_learn():
    flow = AutoregressiveFlow(2, key=jr.key(1), n_blocks=2, width=4)
    best, _, history, _ = alone(problem(15), model(Cost(SquaredEuclidean(), flow, flow)))
    cost = best.cost
    assert cost.shared and isinstance(cost.h, SquaredEuclidean)
    assert history["loss"][-1] < history["loss"][0]
    moved = cost.phi_mu.forward(jnp.ones((1, 2)))
    assert not np.array_equal(moved, np.ones((1, 2)))


def test_new_flows_and_new_rates_compile_nothing_new():
    """What jit compares must be equal for two flows and for two settings of the numbers."""

    def compared(problem_, cost):
        return eqx.partition((problem_, cost), eqx.is_array)[1]

    costs = [
        Cost(ICNN(2, (8, 6), key=key), *(AutoregressiveFlow(2, key=k) for k in jr.split(key)))
        for key in jr.split(jr.key(0))
    ]
    assert compared(problem(10), costs[0]) == compared(problem(99, rate=0.2), costs[1])


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_solutions_go_on_along_a_polynomial(degree):
    coefficients = jr.normal(jr.key(0), (degree + 1, 3, 2))

    def at(t):
        return sum(c * t**k for k, c in enumerate(coefficients))

    kept = jnp.stack([at(t) for t in (0.0, -1.0, -2.0, -3.0)])
    np.testing.assert_allclose(extrapolate(kept), at(1.0), rtol=1e-12, atol=1e-12)


def test_solutions_that_turn_at_every_step_stay_where_they_are():
    kept = jnp.asarray([1.0, -1.1, 0.9, -1.0])[:, None]
    np.testing.assert_array_equal(extrapolate(kept), kept[0])


@pytest.mark.parametrize(("known", "expected"), [(0, np.nan), (1, 1.0), (2, 1.0), (3, 1.5)])
def test_solutions_go_on_as_far_as_they_are_known(known, expected):
    kept = jnp.where(jnp.arange(4) < known, jnp.asarray([1.0, 0.5, 0.1, 0.0]), jnp.nan)
    np.testing.assert_allclose(extrapolate(kept[:, None]), [expected], rtol=1e-12)


@pytest.mark.parametrize(
    ("residual", "blamed"), [(np.nan, "inverse gradient"), (0.0, "dual solve")]
)
def test_the_solve_that_failed_is_blamed(residual, blamed):
    last = {field.name: np.zeros(1) for field in fields(Info)}
    last |= {name: np.zeros(1, int) for name in ("step", "dual_iterations", "inverse_iterations")}
    last |= {"solved": np.zeros(1, bool), "applied": np.zeros(1, bool), "terms": np.zeros((1, 2))}
    infos = Info(**last | {"inverse_residual": np.array([residual]), "dual_error": np.ones(1)})
    assert blamed in str(run._explain(infos, problem(9)))


def test_a_term_that_is_not_finite_is_named():
    with pytest.raises(TrainingError, match=r"penalty is nan, though every solve converged"):
        train(problem(3), [model(penalty=Cliff(NonTrainable(jnp.asarray(jnp.inf))))])
