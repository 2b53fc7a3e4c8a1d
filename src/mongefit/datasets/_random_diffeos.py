"""Clouds made by two random diffeomorphisms of the unit cube, of which some points are paired."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mongefit.datasets._toys import Points
from mongefit.errors import OptionError


@dataclasses.dataclass(frozen=True)
class RandomDiffeomorphism:
    r"""A smooth invertible map of the unit cube into R^d, drawn by a random generator.

    v = 2u − 1 goes through four blocks. With a the first ⌊d/2⌋ coordinates and b the others, the
    first block sets

        b ← b ∘ exp(½ tanh(W a + w)) + tanh(V a + t),

    the second does the same to a from the new b, and so on in turn. For each block the generator
    draws, with ``standard_normal``, W [r, s], w [r], V [r, s] and t [r] in this order, where s
    coordinates change r others; W and V are then divided by √s.
    """

    blocks: tuple[tuple[Points, Points, Points, Points], ...]  # (W, w, V, t) of each block

    @classmethod
    def draw(cls, dim: int, rng: np.random.Generator) -> RandomDiffeomorphism:
        """The next map of a random generator, in at least two dimensions."""
        changing, changed = dim // 2, dim - dim // 2
        blocks = []
        for _ in range(4):
            size, root = (changed, changing), np.sqrt(changing)
            W, w = rng.standard_normal(size) / root, rng.standard_normal(changed)
            V, t = rng.standard_normal(size) / root, rng.standard_normal(changed)
            blocks.append((W, w, V, t))
            changing, changed = changed, changing
        return cls(tuple(blocks))

    def __call__(self, u: Points) -> Points:
        """Where points of the unit cube go."""
        a, b = np.split(2 * u - 1, [u.shape[1] // 2], axis=1)
        for W, w, V, t in self.blocks:
            a, b = b * np.exp(0.5 * np.tanh(a @ W.T + w)) + np.tanh(a @ V.T + t), a
        return np.concatenate([a, b], axis=1)


@dataclasses.dataclass(frozen=True)
class LimitedPairs:
    """Two clouds of which some points are paired, and the maps that made them.

    Attributes
    ----------
    x, y
        Source and target points, [n, d] and [m, d]; the first rows of both are paired.
    pairs
        Known pairs, [k, 2]: row of x, row of y.
    phi_1, phi_2
        The diffeomorphisms of source and target: the true map is Φ₂ ∘ Φ₁⁻¹.
    """

    x: Points
    y: Points
    pairs: NDArray[np.int64]
    phi_1: RandomDiffeomorphism
    phi_2: RandomDiffeomorphism

    def sample(self, n: int, *, seed: int) -> tuple[Points, Points]:
        """New points, all of them paired: row i of the first goes to row i of the second."""
        u = np.random.default_rng(seed).uniform(size=(n, self.x.shape[1]))
        return self.phi_1(u), self.phi_2(u)


def limited_pairs(n: int, m: int, n_pairs: int, dim: int, *, seed: int = 0) -> LimitedPairs:
    """Points of the unit cube pushed through two random diffeomorphisms, a few of them paired.

    One generator draws Φ₁, then Φ₂, then uniform points of the cube: those of the pairs, the other
    source points, the other target points. The number of pairs does not change the maps, and more
    pairs contain fewer ones.

    Parameters
    ----------
    n, m
        Number of source and of target points.
    n_pairs
        How many of them are paired.
    dim
        Dimension, at least 2.
    seed
        Seed of the random generator.
    """
    if dim < 2:
        raise OptionError(f"dim must be at least 2, got {dim}.")
    if not 0 <= n_pairs <= min(n, m):
        raise OptionError(f"n_pairs must be between 0 and {min(n, m)}, got {n_pairs}.")
    rng = np.random.default_rng(seed)
    phi_1, phi_2 = RandomDiffeomorphism.draw(dim, rng), RandomDiffeomorphism.draw(dim, rng)
    shared = rng.uniform(size=(min(n, m), dim))
    alone_x, alone_y = rng.uniform(size=(n, dim)), rng.uniform(size=(m, dim))
    u = np.concatenate([shared[:n_pairs], alone_x[n_pairs:]])
    v = np.concatenate([shared[:n_pairs], alone_y[n_pairs:]])
    pairs = np.stack([np.arange(n_pairs)] * 2, axis=1)
    return LimitedPairs(phi_1(u), phi_2(v), pairs, phi_1, phi_2)
