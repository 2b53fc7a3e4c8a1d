"""What a fit is given: clouds, legs between them, and what is known of the maps, checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mongefit._fitting.data import Clouds, FitData, Leg, check_clouds, clones_across, share_units
from mongefit._options import FitOptions, takes_several
from mongefit._validation import Knowledge, check_groups, check_pairs, check_validation_pairs
from mongefit.errors import DataError, ignored_warnings, noted_warnings

ENOUGH_CLONES = 20
"""From so many clones on some are kept from training to stop early by."""


class Journey(NamedTuple):
    """What a user passes to ``fit``, unchecked, for every leg.

    Attributes
    ----------
    legs
        Two clouds each, and what is known of the map between them.
    ends
        Numbers of the clouds of each leg; one number is one cloud.
    roles
        Numbers of the flows of each leg, where every role has its own.
    through
        The legs that a composed map takes, in order, the clouds at its ends, and what is known.
    names
        What messages call the legs, followed by the composed maps; empty for the only leg.
    """

    legs: Sequence[FitData]
    ends: Sequence[tuple[int, int]]
    roles: Sequence[tuple[int, int]]
    through: Sequence[tuple[tuple[int, ...], FitData]] = ()
    names: Sequence[str] = ("",)

    @property
    def everything(self) -> list[FitData]:
        """The legs, followed by the composed maps."""
        return [*self.legs, *(data for _, data in self.through)]

    @property
    def all_ends(self) -> list[tuple[int, int]]:
        """Numbers of the clouds at the ends of the legs, followed by the composed maps."""
        chains = [chain for chain, _ in self.through]
        return [*self.ends, *((self.ends[one[0]][0], self.ends[one[-1]][1]) for one in chains)]

    @classmethod
    def of_one(cls, data: FitData) -> Journey:
        """One leg."""
        return cls([data], [(0, 1)], [(0, 1)])


class Through(NamedTuple):
    """What is known of a map that is composed of several legs, checked; else as a `Leg`."""

    chain: tuple[int, ...]
    clouds: Clouds
    known: Knowledge
    held_out: NDArray[np.int64] | None = None
    spared: NDArray[np.bool_] | None = None


Part = TypeVar("Part", Leg, Through)


def parts(legs: Sequence[Leg], through: Sequence[Through]) -> list[Leg | Through]:
    """All that something can be known of."""
    return [*legs, *through]


def check_journey(
    options: FitOptions, journey: Journey, notes: list[str], *, used: bool
) -> tuple[list[Leg], list[Through]]:
    """Check all of it. What is not used may be questionable: nobody learns from it."""
    clouds = []
    for data, name in zip(journey.legs, journey.names, strict=False):
        with _named(name):
            found = check_clouds(data, dtype=options.dtype, normalize=options.normalize_weight)
        clouds.append(found._replace(notes=[*notes, *found.notes]))
    if len(clouds) > 1:
        clouds = share_units(clouds, journey.ends)
    for chain, _ in journey.through:
        first, last = clouds[chain[0]], clouds[chain[-1]]
        clouds.append(first._replace(target=last.target, y=last.y, b=last.b, notes=[]))
    knowns, held_out = [], []
    for data, own, name in zip(journey.everything, clouds, journey.names, strict=True):
        with _named(name):
            known = _check_knowledge(options, data, own, used=used)
            held_out.append(
                check_validation_pairs(
                    data.validation_pairs, len(own.source), len(own.target), known.trained_on()
                )
            )
        knowns.append(known)
    if used:
        knowns = _with_clones(journey, knowns)
    checked = list(zip(clouds, knowns, held_out, strict=True))
    split = len(journey.legs)
    legs = [Leg(*each) for each in checked[:split]]
    chains = [chain for chain, _ in journey.through]
    return legs, [
        Through(chain, *each) for chain, each in zip(chains, checked[split:], strict=True)
    ]


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Say which leg an error is about."""
    try:
        yield
    except DataError as error:
        if not name:
            raise
        template, fields = error.message
        # Braces of a name are no gaps.
        prefix = name.replace("{", "{{").replace("}", "}}") if fields else name
        raise type(error)(f"{prefix}: {template}", **fields) from error


def _check_knowledge(
    options: FitOptions, data: FitData, clouds: Clouds, *, used: bool
) -> Knowledge:
    """What is known of one leg but the clones."""
    n, m = len(clouds.source), len(clouds.target)
    many_to_many = options.many_to_many or not used or takes_several(options.losses)
    with noted_warnings(clouds.notes) if used else ignored_warnings():
        table, weight = check_pairs(
            data.pairs, n, m, weight=data.pair_weight, many_to_many=many_to_many
        )
        members = check_groups(data.groups, np.asarray(clouds.a), np.asarray(clouds.b))
    if table is None and data.clones is not None:
        raise DataError("clones was given without pairs.")
    return Knowledge(table, weight, members) if used else Knowledge()


def _with_clones(journey: Journey, knowns: Sequence[Knowledge]) -> list[Knowledge]:
    """What is known with the clones of the pairs, numbered across all legs."""
    paired = [k for k, known in enumerate(knowns) if known.pairs is not None]
    if not paired:
        return list(knowns)
    every, ends = journey.everything, journey.all_ends
    found = clones_across(
        [every[k].clones for k in paired],
        [knowns[k].pairs for k in paired],  # type: ignore[misc]
        [ends[k] for k in paired],
    )
    numbers = dict(zip(paired, found, strict=True))
    return [known._replace(clones=numbers.get(k)) for k, known in enumerate(knowns)]


def spare(
    legs: Sequence[Leg], through: Sequence[Through], fraction: float, seed: int, losses: Any
) -> tuple[list[Leg], list[Through]]:
    """Keep the pairs of some clones from training, to stop early by, where there are enough.

    Not where there are validation pairs, nor where sources have several targets of which none is
    the one: an RMSE judges nothing there.
    """
    for each in parts(legs, through):
        table = each.known.pairs
        open_ended = table is not None and len(np.unique(table[:, 0])) < len(table)
        if each.held_out is not None or (open_ended and takes_several(losses)):
            return list(legs), list(through)
    counted = [
        each.known.clones[each.known.pair_weight > 0]
        for each in parts(legs, through)
        if each.known.clones is not None and each.known.pair_weight is not None
    ]
    clones = np.unique(np.concatenate(counted)) if counted else np.zeros(0)
    count = round(fraction * len(clones))
    if len(clones) < ENOUGH_CLONES or count == 0:
        return list(legs), list(through)
    drawn = np.random.default_rng(seed).permutation(clones)[:count]
    return [_without(leg, drawn) for leg in legs], [_without(each, drawn) for each in through]


def _without(part: Part, drawn: NDArray[np.int64]) -> Part:
    known = part.known
    if known.pairs is None or known.clones is None or known.pair_weight is None:
        return part
    out = np.isin(known.clones, drawn)
    spared = out & (known.pair_weight > 0)
    if not np.any(spared):
        return part
    weight = np.where(out, 0.0, known.pair_weight)
    if weight.sum() > 0:
        weight *= np.count_nonzero(weight) / weight.sum()
    return part._replace(
        known=known._replace(pair_weight=weight), held_out=known.pairs[spared], spared=spared
    )
