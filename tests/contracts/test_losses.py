"""What every loss and penalty must satisfy."""

from __future__ import annotations

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from mongefit._convex import ICNN
from mongefit._costs import Cost
from mongefit._flows import AutoregressiveFlow
from mongefit.errors import OptionError
from mongefit.losses import (
    Context,
    CorrectMass,
    Directional,
    Groups,
    Likelihood,
    LowRank,
    MapLoss,
    Paired,
    Pairs,
    Subset,
    Subsets,
    TargetFit,
    Weighted,
    WrongMass,
)
from mongefit.losses._paired import _robust_scale
from mongefit.penalties import CostSize, DirichletEnergy, FlowSimilarity, LogDet
from tests.conftest import random_clouds
from tests.contracts.families import LOSSES, PENALTIES, as_float32, shaken

DIM = 3
N = 10
every_loss = pytest.mark.parametrize("name", LOSSES.keys())
every_term = pytest.mark.parametrize("name", [*LOSSES, *PENALTIES])
call = eqx.filter_jit(lambda term, seen: term(seen))
# Compiled once per term, since all contexts have the same shapes.
measure = eqx.filter_jit(eqx.filter_value_and_grad(lambda pair: pair[0](pair[1])))


def build(name):
    """A term with all its arrays."""
    return (LOSSES | PENALTIES)[name](DIM)


@functools.cache
def context():
    """A context in which nothing is special; images need not be those of a map.

    The last source point is a copy of the one before it, with weight zero.
    """
    x, y, a, b = map(jnp.asarray, random_clouds(N, N, DIM, uniform=False))
    flows = [
        shaken(AutoregressiveFlow(DIM, key=jr.key(k), n_blocks=2, width=4), 0.2, seed=k)
        for k in (1, 2)
    ]
    cost = Cost(shaken(ICNN(DIM, (6,), key=jr.key(0)), 0.2), *flows)
    rng = np.random.default_rng(1)
    a = a.at[-1].set(0.0) / (1 - a[-1])
    copy = np.minimum(np.arange(N), N - 2)
    members = [np.arange(0, 3), np.arange(3, 5)], [np.arange(1, 3), np.arange(4, 8)]
    density = jnp.asarray(rng.uniform(0.5, 1.5, (N, N)))[copy]
    return Context(
        cost, x[copy], y, a, b,
        C=jnp.asarray(rng.uniform(0.5, 2.0, (N, N)))[copy],
        P=a[:, None] * b * density,
        pairs=Pairs.of(np.asarray([[0, 1], [3, 2], [4, 7]]), jnp.asarray([1.0, 2.0, 0.5])),
        subsets=Subsets(Subset.of(members[0], a), Subset.of(members[1], b)),
        forward=x[copy] + 0.5 + 0.3 * jnp.asarray(rng.normal(size=(N, DIM)))[copy],
        reverse=y - 0.5 + 0.3 * jnp.asarray(rng.normal(size=(N, DIM))),
        log_density=jnp.log(density),
    )  # fmt: skip


def swapped(seen: Context) -> Context:
    """The same with source and target exchanged."""
    pairs, subsets = seen.pairs, seen.subsets
    return Context(
        Cost(seen.cost.h, seen.cost.phi_nu, seen.cost.phi_mu),
        seen.y, seen.x, seen.b, seen.a, seen.C.T, seen.P.T,
        pairs=Pairs(pairs.target, pairs.source, pairs.weight, pairs.columns, pairs.rows),
        subsets=Subsets(subsets.target, subsets.source),
        forward=seen.reverse, reverse=seen.forward, log_density=seen.log_density.T,
    )  # fmt: skip


@every_term
def test_derivatives_agree_with_central_differences(name):
    """In everything a term may look at, and in its own arrays."""
    pair = (build(name), context())
    floating, rest = eqx.partition(pair, eqx.is_inexact_array)
    keys = iter(jr.split(jr.key(5), 200))
    direction = jax.tree.map(lambda leaf: jr.normal(next(keys), leaf.shape), floating)
    # Points, weights and what is known are data: the derivative is in what training changes.
    direction = eqx.tree_at(
        lambda pair: [
            *(pair[1].x, pair[1].y, pair[1].a, pair[1].b, pair[1].pairs.weight),
            *(pair[1].subsets.source.weight, pair[1].subsets.target.weight),
        ],
        direction,
        replace_fn=jnp.zeros_like,
    )

    def value(t):
        moved = jax.tree.map(lambda leaf, way: leaf + t * way, floating, direction)
        return measure(eqx.combine(moved, rest))[0]

    found, gradient = measure(pair)
    products = jax.tree.map(lambda slope, way: jnp.vdot(slope, way), gradient, direction)
    slope = sum(jax.tree.leaves(products))
    difference = (value(1e-5) - value(-1e-5)) / 2e-5
    assert np.isfinite(found)
    assert abs(slope) > 1e-4
    assert abs(slope - difference) <= 1e-6 * max(1, abs(slope))


