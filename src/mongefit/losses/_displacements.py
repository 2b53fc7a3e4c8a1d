"""How things move: in few dimensions, or in few directions."""

from __future__ import annotations

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from mongefit._numerics import safe_norm
from mongefit._runtime import double_precision
from mongefit.errors import OptionError
from mongefit.losses._base import Direction, MapLoss


class LowRank(MapLoss):
    """Σ_{i>r} σ_i² of the matrix of displacements T(x_i) − x_i with rows scaled by √a_i.

    Parameters
    ----------
    rank
        Number r of dimensions in which things may move freely.
    direction
        "both", "forward" or "reverse".
    """

    rank: int = eqx.field(static=True)
    direction: Direction = eqx.field(static=True, default="both", kw_only=True)

    def __check_init__(self):
        if self.rank < 1:
            raise OptionError(f"LowRank needs a rank of at least 1, got {self.rank}.")

    def one_way(self, view):
        displacement = view.displacement
        dim = displacement.shape[1]
        if self.rank >= dim:
            raise OptionError(
                f"LowRank({self.rank}) says nothing in {dim} dimensions: the rank must be below."
            )
        gram = displacement.T @ (view.weight[:, None] * displacement)
        # σ² are the eigenvalues. With the eigenvectors held constant their first derivative is
        # exact, and finite where eigenvalues meet, which that of eigenvectors is not.
        _, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(gram))
        trailing = vectors[:, : dim - self.rank]
        return jnp.sum(trailing * (gram @ trailing))


class Directional(MapLoss):
    """−τ Σ_i a_i LogSumExp_j(−d_cos(T(x_i) − x_i, v_j)/τ) with k learned directions v_j.

    d_cos(u, v) = 1 − ⟨u, v⟩/(‖u‖‖v‖). A small τ lets every displacement choose one direction; at
    τ = 1 two groups 90° apart are served best by both directions in the middle.

    Parameters
    ----------
    k
        Number of directions.
    direction
        "both", "forward" or "reverse".
    temperature
        τ.
    directions
        Where to start, [k, d]; by default the centres of k clusters of the directions in which
        the points move before training. From random directions training can end with two that
        lie opposite each other.
    """

    k: int = eqx.field(static=True)
    direction: Direction = eqx.field(static=True, default="both", kw_only=True)
    temperature: float = eqx.field(static=True, default=0.1)
    directions: Float[Array, "k d"] | None = None

    def __check_init__(self):
        if self.k < 1:
            raise OptionError(f"Directional needs at least one direction, got k = {self.k}.")
        if not self.temperature > 0:
            raise OptionError(f"Directional needs a temperature > 0, got {self.temperature}.")

    def initialised(self, displacement, weight, seed):
        if self.directions is not None:
            return self
        unit = np.asarray(_unit(jnp.asarray(displacement)))
        # Every point at least once where there are fewer of them than clusters.
        rows = np.arange(max(len(unit), self.k)) % len(unit)
        clusters = KMeans(self.k, n_init=10, random_state=seed % 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer directions than clusters
            clusters.fit(unit[rows], sample_weight=np.asarray(weight)[rows])
        centres = clusters.cluster_centers_
        # Centres that coincide would stay together for ever.
        jitter = 1e-3 * np.random.default_rng(seed).standard_normal(centres.shape)
        return eqx.tree_at(
            lambda loss: loss.directions,
            self,
            jnp.asarray(centres + jitter),
            is_leaf=lambda node: node is None,
        )

    @property
    def unit_directions(self) -> Float[Array, "k d"]:
        """The directions v_j with length 1."""
        if self.directions is None:
            raise OptionError("Directional has no directions before it is fitted: see losses_.")
        with double_precision(self.directions):
            return _unit(self.directions)

    def one_way(self, view):
        cosine = _unit(view.displacement) @ self.unit_directions.T
        closeness = self.temperature * logsumexp((cosine - 1) / self.temperature, axis=1)
        return -view.weight @ closeness


def _unit(vectors: Float[Array, "N d"]) -> Float[Array, "N d"]:
    """Rows divided by their length; a zero row stays zero, with a finite derivative."""
    length = safe_norm(vectors)[:, None]
    return vectors / jnp.maximum(length, jnp.finfo(vectors.dtype).eps)
