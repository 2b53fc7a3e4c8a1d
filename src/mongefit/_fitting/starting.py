"""Source maps that start from the known pairs, in closed form."""

from __future__ import annotations

import numpy as np

from mongefit._fitting.data import Clouds, connected_parts
from mongefit._flows import AffineMap, Diffeo, KernelMap
from mongefit._regression import (
    Regression,
    kernel_regression,
    linear_regression,
    median_distance,
)
from mongefit._validation import Knowledge

STARTED = ("affine", "kernel")
"""Source maps that start from the known pairs."""

_FREE_ANCHORS = 256


def start_source_map(kind: str, clouds: Clouds, known: Knowledge) -> Diffeo:
    """The affine or kernel map that starts as the regression on the known pairs.

    Without pairs it starts as the identity.
    """
    if known.pairs is None or known.pair_weight is None:
        some = np.linspace(0, len(clouds.x) - 1, min(len(clouds.x), _FREE_ANCHORS)).astype(int)
        anchors = np.unique(np.asarray(clouds.x)[some], axis=0)
        if kind == "affine":
            return AffineMap(clouds.dim)
        return KernelMap(anchors, median_distance(anchors))
    x, y = np.asarray(clouds.x, np.float64), np.asarray(clouds.y, np.float64)
    rows, columns = known.pairs.T
    choose = linear_regression if kind == "affine" else kernel_regression
    parts = connected_parts(rows, columns)
    return source_map(choose(x[rows], y[columns], known.pair_weight, parts))


def source_map(found: Regression) -> Diffeo:
    """A regression as a map of the source."""
    if found.knobs.width is None:
        return AffineMap(len(found.shift), weight=found.weight, shift=found.shift)
    return KernelMap(
        found.anchors,
        found.knobs.width,
        weight=found.weight,
        shift=found.shift,
        coefficients=found.coefficients,
    )