@every_loss
def test_reverse_is_forward_of_the_swapped_problem(name):
    """Displacements change their sign when source and target are exchanged."""
    loss, seen = build(name), context()
    if not isinstance(loss, MapLoss):
        np.testing.assert_allclose(call(loss, seen), call(loss, swapped(seen)), rtol=1e-12)
        return
    forward, reverse = (dataclasses.replace(loss, direction=way) for way in ("forward", "reverse"))
    halves = 0.5 * (call(forward, seen) + call(reverse, seen))
    np.testing.assert_allclose(measure((loss, seen))[0], halves, rtol=1e-9)
    if isinstance(loss, Directional):
        reverse = dataclasses.replace(reverse, directions=-loss.directions)
    np.testing.assert_allclose(call(forward, seen), call(reverse, swapped(seen)), rtol=1e-9)


@pytest.mark.parametrize("name", [*LOSSES, *(name for name in PENALTIES if name != "cost size")])
def test_a_split_point_changes_nothing(name):
    """Source 8, in no pair and no group, gives half its weight to its copy.

    Not the size of the cost, whose LogSumExp counts entries and not mass.
    """
    seen = context()
    half = seen.P[-2] / 2
    split = eqx.tree_at(
        lambda c: (c.a, c.P),
        seen,
        (seen.a.at[-2:].set(seen.a[-2] / 2), seen.P.at[-2:].set(half)),
    )
    whole, halves = (measure((build(name), context))[0] for context in (seen, split))
    np.testing.assert_allclose(halves, whole, rtol=1e-8)


@every_term
def test_finite_when_nothing_moves(name):
    seen = context()
    still = eqx.tree_at(lambda c: (c.forward, c.reverse), seen, (seen.x, seen.y))
    value, gradient = measure((build(name), still))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@every_term
def test_float32_stays_float32(name):
    pair = (build(name), context())
    value = call(*as_float32(pair))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, measure(pair)[0], rtol=1e-2, atol=1e-4)


def test_paired_is_the_weighted_mean_square():
    seen = context()
    miss = seen.forward[jnp.asarray([0, 3, 4])] - seen.y[jnp.asarray([1, 2, 7])]
    expected = np.average(np.sum(np.asarray(miss) ** 2, axis=1), weights=[1.0, 2.0, 0.5])
    np.testing.assert_allclose(Paired(direction="forward")(seen), expected, rtol=1e-12)


def robust_and_scale(residual, weight, huber):
    """The robust loss by its definition, a minimum over σ on a fine grid, and the best σ."""
    sigma = np.geomspace(1e-3, 1e2, 200_001)[:, None]
    t = residual / sigma
    bent = np.where(t <= huber, t**2, 2 * huber * t - huber**2)
    values = 0.5 * np.sum(weight / np.sum(weight) * sigma * (1 + bent), axis=1)
    return np.min(values) ** 2, sigma[np.argmin(values), 0]


def missing_by(residual):
    """The context with source 0, 3 and 4 sent past their targets by given distances."""
    seen = context()
    past = seen.y[jnp.asarray([1, 2, 7])] + jnp.asarray(residual)[:, None] * jnp.eye(DIM)
    return eqx.tree_at(lambda c: c.forward, seen, seen.forward.at[jnp.asarray([0, 3, 4])].set(past))


@pytest.mark.parametrize("huber", [1.05, 1.5, 2.5])
@pytest.mark.parametrize("residual", [(1.0, 1.1, 0.9), (0.5, 0.8, 30.0), (20.0, 0.1, 30.0)])
def test_robust_pairs_minimise_over_the_scale(residual, huber):
    weight = np.array([1.0, 2.0, 0.5])
    loss = Paired(direction="forward", huber=huber)
    expected, sigma = robust_and_scale(np.array(residual), weight, huber)
    np.testing.assert_allclose(call(loss, missing_by(residual)), expected, rtol=1e-7)
    # σ is the root mean square of residuals that are cut at Mσ.
    cut = np.minimum(np.square(residual), (huber * sigma) ** 2)
    np.testing.assert_allclose(np.average(cut, weights=weight), sigma**2, rtol=1e-3)
    scaled = missing_by(7 * np.array(residual))
    np.testing.assert_allclose(call(loss, scaled), 49 * expected, rtol=1e-7)


