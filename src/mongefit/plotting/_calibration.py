"""Predicted probabilities against what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_count, check_positive
from mongefit.errors import DataError, wrong_option
from mongefit.plotting._figures import BLUE, GREY, LIGHT, finish, new_axes, palette

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

Array = NDArray[np.float64]


# Predictions that a bin has at least.
_LEAST = 10


class Bins(NamedTuple):
    """Cells by the probability that was predicted: means, observed shares, intervals, weights."""

    predicted: Array
    observed: Array
    low: Array
    high: Array
    weight: Array
    size: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |predicted − observed|, by weight."""
        gap = np.abs(self.predicted - self.observed)
        return float(np.sum(self.weight * gap) / np.sum(self.weight))


def plot_calibration(
    probability: ArrayLike,
    truth: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    n_bins: int = 10,
    level: float = 0.95,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how often what was predicted with some probability was observed.

    Every cell and label is one prediction, "this cell has this label". Predictions are put into
    bins of equal weight by their probability; equal probabilities stay together. A point shows the
    mean probability of a bin and the share of its predictions that came true, with Wilson's
    interval. The grey bars count the predictions. The calibration error of all labels,
    Σ_b w_b |predicted_b − observed_b| / Σ_b w_b, stands in the picture; that of the most probable
    label alone is in `mongefit.metrics.label_scores`.

    Parameters
    ----------
    probability
        Predicted probabilities, [cells, labels].
    truth
        The number of the label that each cell has, [cells]; −1 where it is not known.
    weight
        Weights of cells, [cells]. Intervals then count (Σw)² / Σw² cells.
    names
        Names of the labels. With names every label has a curve; without, there is one of all.
    colors
        A colour for each name.
    n_bins
        Number of bins; fewer where a bin would have less than 10 predictions.
    level
        Of the intervals. They take cells for independent; cells of one clone are not.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    p, codes, w = _check(probability, truth, weight)
    check_count(n_bins, "n_bins", minimum=1)
    if not 0 < check_positive(level, "level") < 1:
        raise wrong_option("level", "a number between 0 and 1", level)
    hit = codes[:, None] == np.arange(p.shape[1])
    whole = bins_of(p.ravel(), hit.ravel(), np.repeat(w, p.shape[1]), n_bins, level)
    legend: list[str] = []
    curves, shown = [whole], [BLUE]
    if names is not None:
        legend, shown = _check_names(names, colors, p.shape[1])
        curves = [bins_of(p[:, k], hit[:, k], w, n_bins, level) for k in range(len(legend))]
    ax = new_axes((4.5, 4.2), labels=legend) if ax is None else ax
    highest = _draw_counts(ax, p.ravel())
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", zorder=2)
    handles = []
    for bins, colour in zip(curves, shown, strict=True):
        bounds = np.abs([bins.observed - bins.low, bins.high - bins.observed])
        drawn = ax.errorbar(
            bins.predicted, bins.observed, bounds, color=colour, marker="o", markersize=4.5,
            linewidth=1.1, elinewidth=0.9, zorder=3, clip_on=False,
        )  # fmt: skip
        handles.append(drawn)
    counts = np.concatenate([bins.size for bins in curves])
    each = f"{counts.min()}" if np.ptp(counts) == 0 else f"{counts.min()}–{counts.max()}"
    # Above 1, where no point can be.
    ax.text(
        0.02, 0.98, f"calibration error of all labels {whole.error:.3f}\n{each} predictions a "
        f"point; highest bar {highest}", transform=ax.transAxes, ha="left", va="top",
        fontsize="small", linespacing=1.4,
    )  # fmt: skip
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.22), xlabel="predicted probability")
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_ylabel("observed share")
    finish(ax, title, handles if legend else [], labels=legend)
    return ax


def bins_of(p: Array, hit: NDArray[np.bool_], w: Array, n_bins: int, level: float) -> Bins:
    """Bins of equal weight, and Wilson's intervals of the share of hits in each."""
    from scipy.special import ndtri

    place = np.unique(p, return_inverse=True)[1]
    mass = np.bincount(place, w)
    n_bins = min(n_bins, max(1, len(p) // _LEAST))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    number = np.minimum((middle * n_bins).astype(int), n_bins - 1)[place]
    number = np.unique(number, return_inverse=True)[1]
    weight, square = np.bincount(number, w), np.bincount(number, w**2)
    predicted, observed = (np.bincount(number, w * each) / weight for each in (p, hit))
    n = weight**2 / square
    z = float(ndtri((1 + level) / 2))
    middle = (observed + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(observed * (1 - observed) / n + z**2 / (4 * n**2))
    low, high = np.clip([middle - half, middle + half], 0, 1)
    return Bins(predicted, observed, low, high, np.asarray(weight, np.float64), np.bincount(number))


def _draw_counts(ax: Axes, p: Array) -> int:
    """Bars behind the curves: how many predictions there are of each probability; the most."""
    counts, edges = np.histogram(p, bins=20, range=(0, 1))
    ax.bar(edges[:-1], 0.3 * counts / counts.max(), np.diff(edges), align="edge", color=LIGHT)
    return int(counts.max())


def _check(
    probability: ArrayLike, truth: ArrayLike, weight: ArrayLike | None
) -> tuple[Array, NDArray[np.int64], Array]:
    """Probabilities, labels and weights of the cells whose label is known."""
    p, codes = np.asarray(probability, np.float64), np.asarray(truth)
    if p.ndim != 2 or not p.size:
        raise DataError(f"probability must be [cells, labels], got the shape {p.shape}.")
    if codes.shape != p.shape[:1] or codes.dtype.kind not in "iu":
        raise DataError(
            f"truth must hold the number of a label for each of {len(p)} cells, got "
            f"{codes.dtype} with the shape {codes.shape}."
        )
    w = np.ones(len(p)) if weight is None else np.asarray(weight, np.float64)
    if w.shape != codes.shape or not np.all(np.isfinite(w)) or np.any(w < 0):
        raise DataError(f"weight must be a number from 0 on for each of {len(p)} cells.")
    if np.any(codes < -1) or np.any(codes >= p.shape[1]):
        row = int(np.argmax((codes < -1) | (codes >= p.shape[1])))
        raise DataError(
            f"truth is {codes[row]} in row {row}; there are {p.shape[1]} labels, from 0 on, and −1 "
            "where none is known."
        )
    known = (codes >= 0) & (w > 0)
    if not known.any():
        raise DataError("truth has no known label of a cell that counts.")
    if not np.all((p[known] >= -1e-9) & (p[known] <= 1 + 1e-9)):
        row, column = np.argwhere(known[:, None] & ~((p >= -1e-9) & (p <= 1 + 1e-9)))[0]
        raise DataError(
            f"probability is {p[row, column]} in row {row}, column {column}: it must lie between "
            "0 and 1."
        )
    return np.clip(p[known], 0, 1), codes[known], w[known]


def _check_names(
    names: Sequence[str], colors: Sequence[Any] | None, count: int
) -> tuple[list[str], list[Any]]:
    if isinstance(names, str) or len(names) != count:
        raise wrong_option("names", f"one name for each of {count} labels", names)
    if colors is None:
        colors = palette(count)
    if len(colors) != count:
        raise wrong_option("colors", f"one colour for each of {count} labels", colors)
    return [str(name) for name in names], list(colors)
