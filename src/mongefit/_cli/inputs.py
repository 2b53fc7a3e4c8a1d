"""What fit reads: both clouds, their weights and what is known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from mongefit._cli.console import Console, count
from mongefit._io import read_pairs, read_points
from mongefit._validation import check_pairs, check_points, check_weights
from mongefit.errors import DataError

if TYPE_CHECKING:
    from mongefit.single_cell._cells import Cells

# From this many pairs on some are held out unless the user says otherwise.
_ENOUGH_PAIRS = 20
_HELD_OUT = 0.2
_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Both clouds with their weights, the known pairs with those held out marked, and groups.

    Weights are named as every fit takes them; None is for equal ones. Points of pairs that are held
    out stay in the clouds; only which belong together is hidden. Where pairs come from clones,
    ``clone`` numbers the clone of each, and clones are held out as a whole.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: dict[str, Any]
    pairs: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    pair_weight: NDArray[np.float64] | None = None
    clone: NDArray[np.int64] | None = None
    groups: tuple[NDArray[np.object_], NDArray[np.object_]] | None = None

    @property
    def knowledge(self) -> dict[str, Any]:
        """What a model may learn from, as `MongeMap.fit` takes it."""
        weight = None if self.pair_weight is None else self.pair_weight[~self.held_out]
        pairs = self.pairs[~self.held_out]
        return {"pairs": pairs, "pair_weight": weight, "groups": self.groups}

    def say_known(self, console: Console, pairs: str | None, *, learns: bool) -> None:
        """Say what is known: pairs out of a file or clones, with those held out, and groups."""
        if self.clone is not None:
            seen, hidden = len(np.unique(self.clone)), len(np.unique(self.clone[self.held_out]))
            end = f", {hidden} held out" if learns and hidden else ""
            console.say(f"Clones: {seen} seen at both times, {count(len(self.pairs), 'pair')}{end}")
        elif len(self.pairs):
            end = f", {self.held_out.sum()} held out" if learns else ""
            console.say(f"Pairs: {len(self.pairs)} known{end} ({pairs})")
        if self.groups is not None:
            console.say(f"Groups: {', '.join(sorted(set(self.groups[0]) - {None}))}")


def read_tables(
    clouds: tuple[str, str],
    pairs: str | None,
    weights: dict[str, str | None],
    *,
    normalize_weight: bool,
    many_to_many: bool,
) -> Inputs:
    """Read and check all tables; what cannot be used is named by its file."""
    x, y = (check_points(read_points(path), path) for path in clouds)
    if x.shape[1] != y.shape[1]:
        raise DataError(
            f"{clouds[0]} has {count(x.shape[1], 'feature')} and {clouds[1]} has {y.shape[1]}; "
            "both clouds must have the same."
        )
    read = {
        name: _read_weight(path, len(points), normalize=normalize_weight)
        for (name, path), points in zip(weights.items(), (x, y), strict=True)
    }
    known: NDArray[np.int64] | None = _NO_PAIRS
    if pairs is not None:
        known, _ = check_pairs(read_pairs(pairs), len(x), len(y), many_to_many=many_to_many)
    if known is None:
        raise DataError(f"{pairs} holds no pairs.")
    return Inputs(x, y, read, known, np.zeros(len(known), dtype=bool))


def inputs_of(cells: Cells) -> Inputs:
    """Both clouds, the known pairs and the groups out of an AnnData."""
    x, y = cells.x, cells.y
    weights = {"source_weight": cells.a, "target_weight": cells.b}
    pairs, weight, clone = cells.known or (_NO_PAIRS, None, None)
    return Inputs(x, y, weights, pairs, np.zeros(len(pairs), bool), weight, clone, cells.groups)


def hold_out(inputs: Inputs, fraction: float | None, *, seed: int) -> Inputs:
    """Mark the pairs of some source rows or clones, chosen at random: at least one, never all.

    Without a fraction a fifth is held out where there are enough pairs or clones, none elsewhere.
    """
    # By source row or clone: of several pairs in one, one would give the others away.
    parts = inputs.pairs[:, 0] if inputs.clone is None else inputs.clone
    distinct = np.unique(parts)
    if fraction is None:
        enough = len(inputs.pairs if inputs.clone is None else distinct) >= _ENOUGH_PAIRS
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
