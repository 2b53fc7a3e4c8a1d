"""Where mass goes over one leg or several: plans composed where legs meet.

With P¹ and P² the plans of two legs and a² the weights with which the second one starts, the plan
of both is P = P¹ diag(1/a²) P²: what arrives at a point goes on as that point sends its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mongefit._fitting.apply import corrections, coupling, growth, transport_points
from mongefit._fitting.outcomes import (
    Conditional,
    Maps,
    Matrix,
    find_conditional,
    fitted_points,
    mean_values,
    move_mass,
)
from mongefit._transport import EntropicMap

Chain = Sequence[Maps]
"""The maps of every leg, in order; of one leg several that are averaged."""


def end_of(chain: Chain, *, source: bool) -> EntropicMap:
    """A map that has the cloud at one end of a chain."""
    return chain[0][0] if source else chain[-1][0]


def conditional_over(
    chain: Chain, points: Matrix, *, reverse: bool = False, drop: float = 1e-9
) -> Conditional:
    """Where each point goes over a chain, or came from."""
    order = list(reversed(chain)) if reverse else list(chain)
    passing = _passing(chain, reverse=reverse)
    found = find_conditional(order[0], points, reverse=reverse, drop=drop)
    for before, after, factor in zip(order[:-1], order[1:], passing, strict=True):
        middle = fitted_points(before[0], source=reverse)
        following = find_conditional(after, middle, reverse=reverse, drop=drop)
        found = found._replace(weights=_weighed(found.weights, factor))
        # What is dropped of the second leg weighs as much as the points that it is dropped from.
        lost = 1 - (1 - found.dropped) * (1 - found.weights @ following.dropped)
        found = found._replace(dropped=lost).then(following.weights, drop=drop)
    return found


def growth_over(chain: Chain, points: Matrix) -> NDArray[np.float64]:
    """The mass that a unit of mass at each point is at the end of a chain."""
    first, *rest = chain
    total = np.mean([growth(each, points) for each in first], axis=0)
    if not rest:
        return total
    following = growth_over(rest, fitted_points(first[0]))
    if np.all(following == 1):
        return total
    return np.asarray(total * (find_conditional(first, points).weights @ following))


def move_over(chain: Chain, mass: Matrix, *, reverse: bool = False) -> Matrix:
    """Pᵀ diag(1/a) mass of the plan of a chain, or in reverse P diag(1/b) mass."""
    if not reverse:
        for maps in chain:
            mass = move_mass(maps, mass)
        return mass
    mass = move_mass(chain[-1], mass, reverse=True)
    for before, after in reversed(list(itertools.pairwise(chain))):
        # Of the legs before P diag(1/a²) is asked for, and not P diag(1/b¹).
        kept = _share(before[0].b, after[0].a)
        mass = move_mass(before, mass * kept[:, None], reverse=True)
    return mass


def mean_over(
    chain: Chain, values: Matrix, *, reverse: bool = False, points: Matrix | None = None
) -> Matrix:
    """The mean of values at the end of a chain for each source point; in reverse the way back.

    With ``points`` for these instead of the points that were fitted.
    """
    # From the far end on, with a last column of ones that gathers what values are divided by.
    order = list(chain) if reverse else list(reversed(chain))
    passing = list(reversed(_passing(chain, reverse=reverse)))
    found = np.column_stack([values, np.ones(len(values))]) if passing else values
    for k, maps in enumerate(order):
        if k:
            found = found * passing[k - 1][:, None]
        asked = points if k == len(order) - 1 else None
        found = mean_values(maps, found, reverse=reverse, points=asked)
    if not passing:
        return found
    weight = found[:, -1:]
    return np.asarray(found[:, :-1] / np.where(weight > 0, weight, 1.0))


def corrections_over(chain: Chain, points: Matrix) -> Matrix:
    """How far the last map of a chain, where it is debiased, moves points beyond one that is not.

    ``points`` are those at the start of the chain.
    """
    for maps in chain[:-1]:
        moved = [transport_points(each, points, reverse=False).points for each in maps]
        points = np.mean(moved, axis=0, dtype=np.float64)
    return np.asarray(np.mean([corrections(each, points) for each in chain[-1]], axis=0))


def plan_over(chain: Chain) -> Matrix:
    """The plan between the ends of a chain."""
    first, *rest = chain
    P = np.mean([coupling(each) for each in first], axis=0)
    for maps in rest:
        P = move_mass(maps, P.T).T
    return np.asarray(P)


def _passing(chain: Chain, *, reverse: bool) -> list[NDArray[np.float64]]:
    """By what the points where two legs meet count, in the order in which they are met.

    On the way there by how much mass goes on from them, a unit of it; on the way back by how much
    has come to them.
    """
    meeting = list(itertools.pairwise(chain))
    if not reverse:
        return [growth_over([after], fitted_points(before[0])) for before, after in meeting]
    factors = []
    mass = np.asarray(chain[0][0].a, np.float64)[:, None]
    for before, after in meeting:
        mass = move_mass(before, mass)
        factors.append(_share(mass[:, 0], after[0].a))
    return factors[::-1]


def _share(part: object, whole: object) -> NDArray[np.float64]:
    """One weight over another, 1 where there is none."""
    top, bottom = (np.asarray(each, np.float64) for each in (part, whole))
    return np.divide(top, bottom, out=np.ones_like(top), where=bottom > 0)


def _weighed(weights: csr_array, factor: NDArray[np.float64]) -> csr_array:
    """Columns times a factor, and rows brought to sum 1 again where anything is left."""
    if np.all(factor == 1):
        return weights
    found = weights * factor
    total = np.asarray(found.sum(axis=1)).ravel()
    return csr_array(found * np.divide(1, total, out=np.ones_like(total), where=total > 0)[:, None])
