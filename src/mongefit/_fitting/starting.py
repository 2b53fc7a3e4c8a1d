"""Where source maps and matrices start, in closed form, from the known pairs.

With the source map u = Φ(x) the regression of y on x, and Σ the covariance of what it leaves, the
entropic plan of ½(u − y)ᵀΣ⁻¹(u − y) at eps = 1 is that of targets with normal noise around u. So a
learned matrix starts at Σ⁻¹.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._fitting.data import Leg
from mongefit._flows import AffineMap, Diffeo, KernelMap
from mongefit._regression import (
    Knobs,
    Points,
    Regression,
    Weights,
    kernel_regression,
    linear_regression,
    median_distance,
    regress,
    residuals,
    shrunk_covariance,
)
from mongefit._runtime import lapack_threads

STARTED = {"affine": linear_regression, "kernel": kernel_regression}
"""Source maps that start from the known pairs, and the regressions that they start as."""

_FREE_ANCHORS = 256


class Start(NamedTuple):
    """The regression to start from, None for none, and the covariance of what it leaves.

    The covariance is that of pairs that the regression has not seen, None where that is not known.
    """

    regression: Regression | None
    covariance: Points | None

    @classmethod
    def of(
        cls,
        kind: str | None,
        x: Points,
        y: Points,
        weight: Weights,
        clones: NDArray[np.int64],
        knobs: Knobs | None = None,
    ) -> Start:
        """The start of one kind of source map from paired points; its knobs are chosen if None."""
        counts = weight > 0
        x, y, weight, clones = x[counts], y[counts], weight[counts], clones[counts]
        if len(x) == 0:
            return cls(None, None)
        with lapack_threads(len(x) ** 2):
            found = None
            if kind is not None and knobs is None:
                found = STARTED[kind](x, y, weight, clones)
            elif knobs is not None:
                found = regress(x, y, weight, knobs)
            if len(np.unique(clones)) < 2:
                return cls(found, None)
            left = y - x if found is None else residuals(x, y, weight, clones, found.knobs)
            return cls(found, shrunk_covariance(left, weight, clones))

    def matrix(self, dim: int, least: float) -> Points:
        """The inverse of the covariance with a mean eigenvalue of 1, and none below ``least``."""
        if self.covariance is None:
            return np.eye(dim)
        values, vectors = np.linalg.eigh(self.covariance)
        inverse = 1 / np.maximum(values, max(1e-12 * values[-1], np.finfo(float).tiny))
        return (vectors * np.maximum(inverse / inverse.mean(), least)) @ vectors.T


def start(kind: str | None, legs: Sequence[Leg]) -> Start:
    """The start of one kind of source map from the pairs of all legs."""
    parts = []
    for clouds, known, *_ in legs:
        if known.pairs is not None and known.pair_weight is not None and known.clones is not None:
            rows, columns = known.pairs.T
            x, y = np.asarray(clouds.x, np.float64), np.asarray(clouds.y, np.float64)
            parts.append((x[rows], y[columns], known.pair_weight, known.clones))
    if not parts:
        return Start(None, None)
    x, y, weight, clones = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Start.of(kind, x, y, weight, clones)


def source_map(kind: str, found: Regression | None, legs: Sequence[Leg]) -> Diffeo:
    """A regression as a map of the source; without one, a map of its kind at the identity."""
    if found is None and kind == "affine":
        return AffineMap(legs[0].clouds.dim)
    if found is None:
        return kernel_map(np.concatenate([np.asarray(leg.clouds.x) for leg in legs]))
    if found.knobs.width is None:
        return AffineMap(len(found.shift), weight=found.weight, shift=found.shift)
    return KernelMap(
        found.anchors,
        found.knobs.width,
        weight=found.weight,
        shift=found.shift,
        coefficients=found.coefficients,
    )


def kernel_map(points: Points) -> KernelMap:
    """A kernel map at the identity, with anchors spread evenly over the points."""
    some = np.linspace(0, len(points) - 1, min(len(points), _FREE_ANCHORS)).astype(int)
    anchors = np.unique(points[some], axis=0)
    return KernelMap(anchors, median_distance(anchors))
