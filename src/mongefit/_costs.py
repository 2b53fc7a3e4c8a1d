"""Costs c(x, y) = h(Φμ(x) − Φν(y)) and their pairwise matrices."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from mongefit._convex import ConvexFunction, ProjectedConvexFunction, QuadraticConvexFunction
from mongefit._flows import Diffeo
from mongefit._registry import Registered
from mongefit._runtime import rows_per_block
from mongefit.errors import DataError


class Cost(Registered):
    """The cost c(x, y) = h(Φμ(x) − Φν(y)).

    Parameters
    ----------
    h
        Strictly convex function of the displacement between latent points.
    phi_mu, phi_nu
        Diffeomorphisms of the source and of the target; None is the identity. One object given
        for both is *shared*: it is stored, and trained, once.
    """

    h: ConvexFunction
    phi_mu: Diffeo | None
    _phi_nu: Diffeo | None
    shared: bool = eqx.field(static=True)

    def __init__(
        self, h: ConvexFunction, phi_mu: Diffeo | None = None, phi_nu: Diffeo | None = None
    ):
        if not isinstance(h, ConvexFunction):
            raise DataError(f"h must be a ConvexFunction, got {type(h).__name__}.")
        self.h = h
        self.phi_mu = phi_mu
        self.shared = phi_mu is not None and phi_mu is phi_nu
        self._phi_nu = None if self.shared else phi_nu

    @property
    def phi_nu(self) -> Diffeo | None:
        """The diffeomorphism of the target."""
        return self.phi_mu if self.shared else self._phi_nu

    def latent_source(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """u = Φμ(x)."""
        return x if self.phi_mu is None else self.phi_mu.forward(x)

    def latent_target(self, y: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """v = Φν(y)."""
        return y if self.phi_nu is None else self.phi_nu.forward(y)

    def source_from_latent(self, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """x = Φμ⁻¹(u)."""
        return u if self.phi_mu is None else self.phi_mu.inverse(u)

    def target_from_latent(self, v: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """y = Φν⁻¹(v)."""
        return v if self.phi_nu is None else self.phi_nu.inverse(v)

    def matrix(
        self, x: Float[Array, "n d"], y: Float[Array, "m d"], *, block_size: int | None = None
    ) -> Float[Array, "n m"]:
        """C_ij = c(x_i, y_j), evaluated in blocks of ``block_size`` rows when that is given."""
        return pairwise_value(
            self.h, self.latent_source(x), self.latent_target(y), block_size=block_size
        )


class LegCosts(eqx.Module):
    """The costs of several legs: one h, and flows that legs may share.

    Attributes
    ----------
    h
        The convex function of all legs.
    flows
        The flows, each once.
    wiring
        For each leg which of the flows Φμ and Φν are; None is the identity.
    """

    h: ConvexFunction
    flows: tuple[Diffeo, ...]
    wiring: tuple[tuple[int | None, int | None], ...] = eqx.field(static=True)

    def of(self, leg: int) -> Cost:
        """The cost of one leg."""
        source, target = (None if k is None else self.flows[k] for k in self.wiring[leg])
        return Cost(self.h, source, target)


def _map_rows(function, rows: int, *arrays):
    """Apply a function to every row; where not all at once, recomputed in the reverse pass."""
    n = len(arrays[0])
    if rows >= n:
        return jax.vmap(function)(*arrays)
    blocks = -(-n // rows)
    rows = -(-n // blocks)
    # Filled up with the last row: a smaller last block would be compiled for itself.
    order = np.minimum(np.arange(blocks * rows), n - 1).reshape(blocks, rows)
    block = jax.checkpoint(lambda part: jax.vmap(function)(*part))
    found = jax.lax.map(block, jax.tree.map(lambda leaf: leaf[order], arrays))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], found)


def pairwise_value_and_gradient(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    guess: Float[Array, "n m d"] | None = None,
) -> tuple[Float[Array, "n m"], Float[Array, "n m d"]]:
    """h(u_i − v_j) and ∇h(u_i − v_j) for all pairs, in blocks of rows.

    ``guess`` approximates ∇h, for functions that must solve for it.
    """
    rows = rows_per_block(len(u), len(v))
    if guess is None:
        return _map_rows(lambda point: h.value_and_gradient(point - v), rows, u)
    return _map_rows(lambda point, row: h.value_and_gradient(point - v, row), rows, u, guess)


def pairwise_value(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    *,
    block_size: int | None = None,
) -> Float[Array, "n m"]:
    """h(u_i − v_j) for all pairs, in blocks of ``block_size`` rows, chosen for the machine."""
    if isinstance(h, QuadraticConvexFunction):
        return h.pairwise_value(u, v)
    rows = rows_per_block(len(u), len(v)) if block_size is None else block_size
    if isinstance(h, ProjectedConvexFunction):
        Au, Av = h.project(u), h.project(v)
        return _map_rows(lambda row: h.value_of_projected(row - Av), rows, Au)
    return _map_rows(lambda point: h.value(point - v), rows, u)
