"""How columns of a matrix go with a number of every row: correlations and partial effects."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr

Array = NDArray[np.float64]

_BLOCK = 1 << 17
"""Values of the matrix that are dense at a time: what a cache holds."""
_FULL = 1 - 1e-8
"""A row with this leverage alone decides a coefficient."""
_NOTHING = 1e-10
"""Share of a sum of squares that counts as 0."""


class Association(NamedTuple):
    """Statistics of the columns ``gene`` that vary, each [g]."""

    gene: NDArray[np.int64]
    correlation: Array
    p_value: Array
    ci_low: Array
    ci_high: Array
    effect: Array
    effect_p_value: Array


def associate(X: Any, y: Array, z: Array, fixed: Array, *, level: float) -> Association:
    """Correlations of the columns of X with y, and their effects on z.

    The effect is the coefficient of a column in the regression of z on it and on ``fixed``, an
    orthonormal basis [n, k] that spans a constant too, times the standard deviation of the column.
    X is dense or sparse, [n, g]; a few columns are dense at a time.
    """
    n = len(y)
    columns = scipy.sparse.csc_matrix(X) if scipy.sparse.issparse(X) else X
    step = max(1, _BLOCK // n)
    centred, left = y - y.mean(), z - fixed @ (fixed.T @ z)
    apart = z - z.mean()
    open_question = left @ left > max(_NOTHING * (apart @ apart), 1e-24 * (z @ z))
    parts = []
    for start in range(0, X.shape[1], step):
        block = columns[:, start : start + step].T
        dense = block.toarray() if scipy.sparse.issparse(block) else np.ascontiguousarray(block)
        least, most = dense.min(axis=1, keepdims=True), dense.max(axis=1, keepdims=True)
        varies = np.flatnonzero(most > least)
        dense = (dense[varies] - least[varies]) / (most - least)[varies]
        dense -= dense.mean(axis=1, keepdims=True)
        squares = _squares(dense)
        r = dense @ centred / np.sqrt(squares * (centred @ centred))
        effect, t = _effects(dense, squares, left, fixed)
        parts.append((start + varies, r, effect, t))
    gene, r, effect, t = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not open_question:
        effect, t = np.zeros_like(effect), np.zeros_like(t)
    r = np.clip(r, -1, 1)
    with np.errstate(divide="ignore"):
        far = ndtri((1 + level) / 2) / np.sqrt(n - 3)
        low, high = np.tanh(np.arctanh(r) - far), np.tanh(np.arctanh(r) + far)
        p_value = _two_sided(r * np.sqrt((n - 2) / (1 - r**2)), n - 2)
    return Association(gene, r, p_value, low, high, effect, _two_sided(t, n - fixed.shape[1] - 1))


def basis(columns: Array) -> Array:
    """An orthonormal basis of what some columns span; they are brought to one scale first."""
    apart = columns - columns.mean(axis=0)
    scale = np.abs(apart).max(axis=0)
    scaled = np.where(scale == 0, 1.0, apart / np.where(scale == 0, 1.0, scale))
    U, size, _ = np.linalg.svd(scaled, full_matrices=False)
    return np.ascontiguousarray(U[:, size > _NOTHING * size[0]])


def false_discovery(p_value: Array) -> Array:
    """Benjamini and Hochberg's corrected p-values."""
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_value)) if len(p_value) else p_value


def _effects(dense: Array, whole: Array, left: Array, fixed: Array) -> tuple[Array, Array]:
    """Effects on ``left``, from which ``fixed`` was taken out, and their t, for rows [g, n].

    Of every row, too, ``fixed`` is taken out (Frisch, Waugh and Lovell), so that the regression has
    one coefficient. ``whole`` are the sums of squares before that; ``dense`` is overwritten.
    """
    n, k = fixed.shape
    own = dense
    own -= (dense @ fixed) @ fixed.T
    squares = _squares(own)
    known = squares > _NOTHING * whole
    squares = np.where(known, squares, 1.0)
    slope = own @ left / squares
    rest = own * -slope[:, None]
    rest += left
    equal = _squares(rest) / (n - k - 1) / squares  # the variance of the slope, noise being alike
    leverage = _squares(fixed)
    remaining = own**2
    remaining /= -squares[:, None]
    # Cells that are the only ones of a category say nothing of any gene.
    remaining += np.where(leverage > _FULL, 1.0, 1 - leverage)
    known &= remaining.min(axis=1) > 1 - _FULL
    rest /= np.maximum(remaining, 1e-12, out=remaining)  # leave-one-out residuals
    rest *= own
    robust = _squares(rest) / squares**2  # HC3
    error = np.sqrt(np.maximum(equal, robust))
    known &= slope != 0
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(known, slope / error, 0.0)
    return np.where(known, slope * np.sqrt(whole / (n - 1)), 0.0), t


def _squares(rows: Array) -> Array:
    return np.asarray(np.einsum("gn,gn->g", rows, rows))


def _two_sided(t: Array, freedom: int) -> Array:
    return np.asarray(2 * stdtr(freedom, -np.abs(t)))
