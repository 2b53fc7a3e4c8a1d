"""Quadratic functions h(z) = ½ zᵀAz, fixed and learned."""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray
from numpy.typing import NDArray

from mongefit._convex.base import ClosedFormConvexFunction, ProjectedConvexFunction
from mongefit._registry import NonTrainable
from mongefit._runtime import double_precision
from mongefit.errors import OptionError


class QuadraticConvexFunction(ProjectedConvexFunction, ClosedFormConvexFunction):
    """h(z) = ½‖Bz‖² = ½ zᵀAz with A = BᵀB positive definite.

    The displacement of its map is the mean displacement under the conditional weights, whatever A
    is. So nothing has to be inverted, and the costs of all pairs are one matrix product.
    """

    @property
    def is_even(self) -> bool:
        return True

    @abc.abstractmethod
    def project(self, z: Float[Array, "*N d"]) -> Float[Array, "*N k"]:
        """Bz for every row of z."""

    def value_of_projected(self, Az):
        return 0.5 * jnp.sum(Az * Az, axis=-1)

    def value(self, z):
        return self.value_of_projected(self.project(z))

    def hessian(self, z):
        dim = z.shape[-1]
        A = self.gradient(jnp.eye(dim, dtype=z.dtype))
        return jnp.broadcast_to(A, (*z.shape, dim))

    def pairwise_value(self, u: Float[Array, "n d"], v: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """h(u_i − v_j) for all pairs."""
        Bu, Bv = self.project(u), self.project(v)
        squares = jnp.sum(Bu * Bu, axis=1)[:, None] + jnp.sum(Bv * Bv, axis=1)
        C = 0.5 * squares - Bu @ Bv.T
        # Rounding can make a cost negative. Held constant, the correction changes no derivative.
        return C + jax.lax.stop_gradient(jnp.maximum(C, 0.0) - C)


class SquaredEuclidean(QuadraticConvexFunction):
    """h(z) = ½‖z‖²."""

    @property
    def strong_convexity(self) -> float:
        return 1.0

    def project(self, z):
        return z

    def gradient(self, z):
        return z

    def inverse_gradient(self, p):
        return p


class Mahalanobis(QuadraticConvexFunction):
    """h(z) = ½ zᵀAz for a symmetric positive definite matrix A, which is not trained."""

    _matrix: NonTrainable[Float[Array, "d d"]]

    def __init__(self, matrix: ArrayLike):
        checked = np.asarray(matrix, dtype=np.float64)
        if checked.ndim != 2 or checked.shape[0] != checked.shape[1]:
            raise OptionError(f"Mahalanobis needs a square matrix, got shape {checked.shape}.")
        if not np.all(np.isfinite(checked)):
            raise OptionError("Mahalanobis needs a finite matrix; it holds NaN or infinity.")
        if not np.allclose(checked, checked.T, rtol=1e-10, atol=1e-12 * np.abs(checked).max()):
            raise OptionError("Mahalanobis needs a symmetric matrix; use (A + A.T) / 2.")
        smallest = float(np.linalg.eigvalsh(checked)[0])
        if smallest <= 0:
            raise OptionError(
                "Mahalanobis needs a positive definite matrix; its smallest eigenvalue is "
                f"{smallest:.3g}. Add a small multiple of the identity."
            )
        with double_precision():  # or JAX would round the matrix to float32
            self._matrix = NonTrainable(jnp.asarray(checked))

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """A."""
        return self._matrix.tree

    @property
    def strong_convexity(self) -> float:
        return float(np.linalg.eigvalsh(np.asarray(self.matrix))[0])

    def project(self, z):
        # A = LLᵀ, so B = Lᵀ and Bz = (zᵀL)ᵀ.
        return z @ jnp.linalg.cholesky(self.matrix.astype(z.dtype))

    def gradient(self, z):
        return z @ self.matrix.astype(z.dtype)

    def inverse_gradient(self, p):
        return _solve_positive(self.matrix.astype(p.dtype), p)


class LearnedMatrix(QuadraticConvexFunction):
    """h(z) = ½ zᵀAz with a learned matrix A = LᵀL + αI.

    Parameters
    ----------
    dim
        Dimension d of the displacements.
    alpha
        Strong convexity α, between 0 and 1.
    matrix
        A to start from, with no eigenvalue below α; the identity by default.
    """

    factor: Float[Array, "d d"]
    alpha: float = eqx.field(static=True)

    def __init__(self, dim: int, *, alpha: float = 0.01, matrix: ArrayLike | None = None):
        self.alpha = _check_alpha(alpha)
        if matrix is None:
            self.factor = jnp.sqrt(1 - alpha) * jnp.eye(dim)
            return
        with double_precision():
            self.factor = jnp.asarray(square_root(check_matrix(matrix, dim), less=alpha))

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """A."""
        L = self.factor
        return L.T @ L + self.alpha * jnp.eye(L.shape[1], dtype=L.dtype)

    def project(self, z):
        return jnp.concatenate([z @ self.factor.T, math.sqrt(self.alpha) * z], axis=-1)

    def gradient(self, z):
        return z @ self.matrix

    def inverse_gradient(self, p):
        return _solve_positive(self.matrix, p)


class LowRankMatrix(QuadraticConvexFunction):
    """h(z) = ½ zᵀAz with A = diag(e^{2l}) + VᵀV + αI: a learned matrix for many features.

    It has (r + 1)d numbers instead of d². V starts at the r eigenvectors of a given matrix with the
    largest eigenvalues, by which these exceed the mean of the others; small and random numbers are
    added, because at V = 0 its derivative would vanish.

    Parameters
    ----------
    dim
        Dimension d of the displacements.
    rank
        Number r of rows of V.
    key
        Random key for V.
    alpha
        Strong convexity α, between 0 and 1.
    matrix
        A to start near; the identity by default.
    """

    log_scale: Float[Array, " d"]
    factor: Float[Array, "r d"]
    alpha: float = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        rank: int = 8,
        *,
        key: PRNGKeyArray,
        alpha: float = 0.01,
        matrix: ArrayLike | None = None,
    ):
        if rank < 1:
            raise OptionError(f"LowRankMatrix needs a rank of at least 1, got {rank}.")
        self.alpha = _check_alpha(alpha)
        with double_precision():
            self.factor = 0.1 * jr.normal(key, (rank, dim)) / np.sqrt(dim)
            rest = 1.0
            if matrix is not None:
                values, vectors = np.linalg.eigh(check_matrix(matrix, dim))
                rest = max(float(np.mean(values[: max(dim - rank, 1)])), 2 * alpha)
                above = np.sqrt(np.maximum(values - rest, 0))[-rank:, None] * vectors.T[-rank:]
                self.factor = self.factor.at[: len(above)].add(above)
            self.log_scale = jnp.full(dim, 0.5 * np.log(rest - alpha))

    @property
    def strong_convexity(self) -> float:
        return self.alpha

    @property
    def _diagonal(self) -> Float[Array, " d"]:
        return jnp.exp(2 * self.log_scale) + self.alpha

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """A."""
        return jnp.diag(self._diagonal) + self.factor.T @ self.factor

    def project(self, z):
        return jnp.concatenate([z * jnp.sqrt(self._diagonal), z @ self.factor.T], axis=-1)

    def gradient(self, z):
        return z * self._diagonal + (z @ self.factor.T) @ self.factor

    def inverse_gradient(self, p):
        # Woodbury: (D + VᵀV)⁻¹ = D⁻¹ − D⁻¹Vᵀ(I + VD⁻¹Vᵀ)⁻¹VD⁻¹.
        V, scaled = self.factor, p / self._diagonal
        small = jnp.eye(len(V), dtype=p.dtype) + (V / self._diagonal) @ V.T
        return scaled - (_solve_positive(small, scaled @ V.T) @ V) / self._diagonal