def test_robust_pairs_are_plain_where_none_stands_out_and_bounded_where_one_does():
    plain, robust = Paired(direction="forward"), Paired(direction="forward", huber=2.0)
    alike = missing_by((1.0, 1.1, 0.9))
    np.testing.assert_allclose(call(robust, alike), call(plain, alike), rtol=1e-14)
    # One of three, with a seventh of the weight: the unit stays that of the others.
    values = [call(robust, missing_by((0.5, 0.8, far))) for far in (1e3, 1e6)]
    ratio = np.sqrt(values[1] / values[0])
    np.testing.assert_allclose(ratio, 1e3, rtol=1e-2)  # the square root is linear in the miss
    pulls = [
        measure((robust, missing_by((0.5, 0.8, far))))[1][1].forward[4, 2] / np.sqrt(value)
        for far, value in zip((1e3, 1e6), values, strict=True)
    ]
    np.testing.assert_allclose(pulls, 2 * 2.0 / 7, rtol=1e-12)


def test_robust_pairs_do_not_hide_a_failed_map():
    seen = context()
    lost = eqx.tree_at(lambda c: c.forward, seen, seen.forward.at[3].set(jnp.nan))
    assert np.isnan(call(Paired(direction="forward", huber=1.5), lost))


@pytest.mark.parametrize("huber", [1.0, 0.5, -2.0, np.inf, np.nan])
def test_robust_pairs_refuse_a_threshold_below_the_mean(huber):
    with pytest.raises(OptionError, match="huber > 1"):
        Paired(huber=huber)


def test_the_robust_scale_where_just_as_much_may_be_cut_as_is_left():
    """A quarter of the weight at a threshold of 2: cut, it would leave no σ at all."""
    square, weight = np.array([1.0, 1.0, 1.0, 1e4]), np.full(4, 0.25)
    found = _robust_scale(jnp.asarray(square), jnp.asarray(weight), 2.0)
    np.testing.assert_allclose(found**2, np.mean(square), rtol=1e-12)


def test_options_of_losses():
    with pytest.raises(TypeError):
        Paired(1.5)  # is it the direction, or the threshold?
    assert Directional(1, temperature=0.5).k == LowRank(1).rank == 1
    for wrong in (lambda: LowRank(0), lambda: Directional(0)):
        with pytest.raises(OptionError, match="at least"):
            wrong()
    for temperature in (0.0, -1.0, np.nan):
        with pytest.raises(OptionError, match="temperature > 0"):
            Directional(2, temperature=temperature)


def test_low_rank_is_the_energy_of_the_trailing_singular_values():
    seen = context()
    scaled = np.sqrt(seen.a)[:, None] * np.asarray(seen.forward - seen.x)
    values = np.linalg.svd(scaled, compute_uv=False)
    for rank in (1, 2):
        found = LowRank(rank, direction="forward")(seen)
        np.testing.assert_allclose(found, np.sum(values[rank:] ** 2), rtol=1e-10)
    with pytest.raises(OptionError, match="3 dimensions"):
        LowRank(3)(seen)


def test_directional_is_zero_along_its_directions_and_prefers_one_each():
    seen = context()
    axes = jnp.eye(DIM)[:2]
    along = seen.x + axes[jnp.arange(N) % 2]
    moved = eqx.tree_at(lambda c: c.forward, seen, along)
    loss = Directional(2, direction="forward", directions=5.0 * axes)
    # Exactly: the other direction adds e^(−1/τ) inside the logarithm.
    np.testing.assert_allclose(loss(moved), -0.1 * np.log1p(np.exp(-10)), rtol=1e-10)
    middle = Directional(2, direction="forward", directions=jnp.tile(axes.sum(0), (2, 1)))
    assert middle(moved) > loss(moved) + 0.1


def test_divergences_vanish_on_the_target_alone():
    seen = context()
    home = eqx.tree_at(lambda c: (c.forward, c.a), seen, (seen.y, seen.b))
    np.testing.assert_allclose(call(TargetFit(direction="forward"), home), 0, atol=1e-9)
    assert call(TargetFit(direction="forward"), seen) > 1e-3
    # Groups: rows 0–2 onto 1–2 and 3–4 onto 4–7; moving a free row changes nothing.
    free = eqx.tree_at(lambda c: c.forward, seen, seen.forward.at[7].add(100.0))
    loss = Groups(direction="forward")
    np.testing.assert_allclose(call(loss, free), call(loss, seen), rtol=1e-12)


