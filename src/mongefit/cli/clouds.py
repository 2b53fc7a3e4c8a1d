"""What fit reads: both clouds, their weights and the known pairs."""

from __future__ import annotations

import dataclasses

import click
import numpy as np
from numpy.typing import NDArray

from mongefit.cli.console import count
from mongefit.errors import DataError
from mongefit.files import read_pairs, read_points
from mongefit.validation import check_pairs, check_points, check_weights

ENOUGH_PAIRS = 20
"""From this many pairs on some are held out unless the user says otherwise."""

_HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True)
class Clouds:
    """Both clouds, their weights, and the known pairs with those held out marked.

    Pairs that are held out stay in the clouds; only which of them belong together is hidden.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    a: NDArray[np.float64] | None
    b: NDArray[np.float64] | None
    pairs: NDArray[np.int64]
    held_out: NDArray[np.bool_]

    @property
    def training_pairs(self) -> NDArray[np.int64]:
        """The pairs that are not held out."""
        return self.pairs[~self.held_out]


def read_clouds(
    source: str,
    target: str,
    pairs: str | None,
    *,
    source_weight: str | None,
    target_weight: str | None,
    normalize_weight: bool,
    many_to_many: bool,
) -> Clouds:
    """Read and check all tables; what cannot be used is named by its file."""
    x, y = (check_points(read_points(path), path) for path in (source, target))
    if x.shape[1] != y.shape[1]:
        raise DataError(
            f"{source} has {count(x.shape[1], 'feature')} and {target} has {y.shape[1]}; both "
            "clouds must have the same."
        )
    a = _read_weight(source_weight, len(x), normalize=normalize_weight)
    b = _read_weight(target_weight, len(y), normalize=normalize_weight)
    known: NDArray[np.int64] | None = np.zeros((0, 2), dtype=np.int64)
    if pairs is not None:
        known, _ = check_pairs(read_pairs(pairs), len(x), len(y), many_to_many=many_to_many)
    if known is None:
        raise DataError(f"{pairs} holds no pairs.")
    return Clouds(x, y, a, b, known, np.zeros(len(known), dtype=bool))


def hold_out(clouds: Clouds, fraction: float | None, *, seed: int) -> Clouds:
    """Mark the pairs of some source rows, chosen at random: at least one, never all.

    Without a fraction a fifth is held out where there are enough pairs, none elsewhere.
    """
    if fraction is None:
        fraction = _HELD_OUT if len(clouds.pairs) >= ENOUGH_PAIRS else 0.0
    if fraction == 0:
        return clouds
    # By source row: where a source has several targets, one of them would give the others away.
    rows = np.unique(clouds.pairs[:, 0])
    chosen = np.random.default_rng(seed).permutation(rows)[: max(1, round(fraction * len(rows)))]
    if len(chosen) == len(rows):
        raise click.UsageError(
            f"--holdout {fraction:g} leaves none of {count(len(clouds.pairs), 'pair')} to learn "
            "from. Lower it, or use --holdout 0."
        )
    return dataclasses.replace(clouds, held_out=np.isin(clouds.pairs[:, 0], chosen))


def _read_weight(path: str | None, size: int, *, normalize: bool) -> NDArray[np.float64] | None:
    if path is None:
        return None
    column = read_points(path)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    check_weights(column, size, path, normalize=normalize)
    return column
