"""What must hold for every problem, over random ones: the oracles and invariants of the method.

`make fuzz` runs this at full length.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mongefit import MongeMap
from mongefit._convex import ICNN, Mahalanobis, PowerNorm, SquaredEuclidean
from mongefit._costs import Cost
from mongefit._duals import DualProblem, divergence
from mongefit._fitting.chains import conditional_over, growth_over, mean_over, plan_over
from mongefit._flows import AutoregressiveFlow
from mongefit._inverse import ConjugateICNN, NewtonInverse, inverse_gradient
from mongefit._transport import build_map
from tests.campaigns.problems import DIM, DIMS, SHAPES, problems, profile
from tests.contracts.families import shaken

CASES = "property cases"
seeds = st.integers(0, 2**32 - 1)
pytestmark = pytest.mark.usefixtures("x64")


def mahalanobis(rng):
    """A matrix that keeps columns of zeros apart from the others."""
    root = rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)
    return root @ root.T + 0.3 * np.eye(DIM)


FAMILIES = {
    "squared Euclidean": lambda rng: SquaredEuclidean(),
    "Mahalanobis": lambda rng: Mahalanobis(mahalanobis(rng)),
    "power 1.5": lambda rng: PowerNorm(1.5, 0.1),
    "power 3": lambda rng: PowerNorm(3.0, 0.1),
    "ICNN": lambda rng: icnn(rng, symmetric=True),
    "ICNN, asymmetric": lambda rng: icnn(rng, symmetric=False),
}


def icnn(rng, **options):
    network = ICNN(DIM, (6, 4), key=jr.key(0), gain=1.0, alpha=0.05, **options)
    return shaken(network, rng.uniform(0.0, 0.5), seed=int(rng.integers(2**31)))


@eqx.filter_jit
def solved(h, x, y, a, b, epsilon):
    """The map of a problem without flows, its plan, and where it sends both clouds."""
    made, dual = build_map(Cost(h), x, y, epsilon=epsilon, a=a, b=b)
    C = made.cost.matrix(x, y)
    forward, reverse = made.transport(x), made.transport(y, reverse=True)
    return (
        C,
        made.eps,
        dual,
        DualProblem(C, a, b, eps=made.eps).plan(dual.f, dual.g),
        forward,
        reverse,
    )


def solve(h, problem, **changed):
    data = {"x": problem.x, "y": problem.y, "a": problem.a, "b": problem.b} | changed
    # As an array: a number would be compiled in.
    found = solved(h, **data, epsilon=np.asarray(problem.epsilon))
    return jax.tree.map(np.asarray, found)


def soft_minimum(C, weight, potential, eps):
    """−eps log Σ_j weight_j exp((potential_j − C_ij)/eps), by NumPy."""
    with np.errstate(divide="ignore"):
        terms = np.log(weight) + (potential - C) / eps
    peak = terms.max(axis=1, keepdims=True)
    return -eps * (peak[:, 0] + np.log(np.exp(terms - peak).sum(axis=1)))


def said_otherwise(dual, campaign):
    """Whether a solver says that it did not converge, which it may, rarely, where it is so."""
    if dual.status == 0:
        return False
    assert dual.error > 1e-9
    campaign.count("property cases whose solve said that it did not converge")
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_and_maps(family, campaign):
    """Marginals, optimality of f and g, the entropic bound, and closed forms of the map."""

    @profile(campaign, 40, 3000)
    @given(problems())
    def check(problem):
        campaign.count(CASES)
        h, (n, m) = FAMILIES[family](problem.rng), (problem.n, problem.m)
        C, eps, dual, P, forward, reverse = solve(h, problem)
        a, b = problem.a, problem.b
        assert np.all(np.isfinite(P))
        if said_otherwise(dual, campaign):
            return
        error = np.abs(P.sum(1) - a).sum() + np.abs(P.sum(0) - b).sum()
        assert error <= 1e-9 and abs(error - dual.error) <= 1e-12
        assert np.all(P >= 0) and np.all(C >= -1e-12)
        # Each potential is the soft minimum of the other; where there is no mass too.
        size = 1e-8 * max(C.max(), 1.0)
        np.testing.assert_allclose(soft_minimum(C, b, dual.g, eps), dual.f, atol=size)
        on = b > 1e-6  # a column with hardly any mass may be off by more
        np.testing.assert_allclose(
            soft_minimum(C.T, a, dual.f, eps)[on], dual.g[on], atol=eps * 1e-2
        )
        assert abs(a @ dual.f - b @ dual.g) <= size
        # ⟨P, C⟩ + eps KL(P | ab) is the dual value: there is no gap.
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = np.nansum(np.where(P > 0, P * np.log(P / np.outer(a, b)), 0.0))
        assert abs((P * C).sum() + eps * entropy - a @ dual.f - b @ dual.g) <= size
        for found, points in ((forward, problem.x), (reverse, problem.y)):
            assert np.all(found.converged[: len(points)]) and np.all(np.isfinite(found.points))
            assert np.all(found.residual <= 1e-10)
        if m == 1:
            np.testing.assert_allclose(forward.points[:n], np.tile(problem.y[0], (n, 1)), atol=1e-8)
        if isinstance(h, SquaredEuclidean | Mahalanobis):
            mean = P[:n] @ problem.y / a[:n, None]
            np.testing.assert_allclose(forward.points[:n], mean, atol=1e-8)
            mean = P[:, :m].T @ problem.x / P[:, :m].sum(0)[:, None]
            np.testing.assert_allclose(reverse.points[:m], mean, atol=1e-8)

    check()


def permuted(problem, rng):
    rows, columns = rng.permutation(len(problem.x)), rng.permutation(len(problem.y))
    changed = {"x": problem.x[rows], "y": problem.y[columns], "a": problem.a[rows],
               "b": problem.b[columns]}  # fmt: skip
    return changed, lambda points: points[rows]


def moved(problem, rng):
    """Both clouds moved alike, along the coordinates that they have."""
    shift = np.where(np.arange(DIM) < problem.d, 10 * rng.normal(size=DIM), 0.0)
    return {"x": problem.x + shift, "y": problem.y + shift}, lambda points: points + shift


def turned(problem, rng):
    turn = np.eye(DIM)
    d = problem.d
    turn[:d, :d] = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return {"x": problem.x @ turn, "y": problem.y @ turn}, lambda points: points @ turn


def scaled(problem, rng):
    scale = np.exp(rng.uniform(-3, 3))
    return {"x": scale * problem.x, "y": scale * problem.y}, lambda points: scale * points


def mirrored(problem, rng):
    return {"x": -problem.x, "y": -problem.y}, lambda points: -points


def split(problem, rng):
    """A point in two of half the weight each, in the place of one without weight."""
    if problem.n == len(problem.x):
        return permuted(problem, rng)
    x, a = problem.x.copy(), problem.a.copy()
    x[problem.n], a[problem.n] = x[0], a[0] / 2
    a[0] /= 2
    return {"x": x, "a": a}, lambda points: np.where(
        np.arange(len(points))[:, None] == problem.n, points[:1], points
    )


EVERY = (permuted, moved, split)
SYMMETRIES = {
    "squared Euclidean": (*EVERY, turned, scaled, mirrored),
    "Mahalanobis": (*EVERY, scaled, mirrored),
    "power 3": (*EVERY, mirrored),
    "ICNN": (*EVERY, mirrored),
    "ICNN, asymmetric": EVERY,
}


@pytest.mark.parametrize("family", SYMMETRIES)
def test_symmetries(family, campaign):
    """What may be done to a problem without changing its solution."""

    @profile(campaign, 40, 2500)
    @given(problems(), st.sampled_from(SYMMETRIES[family]))
    def check(problem, change):
        campaign.count(CASES)
        h = FAMILIES[family](problem.rng)
        changed, expected = change(problem, problem.rng)
        _, _, dual, P, forward, _ = solve(h, problem)
        _, _, dual_too, Q, other, _ = solve(h, problem, **changed)
        if said_otherwise(dual, campaign) or said_otherwise(dual_too, campaign):
            return
        # Points without mass may lie between parts that exchange none, and go with either.
        on = changed.get("a", problem.a) > 1e-4
        images = expected(forward.points)[on]
        np.testing.assert_allclose(other.points[on], images, atol=1e-7 * (1 + np.abs(images).max()))
        assert abs((P**2).sum() - (Q**2).sum()) <= 1e-7 or change is split

    check()


def test_reverse_is_forward_of_the_swapped_problem(campaign):
    """T⁻¹ between x and y is T between y and x for h(−z)."""

    @profile(campaign, 40, 2500)
    @given(problems(), st.sampled_from(["squared Euclidean", "power 1.5", "ICNN"]))
    def check(problem, family):
        campaign.count(CASES)
        h = FAMILIES[family](problem.rng)
        _, _, dual, *_, reverse = solve(h, problem)
        swapped = {"x": problem.y, "y": problem.x, "a": problem.b, "b": problem.a}
        _, _, dual_too, _, forward, _ = solve(h, problem, **swapped)
        if said_otherwise(dual, campaign) or said_otherwise(dual_too, campaign):
            return
        on = problem.b > 1e-4
        np.testing.assert_allclose(forward.points[on], reverse.points[on], atol=1e-7)

    check()


CONVEX = FAMILIES | {
    "power 1.1": lambda rng: PowerNorm(1.1, 0.0),
    "conjugate ICNN": lambda rng: shaken(
        ConjugateICNN(DIM, (6,), key=jr.key(0), gain=1.0, alpha=0.05), rng.uniform(0.0, 0.5)
    ),
}


@eqx.filter_jit
def examined(h, z, w, t):
    """h and ∇h at two points, ∇h mirrored, h between them, and ∇h inverted."""
    value, gradient = h.value_and_gradient(z)
    other, slope = h.value_and_gradient(w)
    between = h.value(t * z + (1 - t) * w)
    found = inverse_gradient(h, gradient, solver=NewtonInverse())
    zero = h.value_and_gradient(jnp.zeros_like(z[:1]))
    mirrored = h.gradient(-z)
    return value, gradient, other, slope, between, found, zero, mirrored, h.hessian(z[:8])


@pytest.mark.parametrize("family", CONVEX)
def test_convex_functions(family, campaign):
    """Normalisation, convexity, strong convexity, symmetry, and (∇h)⁻¹∘∇h = id."""

    @profile(campaign, 40, 2500)
    @given(seeds, st.sampled_from(DIMS), st.sampled_from((0.01, 1.0, 10.0)))
    def check(seed, d, size):
        campaign.count(CASES)
        rng = np.random.default_rng(seed)
        h = CONVEX[family](rng)
        z, w = np.zeros((2, 32, DIM))
        z[:, :d], w[:, :d] = size * rng.normal(size=(2, 32, d))
        t = np.asarray(rng.uniform())  # a number would be compiled in
        found = jax.tree.map(np.asarray, examined(h, z, w, t))
        value, gradient, other, slope, between, inverse, zero, mirror, hessian = found
        scale = 1 + np.abs(value).max() + np.abs(other).max()
        assert np.all(np.abs(zero[0]) <= 1e-12) and np.all(np.abs(zero[1]) <= 1e-9)
        assert np.all(value >= -1e-10 * scale)
        assert np.all(between <= t * value + (1 - t) * other + 1e-10 * scale)
        # The graph lies above each of its tangents, by the strong convexity.
        gap = other - value - np.sum(gradient * (w - z), axis=1)
        least = 0.5 * h.strong_convexity * np.sum((w - z) ** 2, axis=1)
        assert np.all(gap >= least - 1e-9 * scale)
        monotone = np.sum((gradient - slope) * (z - w), axis=1)
        assert np.all(monotone >= 2 * least - 1e-9 * scale)
        assert np.all(inverse.converged)
        # Where the curvature vanishes, as of |z|³ at zero without a quadratic, z is less sure.
        np.testing.assert_allclose(inverse.z, z, atol=1e-6 * (1 + size))
        if "asymmetric" not in family:
            np.testing.assert_allclose(mirror, -gradient, atol=1e-9 * scale)
        assert np.linalg.eigvalsh(hessian).min() >= h.strong_convexity * (1 - 1e-8) - 1e-10

    check()


@eqx.filter_jit
def flown(flow, x):
    there = flow.forward(x)
    jacobian = jax.vmap(jax.jacfwd(lambda point: flow.forward(point[None])[0]))(x)
    return there, flow.inverse(there), flow.forward(flow.inverse(x)), flow.log_det(x), jacobian


@pytest.mark.parametrize("d", DIMS)
def test_flows(d, campaign):
    """Φ⁻¹∘Φ = Φ∘Φ⁻¹ = id, and the log-determinant is that of the Jacobian."""
    start = AutoregressiveFlow(d, key=jr.key(0), n_blocks=2, width=8)

    @profile(campaign, 40, 2500)
    @given(seeds, st.sampled_from((0.0, 0.1, 0.3)), st.sampled_from((0.1, 1.0, 10.0)))
    def check(seed, noise, size):
        campaign.count(CASES)
        rng = np.random.default_rng(seed)
        flow = shaken(start, noise, seed=seed % 2**31)
        x = size * rng.normal(size=(16, d))
        there, back, again, log_det, jacobian = map(np.asarray, flown(flow, x))
        if noise == 0:
            np.testing.assert_array_equal(there, x)
        scale = 1 + np.abs(x).max() + np.abs(there).max()
        np.testing.assert_allclose(back, x, atol=1e-8 * scale)
        np.testing.assert_allclose(again, x, atol=1e-8 * scale)
        np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], atol=1e-8)

    check()


@jax.jit
def diverged(x, y, a, b, eps):
    """S(x, y), S(y, x) and S(x, x)."""

    def matrix(x, y):
        return 0.5 * jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)

    def between(x, y, a, b):
        found = divergence(DualProblem(matrix(x, y), a, b, eps=eps), matrix(x, x), matrix(y, y))
        return found.value, found.converged

    return between(x, y, a, b), between(y, x, b, a), between(x, x, a, a)


def test_divergences(campaign):
    """The Sinkhorn divergence is symmetric, not negative, and zero between a cloud and itself."""

    @profile(campaign, 80, 5000)
    @given(problems(shapes=SHAPES[:1]))
    def check(problem):
        campaign.count(CASES)
        x, y, a, b = problem.x, problem.y, problem.a, problem.b
        mean = a @ (0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)) @ b
        eps = problem.epsilon * max(mean, 1e-12)
        found = diverged(x, y, a, b, eps)
        (there, one), (back, two), (itself, three) = found
        assert one and two and three
        assert there >= -1e-9 * mean
        assert abs(there - back) <= 1e-8 * (1 + mean)
        assert abs(itself) <= 1e-9 * (1 + mean)

    check()


@eqx.filter_jit
def solved_leg(x, y, a, b, epsilon, tau_a, tau_b):
    made, dual = build_map(
        Cost(SquaredEuclidean()), x, y, epsilon=epsilon, a=a, b=b, tau_a=tau_a, tau_b=tau_b
    )
    return made, dual, made.plan()


def test_plans_over_two_legs(campaign):
    """Composed plans against their formula, and a point of the middle split in two."""

    @profile(campaign, 20, 1000)
    @given(seeds, st.floats(0.02, 0.5), st.floats(0.6, 0.99), st.floats(0.6, 0.99))
    def check(seed, epsilon, tau_a, tau_b):
        rng = np.random.default_rng(seed)
        clouds = [rng.normal(size=(size, 2)) + np.array([k, 0]) for k, size in enumerate((7, 6, 5))]
        weights = [rng.dirichlet(np.full(len(points), 0.7)) for points in clouds]
        # The middle has weights of its own at the start of the second leg.
        starts = [weights[0], rng.dirichlet(np.full(6, 0.7))]

        def chain_of(middle, arriving, leaving):
            ends = (
                (clouds[0], middle, starts[0], arriving),
                (middle, clouds[2], leaving, weights[2]),
            )
            legs = [solved_leg(*end, *map(np.asarray, (epsilon, tau_a, tau_b))) for end in ends]
            if any(dual.status != 0 for _, dual, _ in legs):
                campaign.count("property cases whose solve said that it did not converge")
                return None, None
            first, second = (np.asarray(P) for _, _, P in legs)
            return [[made] for made, _, _ in legs], first @ (second / leaving[:, None])

        chain, P = chain_of(clouds[1], weights[1], starts[1])
        campaign.count(CASES)
        if chain is None:
            return
        np.testing.assert_allclose(plan_over(chain), P, atol=1e-12)
        there = conditional_over(chain, clouds[0], drop=0.0).weights.toarray()
        np.testing.assert_allclose(there * P.sum(1)[:, None], P, atol=1e-8)
        back = conditional_over(chain, clouds[2], reverse=True, drop=0.0).weights.toarray()
        np.testing.assert_allclose(back.T * P.sum(0), P, atol=1e-8)
        grown = growth_over(chain, clouds[0])
        np.testing.assert_allclose(grown * starts[0], P.sum(1), atol=1e-8)
        values = rng.normal(size=(7, 1))
        found = mean_over(chain, values, reverse=True) * P.sum(0)[:, None]
        np.testing.assert_allclose(found, P.T @ values, atol=1e-8)
        # The middle with its first point in two halves.
        halves = [np.concatenate([w[:1] / 2, w[:1] / 2, w[1:]]) for w in (weights[1], starts[1])]
        _, split = chain_of(np.concatenate([clouds[1][:1], clouds[1]]), *halves)
        if split is not None:
            np.testing.assert_allclose(split, P, atol=1e-7)

    check()


def test_units(campaign):
    """An estimator does not care for the units of its data."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 2)), rng.normal(size=(12, 2)) + 1
    estimator = MongeMap("sqeuclidean", epsilon=0.05).fit(x, y)
    expected = estimator.transform(x)

    @profile(campaign, 25, 1000)
    @given(st.floats(-18, 18), st.floats(-6, 6), seeds)
    def check(exponent, far, seed):
        campaign.count(CASES)
        scale = 10.0**exponent
        shift = scale * 10.0**far * np.random.default_rng(seed).normal(size=2)
        changed = MongeMap("sqeuclidean", epsilon=0.05)
        changed.fit(scale * x + shift, scale * y + shift)
        found = (changed.transform(scale * x + shift) - shift) / scale
        np.testing.assert_allclose(found, expected, atol=1e-8 * (1 + 10.0**far / 10))

    check()
