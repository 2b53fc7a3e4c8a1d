r"""Transport problems with a known true map.

For h strictly convex and a potential f that is h-concave, T*(u) = u − (∇h)⁻¹(∇f(u)) is the optimal
map of the cost h(u − v) from μ to T*#μ (Gangbo and McCann 1996). Every concave f is h-concave. An
affine function is, because with ḡ(v) = −⟨p, v⟩

    inf_v h(u − v) − ḡ(v) = ⟨p, u⟩ + inf_z h(z) − ⟨p, z⟩,

with the infimum at u − v = (∇h)⁻¹(p); and an infimum of h-concave functions is h-concave. So any
concave f gives a true map, with no solve but (∇h)⁻¹. The other potential is the h-transform

    g(v) = inf_u h(u − v) − f(u),

a strictly convex problem whose minimiser is T*⁻¹(v) (Klein et al. 2024 take this direction as their
true map). Of the two directions T* is the one that spreads the target out. Its error is measured
against the variance of the target, so here a few hundred samples in ten dimensions still tell a
right cost from a wrong one, and in the other direction they do not.

With known flows, x = Φμ⁻¹(u) and y = Φν⁻¹(T*(u)), it is the true map of h(Φμ(x) − Φν(y)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optimistix
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike

from mongefit._convex import ICNN, ClosedFormConvexFunction, ConvexFunction, Mahalanobis, PowerNorm
from mongefit._costs import Cost
from mongefit._flows import AutoregressiveFlow
from mongefit._inverse import inverse_gradient
from mongefit._runtime import double_precision
from mongefit._validation import check_choice, check_count, check_points
from mongefit.datasets._toys import Points
from mongefit.errors import ConvergenceError, DataError

Family = Literal["power", "mahalanobis", "icnn"]

_TOLERANCE = 1e-10

# How the problems are drawn. The Gaussians of the source have unit scale. Displacements must vary
# by several times that, or the sampling error of the map hides what a wrong cost adds to it.
_GAUSSIANS = 4
_PIECES = 4
_CANDIDATES = 64  # potentials, of which one is chosen
_SPREAD = 4.0  # root mean square deviation of the displacements, per coordinate
_SHARPNESS = 3.0  # of the changes from piece to piece, over one unit of the source

# The power norm is far from quadratic where some coordinates move much more than others.
_LARGE, _SMALL = 3 * _SPREAD, 3 * _SPREAD / 20


class SoftMinimum(eqx.Module):
    r"""The concave function f(u) = −τ log Σ_i exp(−⟨p_i, u⟩ / τ), a smooth min_i ⟨p_i, u⟩.

    Each piece has a slope p_i; the temperature τ is the width of the changes from piece to piece.
    """

    slopes: Float[Array, "k d"]
    temperature: Float[Array, ""]

    def value(self, u: Float[Array, "N d"]) -> Float[Array, " N"]:
        """f(u) for every row of u."""
        exponent = -u @ self.slopes.T / self.temperature
        return -self.temperature * jax.nn.logsumexp(exponent, axis=-1)

    def gradient(self, u: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """∇f(u) = Σ_i s_i p_i with s = softmax_i(−⟨p_i, u⟩ / τ), for every row of u."""
        s = jax.nn.softmax(-u @ self.slopes.T / self.temperature, axis=-1)
        return s @ self.slopes


class GroundTruth(eqx.Module):
    """A source, a cost and its true map T*, in both directions; NumPy in and out.

    Attributes
    ----------
    cost
        The true cost, of points in the units of the data. `MongeMap` applies its h to displacements
        in common units instead, so hand this one to `mongefit.build_map`.
    potential
        The concave potential f of latent source points.
    centres
        Means of the Gaussians that the latent source mixes with equal weights.
    seed
        Seed of the problem.
    """

    cost: Cost
    potential: SoftMinimum
    centres: Float[Array, "k d"]
    seed: int = eqx.field(static=True)

    def sample(self, n: int, seed: int) -> tuple[Points, Points]:
        """Draw n points of the source and map them.

        Parameters
        ----------
        n
            Number of points.
        seed
            Seed of the points. The same seed gives other points for another problem.

        Returns
        -------
        x, y
            Source and target points, [n, d]; row i of y is T* of row i of x. For two clouds that
            are not paired, take x and y from different seeds.
        """
        n = check_count(n, "n", minimum=1)
        rng = np.random.default_rng([self.seed, check_count(seed, "seed")])
        centres = np.asarray(self.centres)
        u = centres[rng.integers(len(centres), size=n)] + rng.normal(size=(n, centres.shape[1]))
        with double_precision():
            x = np.array(eqx.filter_jit(self.cost.source_from_latent)(jnp.asarray(u)))
        return x, self.map(x)

    def map(self, x: ArrayLike) -> Points:
        """T*(x) for every row of x, at any point."""
        return self._solve(_transport, x, "x", "T*(x)")

    def inverse_map(self, y: ArrayLike) -> Points:
        """T*⁻¹(y) for every row of y, the minimiser of the h-transform, to within 1e-10."""
        return self._solve(_transport_back, y, "y", "T*⁻¹(y)")

    def _solve(
        self, transport: Callable[..., Any], points: ArrayLike, name: str, what: str
    ) -> Points:
        checked, dim = check_points(points, name), self.centres.shape[1]
        if checked.shape[1] != dim:
            raise DataError(f"{name} has {checked.shape[1]} features; the problem has {dim}.")
        with double_precision():
            moved, residual = transport(self.cost, self.potential, checked)
            worst = int(np.argmax(residual))
            if not residual[worst] <= _TOLERANCE:
                raise ConvergenceError(
                    f"{what} was not found at row {worst}: its residual is "
                    f"{float(residual[worst]):.3g}, above {_TOLERANCE:g}. Is the point far outside "
                    "the clouds of the problem?"
                )
            return np.array(moved)


# Compiled with what they need rather than the problem, whose seed would compile them anew.
@eqx.filter_jit
def _transport(cost, f, x):
    u = cost.latent_source(jnp.asarray(x))
    found = inverse_gradient(cost.h, f.gradient(u))
    return cost.target_from_latent(u - found.z), found.residual


@eqx.filter_jit
def _transport_back(cost, f, y):
    h, v = cost.h, cost.latent_target(jnp.asarray(y))
    # Solved for ∇h(z) = ∇f(v + z) by Newton's method with a trust region. Where (∇h)⁻¹ has a closed
    # form the unknown is p = ∇h(z) and not z, because at z = 0 the curvature of a power norm is
    # infinite and that of its conjugate is not.
    closed = isinstance(h, ClosedFormConvexFunction)

    def pair(w):
        return (h.inverse_gradient(w[None])[0], w) if closed else (w, h.gradient(w[None])[0])

    def optimality(w, v):
        z, p = pair(w)
        return p - f.gradient((v + z)[None])[0]

    def solve(w, v):
        solver: optimistix.Dogleg = optimistix.Dogleg(rtol=1e-12, atol=1e-12)
        found: optimistix.Solution = optimistix.root_find(
            optimality, solver, w, v, max_steps=500, throw=False
        )
        return v + pair(found.value)[0]

    p = f.gradient(v)
    u = jax.vmap(solve)(p if closed else inverse_gradient(h, p).z, v)
    # The residual is that of the map itself: where z is uncertain by 1e-16, ∇h(z) can be by 1e-8.
    residual = jnp.linalg.norm(u - inverse_gradient(h, f.gradient(u)).z - v, axis=1)
    return cost.source_from_latent(u), residual / (1 + jnp.linalg.norm(v, axis=1))


def _conditioned(dim: int, rng: np.random.Generator, condition: float) -> Points:
    """A symmetric matrix with this condition number, determinant 1 and a random eigenbasis."""
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix: Points = (basis * np.geomspace(condition**-0.5, condition**0.5, dim)) @ basis.T
    return 0.5 * (matrix + matrix.T)


def _random_h(family: Family, dim: int, rng: np.random.Generator) -> tuple[ConvexFunction, Points]:
    """A function h, and a displacement around which those of the problem vary."""
    if family == "power":
        moves = rng.permutation(dim) < (dim + 1) // 2
        return PowerNorm(1.5, 1e-3), np.where(moves, _LARGE, _SMALL) * rng.choice([-1, 1], dim)
    if family == "mahalanobis":
        return Mahalanobis(_conditioned(dim, rng, 100.0)), np.zeros(dim)
    # As one program: one by one, each operation would be compiled for itself.
    h = eqx.filter_jit(ICNN)(
        dim, (16, 16), key=_key(rng), symmetric=False, alpha=0.01, quadratic=False, gain=1.0
    )
    stretch = _conditioned(dim, rng, 5.0)
    through = tuple(weight @ stretch for weight in h.passthrough)
    return eqx.tree_at(lambda h: h.passthrough, h, through), np.zeros(dim)


def _random_flow(dim: int, rng: np.random.Generator) -> AutoregressiveFlow:
    """A flow with noise on its weights; its bounded log-scale keeps it mild."""
    flow = eqx.filter_jit(AutoregressiveFlow)(
        dim, key=_key(rng), n_blocks=2, width=16, depth=1, max_log_scale=0.5
    )
    weights, rest = eqx.partition(flow, eqx.is_inexact_array)
    shaken = jax.tree.map(lambda weight: weight + 0.3 * rng.normal(size=weight.shape), weights)
    return eqx.combine(shaken, rest)


def _key(rng: np.random.Generator) -> PRNGKeyArray:
    return jr.key(int(rng.integers(2**31)))


def _random_potential(h: ConvexFunction, centre: Points, rng: np.random.Generator) -> SoftMinimum:
    r"""A potential whose pieces move by displacements z_i around a centre: p_i = ∇h(z_i).

    Between two pieces the true map tells points apart along p_i − p_j and sends them apart along
    z_i − z_j. Squared Euclidean knows only the second, so it errs when the angle between them is
    wide. Two things widen it. The z_i deviate from the centre with covariance ∇²h(centre)⁻¹, and so
    the p_i, to first order, with covariance ∇²h(centre): were either isotropic, the other would lie
    in a few eigenvectors, and the angle be narrow. And of several draws the widest angle is taken.
    """
    dim = len(centre)
    value, vectors = np.linalg.eigh(eqx.filter_jit(h.hessian)(jnp.asarray(centre[None]))[0])
    # The symmetric root, because the signs of eigenvectors differ from machine to machine.
    root = (vectors / np.sqrt(value)) @ vectors.T
    deviation = rng.normal(size=(_CANDIDATES, _PIECES, dim)) @ root
    deviation -= deviation.mean(axis=1, keepdims=True)
    deviation *= _SPREAD / np.sqrt(np.mean(deviation**2, axis=(1, 2), keepdims=True))
    z = (centre + deviation).reshape(-1, dim)
    slopes = np.asarray(eqx.filter_jit(h.gradient)(jnp.asarray(z))).reshape(deviation.shape)
    slope_deviation = slopes - slopes.mean(axis=1, keepdims=True)
    size = np.sqrt(np.sum(slope_deviation**2, axis=(1, 2)))
    cosine = np.sum(slope_deviation * deviation, axis=(1, 2)) / size
    widest = int(np.argmin(cosine))  # all deviations have the same size
    temperature = size[widest] / np.sqrt(_PIECES) / _SHARPNESS
    return SoftMinimum(jnp.asarray(slopes[widest]), jnp.asarray(temperature))


def make_ground_truth(h: Family, dim: int, *, seed: int, flows: bool = False) -> GroundTruth:
    """A random problem whose true map and true cost are known.

    On some of them squared Euclidean does as well; `draw_ground_truth` finds one where it fails.

    Parameters
    ----------
    h
        "power" is the power norm with exponent 1.5, "mahalanobis" ½zᵀAz with a random eigenbasis
        and condition number 100, "icnn" a random network that is asymmetric and far from quadratic.
    dim
        Dimension, at least 2: in one dimension all costs h(x − y) have the same map.
    seed
        Seed of the problem.
    flows
        Whether the true cost has flows Φμ and Φν, random and mild.

    Examples
    --------
    >>> from mongefit import datasets
    >>> problem = datasets.make_ground_truth("power", 2, seed=0)
    >>> X, _ = problem.sample(64, seed=3)
    >>> _, Y = problem.sample(64, seed=4)  # not paired with X
    >>> new_X, new_Y = problem.sample(64, seed=5)  # paired, to test a map on
    >>> bool(abs(problem.map(new_X) - new_Y).max() < 1e-9)
    True
    """
    check_choice(h, "h", get_args(Family))
    dim = check_count(dim, "dim", minimum=2)
    seed = check_count(seed, "seed")
    rng = np.random.default_rng(seed)
    with double_precision():
        function, centre = _random_h(h, dim, rng)
        potential = _random_potential(function, centre, rng)
        # Around the origin, where all pieces meet.
        centres = rng.normal(size=(_GAUSSIANS, dim))
        centres -= centres.mean(axis=0)
        both = (_random_flow(dim, rng), _random_flow(dim, rng)) if flows else (None, None)
        return GroundTruth(Cost(function, *both), potential, jnp.asarray(centres), seed)