def _check_alpha(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise OptionError(f"A learned matrix needs alpha between 0 and 1, got {alpha}.")
    return float(alpha)


def check_matrix(matrix: ArrayLike, dim: int) -> NDArray[np.float64]:
    checked = np.asarray(matrix, np.float64)
    if checked.shape != (dim, dim) or not np.allclose(checked, checked.T, rtol=1e-8):
        raise OptionError(
            f"matrix must be symmetric, [{dim}, {dim}], got an array of shape {checked.shape}."
        )
    return checked


def square_root(matrix: NDArray[np.float64], *, less: float) -> NDArray[np.float64]:
    """The symmetric root of a symmetric matrix less a multiple of the identity."""
    values, vectors = np.linalg.eigh(matrix)
    if not values[0] >= less * (1 - 1e-9):
        raise OptionError(
            f"matrix has an eigenvalue of {values[0]:.3g}; with alpha {less:g} none may be smaller."
        )
    return (vectors * np.sqrt(np.maximum(values - less, 0))) @ vectors.T


def _solve_positive(A: Float[Array, "d d"], p: Float[Array, "N d"]) -> Float[Array, "N d"]:
    """A⁻¹p for every row of p."""
    factor = jax.scipy.linalg.cho_factor(A)
    return jax.scipy.linalg.cho_solve(factor, p.T).T
