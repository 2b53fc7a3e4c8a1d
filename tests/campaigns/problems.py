"""Random problems for property tests: any size up to 64, padded into two compiled shapes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

DIM = 10
SHAPES = (16, 64)
DIMS = (1, 2, 3, 10)
EPSILONS = (0.05, 0.01, 0.002)


def profile(campaign, short: int, long: int) -> settings:
    """The same cases every time in `make test`, other ones in every `make fuzz`."""
    return settings(
        max_examples=campaign.pick(short, long),
        derandomize=not campaign.long,
        database=None,
        deadline=None,
        print_blob=True,
        # A case is small as it is, and its arrays come from a seed: there is little to simplify.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


class Problem(NamedTuple):
    """Two weighted clouds in R^d, padded with points of weight zero and columns of zeros."""

    n: int
    m: int
    d: int
    x: np.ndarray
    y: np.ndarray
    a: np.ndarray
    b: np.ndarray
    epsilon: float
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """Numbers that belong to this problem."""
        return np.random.default_rng([self.seed, 1])


def _weights(rng, size, padded, weighted):
    weight = rng.dirichlet(np.full(size, 0.7)) if weighted else np.full(size, 1 / size)
    return np.concatenate([weight, np.zeros(padded - size)])


def _cloud(rng, size, padded, d, spread):
    points = np.zeros((padded, DIM))
    points[:, :d] = spread * rng.normal(size=(padded, d))
    if size > 3 and rng.uniform() < 0.3:
        points[1:3, :d] = points[0, :d]  # duplicates
    if rng.uniform() < 0.3:
        points[: size // 2, :d] += 3 * rng.normal(size=d)  # two groups
    return points


@st.composite
def problems(draw, shapes=SHAPES, dims=DIMS) -> Problem:
    """Sizes, weights, spread and epsilon from Hypothesis, which makes them simple where it can."""
    padded = draw(st.sampled_from(shapes))
    n, m = (draw(st.integers(1, padded)) for _ in range(2))
    d = draw(st.sampled_from(dims))
    weighted, spread = draw(st.booleans()), draw(st.sampled_from((1.0, 0.3, 2.0)))
    epsilon = draw(st.sampled_from(EPSILONS))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x, y = _cloud(rng, n, padded, d, 1.0), _cloud(rng, m, padded, d, spread)
    y[:, :d] += rng.normal(size=d)
    a, b = (_weights(rng, size, padded, weighted) for size in (n, m))
    return Problem(n, m, d, x, y, a, b, epsilon, seed)
