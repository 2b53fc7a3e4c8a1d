"""Legs padded with points of weight zero to one shape, and stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mongefit._runtime import copy_to_host, is_traced, to_device
from mongefit.losses import Pairs, Subset, Subsets


def pad_and_stack(legs: Sequence[Any]) -> Any:
    """Legs of one kind padded to one shape and stacked; a single one as it is."""
    if len(legs) == 1:
        return legs[0]
    n, m = max(len(leg.x) for leg in legs), max(len(leg.y) for leg in legs)
    # Which pairs and rows a leg has, of training or, without any, of validation.
    main = [leg.validation if leg.pairs is None else leg.pairs for leg in legs]
    count = rows = columns = 0
    if main[0] is not None:
        both = [each for leg in legs for each in (leg.pairs, leg.validation) if each is not None]
        count = max(len(each.source) for each in both)
        rows = max(len(each.rows) for each in main)
        columns = max(len(each.columns) for each in main)
    padded = []
    for leg, own in zip(legs, main, strict=True):
        asked = None
        if own is not None:
            asked = (
                _grown(own.rows, rows, n, len(leg.x)),
                _grown(own.columns, columns, m, len(leg.y)),
            )
        padded.append(
            dataclasses.replace(
                leg,
                x=_pad(leg.x, n), y=_pad(leg.y, m),
                a=_pad(leg.a, n, zero=True), b=_pad(leg.b, m, zero=True),
                pairs=_pad_pairs(leg.pairs, count, asked),
                validation=_pad_pairs(leg.validation, count, asked),
                subsets=leg.subsets,
            )
        )  # fmt: skip
    if legs[0].subsets is not None:
        sizes = [
            max(getattr(leg.subsets, end).rows.shape[1] for leg in legs)
            for end in ("source", "target")
        ]
        padded = [
            dataclasses.replace(
                leg,
                subsets=Subsets(
                    _pad_subset(leg.subsets.source, sizes[0]),
                    _pad_subset(leg.subsets.target, sizes[1]),
                ),
            )
            for leg in padded
        ]
    return stack(padded)


def _pad(array: Array, size: int, *, zero: bool = False) -> Array:
    """An array with more rows: copies of the first, or zeros."""
    plain = np.asarray(array)
    extra = np.repeat(plain[:1] * (0 if zero else 1), size - len(plain), axis=0)
    return to_device(np.concatenate([plain, extra]))


def _grown(chosen: Any, count: int, size: int, own: int) -> np.ndarray:
    """Row numbers with others added, those of padding first."""
    chosen = np.asarray(chosen)
    padding = np.arange(own, size)
    free = np.concatenate([padding, np.setdiff1d(np.arange(own), chosen)])
    return np.sort(np.concatenate([chosen, free[: count - len(chosen)]]))


def _pad_pairs(
    pairs: Pairs | None, count: int, asked: tuple[np.ndarray, np.ndarray] | None
) -> Pairs | None:
    if pairs is None or asked is None:
        return None
    rows, columns = asked
    source, target = (_pad(each, count) for each in (pairs.source, pairs.target))
    weight = _pad(pairs.weight, count, zero=True)
    return Pairs(source, target, weight, to_device(rows), to_device(columns))


def _pad_subset(subset: Subset, size: int) -> Subset:
    rows, weight = (np.asarray(each).T for each in (subset.rows, subset.weight))
    return Subset(_pad(to_device(rows), size).T, _pad(to_device(weight), size, zero=True).T)


def stack(trees: Sequence[Any]) -> Any:
    """Trees with their arrays stacked; of all else the first."""

    def join(*leaves):
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        if not is_traced(*leaves):
            return to_device(np.stack(copy_to_host(leaves)))  # JAX would run a program for each
        return jnp.stack(leaves)

    return jax.tree.map(join, *trees)


def of_stack(tree: Any, k: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[k] if eqx.is_array(leaf) else leaf, tree)
