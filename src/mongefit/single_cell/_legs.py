"""Several times, or several batches, out of an AnnData: clouds and what is known of every leg."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import (
    DataError,
    Option,
    did_you_mean,
    noted_warnings,
    warn_user,
)
from mongefit.single_cell._batches import batch_of_cells, in_batches, rows_of_all
from mongefit.single_cell._cells import (
    BATCH,
    Sides,
    check_keys,
    keep_shared,
    names_and_weights,
    require_one_target,
    require_unique_names,
    warn_of_one_cell,
)
from mongefit.single_cell._clones import Clones, KnownPairs
from mongefit.single_cell._columns import (
    Times,
    check_adata,
    grown_weights,
    listed,
    obs_labels,
    obs_weights,
)
from mongefit.single_cell._representation import Representation, choose_representation

if TYPE_CHECKING:
    from anndata import AnnData

Points = NDArray[np.float64]

# What is known by leg, by the names of the arguments of `TemporalMap.fit`.
_KINDS = ("pairs", "pair_weight", "clones", "groups", "source_weight", "target_weight")


def leg_name(times: Times, *, several: bool) -> Hashable:
    """What `TemporalMap` calls a leg: its two times, or its batch with them if there are several.

    A leg of batches is a condition to it, which has a name.
    """
    if times.batch is None:
        return times.labels
    name = times.batch[1]
    return f"{name}: {times.source} to {times.target}" if several else name


class CellLeg(NamedTuple):
    """Two times, of one batch if there are several, and the rows of their cells.

    Of a leg that is not ``adjacent`` the map is composed.
    """

    name: Hashable
    times: Times
    rows: Sides
    adjacent: bool


@dataclasses.dataclass(frozen=True, eq=False)
class CellLegs:
    """What a fit of several times or batches takes from an AnnData.

    Attributes
    ----------
    times, batch_key, batches
        All times in order; the column with the batches, and its values, if any.
    representation
        Where coordinates come from.
    legs
        Each time and the next, in each batch.
    clouds
        The coordinates of the source and of the target of each leg.
    given
        What is known by leg, as `TemporalMap.fit` takes it; also of composed maps.
    warnings
        What the user was warned of on the way.
    weight_key, growth_key
        The columns of obs that weights come from.
    """

    times: Times
    batch_key: str | None
    batches: tuple[str, ...]
    representation: Representation
    legs: list[CellLeg]
    clouds: list[tuple[Points, Points]]
    given: dict[str, dict[Any, Any]]
    warnings: list[str]
    weight_key: str | None = None
    growth_key: str | None = None

    @property
    def has_clones(self) -> bool:
        """Whether pairs come from clones, where a source has several targets."""
        return bool(self.given["clones"])

    @property
    def arguments(self) -> dict[str, Any]:
        """Clouds and times, or legs, as `TemporalMap.fit` takes them."""
        if self.batch_key is not None:
            names = [leg.name for leg in self.legs]
            return {"legs": dict(zip(names, self.clouds, strict=True))}
        points = [self.clouds[0][0], *(target for _, target in self.clouds)]
        return {"clouds": points, "times": self.times.labels}

    def suited_options(self) -> dict[str, Any]:
        """As of `Cells`: a batch holds all cells of every leg that something is known of."""
        sizes = [len(np.unique(side)) for pairs in self.given["pairs"].values() for side in pairs.T]
        for sides in self.given["groups"].values():
            sizes += [sum(label is not None for label in side) for side in sides]
        return {"epsilon": 0.05, "batch_size": max(BATCH, max(sizes, default=0) + BATCH // 2)}

    def without(self, held_out: dict[Any, NDArray[np.bool_]]) -> CellLegs:
        """The same without some of the pairs of each leg."""
        kept = {name: dict(by_leg) for name, by_leg in self.given.items()}
        for kind, name in itertools.product(("pairs", "pair_weight", "clones"), held_out):
            out = held_out[name]
            if name in kept[kind] and out.all():
                del kept[kind][name]
            elif name in kept[kind]:
                kept[kind][name] = kept[kind][name][~out]
        return dataclasses.replace(self, given=kept)

    def ends_of(self, name: Any) -> tuple[tuple[Points, Points], Times]:
        """The clouds at the ends of a leg or of a composed map, and its times."""
        for leg, clouds in zip(self.legs, self.clouds, strict=True):
            if leg.name == name:
                return clouds, leg.times
        times = self.times.between(*name)
        first, last = (self.times.labels.index(label) for label in times.labels)
        return (self.clouds[first][0], self.clouds[last - 1][1]), times


def take_legs(
    adata: AnnData,
    times: Times,
    *,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    layer: str | None = None,
    diffusion: int | None = None,
    pair_key: str | None = None,
    pairs: Any = None,
    groups_key: str | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    batch_key: str | None = None,
    many_to_many: bool = False,
) -> CellLegs:
    """Take the clouds of all legs and what is known of them; see `fit` for the options."""
    check_adata(adata)
    check_keys(pair_key=pair_key, pairs=pairs, groups_key=groups_key)
    with noted_warnings() as notes:
        batches, spans = in_batches(adata, times, batch_key, pair_key, groups_key)
        several = len(times.values) > 2
        legs = [leg for span in spans for leg in _legs_of(adata, span, several=several)]
        every = np.concatenate([rows_of_all(adata, span) for span in spans])
        direct = [leg for leg in legs if leg.adjacent]
        given: dict[str, dict[Any, Any]] = {name: {} for name in _KINDS}
        if pair_key is not None:
            clones = Clones.of(adata, pair_key, every)
            if batch_key is not None:
                clones = clones.within(batch_of_cells(adata, batch_key), batch_key)
            _add_pairs(given, _clones_by_leg(clones, legs, every), batch_key)
        elif pairs is not None:
            known = _named_by_leg(adata, pairs, legs, every, many_to_many=many_to_many)
            _add_pairs(given, known, batch_key)
        if groups_key is not None:
            given["groups"] = _groups_by_leg(adata, groups_key, direct, every)
        for leg in direct:
            a, b = (obs_weights(adata, weight_key, rows) for rows in leg.rows)
            a = grown_weights(adata, growth_key, leg.rows[0], leg.times, a)
            for side, weight in (("source_weight", a), ("target_weight", b)):
                if weight is not None:
                    given[side][leg.name] = weight
        warn_of_one_cell((leg.times, leg.rows) for leg in direct)
    representation = choose_representation(
        adata, np.sort(every), use_rep=use_rep, pca=pca, n_components=n_components, layer=layer,
        diffusion=diffusion,
    )  # fmt: skip
    points = representation.of(adata, every)
    place = np.full(adata.n_obs, -1)
    place[every] = np.arange(len(every))
    clouds = [(points[place[leg.rows[0]]], points[place[leg.rows[1]]]) for leg in direct]
    representation = representation.marked(adata, every, points)
    return CellLegs(
        times, batch_key, batches, representation, direct, clouds, given, notes, weight_key,
        growth_key,
    )  # fmt: skip


def _legs_of(adata: AnnData, span: Times, *, several: bool) -> list[CellLeg]:
    """All pairs of times of one batch, or of all cells."""
    rows = {value: span.rows_at(adata, value) for value in span.values}
    found = []
    for (i, source), (j, target) in itertools.combinations(enumerate(span.values), 2):
        both = span.between(source, target)
        name = leg_name(both, several=several)
        found.append(CellLeg(name, both, (rows[source], rows[target]), j == i + 1))
    return found


def _clones_by_leg(
    clones: Clones, legs: Sequence[CellLeg], every: NDArray[np.int64]
) -> list[tuple[CellLeg, KnownPairs]]:
    found = [(leg, clones.pairs(*leg.rows)) for leg in legs]
    found = [(leg, known) for leg, known in found if len(known.pairs)]
    if not found:
        where = "" if legs[0].times.batch is None else " in one batch"
        times = {value: None for leg in legs for value in leg.times.values}
        raise DataError(
            f"No value of {clones.where} occurs at two of the times {listed(times)}{where}, so "
            f"that nothing is known of who became whom. Values: {clones.shown(every)}."
        )
    tables = [known for _, known in found]
    clones.warn_of_one(tables)
    return list(zip([leg for leg, _ in found], clones.joined(tables), strict=True))


def _named_by_leg(
    adata: AnnData, pairs: Any, legs: Sequence[CellLeg], every: NDArray[np.int64], *,
    many_to_many: bool,
) -> list[tuple[CellLeg, KnownPairs]]:  # fmt: skip
    """Pairs given by the names of cells, each to the leg of the times of its cells."""
    names, weight = names_and_weights(pairs)
    if not len(names):
        raise DataError("pairs is empty.")
    require_unique_names(adata, every)
    place = adata.obs_names[every].get_indexer(names.ravel())
    if np.any(place < 0):
        first = names.ravel()[int(np.argmax(place < 0))]
        hint = " It is a cell of another time." if first in adata.obs_names else ""
        raise DataError(
            f"{np.sum(place < 0)} of the {names.size} names in pairs are no cells of the fit "
            f"(first: {first!r}).{hint or did_you_mean(first, adata.obs_names[every])}"
        )
    rows = every[place].reshape(-1, 2)
    left = np.ones(len(rows), bool)
    found = []
    for leg in legs:
        places = [np.full(adata.n_obs, -1) for _ in leg.rows]
        for place, own in zip(places, leg.rows, strict=True):
            place[own] = np.arange(len(own))
        table = np.stack([place[side] for place, side in zip(places, rows.T, strict=True)], axis=1)
        here = np.all(table >= 0, axis=1)
        if np.any(here):
            if not many_to_many:
                require_one_target(names[here])
            found.append((leg, KnownPairs(table[here], weight[here])))
            left &= ~here
    if np.any(left):
        first, last = names[int(np.argmax(left))]
        where = "" if legs[0].times.batch is None else ", in one batch"
        raise DataError(
            f"{np.sum(left)} of {len(names)} pairs do not go from an earlier to a later time"
            f"{where} (first: {first!r} to {last!r})."
        )
    return found


def _groups_by_leg(
    adata: AnnData, key: str, legs: Sequence[CellLeg], every: NDArray[np.int64]
) -> dict[Any, Any]:
    """The labels of every leg whose sides share some."""
    labels = np.full(adata.n_obs, None, dtype=object)
    labels[every] = obs_labels(adata, key, "groups_key", every)
    found = {}
    for leg in legs:
        first, last = (f"{leg.times.key} {value}" for value in leg.times.values)
        both = keep_shared(key, labels[leg.rows[0]], labels[leg.rows[1]], first, last)
        if both is not None:
            found[leg.name] = both
    if not found:
        raise DataError(
            f"No value of obs[{key!r}] occurs at two times that follow one another. Values: "
            f"{listed(sorted(set(labels) - {None}), 5)}."
        )
    return found


def _add_pairs(
    given: dict[str, dict[Any, Any]],
    known: Sequence[tuple[CellLeg, KnownPairs]],
    batch_key: str | None,
) -> None:
    """Put pairs among what is given by leg; of batches only adjacent times can be used."""
    unused = 0
    for leg, each in known:
        if batch_key is not None and not leg.adjacent:
            unused += len(each.pairs)
            continue
        given["pairs"][leg.name] = each.pairs
        given["pair_weight"][leg.name] = each.weight
        if each.clone is not None:
            given["clones"][leg.name] = each.clone
    if unused:
        warn_user(
            "{count} pairs are between times that do not follow one another, and are not used: "
            "with {batch_key} only each time and the next are.",
            count=unused, batch_key=Option("batch_key", batch_key),
        )  # fmt: skip
    if known and not given["pairs"]:
        raise DataError("No pairs are left between a time and the next.")
