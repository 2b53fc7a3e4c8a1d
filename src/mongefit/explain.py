r"""What a cost has learned: which displacements are cheap and which are expensive.

A cost c(x, y) = h(Φμ(x) − Φν(y)) is described by its curvature where the map uses it. For each
point x_i with the image y_i = T(x_i) and z_i = Φμ(x_i) − Φν(y_i),

    H_i = Jᵀ ∇²h(z_i) J,    J = ∂Φν/∂y at y_i,

is the Hessian of the cost in y_i, with the flow taken to first order: the curvature of the flow,
∇h · ∂²Φν, is left out. Without flows H_i is ∇²h(x_i − y_i). Only ratios of costs matter, so all H_i
are divided by one number that makes the mean of all their eigenvalues 1. With means over the
points and Frobenius norms,

    mean ‖H_i‖² = ‖I‖² + ‖H̄ − I‖² + mean ‖H_i − H̄‖²,    H̄ = mean H_i.

The first part is that of a squared Euclidean cost. A Mahalanobis cost adds the second, and only a
cost whose curvature depends on the displacement adds the third.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from mongefit._costs import Cost
from mongefit._estimators.queries import EntropicQueries
from mongefit._fitting import transport_points
from mongefit._runtime import double_precision
from mongefit._validation import check_points
from mongefit.errors import OptionError
from mongefit.metrics import Table

Floats = NDArray[np.float64]

_BLOCK = 256


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CostExplanation:
    """The curvature of a cost where its map uses it; it prints as a table.

    Attributes
    ----------
    features
        Names of the features.
    hessian
        Mean Hessian H̄ of the cost, [d, d], with mean eigenvalue 1.
    curvature
        Its eigenvalues, [d], the largest first: above 1 moving is expensive, below 1 cheap.
    directions
        Its eigenvectors as rows, [d, d], each pointing the way the points move on average.
    motion
        Share of the squared displacements ‖T(x) − x‖² along each direction, [d].
    asymmetry
        (c₊ − c₋)/(c₊ + c₋), [d], with c₊ the cost of a move along a direction, as far as points
        move along it in root mean square, and c₋ that of the move back. It is 0 for a symmetric h.
    displacements
        z_i = Φμ(x_i) − Φν(T(x_i)), [n, d], in the units of the data; the latent ones with flows.
    displacement_asymmetry
        (h(z_i) − h(−z_i))/(h(z_i) + h(−z_i)), [n], between −1 and 1.
    weight
        Weights of the points, [n].
    euclidean, anisotropy, variation
        Shares of mean ‖H_i‖², which add up to 1: of a squared Euclidean cost, of what a constant
        matrix adds, and of what varies between displacements.
    """

    features: tuple[str, ...]
    hessian: Floats
    curvature: Floats
    directions: Floats
    motion: Floats
    asymmetry: Floats
    displacements: Floats
    displacement_asymmetry: Floats
    weight: Floats
    euclidean: float
    anisotropy: float
    variation: float

    @property
    def mean_asymmetry(self) -> float:
        """Mean of |h(z) − h(−z)| / (h(z) + h(−z)) over the displacements."""
        return float(self.weight @ np.abs(self.displacement_asymmetry))

    def table(self, n_features: int = 3) -> Table:
        """One row for each direction, with the ``n_features`` largest entries of its vector."""
        rows = []
        for k, vector in enumerate(self.directions):
            largest = np.argsort(-np.abs(vector), kind="stable")[:n_features]
            parts = [f"{vector[j]:+.2f} {self.features[j]}" for j in largest]
            rows.append(
                {
                    "direction": str(k + 1),
                    "curvature": float(self.curvature[k]),
                    "motion": float(self.motion[k]),
                    "asymmetry": _rounded(self.asymmetry[k]),
                    "features": ", ".join(parts),
                }
            )
        headers = {
            "direction": "direction",
            "curvature": "curvature",
            "motion": "share of motion",
            "asymmetry": "asymmetry",
            "features": "largest parts",
        }
        notes = (
            f"Curvature: {self.euclidean:.1%} squared Euclidean, {self.anisotropy:.1%} a constant "
            f"matrix beside it, {self.variation:.1%} varies between displacements.",
            f"Asymmetry of the displacements: {_rounded(self.mean_asymmetry):.2g} on average, of "
            "at most 1.",
        )
        return Table(tuple(rows), headers, notes)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def explain_cost(model: EntropicQueries, X: ArrayLike | None = None) -> CostExplanation:
    """Say what the cost of a fitted map has learned, at the displacements of its points.

    h is fixed only up to a linear term, which changes no map; the asymmetry is that of the h with
    ∇h(0) = 0.

    Parameters
    ----------
    model
        A fitted `MongeMap`, or a baseline that has an entropic map.
    X
        Source points whose displacements to look at, such as those of one cell type; by default the
        points of the fit, with their weights.
    """
    if not isinstance(model, EntropicQueries):
        raise OptionError(
            f"explain_cost needs a fitted map with a cost h(Φμ(x) − Φν(y)), such as a MongeMap, "
            f"got {type(model).__name__}."
        )
    check_is_fitted(model)
    cost, units, dtype = model.map_.cost, model.map_.units, model.map_.x.dtype
    names = getattr(model, "feature_names_in_", [f"x{k + 1}" for k in range(model.n_features_in_)])
    with double_precision():
        points, mapped, weight = _mapped_points(model, X)
        x, y = (np.asarray(units.into(side), dtype) for side in (points, mapped))
        mean, square, z, ahead, opposite = _curvatures(cost, x, y, weight)
        dim, trace = len(mean), np.trace(mean)
        hessian = mean * dim / trace
        curvature, vectors = np.linalg.eigh(hessian)
        along = (y - x) @ vectors[:, ::-1]
        sign = np.where(weight @ along < 0, -1.0, 1.0)
        directions = sign[:, None] * vectors.T[::-1]
        moved = weight @ along**2
        there, back = _both_ways(cost, y, weight, np.sqrt(moved)[:, None] * directions)
    energy = float(square) * (dim / trace) ** 2
    euclidean = dim / energy
    anisotropy = float(np.sum((hessian - np.eye(dim)) ** 2)) / energy
    return CostExplanation(
        features=tuple(map(str, names)),
        hessian=hessian,
        curvature=curvature[::-1],
        directions=directions,
        motion=moved / max(float(np.sum(moved)), np.finfo(float).tiny),
        asymmetry=_contrast(there, back),
        displacements=float(units.scale) * z,
        displacement_asymmetry=_contrast(ahead, opposite),
        weight=weight,
        euclidean=euclidean,
        anisotropy=anisotropy,
        variation=max(1 - euclidean - anisotropy, 0.0),
    )


def _mapped_points(model: EntropicQueries, X: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    """Points, where they go, and their weights."""
    if X is not None:
        mapped, points = model.transform(X), check_points(X, "X")
        return points, mapped, np.full(len(points), 1 / len(points))
    fitted = model.map_
    points = np.asarray(fitted.units.out_of(fitted.x), np.float64)
    mapped = np.asarray(transport_points(fitted, points, reverse=False).points, np.float64)
    return points, mapped, np.asarray(fitted.a, np.float64)


def _curvatures(cost: Cost, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[Floats, ...]:
    """Means of H_i and of ‖H_i‖², and z_i, h(z_i), h(−z_i) for every point."""
    blocks = [
        _curvature_block(cost, x[part], y[part], mass.astype(x.dtype))
        for part, mass in _blocks(weight)
    ]
    parts = [np.asarray(part, np.float64) for part in zip(*blocks, strict=True)]
    totals = (np.sum(part, axis=0) for part in parts[:2])
    rows = (np.concatenate(part)[: len(x)] for part in parts[2:])
    return *totals, *rows


@eqx.filter_jit
def _curvature_block(cost, x, y, weight):
    z = cost.latent_source(x) - cost.latent_target(y)
    hessian = cost.h.hessian(z)
    if cost.phi_nu is not None:
        jacobian = _jacobian(cost, y)
        hessian = jnp.einsum("Nka,Nkl,Nlb->Nab", jacobian, hessian, jacobian)
    mean = jnp.einsum("N,Nab->ab", weight, hessian)
    square = weight @ jnp.sum(hessian**2, axis=(1, 2))
    return mean, square, z, cost.h.value(z), cost.h.value(-z)


def _both_ways(cost: Cost, y: np.ndarray, weight: np.ndarray, steps: np.ndarray) -> Floats:
    """Mean cost of each move from y_i, [k, d], and of the move back, the flow to first order."""
    if cost.phi_nu is None:  # the same everywhere
        y, weight = y[:1], np.ones(1)
    sums = [
        _both_ways_block(cost, y[part], mass.astype(y.dtype), steps.astype(y.dtype))
        for part, mass in _blocks(weight)
    ]
    return np.sum(np.asarray(sums, np.float64), axis=0)


@eqx.filter_jit
def _both_ways_block(cost, y, weight, steps):
    latent = jnp.broadcast_to(steps, (len(y), *steps.shape))
    if cost.phi_nu is not None:
        latent = jnp.einsum("Nab,kb->Nka", _jacobian(cost, y), steps)
    # A move to y + s changes the displacement x − y by −s.
    z = latent.reshape(-1, steps.shape[1])
    return [weight @ cost.h.value(way).reshape(latent.shape[:2]) for way in (-z, z)]


def _jacobian(cost: Cost, y: Float[Array, "N d"]) -> Float[Array, "N d d"]:
    return jax.vmap(jax.jacfwd(lambda point: cost.latent_target(point[None])[0]))(y)


def _blocks(weight: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and their weights in blocks of one size, the last filled up with rows of weight zero."""
    n, size = len(weight), min(_BLOCK, len(weight))
    blocks = []
    for start in range(0, n, size):
        place = np.arange(start, start + size)
        rows = np.minimum(place, n - 1)
        blocks.append((rows, np.where(place < n, weight[rows], 0.0)))
    return blocks


def _contrast(one: Floats, other: Floats) -> Floats:
    """(one − other) / (one + other), zero where both are."""
    total = one + other
    return (one - other) / np.where(total > 0, total, 1.0)


def _rounded(asymmetry: Any) -> float:
    """Zero instead of the rounding error of a symmetric h."""
    return 0.0 if abs(asymmetry) < 1e-6 else float(asymmetry)
