"""Diffusion components: where a random walk over the neighbours of both times leads.

With W the affinities of neighbouring cells, divided by their densities q = W1 so that how many
cells were sampled where does not count, and P the transition matrix of W_ij/(q_i q_j), component k
is the eigenvector ψ_k of P times λ_k/(1 − λ_k), the sum over walks of every length. Distances in
these coordinates go along the cells and not across the gaps between branches.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mongefit.errors import DataError, warn_user

Points = NDArray[np.float64]

N_NEIGHBORS = 15
_WIDTH = 5
"""The neighbour whose distance is the width of a cell's kernel."""
_LEAST = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class DiffusionMap:
    """Diffusion components of some cells, and of others by Nyström's formula.

    Attributes
    ----------
    anchors
        The cells they were computed from, in the coordinates that neighbours are found in, [n, d].
    coordinates
        Their components, [n, k].
    values
        The eigenvalues λ of the components, [k], from the largest on.
    density
        The sum of the affinities of each cell, [n].
    """

    anchors: Points = dataclasses.field(repr=False)
    coordinates: Points = dataclasses.field(repr=False)
    values: NDArray[np.float64] = dataclasses.field(repr=False)
    density: NDArray[np.float64] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, points: Points, n_components: int) -> DiffusionMap:
        """Compute the components of the rows of ``points``."""
        from scipy.sparse.csgraph import connected_components
        from scipy.sparse.linalg import eigsh

        size = len(points)
        if n_components >= size - 1:
            raise DataError(
                f"{n_components} diffusion components of {size} cells cannot be computed: ask for "
                "fewer."
            )
        near, weights, _ = _affinities(points, points)
        rows = np.repeat(np.arange(size), near.shape[1])
        W = scipy.sparse.csr_array((weights.ravel(), (rows, near.ravel())), shape=(size, size))
        W = W + W.T
        count, _ = connected_components(W, directed=False)
        if count > 1:
            warn_user(
                f"The neighbours of the cells fall into {count} parts with no way between them: "
                "diffusion components tell the parts apart, and little within them."
            )
        density = np.asarray(W.sum(axis=1)).ravel()
        walks = _scaled(W, 1 / density)
        total = np.asarray(walks.sum(axis=1)).ravel()
        root = np.sqrt(total)
        values, vectors = eigsh(_scaled(walks, 1 / root), k=n_components + 1, which="LA", v0=root)
        order = np.argsort(-values)[1:]  # the first is constant
        values = np.clip(values[order], _LEAST, 1 - _LEAST)
        psi = vectors[:, order] / root[:, None] * np.sqrt(total.sum())
        # Signs are arbitrary: the largest entry of each is positive.
        psi *= np.sign(psi[np.abs(psi).argmax(axis=0), np.arange(n_components)])
        return cls(points, psi * (values / (1 - values)), values, density)

    def project(self, points: Points) -> Points:
        """The components of the rows of ``points``: those of the anchors where they are some.

        Elsewhere Nyström's formula ψ(x) = Σ_i p(x, x_i) ψ(x_i)/λ, p the transition from x.
        """
        near, weights, nearest = _affinities(self.anchors, points)
        weights = weights / self.density[near]
        weights /= weights.sum(axis=1, keepdims=True)
        found = np.einsum("nk,nkd->nd", weights, self.coordinates[near]) / self.values
        same = nearest <= 1e-6 * max(float(np.abs(self.anchors).max()), 1e-300)
        found[same] = self.coordinates[near[same, 0]]
        return np.asarray(found)


def _affinities(
    cells: Points, points: Points
) -> tuple[NDArray[np.int64], Points, NDArray[np.float64]]:
    """The nearest cells of each point, their affinities, and how far the nearest is."""
    from sklearn.neighbors import NearestNeighbors

    count = min(N_NEIGHBORS + 1, len(cells))
    distance, near = NearestNeighbors(n_neighbors=count).fit(cells).kneighbors(points)
    width = distance[:, min(_WIDTH, count - 1)]
    # Cells that are the same six times over have no width: their neighbours count alike.
    width = np.where(width > 0, width, np.where(distance[:, -1] > 0, distance[:, -1], 1.0))
    return near, np.exp(-((distance / width[:, None]) ** 2)), distance[:, 0]


def _scaled(W: scipy.sparse.csr_array, factor: NDArray[np.float64]) -> scipy.sparse.csr_array:
    """diag(factor) W diag(factor)."""
    diagonal = scipy.sparse.diags_array(factor)
    return scipy.sparse.csr_array(diagonal @ W @ diagonal)
