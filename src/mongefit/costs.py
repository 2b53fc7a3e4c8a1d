"""Costs c(x, y) = h(Φμ(x) − Φν(y)) and their pairwise matrices."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Float

from mongefit.convex import ConvexFunction
from mongefit.diffeos import Diffeo


class Cost(eqx.Module):
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


def displacements(u: Float[Array, "n d"], v: Float[Array, "m d"]) -> Float[Array, "n m d"]:
    """u_i − v_j for all pairs."""
    return u[:, None, :] - v[None, :, :]


def pairwise_value_and_gradient(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    guess: Float[Array, "n m d"] | None = None,
) -> tuple[Float[Array, "n m"], Float[Array, "n m d"]]:
    """h(u_i − v_j) and ∇h(u_i − v_j) for all pairs, as one batch.

    ``guess`` approximates ∇h, for functions that must solve for it.
    """
    z = displacements(u, v)
    flat = None if guess is None else guess.reshape(-1, z.shape[-1])
    value, gradient = h.value_and_gradient(z.reshape(-1, z.shape[-1]), flat)
    return value.reshape(z.shape[:2]), gradient.reshape(z.shape)


def pairwise_value(
    h: ConvexFunction,
    u: Float[Array, "n d"],
    v: Float[Array, "m d"],
    *,
    block_size: int | None = None,
) -> Float[Array, "n m"]:
    """h(u_i − v_j) for all pairs.

    With ``block_size`` rows are taken in blocks and recomputed in the reverse pass, so that memory
    is set by the block.
    """
    if block_size is None or block_size >= u.shape[0]:
        z = displacements(u, v)
        return h.value(z.reshape(-1, z.shape[-1])).reshape(z.shape[:2])

    @jax.checkpoint
    def row(point):
        return h.value(point - v)

    return jax.lax.map(row, u, batch_size=block_size)
