"""The steps of the study from counts to principal components, as Seurat 4 takes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def log_normalise(counts: Array) -> Array:
    """log(1 + 10⁴ · count / sum of the sample's counts), Seurat's ``NormalizeData``."""
    return np.log1p(1e4 * counts / counts.sum(axis=0))


def standardised_variance(counts: Array) -> Array:
    r"""How much more a gene varies than others of its mean, Seurat's "vst" (Stuart et al. 2019).

    A loess fit gives the standard deviation σ that is expected of a gene with the mean μ. Returned
    is Σ min((count − μ)/σ, √n)² / (n − 1) over its n samples, for every gene of counts [genes, n];
    0 where a gene does not vary.
    """
    n = counts.shape[1]
    result = np.zeros(len(counts))
    mean, variance = counts.mean(axis=1), counts.var(axis=1, ddof=1)
    varied = variance > 0
    mean, variance = mean[varied], variance[varied]
    sigma = np.sqrt(10 ** loess(np.log10(mean), np.log10(variance), span=0.3))
    deviation = (counts[varied] - mean[:, None]) / sigma[:, None]
    result[varied] = np.sum(np.minimum(deviation, np.sqrt(n)) ** 2, axis=1) / (n - 1)
    return result


def loess(x: Array, y: Array, *, span: float) -> Array:
    """Local quadratic fit of y at every x, with tricube weights on the nearest span · n points.

    As R's ``loess`` does, the fit and its slope are found at some vertices and joined by cubics.
    The vertices are 101 quantiles of x; R splits the range until each part has few points.
    """
    from scipy.interpolate import CubicHermiteSpline

    vertices = np.unique(np.quantile(x, np.linspace(0, 1, 101)))
    nearest = max(3, int(span * x.size + 1e-5))
    fits = np.array([_local_fit(x - vertex, y, min(nearest, x.size)) for vertex in vertices])
    if len(vertices) == 1:
        return np.full_like(y, fits[0, 0])
    result: Array = CubicHermiteSpline(vertices, fits[:, 0], fits[:, 1])(x)
    return result


def _local_fit(offset: Array, y: Array, nearest: int) -> Array:
    """Value and slope at 0 of the weighted quadratic in the offset."""
    distance = np.abs(offset)
    width = np.partition(distance, nearest - 1)[nearest - 1]
    inside = distance <= width
    # Points as far as the width weigh nothing; where all are equally near, they weigh the same.
    scaled = distance[inside] / width if width > 0 else np.zeros(inside.sum())
    root = (1 - scaled**3) ** 1.5
    design = np.vander(offset[inside], 3, increasing=True)
    solution: Array = np.linalg.lstsq(root[:, None] * design, root * y[inside], rcond=None)[0]
    return solution[:2]


def scale(levels: Array) -> Array:
    """Every gene with mean 0 and standard deviation 1, at most 10, Seurat's ``ScaleData``."""
    centred = levels - levels.mean(axis=1, keepdims=True)
    deviation = levels.std(axis=1, ddof=1, keepdims=True)
    scaled: Array = np.minimum(centred / np.where(deviation > 0, deviation, 1), 10)
    return scaled


def principal_components(scaled: Array, n_components: int) -> tuple[Array, Array, Array]:
    """Scores [samples, d], loadings [d, genes] and shares of the variance [d], Seurat's ``RunPCA``.

    The scaled levels, [genes, samples], are not centred again after the cut at 10. The largest
    loading of every component is positive.
    """
    left, singular, loadings = np.linalg.svd(scaled.T, full_matrices=False)
    largest = np.argmax(np.abs(loadings), axis=1)
    sign = np.sign(loadings[np.arange(len(loadings)), largest])
    shares = singular**2 / np.sum(singular**2)
    scores, loadings = left * (sign * singular), sign[:, None] * loadings
    return scores[:, :n_components], loadings[:n_components], shares[:n_components]
