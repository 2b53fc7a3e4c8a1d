"""Regression on known pairs, linear and with Gaussian kernels, chosen by cross-validation.

All in NumPy: these are the maps that training starts from, and the predictors it must beat.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Weights = NDArray[np.float64]

# Ridge strengths relative to the mean square of a feature map of the paired sources, and to the
# number of pairs.
STRENGTHS = np.logspace(-10, 3, 27)
# Widths of the kernel relative to the median distance between paired sources.
WIDTHS = (0.5, 1.0, 2.0)
# How much more freely the linear part moves than the kernel part.
LINEAR = (0.0, 1.0, 30.0)
MOST_ANCHORS = 1000
# Pairs up to which cross-validation is repeated with other folds, and how often.
_FEW, _REPEATS = 200, 4


class Knobs(NamedTuple):
    """What cross-validation chooses of a regression.

    It is shrunk towards the mean displacement if ``moves``, else towards the mean target; ``width``
    is that of the kernel, in the units of the points, None for a linear regression.
    """

    moves: bool
    width: float | None
    linear: float
    strength: float


class Regression(NamedTuple):
    """x ↦ Wx + t + Σ_k c_k exp(−‖x − x_k‖²/2w²), and its error in cross-validation.

    ``error`` is the root of the mean square over held-out pairs, infinite where there was nothing
    to hold out.
    """

    weight: Points
    shift: NDArray[np.float64]
    anchors: Points
    coefficients: Points
    knobs: Knobs
    error: float

    def __call__(self, x: Points, /) -> Points:
        found = x @ self.weight.T + self.shift
        if self.knobs.width is not None:
            found = found + gaussian(x, self.anchors, self.knobs.width) @ self.coefficients
        return found


def gaussian(x: Points, anchors: Points, width: float) -> Points:
    """exp(−‖x_i − x_k‖²/2w²) for all pairs of rows."""
    squares = (x * x).sum(1)[:, None] + (anchors * anchors).sum(1) - 2 * x @ anchors.T
    return np.exp(np.maximum(squares, 0) / (-2 * width**2))


def linear_regression(
    x: Points, y: Points, weight: Weights, groups: NDArray[np.int64] | None = None
) -> Regression:
    """Ridge regression of y on x, its strength and what it is shrunk towards chosen."""
    return _choose(x, y, weight, groups, [(True, None, 1.0), (False, None, 1.0)])


def kernel_regression(
    x: Points, y: Points, weight: Weights, groups: NDArray[np.int64] | None = None
) -> Regression:
    """Kernel ridge regression with a linear part, all its knobs chosen."""
    median = median_distance(x)
    every = itertools.product((True, False), [median * each for each in WIDTHS], LINEAR)
    return _choose(x, y, weight, groups, list(every))


def regress(x: Points, y: Points, weight: Weights, knobs: Knobs) -> Regression:
    """The regression with given knobs."""
    x, y, weight, _ = _merge(x, y, weight, np.zeros(len(x), np.int64))
    part = _Solved.of(_Kernel.of(x, weight, knobs.width, knobs.linear), x, y, knobs.moves)
    return part.regression(knobs)


def residuals(
    x: Points, y: Points, weight: Weights, groups: NDArray[np.int64], knobs: Knobs
) -> Points:
    """y less what the regression with given knobs says of x when it has not seen its group."""
    found = np.empty_like(y)
    for out in folds(groups, 5):
        left = ~out & (weight > 0)
        found[out] = y[out] - regress(x[left], y[left], weight[left], knobs)(x[out])
    return found


def shrunk_covariance(points: Points, weight: Weights, groups: NDArray[np.int64]) -> Points:
    """The covariance of rows, shrunk towards a round one by how few groups there are.

    The share of the round one is the "oracle approximating shrinkage" of Chen, Wiesel, Eldar and
    Hero (2010), as scikit-learn has it, with a group counted as one observation.
    """
    share = weight / weight.sum()
    centred = points - share @ points
    dim, count = points.shape[1], len(np.unique(groups[weight > 0]))
    found = (share[:, None] * centred).T @ centred
    trace, square = float(np.trace(found)), float(np.sum(found * found))
    above = square + trace**2
    below = (count + 1) * (square - trace**2 / dim)
    shrink = 1.0 if below <= 0 else min(1.0, above / below)
    return (1 - shrink) * found + shrink * trace / dim * np.eye(dim)


def standard_error(values: Weights, weight: Weights, groups: NDArray[np.int64]) -> float:
    """The standard error of a weighted mean of values that go together in groups."""
    share = weight / weight.sum()
    sums = np.bincount(groups, share * (values - share @ values))
    count = int(np.count_nonzero(np.bincount(groups, share)))
    return float(np.sqrt(np.sum(sums**2) * count / max(count - 1, 1)))


def median_distance(x: Points) -> float:
    """The median distance between rows, of at most 500 of them; 1 where there are no two."""
    some = x[np.linspace(0, len(x) - 1, min(len(x), 500)).astype(int)]
    squares = ((some[:, None] - some) ** 2).sum(-1)[np.triu_indices(len(some), 1)]
    positive = squares[squares > 0]
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0


def folds(groups: NDArray[np.int64], count: int, seed: int = 0) -> Iterator[NDArray[np.bool_]]:
    """Which rows are held out in each of at most ``count`` folds; groups stay together."""
    names, which = np.unique(groups, return_inverse=True)
    count = min(count, len(names))
    part = np.random.default_rng(seed).permutation(len(names)) % max(count, 1)
    for k in range(count):
        yield part[which] == k


def _choose(
    x: Points,
    y: Points,
    weight: Weights,
    groups: NDArray[np.int64] | None,
    every: Sequence[tuple[bool, float | None, float]],
) -> Regression:
    groups = np.arange(len(x)) if groups is None else np.asarray(groups)
    x, y, weight, groups = _merge(x, y, weight, groups)
    if len(np.unique(groups)) < 2:
        # Nothing to choose by: the mean displacement.
        _, width, linear = every[0]
        return regress(x, y, weight, Knobs(True, width, linear, np.inf))
    missed = np.zeros((len(every), len(STRENGTHS)))
    # What few pairs say depends on how they are divided.
    several = _REPEATS if len(x) <= _FEW else 1
    for out in itertools.chain(*(folds(groups, 5, seed) for seed in range(several))):
        kernels: dict[Any, tuple[_Kernel, Points]] = {}
        for k, (moves, width, linear) in enumerate(every):
            if (width, linear) not in kernels:
                kernel = _Kernel.of(x[~out], weight[~out], width, linear)
                kernels[width, linear] = kernel, kernel.features(x[out])
            kernel, features = kernels[width, linear]
            part = _Solved.of(kernel, x[~out], y[~out], moves)
            missed[k] += part.errors(features, x[out], y[out], weight[out])
    # Of those that are equal but for rounding the strongest.
    at, strength = np.unravel_index(np.argmin(missed[:, ::-1]), missed.shape)
    knobs = Knobs(*every[int(at)], float(STRENGTHS[::-1][strength]))
    error = float(np.sqrt(missed.min() / (several * weight.sum())))
    return regress(x, y, weight, knobs)._replace(error=error)


def _merge(x: Points, y: Points, weight: Weights, groups: NDArray[np.int64]):
    """Each source once, with the mean of its targets, and at most so many."""
    counts = weight > 0
    rows, first, which = np.unique(x[counts], axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    total = np.bincount(which, weight[counts], len(rows))
    mean = np.zeros((len(rows), y.shape[1]))
    np.add.at(mean, which, (weight[counts] / total[which])[:, None] * y[counts])
    found = rows, mean, total, groups[counts][first]
    if len(rows) > MOST_ANCHORS:
        some = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_ANCHORS])
        return tuple(part[some] for part in found)
    return found


class _Kernel(NamedTuple):
    """The eigenvectors of a kernel on some sources, from which all strengths are quick.

    With S the roots of the weights and K the kernel they are those of SKS. Targets are not in it.
    """

    x: Points
    centre: NDArray[np.float64]
    weight: Weights
    width: float | None
    scale: float
    values: NDArray[np.float64]
    vectors: Points

    @classmethod
    def of(cls, x: Points, weight: Weights, width: float | None, linear: float) -> _Kernel:
        weight = weight / weight.mean()
        centre = _mean(x, weight)
        spread = float(np.mean(weight * ((x - centre) ** 2).sum(1)))
        scale = linear / spread if spread > 0 else 0.0
        root = np.sqrt(weight)
        K = cls._between(x, x, centre, width, scale)
        values, vectors = np.linalg.eigh(root[:, None] * K * root)
        return cls(x, centre, weight, width, scale, np.maximum(values, 0), vectors)

    @staticmethod
    def _between(x, others, centre, width, scale):
        K = scale * (x - centre) @ (others - centre).T
        return K if width is None else K + gaussian(x, others, width)

    def features(self, x: Points) -> Points:
        """The kernel between other points and the sources, along the eigenvectors."""
        K = self._between(x, self.x, self.centre, self.width, self.scale)
        return (K * np.sqrt(self.weight)) @ self.vectors


class _Solved(NamedTuple):
    """A regression on some pairs at every strength.

    With r the targets less what they are shrunk towards, and S and K as in `_Kernel`, the dual
    coefficients at strength λ are S(SKS + λI)⁻¹Sr.
    """

    kernel: _Kernel
    moves: bool
    middle: NDArray[np.float64]
    projected: Points

    @classmethod
    def of(cls, kernel: _Kernel, x: Points, y: Points, moves: bool) -> _Solved:
        rest = y - moves * x
        middle = _mean(rest, kernel.weight)
        root = np.sqrt(kernel.weight)
        return cls(kernel, moves, middle, kernel.vectors.T @ (root[:, None] * (rest - middle)))

    def errors(self, features: Points, x: Points, y: Points, weight: Weights) -> Weights:
        """The weighted sum of squares on other pairs, for every strength."""
        rest = y - self.moves * x - self.middle
        shrunk = self.kernel.values + STRENGTHS[:, None, None]
        found: list[float] = []
        # As many strengths at once as fit into the cache.
        for part in np.array_split(shrunk, min(len(shrunk), 1 + features.size // 2000)):
            gap = rest - (features / part) @ self.projected
            found.extend(weight @ squares for squares in (gap**2).sum(2))
        return np.asarray(found)

    def regression(self, knobs: Knobs) -> Regression:
        kernel, projected = self.kernel, self.projected
        duals = kernel.vectors @ (projected / (kernel.values + knobs.strength)[:, None])
        duals = np.sqrt(kernel.weight)[:, None] * duals
        weight = self.moves * np.eye(kernel.x.shape[1])
        weight = weight + kernel.scale * duals.T @ (kernel.x - kernel.centre)
        slope = weight - self.moves * np.eye(kernel.x.shape[1])
        shift = self.middle - slope @ kernel.centre
        return Regression(weight, shift, kernel.x, duals, knobs, np.inf)


def _mean(points: Points, weight: Weights) -> NDArray[np.float64]:
    """The weighted mean of rows, without the checks of `numpy.average`."""
    column = weight[:, None]
    return (points * column).sum(0) / column.sum(0)
