"""The toy data sets of figure 1: paired clouds that the squared Euclidean cost matches wrongly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

# The published experiments pass 180 to cos and sin, which take radians: a turn of 233.2°, not 180°.
_TURN = 180.0


def t_shape(n: int = 128, *, seed: int = 0) -> tuple[Points, Points]:
    """Two bars that cross: the left one goes right by 14.4, the top one goes down by 10.1.

    Parameters
    ----------
    n
        Number of points, even: half of them in each bar, the left bar first.
    seed
        Seed of the random generator.

    Returns
    -------
    x, y
        Source and target points, [n, 2]; row i of x belongs to row i of y.
    """
    half = _half(n)
    rng = np.random.default_rng(seed)
    left = np.column_stack([2 * rng.uniform(-1.2, -1.0, half) - 5, np.linspace(2.6, 5.0, half)])
    top = np.column_stack([np.linspace(-1.2, 1.2, half), 2 * rng.uniform(0.8, 1.0, half) + 3])
    x = np.concatenate([left, top])
    y = np.concatenate([left + np.array([14.4, 0.0]), top - np.array([0.0, 10.1])])
    return x, y


def moon(n: int = 128, *, seed: int = 0) -> tuple[Points, Points]:
    """Two moons as the target, and the same points turned about the origin as the source.

    The source is x = R y with R = [[c, s], [−s, c]], c = cos 180 and s = sin 180 in radians.

    Parameters
    ----------
    n
        Number of points, even: half of them in each moon.
    seed
        Seed of the random generator.

    Returns
    -------
    x, y
        Source and target points, [n, 2]; row i of x belongs to row i of y.
    """
    half = _half(n)
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, np.pi, half)
    lower = np.column_stack([np.cos(t) + 0.5, -np.sin(t) + 0.2])
    upper = np.column_stack([np.cos(t) - 0.5, np.sin(t) - 0.2])
    y = (10 * np.concatenate([lower, upper]) + 0.5 * rng.standard_normal((n, 2))) / 3
    return _turn(y), y


def spiral(n: int = 128, *, seed: int = 0) -> tuple[Points, Points]:
    """A spiral p, turned to give the source x = R p and shrunk to give the target y = 0.8 p.

    Here t = 3π√U − π/2 with U uniform, p = (t + π)(cos t, sin t) + ¼G with G standard normal, and R
    is the rotation of `moon`.

    Parameters
    ----------
    n
        Number of points.
    seed
        Seed of the random generator.

    Returns
    -------
    x, y
        Source and target points, [n, 2]; row i of x belongs to row i of y.
    """
    _check_count(n)
    rng = np.random.default_rng(seed)
    t = 3 * np.pi * np.sqrt(rng.uniform(size=n)) - np.pi / 2
    direction = np.column_stack([np.cos(t), np.sin(t)])
    p = (t + np.pi)[:, None] * direction + 0.25 * rng.standard_normal((n, 2))
    return _turn(p), 0.8 * p


def _turn(points: Points) -> Points:
    c, s = np.cos(_TURN), np.sin(_TURN)
    turned: Points = points @ np.array([[c, s], [-s, c]]).T
    return turned


def _check_count(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n <= 0:
        raise ValueError(f"n must be a positive whole number of points, got {n!r}.")


def _half(n: int) -> int:
    _check_count(n)
    if n % 2:
        raise ValueError(
            f"n must be even, because half of the points go to each part; got {n}. Try {n + 1}."
        )
    return int(n) // 2
