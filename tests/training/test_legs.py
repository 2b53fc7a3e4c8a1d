"""Several legs with one cost: padding, gradients and composed maps."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._convex import ICNN, LearnedMatrix
from mongefit._costs import LegCosts
from mongefit._duals import NewtonDual
from mongefit._flows import AffineMap, AutoregressiveFlow, KernelMap
from mongefit._inverse import NewtonInverse
from mongefit._training import (
    BatchedProblem,
    Composed,
    CostProblem,
    LegsModel,
    LegsProblem,
    Recipe,
    objective,
    trainable,
)
from mongefit._training import legs as legs_module
from mongefit.losses import (
    FunctionTerm,
    Groups,
    Likelihood,
    Paired,
    Pairs,
    Subset,
    Subsets,
    TargetFit,
)
from mongefit.penalties import CostSize, Departure
from tests.contracts.families import shaken

pytestmark = pytest.mark.usefixtures("x64")

SIZES = (9, 12, 10)


class Setting(NamedTuple):
    """What there is to train."""

    flows: str = "none"
    family: str = "icnn"
    tau: float | None = None
    losses: tuple = (Paired(),)
    groups: bool = False


def clouds(seed=0):
    rng = np.random.default_rng(seed)
    points = [rng.normal(size=(size, 2)) + np.array([k, 0]) for k, size in enumerate(SIZES)]
    weights = [rng.uniform(0.5, 1.5, size) for size in SIZES]
    return [
        (jnp.asarray(x), jnp.asarray(w / w.sum())) for x, w in zip(points, weights, strict=True)
    ]


def costs_of(setting, seed=0):
    h = ICNN(2, (6, 5), key=jr.key(seed), symmetric=False, gain=1.0)
    if setting.family == "matrix":
        h = LearnedMatrix(2, matrix=np.array([[1.0, 0.3], [0.3, 2.0]]))
    wirings = {
        "none": ((), ((None, None),) * 2),
        "affine": ((AffineMap(2),), ((0, None),) * 2),
        "kernel": ((KernelMap(np.eye(2), 1.0),), ((0, None),) * 2),
        "shared": ("F", ((0, 0),) * 2),
        "separate": ("FFF", ((0, 1), (1, 2))),
    }
    flows, wiring = wirings[setting.flows]
    made = tuple(
        AutoregressiveFlow(2, key=jr.key(k), n_blocks=2, width=4) if each == "F" else each
        for k, each in enumerate(flows)
    )
    shake = [shaken(flow, 0.1, seed=seed + k) for k, flow in enumerate(made)]
    return LegCosts(shaken(h, 0.1, seed=seed + 7), tuple(shake), wiring)


def problem_of(setting, seed=0, *, through=True, stacked=True):
    """Two legs of different sizes, and what is known of them and of their composition."""
    terms = (*setting.losses, CostSize())
    recipe = Recipe(
        [term.name for term in terms],
        weight=[1.0] * len(setting.losses) + [1e-3],
        n_losses=len(setting.losses),
        epsilon=(0.2, 0.2), learning_rate=(0.1, 0.1), max_iter=5,
    )  # fmt: skip
    made = clouds(seed)
    legs = []
    for k, ((x, a), (y, b)) in enumerate(itertools.pairwise(made)):
        subsets = None
        if setting.groups:
            members = [np.arange(3 + k), np.arange(5, 8)], [np.arange(4), np.arange(5, 9)]
            subsets = Subsets(Subset.of(members[0], a), Subset.of(members[1], b))
        table = np.stack([np.arange(2 + k), np.arange(2 + k)[::-1] + 1], axis=1)
        legs.append(
            CostProblem(
                recipe=recipe, x=x, y=y, a=a, b=b,
                pairs=Pairs.of(table, 1.0 + jnp.arange(2.0 + k)), subsets=subsets,
                dual_solver=NewtonDual(1e-12), inverse_solver=NewtonInverse(1e-12),
                tau_a=None if setting.tau is None else jnp.asarray(setting.tau),
            )
        )  # fmt: skip
    (x, a), (y, b) = made[0], made[-1]
    pairs = Pairs.of(np.array([[5, 6], [7, 2], [7, 3]]), jnp.asarray([1.0, 2.0, 1.0]))
    composed = [Composed((0, 1), x, y, a, b, pairs, None, None)] if through else []
    costs = costs_of(setting, seed)
    problem = LegsProblem.of(recipe, terms, legs, composed, costs)
    if not stacked:
        problem = LegsProblem(
            recipe, tuple(legs), ((0,), (1,)), problem.composed, problem.share,
            problem.validation_share, problem.validates_any,
        )  # fmt: skip
    return problem, LegsModel(costs, terms)


SETTINGS = [
    Setting("affine", "matrix", losses=(Paired(), Likelihood())),
    Setting("shared", "matrix", tau=0.9, losses=(Paired(), Likelihood(direction="forward"))),
    Setting("separate", groups=True, losses=(Groups(), Paired(direction="forward"))),
    Setting(tau=0.8, losses=(Likelihood(), Paired())),
    Setting("kernel", losses=(TargetFit(direction="forward"), Paired(direction="forward"))),
    Setting(),
]


def total(model, problem, warm):
    value, _ = objective(problem, model, jnp.asarray(0.2), warm, jnp.asarray(0))
    return value


@eqx.filter_jit
def value_and_slopes(problem, model):
    parameters, fixed = eqx.partition(model, trainable(model))
    warm = problem.cold_start(model)
    return jax.value_and_grad(lambda p: total(eqx.combine(p, fixed), problem, warm))(parameters)


@pytest.mark.parametrize("setting", SETTINGS[3:4], ids=str)
def test_padded_legs_are_evaluated_as_they_are_alone(setting):
    # The penalty on the size of h looks at rows evenly spread, those of padding too.
    (value, slopes), (expected, expected_slopes) = (
        value_and_slopes(without_penalty(problem), model)
        for problem, model in (problem_of(setting), problem_of(setting, stacked=False))
    )
    assert value == pytest.approx(float(expected), rel=1e-8)
    for found, other in zip(*map(jax.tree.leaves, (slopes, expected_slopes)), strict=True):
        np.testing.assert_allclose(found, other, atol=1e-7 * max(1, float(jnp.abs(other).max())))


def without_penalty(problem):
    weight = problem.recipe.weight.at[-1].set(0.0)
    return eqx.tree_at(lambda problem: problem.recipe.weight, problem, weight)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_gradients_through_legs_and_compositions(setting, campaign, monkeypatch):
    if setting in SETTINGS[1:-1] and not campaign.long:
        pytest.skip("compiles for long: see `make fuzz`")
    # With an eps that does not follow the mean cost there is nothing held constant.
    monkeypatch.setattr(
        "mongefit._training.costs.relative_eps", lambda C, a, b, epsilon: jnp.asarray(epsilon)
    )
    tried = campaign.pick(1, 25)

    @eqx.filter_jit
    def compare(problem, model, direction):
        parameters, fixed = eqx.partition(model, trainable(model))
        warm = problem.cold_start(model)

        def along(t):
            moved = jax.tree.map(lambda p, v: p + t * v, parameters, direction)
            moved = eqx.combine(moved, fixed)
            value, found = objective(problem, moved, jnp.asarray(0.2), warm, jnp.asarray(0))
            return value, found.ok

        # One after the other: compiled once.
        (_, ahead, behind), solved = jax.lax.map(along, jnp.asarray([0.0, 1e-5, -1e-5]))
        slopes = jax.grad(lambda p: total(eqx.combine(p, fixed), problem, warm))(parameters)
        slope = sum(
            jnp.vdot(one, way)
            for one, way in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True)
        )
        return slope, (ahead - behind) / 2e-5, solved[0]

    compared = 0
    for seed in range(tried):
        problem, model = problem_of(setting, seed)
        parameters = eqx.filter(model, trainable(model))
        rng = np.random.default_rng(seed)
        direction = jax.tree.map(lambda leaf, rng=rng: rng.normal(size=leaf.shape), parameters)
        slope, expected, solved = compare(problem, model, direction)
        if solved:
            assert abs(slope - expected) <= 1e-6 * max(1, abs(float(expected)))
            compared += 1
    assert compared >= 0.9 * tried
    campaign.count("gradients through legs and compositions", compared)


def test_every_pair_counts_the_same_wherever_it_is_known():
    problem, _ = problem_of(Setting())
    np.testing.assert_allclose(problem.share[0], np.array([3.0, 6.0, 4.0]) / 13)
    np.testing.assert_allclose(problem.share[1], [0.5, 0.5, 0.0])


def test_legs_of_which_nothing_is_known_are_not_evaluated():
    problem, model = problem_of(Setting(), stacked=False, through=False)
    first, second = problem.parts
    blank = eqx.tree_at(lambda leg: leg.pairs, second, None, is_leaf=lambda leaf: leaf is None)
    costs = model.costs
    alone = LegsProblem.of(problem.recipe, model.terms, [first, blank], [], costs)
    assert alone.members == ((0,),)
    # A composed map needs the legs that it takes.
    (x, a), (y, b) = clouds()[0], clouds()[-1]
    pairs = Pairs.of(np.array([[5, 6]]), jnp.ones(1))
    through = [Composed((0, 1), x, y, a, b, pairs, None, None)]
    both = LegsProblem.of(problem.recipe, model.terms, [first, blank], through, costs)
    assert sorted(sum(both.members, ())) == [0, 1]


def test_legs_of_very_different_sizes_have_shapes_of_their_own(monkeypatch):
    problem, model = problem_of(Setting(), stacked=False, through=False)
    together = LegsProblem.of(problem.recipe, model.terms, problem.parts, [], model.costs)
    assert len(together.parts) == 1
    monkeypatch.setattr(legs_module, "MOST_PADDING", 1.01)
    apart = LegsProblem.of(problem.recipe, model.terms, problem.parts, [], model.costs)
    assert len(apart.parts) == 2


def test_legs_are_not_padded_where_a_loss_may_not_weigh_points():
    problem, model = problem_of(Setting(), stacked=False, through=False)

    def own(context):
        return jnp.mean((context.forward - context.x) ** 2)

    for term in (FunctionTerm(own), Departure()):
        terms = (*model.terms, term)
        apart = LegsProblem.of(problem.recipe, terms, problem.parts, [], model.costs)
        assert len(apart.parts) == 2


def test_legs_in_batches_compose():
    problem, model = problem_of(Setting(family="matrix"), stacked=False)
    legs = [BatchedProblem.of(leg, 8, seed=0) for leg in problem.parts]
    batched = LegsProblem.of(problem.recipe, model.terms, legs, problem.composed, model.costs)
    assert batched.noisy and len(batched.parts) == 2
    value, slopes = value_and_slopes(batched, model)
    assert np.isfinite(value) and all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))