def test_masses_count_what_their_formulas_say():
    seen = context()
    P = np.asarray(seen.P)
    expected = -(P[0, 1] + 2 * P[3, 2] + 0.5 * P[4, 7])
    np.testing.assert_allclose(CorrectMass()(seen), expected, rtol=1e-12)
    wrong = np.sum(P[0:3, 4:8] ** 2) + np.sum(P[3:5, 1:3] ** 2)
    np.testing.assert_allclose(WrongMass()(seen), wrong, rtol=1e-12)


def several(pairs, weight):
    """The context with other pairs."""
    table = np.asarray(pairs)
    return eqx.tree_at(lambda c: c.pairs, context(), Pairs.of(table, jnp.asarray(weight)))


def test_likelihood_of_single_pairs_is_the_mean_of_log_densities():
    seen = context()
    density = np.asarray(seen.P / (seen.a[:, None] * seen.b))
    logs = np.log([density[0, 1], density[3, 2], density[4, 7]])
    expected = -np.average(logs, weights=[1.0, 2.0, 0.5])
    for direction in ("forward", "reverse", "both"):
        found = call(Likelihood(direction=direction), seen)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_likelihood_of_several_targets_counts_the_mass_that_goes_to_one_of_them():
    seen = several([[0, 1], [0, 4], [3, 2], [0, 5]], [1.0, 3.0, 2.0, 0.0])
    density = np.asarray(jnp.exp(seen.log_density))
    both = (density[0, 1] + 3 * density[0, 4]) / 4
    expected = -(4 * np.log(both) + 2 * np.log(density[3, 2])) / 6
    found = call(Likelihood(direction="forward"), seen)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # A pair split in two, and one of weight zero however unlikely, change nothing.
    lost = eqx.tree_at(lambda c: c.log_density, seen, seen.log_density.at[0, 5].set(1e4))
    value, slopes = measure((Likelihood(), lost))
    np.testing.assert_allclose(value, call(Likelihood(), seen), rtol=1e-12)
    assert np.all(np.isfinite(slopes[1].log_density)) and slopes[1].log_density[0, 5] == 0
    # With equal shares and weights: the mass to these targets over what they have of all.
    uniform = several([[0, 1], [0, 4]], [1.0, 1.0])
    P, N_ = density / N**2, N
    expected = -np.log(N_ * P[0, [1, 4]].sum() / (2 / N_))
    found = call(Likelihood(direction="forward"), uniform)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_likelihood_is_finite_where_the_plan_is_not_seen():
    seen = context()
    far = eqx.tree_at(lambda c: c.log_density, seen, 1e5 * seen.log_density - 1e6)
    value, slopes = measure((Likelihood(), far))
    assert np.isfinite(value) and np.all(np.isfinite(slopes[1].log_density))
    assert np.abs(slopes[1].log_density).sum() > 0.9


def test_penalties_match_their_formulas():
    seen = context()
    expected = np.log(np.sum(np.exp(seen.C))) ** 2
    np.testing.assert_allclose(CostSize()(seen), expected, rtol=1e-12)
    phi_mu, phi_nu = seen.cost.phi_mu, seen.cost.phi_nu
    jacobians = [
        np.stack([jax.jacrev(lambda p, phi=phi: phi.forward(p[None])[0])(p) for p in points])
        for phi, points in ((phi_mu, seen.x), (phi_nu, seen.y))
    ]
    energy = sum(
        0.5 * w @ np.sum(J**2, axis=(1, 2))
        for w, J in zip((seen.a, seen.b), jacobians, strict=True)
    )
    np.testing.assert_allclose(DirichletEnergy()(seen), energy, rtol=1e-10)
    volume = sum(
        w @ np.linalg.slogdet(J)[1] ** 2 for w, J in zip((seen.a, seen.b), jacobians, strict=True)
    )
    np.testing.assert_allclose(LogDet()(seen), volume, rtol=1e-8)
    gaps = [np.sum((phi_mu.forward(p) - phi_nu.forward(p)) ** 2, axis=1) for p in (seen.x, seen.y)]
    np.testing.assert_allclose(
        FlowSimilarity()(seen), 0.5 * (seen.a @ gaps[0] + seen.b @ gaps[1]), rtol=1e-12
    )
    same = Cost(seen.cost.h, phi_mu, phi_mu)
    assert FlowSimilarity()(eqx.tree_at(lambda c: c.cost, seen, same)) == 0


def test_weights_multiply():
    weighted = 0.5 * (0.2 * Paired())
    assert isinstance(weighted, Weighted)
    assert weighted.weight == pytest.approx(0.1)
    assert isinstance(weighted.term, Paired)
