"""How good predicted probabilities of labels are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_weights
from mongefit.errors import DataError

Numbers = NDArray[np.float64]
BINS = 5
LEAST = 1e-12
"""Probability that a log-loss takes for zero."""


class LabelScores(NamedTuple):
    """Scores of probabilities of labels, each a mean over cells.

    Attributes
    ----------
    log_loss
        −log p of the true label, in nats: lower is better. It is infinite for nobody: probabilities
        below 1e-12 count as that.
    brier
        Σ_l (p_l − 1[l is true])²: lower is better.
    auroc
        For each label how often a cell that has it has a higher probability of it than a cell that
        has not; 0.5 is chance. Labels that all cells or none have are left out.
    mean_auroc
        Their mean, by how many cells have each.
    calibration_error
        How far the probability of the most probable label is from the share of cells that have it,
        the mean over five bins with equally many cells.
    """

    log_loss: float
    brier: float
    auroc: dict[str, float]
    mean_auroc: float
    calibration_error: float


def label_scores(
    probability: ArrayLike,
    truth: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    weight: ArrayLike | None = None,
) -> LabelScores:
    """Score predicted probabilities of labels against the true ones.

    Parameters
    ----------
    probability
        A row for each cell, a column for each label; rows sum to 1.
    truth
        The number of each cell's label, from 0 on.
    names
        Names of the labels; by default "0", "1" and so on.
    weight
        Non-negative weights of the cells, of any sum; equal by default.
    """
    p, code = np.asarray(probability, np.float64), np.asarray(truth)
    if p.ndim != 2 or code.shape != p.shape[:1] or not p.size:
        raise DataError(
            f"probability needs a row for each of the labels in truth; the shapes are {p.shape} "
            f"and {code.shape}."
        )
    if not np.all(np.isfinite(p)) or np.any(p < 0) or np.abs(p.sum(axis=1) - 1).max() > 1e-6:
        raise DataError("probability must be non-negative, with rows that sum to 1.")
    if not np.issubdtype(code.dtype, np.integer) or code.min() < 0 or code.max() >= p.shape[1]:
        raise DataError(
            f"truth must hold whole numbers from 0 to {p.shape[1] - 1}: columns of probability."
        )
    called = [str(k) for k in range(p.shape[1])] if names is None else list(map(str, names))
    share = check_weights(weight, len(code), "weight", normalize=True)
    auroc, counts = {}, []
    for k, name in enumerate(called):
        positive = code == k
        if 0 < share @ positive < 1:
            auroc[name] = area_under_curve(p[:, k], positive, share)
            counts.append(share @ positive)
    mean = float(np.average(list(auroc.values()), weights=counts)) if auroc else float("nan")
    return LabelScores(
        float(share @ log_losses(p, code)),
        float(share @ np.sum((p - (code[:, None] == np.arange(p.shape[1]))) ** 2, axis=1)),
        auroc,
        mean,
        calibration_error(p, code, share),
    )


def log_losses(probability: Numbers, code: NDArray[np.int64]) -> Numbers:
    """−log of the probability of the true label, for each row."""
    found = probability[np.arange(len(code)), code]
    return np.asarray(-np.log(np.maximum(found, LEAST)))


def area_under_curve(score: Numbers, positive: NDArray[np.bool_], weight: Numbers) -> float:
    """The share of pairs of a positive and a negative that the score orders rightly; ties half."""
    values, which = np.unique(score, return_inverse=True)
    up = np.bincount(which, weight * positive, len(values))
    down = np.bincount(which, weight * ~positive, len(values))
    below = np.concatenate([[0.0], np.cumsum(down)[:-1]])
    return float(up @ (below + down / 2) / (up.sum() * down.sum()))


def calibration_error(
    probability: Numbers, code: NDArray[np.int64], weight: Numbers, bins: int = BINS
) -> float:
    """The mean distance of the probability of the most probable label from how often it is true."""
    best = probability.argmax(axis=1)
    sure, right = probability.max(axis=1), best == code
    order = np.argsort(sure, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return float(
        sum(abs(weight[part] @ (sure[part] - right[part])) for part in parts) / weight.sum()
    )
