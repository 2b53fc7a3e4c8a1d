"""What fit reads: both clouds, their weights and what is known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from mongefit._cli.console import count
from mongefit._io import read_pairs, read_points
from mongefit._validation import check_pairs, check_points, check_weights
from mongefit.errors import DataError

if TYPE_CHECKING:
    from mongefit.single_cell._cells import Cells

ENOUGH_PAIRS = 20
"""From this many pairs on some are held out unless the user says otherwise."""

_HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Both clouds, their weights, and the known pairs with those held out marked.

    Pairs that are held out stay in the clouds; only which of them belong together is hidden.

    Attributes
    ----------
    x, y, a, b
        Points and weights; None for uniform ones.
    pairs, held_out
        Rows of known pairs, and which of these are held out.
    pair_weight
        How much each pair counts; None where all count the same.
    clone
        Number of the clone that each pair is of, where pairs come from clones: these are held out
        as a whole.
    groups
        Labels of both clouds, or None.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    a: NDArray[np.float64] | None
    b: NDArray[np.float64] | None
    pairs: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    pair_weight: NDArray[np.float64] | None = None
    clone: NDArray[np.int64] | None = None
    groups: tuple[NDArray[np.object_], NDArray[np.object_]] | None = None

    @property
    def weights(self) -> dict[str, Any]:
        """Weights of the points, as every fit takes them."""
        return {"source_weight": self.a, "target_weight": self.b}

    @property
    def knowledge(self) -> dict[str, Any]:
        """What a model may learn from, as `MongeMap.fit` takes it."""
        weight = None if self.pair_weight is None else self.pair_weight[~self.held_out]
        return {
            "pairs": self.pairs[~self.held_out],
            "pair_weight": weight,
            "groups": self.groups,
        }


def read_tables(
    source: str,
    target: str,
    pairs: str | None,
    *,
    source_weight: str | None,
    target_weight: str | None,
    normalize_weight: bool,
    many_to_many: bool,
) -> Inputs:
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
    return Inputs(x, y, a, b, known, np.zeros(len(known), dtype=bool))


def inputs_of(cells: Cells) -> Inputs:
    """Both clouds, the known pairs and the groups out of an AnnData."""
    known = cells.known
    pairs = np.zeros((0, 2), dtype=np.int64) if known is None else known.pairs
    return Inputs(
        cells.x,
        cells.y,
        cells.a,
        cells.b,
        pairs,
        np.zeros(len(pairs), dtype=bool),
        None if known is None else known.weight,
        None if known is None else known.clone,
        cells.groups,
    )


def hold_out(inputs: Inputs, fraction: float | None, *, seed: int) -> Inputs:
    """Mark the pairs of some source rows or clones, chosen at random: at least one, never all.

    Without a fraction a fifth is held out where there are enough pairs or clones, none elsewhere.
    """
    # By source row or clone: of several pairs in one, one would give the others away.
    parts = inputs.pairs[:, 0] if inputs.clone is None else inputs.clone
    distinct = np.unique(parts)
    if fraction is None:
        enough = len(inputs.pairs if inputs.clone is None else distinct) >= ENOUGH_PAIRS
        fraction = _HELD_OUT if enough else 0.0
    if fraction == 0 or not len(distinct):
        return inputs
    size = max(1, round(fraction * len(distinct)))
    chosen = np.random.default_rng(seed).permutation(distinct)[:size]
    if size >= len(distinct):
        raise click.UsageError(
            f"--holdout {fraction:g} leaves none of {count(len(inputs.pairs), 'pair')} to learn "
            "from. Lower it, or use --holdout 0."
        )
    return dataclasses.replace(inputs, held_out=np.isin(parts, chosen))


def _read_weight(path: str | None, size: int, *, normalize: bool) -> NDArray[np.float64] | None:
    if path is None:
        return None
    column = read_points(path)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    check_weights(column, size, path, normalize=normalize)
    return column
