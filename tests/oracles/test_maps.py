"""The entropic map against closed forms, symmetries and the Gaussian case."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from mongefit._convex import ICNN, ConvexFunction, Mahalanobis, PowerNorm, SquaredEuclidean
from mongefit._costs import Cost
from mongefit._duals import NewtonDual
from mongefit._flows import AutoregressiveFlow
from mongefit._transport import EntropicMap, Units, build_map
from tests.conftest import random_clouds
from tests.contracts.families import shaken

build = eqx.filter_jit(build_map)
transport = eqx.filter_jit(EntropicMap.transport)
uniform_or_not = pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "weighted"])
TIGHT = NewtonDual(1e-12)


@functools.cache
def asymmetric_cost():
    return Cost(shaken(ICNN(2, (8, 6), key=jr.key(0), symmetric=False, gain=2.0)))


@functools.cache
def flow_cost():
    phi_mu, phi_nu = (
        shaken(AutoregressiveFlow(2, key=jr.key(k), n_blocks=2, width=8), seed=k) for k in (1, 2)
    )
    return Cost(asymmetric_cost().h, phi_mu, phi_nu)


def padded(points, weight, size):
    """The cloud with points of weight zero, so that one compiled shape serves many sizes."""
    extra = size - len(points)
    return (
        jnp.concatenate([jnp.asarray(points), jnp.full((extra, points.shape[1]), 0.3)]),
        jnp.concatenate([jnp.asarray(weight), jnp.zeros(extra)]),
    )


def fitted(cost, clouds, epsilon=0.05, units=None, sizes=(20, 20)):
    x, y, a, b = clouds
    (x, a), (y, b) = padded(x, a, sizes[0]), padded(y, b, sizes[1])
    entropic_map, dual = build(
        cost, x, y, a=a, b=b,
        epsilon=jnp.asarray(epsilon),
        units=Units.none(2) if units is None else units,
        dual_solver=TIGHT,
    )  # fmt: skip
    assert dual.converged
    return entropic_map


def both_ways(entropic_map, points):
    return (
        transport(entropic_map, points).points,
        transport(entropic_map, points, reverse=True).points,
    )


@uniform_or_not
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_quadratic_cost_maps_to_the_conditional_mean(uniform, epsilon):
    clouds = random_clouds(uniform=uniform)
    A = np.array([[2.0, 0.7], [0.7, 0.5]])
    entropic_map = fitted(Cost(Mahalanobis(A)), clouds, epsilon)
    P = entropic_map.plan()[:16, :12]
    forward, reverse = both_ways(entropic_map, np.concatenate([clouds.x, clouds.y]))
    expected = P @ clouds.y / clouds.a[:, None]
    np.testing.assert_allclose(forward[:16], expected, atol=1e-10)
    reverse = reverse[16:]
    np.testing.assert_allclose(reverse, P.T @ clouds.x / clouds.b[:, None], atol=1e-10)


class Mirrored(ConvexFunction):
    """h(−z)."""

    h: ConvexFunction

    def value(self, z):
        return self.h.value(-z)


@uniform_or_not
@pytest.mark.parametrize("cost", [asymmetric_cost, flow_cost])
def test_reverse_map_is_the_forward_map_of_the_swapped_problem(uniform, cost):
    cost, clouds = cost(), random_clouds(uniform=uniform)
    x, y, a, b = clouds
    entropic_map = fitted(cost, clouds)
    swapped = fitted(Cost(Mirrored(cost.h), cost.phi_nu, cost.phi_mu), (y, x, b, a))
    queries = 0.7 * random_clouds(seed=9).x
    np.testing.assert_allclose(
        transport(entropic_map, queries, reverse=True).points,
        transport(swapped, queries).points,
        atol=1e-8,
    )
    np.testing.assert_allclose(entropic_map.f[:16], swapped.g[:16], atol=1e-8)


@pytest.mark.parametrize("cost", [asymmetric_cost, flow_cost])
def test_permuting_the_points_changes_nothing(cost):
    cost, clouds = cost(), random_clouds(uniform=False)
    rng = np.random.default_rng(0)
    i, j = rng.permutation(16), rng.permutation(12)
    shuffled = (clouds.x[i], clouds.y[j], clouds.a[i], clouds.b[j])
    queries = random_clouds(seed=9).x
    for one, other in zip(
        both_ways(fitted(cost, clouds), queries),
        both_ways(fitted(cost, shuffled), queries),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_translating_the_target_translates_the_map():
    clouds = random_clouds(uniform=False)
    shift = np.array([3.0, -2.0])
    moved = clouds._replace(x=clouds.x + shift, y=clouds.y + shift)
    queries = random_clouds(seed=9).x
    there, back = both_ways(fitted(asymmetric_cost(), clouds), queries)
    moved_map = fitted(asymmetric_cost(), moved)
    np.testing.assert_allclose(
        transport(moved_map, queries + shift).points, there + shift, atol=1e-8
    )
    reverse = transport(moved_map, queries + shift, reverse=True).points
    np.testing.assert_allclose(reverse, back + shift, atol=1e-8)


@pytest.mark.parametrize("cost", [asymmetric_cost, flow_cost])
def test_splitting_a_point_in_two_halves_changes_nothing(cost):
    cost, (x, y, a, b) = cost(), random_clouds(uniform=False)
    split_a, split_b = np.append(a, a[3] / 2), np.append(b, b[5] / 2)
    split_a[3] /= 2
    split_b[5] /= 2
    split = (np.append(x, x[3:4], 0), np.append(y, y[5:6], 0), split_a, split_b)
    queries = random_clouds(seed=9).x
    for one, other in zip(
        both_ways(fitted(cost, (x, y, a, b)), queries),
        both_ways(fitted(cost, split), queries),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-8)


@eqx.filter_jit
def potentials_and_slopes(entropic_map, points):
    f_hat, pull_f = jax.vjp(entropic_map.f_hat, points)
    g_hat, pull_g = jax.vjp(entropic_map.g_hat, points)
    ones = jnp.ones(len(points))
    return f_hat, g_hat, pull_f(ones)[0], pull_g(ones)[0]


def test_potentials_at_the_points_are_the_solved_ones_and_their_gradient_makes_the_map():
    clouds = random_clouds(uniform=False)
    entropic_map = fitted(asymmetric_cost(), clouds)
    queries = jnp.asarray(np.concatenate([clouds.x, clouds.y, random_clouds(seed=9).x]))
    f_hat, g_hat, p, minus_p = potentials_and_slopes(entropic_map, queries)
    np.testing.assert_allclose(f_hat[:16], entropic_map.f[:16], atol=1e-10)
    np.testing.assert_allclose(g_hat[16:28], entropic_map.g[:12], atol=1e-10)
    gradient = eqx.filter_jit(entropic_map.cost.h.gradient)
    there, back = both_ways(entropic_map, queries)
    np.testing.assert_allclose(gradient(queries - there), p, atol=1e-9)
    np.testing.assert_allclose(gradient(back - queries), -minus_p, atol=1e-9)


def test_units_go_in_and_come_out():
    clouds = random_clouds()
    scaled = clouds._replace(x=50 * clouds.x + 7, y=50 * clouds.y + 7)
    units = Units.of((scaled.x, scaled.a), (scaled.y, scaled.b))
    inside = (units.into(scaled.x), units.into(scaled.y), scaled.a, scaled.b)
    spread = sum(w @ (z**2) for z, w in ((inside[0], scaled.a), (inside[1], scaled.b)))
    assert jnp.mean(spread) / 2 == pytest.approx(1)
    queries = random_clouds(seed=9).x
    plain = fitted(Cost(SquaredEuclidean()), clouds)
    in_units = fitted(Cost(SquaredEuclidean()), inside, units=units)
    np.testing.assert_allclose(
        transport(in_units, 50 * queries + 7).points,
        50 * transport(plain, queries).points + 7,
        atol=1e-8,
    )


def entropic_gaussian_map(A, B, eps):
    """T(x) = Mx between centred Gaussians, for ½‖x − y‖² (Janati et al. 2020).

    With K = (A^½ B A^½ + eps²/4 I)^½ the plan has the cross-covariance A^½ K A^(−½) − eps/2 I,
    and its conditional mean is the entropic map.
    """
    root = scipy.linalg.sqrtm(A).real
    K = scipy.linalg.sqrtm(root @ B @ root + eps**2 / 4 * np.eye(len(A))).real
    cross = root @ K @ np.linalg.inv(root) - eps / 2 * np.eye(len(A))
    return cross.T @ np.linalg.inv(A)


def test_gaussian_formula_is_a_fixed_point_of_the_entropic_equations():
    # The plan N(0, [[A, X], [Xᵀ, B]]) is optimal when its precision has −I/eps off the diagonal.
    A, B, eps = np.diag([1.0, 2.0]), np.array([[1.5, 0.4], [0.4, 0.8]]), 0.3
    cross = A @ entropic_gaussian_map(A, B, eps).T
    precision = np.linalg.inv(np.block([[A, cross], [cross.T, B]]))
    np.testing.assert_allclose(precision[:2, 2:], -np.eye(2) / eps, atol=1e-8)


def test_sampled_gaussians_approach_the_closed_form_as_n_grows():
    A, B = np.diag([1.0, 2.0]), np.array([[1.5, 0.4], [0.4, 0.8]])
    rng = np.random.default_rng(0)
    x, y = rng.multivariate_normal([0, 0], A, 512), rng.multivariate_normal([0, 0], B, 512)
    expected = x @ entropic_gaussian_map(A, B, 0.2).T
    error = {}
    for n in (64, 512):
        a = np.full(n, 1 / n)
        C_mean = np.mean(0.5 * np.sum((x[:n, None] - y[None, :n]) ** 2, axis=-1))
        clouds = (x[:n], y[:n], a, a)
        entropic_map = fitted(Cost(SquaredEuclidean()), clouds, 0.2 / C_mean, sizes=(512, 512))
        error[n] = np.sqrt(np.mean((transport(entropic_map, x).points - expected) ** 2))
    assert error[512] < 0.6 * error[64]
    assert error[512] < 0.15


def test_gaussians_under_a_mahalanobis_cost_approach_the_affine_map():
    # Under ½zᵀMz the optimal map is M^(−½) (Brenier map of the M^½-images) M^½.
    A, B, M = np.diag([1.0, 2.0]), np.diag([2.0, 0.5]), np.array([[1.0, 0.6], [0.6, 2.0]])
    root = scipy.linalg.sqrtm(M).real
    inverse = np.linalg.inv(root)
    brenier = entropic_gaussian_map(root @ A @ root, root @ B @ root, 0.0)
    expected_map = inverse @ brenier @ root
    rng = np.random.default_rng(0)
    x, y = rng.multivariate_normal([0, 0], A, 512), rng.multivariate_normal([0, 0], B, 512)
    a = np.full(512, 1 / 512)
    error = []
    for epsilon in (0.5, 0.05):
        entropic_map = fitted(Cost(Mahalanobis(M)), (x, y, a, a), epsilon, sizes=(512, 512))
        mapped = transport(entropic_map, x).points
        error.append(np.sqrt(np.mean((mapped - x @ expected_map.T) ** 2)))
    assert error[1] < 0.5 * error[0]
    assert error[1] < 0.2


@pytest.mark.parametrize("flows", [False, True], ids=["no flow", "flows"])
def test_a_concave_potential_gives_a_true_map(flows):
    """T(x) = x − (∇h)⁻¹(∇f̄(x)) with f̄ the h-transform of a concave g is optimal (Klein et al.).

    With y = argmin_y h(x − y) − g(y), the pairs (x, y) are an optimal assignment for h(x − y), and
    their images under Φμ⁻¹, Φν⁻¹ one for h(Φμ x − Φν y).
    """
    h = PowerNorm(1.5, 0.1)
    rng = np.random.default_rng(4)
    anchors, slopes = rng.normal(size=(6, 2)), 2 * rng.normal(size=(6, 2))

    def g(y):  # concave: a soft minimum of affine functions, minus a quadratic
        affine = jnp.sum((y - anchors) * slopes, axis=1)
        return -jax.nn.logsumexp(-affine) - 0.1 * jnp.sum(y**2)

    objective = jax.jit(jax.value_and_grad(lambda y, x: h.value((x - y)[None])[0] - g(y)))
    u = rng.normal(size=(40, 2))
    v = np.stack(
        [scipy.optimize.minimize(objective, x, x, jac=True, method="BFGS", tol=1e-9).x for x in u]
    )
    cost = Cost(h)
    x, y = jnp.asarray(u), jnp.asarray(v)
    if flows:
        flow = flow_cost()
        cost = Cost(h, flow.phi_mu, flow.phi_nu)
        x, y = cost.source_from_latent(x), cost.target_from_latent(y)
    rows, columns = scipy.optimize.linear_sum_assignment(cost.matrix(x, y))
    np.testing.assert_array_equal(rows, columns)


def test_map_starts_close_to_the_squared_euclidean_one():
    clouds = random_clouds(uniform=False)
    euclidean = both_ways(fitted(Cost(SquaredEuclidean()), clouds, 0.01), clouds.x)
    for symmetric in (True, False):
        for key in range(5):
            h = ICNN(2, (32, 32), key=jr.key(key), symmetric=symmetric)
            start = both_ways(fitted(Cost(h), clouds, 0.01), clouds.x)
            for one, other in zip(start, euclidean, strict=True):
                # The clouds have standard deviation about 1: a few per cent of it.
                assert np.sqrt(np.mean((one - other) ** 2)) < 0.05


def test_blocks_of_rows_change_nothing():
    clouds = random_clouds()
    cost = asymmetric_cost()
    matrix = eqx.filter_jit(Cost.matrix)
    whole = matrix(cost, clouds.x, clouds.y)
    for block_size in (1, 5, 16):
        blocks = matrix(cost, clouds.x, clouds.y, block_size=block_size)
        np.testing.assert_allclose(blocks, whole, atol=1e-13)
