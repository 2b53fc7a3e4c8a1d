"""Which times a fit is between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mongefit.errors import Option, OptionError, warn_user, wrong_option
from mongefit.single_cell._columns import (
    Times,
    canonical,
    check_adata,
    distinct,
    listed,
    obs_column,
)

if TYPE_CHECKING:
    from anndata import AnnData

ALL = "all"


def choose_times(adata: AnnData, key: Any, source: Any, target: Any, times: Any) -> Times:
    """The times of a fit: ``source`` and ``target``, or a list of several, or all of a column.

    Numbers are put in order. Text is taken in the order of the list.
    """
    names = {name: Option(name) for name in ("source", "target", "times")}
    if times is None:
        if source is None or target is None:
            raise OptionError(
                "It is not said which times to map between: give {source} and {target}, or "
                "{times} for several.",
                **names,
            )
        return Times.of(key, source, target)
    if source is not None or target is not None:
        raise OptionError(
            "{times} names all times, from the first to the last: leave out {source} and {target}.",
            **names,
        )
    if isinstance(times, str) and times == ALL:
        check_adata(adata)
        wanted = distinct(obs_column(adata, key, "time_key"))[1]
        if words := [value for value in wanted if isinstance(canonical(value), str)]:
            raise OptionError(
                "obs[{key!r}] holds text ({words}), which has no order of its own. List the times "
                "from the first to the last: {times}.",
                key=key, words=listed(words, 5), times=Option("times", list(map(str, words))),
            )  # fmt: skip
    elif isinstance(times, Iterable) and not isinstance(times, str):
        wanted = list(times)
    else:
        raise wrong_option("times", "a list of values of the time column, or 'all'", times)
    if not isinstance(key, str):
        raise wrong_option("time_key", "the name of one column of obs", key)
    return _ordered(key, wanted, told=not isinstance(times, str))


def _ordered(key: str, wanted: list[Any], *, told: bool) -> Times:
    """Times in order; numbers that were told in another order are put into it with a warning."""
    labels = list(map(canonical, wanted))
    if len(labels) < 2:
        raise OptionError(
            f"Two times at least are needed, got {listed(wanted)}. Name values of obs[{key!r}]."
        )
    for place, label in enumerate(labels):
        if label in labels[:place]:
            raise OptionError(f"times has {wanted[place]} twice. Name every time once.")
    numbers = [label for label in labels if not isinstance(label, str)]
    if not numbers:
        return Times(key, *map(str, wanted))
    if len(numbers) < len(labels):
        word = next(label for label in labels if isinstance(label, str))
        raise OptionError(
            f"times has numbers and text ({word!r}). Give numbers, or text in the order of time."
        )
    order = sorted(range(len(labels)), key=numbers.__getitem__)
    ordered = [str(wanted[place]) for place in order]
    if told and order != sorted(order):
        warn_user(f"times is not in order: taken as {listed(ordered)}.")
    return Times(key, *ordered)
