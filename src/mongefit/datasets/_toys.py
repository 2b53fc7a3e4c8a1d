"""Toy data sets that the squared Euclidean cost matches wrongly: those of figure 1, and motions."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import OptionError

Points = NDArray[np.float64]

# The published experiments pass 180 to cos and sin, which take radians: a turn of 233.2°, not 180°.
_TURN = 180.0

Displacements = Literal["low_rank", "directional"]

# A rotation: the third axis of the motions below, across which nothing moves, becomes (1, 2, 2)/3.
_TILT = np.array([[2.0, -2.0, 1.0], [1.0, 2.0, 2.0], [-2.0, -1.0, 2.0]]) / 3


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

    Parameters and results are those of `t_shape`, with half of the points in each moon.
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
    is the rotation of `moon`. Parameters and results are those of `t_shape`, but n may be odd.
    """
    _check_count(n)
    rng = np.random.default_rng(seed)
    t = 3 * np.pi * np.sqrt(rng.uniform(size=n)) - np.pi / 2
    direction = np.column_stack([np.cos(t), np.sin(t)])
    p = (t + np.pi)[:, None] * direction + 0.25 * rng.standard_normal((n, 2))
    return _turn(p), 0.8 * p


def displaced(
    n: int = 128, kind: Displacements = "low_rank", *, seed: int = 0
) -> tuple[Points, Points]:
    """Clouds in three dimensions with nothing paired, that move in a plane or in two directions.

    Both are drawn in axes e₁, e₂, e₃ and tilted, so that e₃ = (1, 2, 2)/3; nothing moves along e₃.

    - "low_rank": a pile, 2 × 2 wide and 4 high. The layer at height t slides by 2 in the direction
      (cos, sin) of the angle (5π/16)·t, which turns by 225° from the bottom to the top.
    - "directional": two bars, 4 long, 1 wide and 1 high, one 3.5 above the other. They cross: each
      moves by 3 across its length, the upper one at +60° to e₁ and the lower one at −60°.

    The squared Euclidean cost moves points from one height to another instead, because the way is
    shorter.

    Parameters
    ----------
    n
        Number of points; for "directional" even, the upper bar first.
    kind
        "low_rank" or "directional".
    seed
        Seed of the random generator.

    Returns
    -------
    x, y
        Source and target points, [n, 3], drawn independently: row i of x does not belong to row i
        of y.
    """
    kinds = get_args(Displacements)
    if kind not in kinds:
        raise OptionError(f"kind must be one of {', '.join(kinds)}, got {kind!r}.")
    rng = np.random.default_rng(seed)
    x, y = (_pile(n, rng) if kind == "low_rank" else _bars(n, rng) for _ in range(2))
    if kind == "low_rank":
        y += 2 * _heading(5 * np.pi / 16 * y[:, 2])
    else:
        move = 3 * _heading(np.pi / 3 * np.sign(y[:, 2]))
        x, y = x - move / 2, y + move / 2
    return x @ _TILT.T, y @ _TILT.T


def _pile(n: int, rng: np.random.Generator) -> Points:
    """Points spread evenly over the height of a pile."""
    _check_count(n)
    return np.column_stack([rng.uniform(-1.0, 1.0, (n, 2)), 4 * _spread(n, rng)])


def _bars(n: int, rng: np.random.Generator) -> Points:
    """Half of the points in each of two bars, spread evenly over their length."""
    half = _half(n)
    bars = []
    for side in (1, -1):
        across, up = rng.uniform(-0.5, 0.5, (2, half))
        ahead, left = _heading(np.array([side * np.pi / 3, side * np.pi / 3 + np.pi / 2]))
        flat = np.outer(across, ahead) + np.outer(4 * _spread(half, rng), left)
        bars.append(flat + np.outer(up + 1.75 * side, [0.0, 0.0, 1.0]))
    return np.concatenate(bars)


def _spread(n: int, rng: np.random.Generator) -> Points:
    """One number, uniform, in each of n equal parts of [−½, ½]."""
    return (np.arange(n) + rng.uniform(size=n)) / n - 0.5


def _heading(angle: Points) -> Points:
    """Unit vectors at an angle to the first axis, in the plane of the first two."""
    return np.column_stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)])


def _turn(points: Points) -> Points:
    c, s = np.cos(_TURN), np.sin(_TURN)
    turned: Points = points @ np.array([[c, s], [-s, c]]).T
    return turned


def _check_count(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n <= 0:
        raise OptionError(f"n must be a positive whole number of points, got {n!r}.")


def _half(n: int) -> int:
    _check_count(n)
    if n % 2:
        raise OptionError(
            f"n must be even, because half of the points go to each part; got {n}. Try {n + 1}."
        )
    return int(n) // 2
