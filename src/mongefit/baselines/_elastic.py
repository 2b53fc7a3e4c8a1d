"""Elastic costs with a learned subspace (Klein et al. 2024): movement out of it costs more."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, cast

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from mongefit._convex import ClosedFormConvexFunction
from mongefit._duals import DualSolver
from mongefit._estimators.queries import EntropicQueries
from mongefit._fitting import FitData, FitOptions, fit, prepare
from mongefit._runtime import double_precision
from mongefit._validation import check_count, check_points, check_positive, check_seed
from mongefit.baselines._base import FitMixin
from mongefit.errors import Option, OptionError
from mongefit.losses import Reach, Term


class ElasticCost(ClosedFormConvexFunction):
    """h(z) = ½‖z‖² + γ τ_A(z), τ_A(z) = ½‖A^⊥ z‖²: A^⊥ projects away from a learned subspace.

    Attributes
    ----------
    basis
        Vectors that span the subspace, [d, r], of any length and angle.
    gamma
        Strength γ.
    """

    basis: Float[Array, "d r"]
    gamma: float = eqx.field(static=True)

    @property
    def strong_convexity(self) -> float:
        return 1.0

    @property
    def orthonormal_basis(self) -> Float[Array, "d r"]:
        """The subspace by orthonormal vectors."""
        return jnp.linalg.qr(self.basis)[0]

    def _outside(self, z):
        basis = self.orthonormal_basis
        return z - (z @ basis) @ basis.T

    def off_subspace(self, z: Float[Array, "N d"]) -> Float[Array, " N"]:
        """τ_A(z) for every row of z."""
        return 0.5 * jnp.sum(self._outside(z) ** 2, axis=-1)

    def value(self, z):
        return 0.5 * jnp.sum(z * z, axis=-1) + self.gamma * self.off_subspace(z)

    def gradient(self, z):
        return z + self.gamma * self._outside(z)

    def hessian(self, z):
        basis, identity = self.orthonormal_basis, jnp.eye(z.shape[-1], dtype=z.dtype)
        hessian = (1 + self.gamma) * identity - self.gamma * basis @ basis.T
        return jnp.broadcast_to(hessian, (*z.shape, z.shape[-1]))

    def inverse_gradient(self, p):
        return p - self.gamma / (1 + self.gamma) * self._outside(p)


class OffSubspace(Term):
    """⟨P, τ_A(x_i − y_j)⟩: how much the plan moves out of the subspace of an `ElasticCost`."""

    reach: ClassVar[Reach] = "nothing"

    def __call__(self, context):
        z = context.x[:, None, :] - context.y[None, :, :]
        outside = context.cost.h.off_subspace(z.reshape(-1, z.shape[-1]))
        return jnp.sum(context.P * outside.reshape(z.shape[:2]))


@dataclasses.dataclass(eq=False, repr=False)
class ElasticMap(FitMixin, EntropicQueries):
    """Learn the subspace in which things move, from the plan, and build the map of its cost.

    The cost is that of `ElasticCost`; its subspace minimises ⟨P, τ_A(x_i − y_j)⟩, where the plan P
    is that of the cost. Nothing but the clouds is needed.

    Parameters
    ----------
    rank : int, default=1
        Dimension of the subspace, below that of the data.
    gamma : float, default=10.0
        How much more movement out of the subspace costs.
    epsilon, tau_a, tau_b, max_iter, learning_rate, dual, differentiate, normalize_weight, \
random_state, dtype, strict, verbose
        As for `MongeMap`.

    Attributes
    ----------
    basis_ : array [d, rank]
        Orthonormal vectors that span the learned subspace. Only their span has a meaning.
    map_, units_, history_, diagnostics_, data_sha256_, n_features_in_, n_iter_
        As for `MongeMap`.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import ElasticMap
    >>> X, Y = datasets.moon(16, seed=0)
    >>> model = ElasticMap(epsilon=0.1, max_iter=10).fit(X, Y)
    >>> model.transform(X).shape, model.basis_.shape
    ((16, 2), (2, 1))
    """

    rank: int = 1
    _: dataclasses.KW_ONLY
    gamma: float = 10.0
    epsilon: float | tuple[float, float] = 0.01
    tau_a: float = 1.0
    tau_b: float = 1.0
    max_iter: int = 200
    learning_rate: float = 0.05
    dual: str | DualSolver = "newton"
    differentiate: str = "implicit"
    normalize_weight: bool = False
    random_state: int | np.random.RandomState | None = 0
    dtype: str = "float64"
    strict: bool = False
    verbose: int = 0

    def _fit(self, data: FitData) -> None:
        rank = check_count(self.rank, "rank", minimum=1)
        gamma = check_positive(self.gamma, "gamma")
        dim = check_points(data.X, "X").shape[1]
        if rank >= dim:
            raise OptionError(
                "A subspace of rank {rank} says nothing in {dim} dimensions: {option} must be "
                "below.",
                rank=rank, dim=dim, option=Option("rank"),
            )  # fmt: skip
        params = self.get_params(deep=False)
        del params["rank"], params["gamma"]
        with double_precision():
            start = jr.normal(jr.key(check_seed(self.random_state)), (dim, rank))
            cost = ElasticCost(start, gamma)
            options = FitOptions(cost=cost, losses=[OffSubspace()], penalties=[], **params)
            self._store(data.X, fit(prepare(options, data, use_knowledge=False)))
            learned = cast(ElasticCost, self.map_.cost.h)
            self.basis_ = np.asarray(learned.orthonormal_basis, dtype=np.float64)
