"""Columns of obs: times, labels with missing values marked, and weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_weights
from mongefit.errors import (
    DataError,
    MissingPackageError,
    Option,
    OptionError,
    Suggestion,
    did_you_mean,
    warn_user,
    wrong_option,
)

if TYPE_CHECKING:
    from anndata import AnnData

# Words that stand for a missing label once a table has been through a text file.
_MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "unassigned"})


def import_anndata() -> Any:
    """The package anndata, imported when it is needed."""
    try:
        import anndata
    except ImportError as error:
        raise MissingPackageError(
            "AnnData is not installed. Install it with: pip install mongefit[anndata]"
        ) from error
    return anndata


def check_adata(adata: Any, name: str = "adata") -> None:
    """Refuse what is no AnnData."""
    if not isinstance(adata, import_anndata().AnnData):
        hint = " Read the file with anndata.read_h5ad." if isinstance(adata, str) else ""
        raise OptionError(f"{name} must be an AnnData, got {type(adata).__name__}.{hint}")


def check_name(key_added: Any) -> None:
    """Refuse a name that obs and obsm cannot have."""
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise OptionError(f"key_added must be a name without '/', got {key_added!r}.")


def in_memory(adata: AnnData) -> AnnData:
    """A copy in memory, because a file behind the original cannot be changed."""
    return adata.to_memory() if adata.isbacked else adata.copy()


def among_all(adata: AnnData, rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Values of some cells among those of all, False or NaN for the others."""
    found = np.full((adata.n_obs, *values.shape[1:]), False if values.dtype == bool else np.nan)
    found[rows] = values
    return found


def listed(names: Iterable[Any], limit: int = 20) -> str:
    """Names in one line, the first of them where there are many."""
    names = list(names)
    if not names:
        return "none"
    more = f", … ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more


def obs_column(
    adata: AnnData, key: Any, option: str, *, otherwise: Suggestion | None = None
) -> Any:
    """A column of obs. If it is missing, the error has near matches or what ``otherwise`` says."""
    if not isinstance(key, str):
        raise wrong_option(option, "the name of one column of obs", key)
    if key in adata.obs:
        return adata.obs[key]
    near = Suggestion.of(option, key, adata.obs)
    raise DataError(
        "obs[{key!r}] not found. Columns: {columns}.{hint}",
        key=key, columns=listed(adata.obs),
        hint=near if near.options or otherwise is None else otherwise,
    )  # fmt: skip


def distinct(column: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """The number of each cell's value, −1 where it is missing, and the values."""
    import pandas as pd

    codes, values = pd.factorize(column)
    # As NumPy's numbers, which know their precision: a float32 10.1 then reads as 10.1.
    array = np.asarray(values)
    return np.asarray(codes, np.int64), list(array if array.dtype.kind == "f" else values)


def cells_with(column: Any, wanted: Any) -> NDArray[np.bool_]:
    """Which cells have a value in a column; numbers are compared as numbers."""
    codes, values = distinct(column)
    found = [canonical(value) == canonical(wanted) for value in values]
    return np.isin(codes, np.flatnonzero(found))


@dataclasses.dataclass(frozen=True, init=False)
class Times:
    """The times that a map goes between, in order: a column of obs, and its values as text.

    Numbers are compared as numbers: "2" finds 2, 2.0 and "2.0". With a ``batch``, the name of a
    column of obs and its value, only the cells of this batch are meant.
    """

    key: str
    values: tuple[str, ...]
    batch: tuple[str, str] | None

    def __init__(self, key: str, *values: str, batch: tuple[str, str] | None = None):
        for name, value in (("key", key), ("values", values), ("batch", batch)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, key: str, source: Any, target: Any) -> Times:
        """Two times out of values of any type, which must differ."""
        if not isinstance(key, str):
            raise wrong_option("time_key", "the name of one column of obs", key)
        if canonical(source) == canonical(target):
            raise OptionError(
                f"source and target are both {source}. Name two values of obs[{key!r}]."
            )
        return cls(str(key), str(source), str(target))

    @property
    def source(self) -> str:
        """The first time."""
        return self.values[0]

    @property
    def target(self) -> str:
        """The last time."""
        return self.values[-1]

    @property
    def labels(self) -> tuple[float | str, ...]:
        """The times as numbers, or as text where they are none."""
        return tuple(map(label_of, self.values))

    def rows(self, adata: AnnData, *, target: bool) -> NDArray[np.int64]:
        """Rows of the cells of the source, or of the target; there must be some."""
        return self.rows_at(adata, self.target if target else self.source)

    def rows_at(self, adata: AnnData, wanted: str) -> NDArray[np.int64]:
        """Rows of the cells of one time; there must be some."""
        otherwise = None if self.key in adata.obs else self._column_that_fits(adata)
        column = obs_column(adata, self.key, "time_key", otherwise=otherwise)
        chosen = cells_with(column, wanted)
        if not np.any(chosen):
            values = distinct(column)[1]
            raise DataError(
                f"obs[{self.key!r}] has no value {wanted}. Values: {listed(values)}."
                + did_you_mean(wanted, values)
            )
        if self.batch is not None:
            key, name = self.batch
            chosen &= cells_with(obs_column(adata, key, "batch_key"), name)
            if not np.any(chosen):
                raise DataError(f"No cell of {self.key} {wanted} has {name!r} in obs[{key!r}].")
        return np.flatnonzero(chosen)

    def between(self, source: Any = None, target: Any = None) -> Times:
        """Two of these times, the first and the last by default."""
        first = 0 if source is None else self._place(source)
        last = len(self.values) - 1 if target is None else self._place(target)
        if first >= last:
            raise OptionError(
                f"{self.key} {self.values[last]} does not come after {self.key} "
                f"{self.values[first]}. This model goes {self.text}; the way back is asked for by "
                "inverse=True."
            )
        return Times(self.key, self.values[first], self.values[last], batch=self.batch)

    def within(self, key: str, batch: str) -> Times:
        """These times in one batch."""
        return Times(self.key, *self.values, batch=(key, batch))

    def steps(self) -> list[Times]:
        """Each time and the next."""
        return [
            Times(self.key, *both, batch=self.batch) for both in itertools.pairwise(self.values)
        ]

    @property
    def span(self) -> float | None:
        """From source to target, where both are numbers."""
        source, target = map(canonical, (self.source, self.target))
        return None if isinstance(source, str) or isinstance(target, str) else target - source

    @property
    def text(self) -> str:
        """What messages call them."""
        return f"from {self.key} {f' to {self.key} '.join(self.values)}"

    def _place(self, wanted: Any) -> int:
        """Where among these times one is."""
        known = list(map(canonical, self.values))
        if canonical(wanted) not in known:
            raise OptionError(
                f"This model goes {self.text}; it knows nothing of {wanted}."
                + did_you_mean(str(wanted), self.values)
            )
        return known.index(canonical(wanted))

    def _column_that_fits(self, adata: AnnData) -> Suggestion:
        """Of the columns that hold all of the values, the one with the fewest others."""
        wanted = set(map(canonical, self.values))
        found = {str(key): distinct(adata.obs[key])[1] for key in adata.obs}
        fit = [key for key in found if wanted <= set(map(canonical, found[key]))]
        best = min(fit, key=lambda key: len(found[key]), default=None)
        return Suggestion(() if best is None else (Option("time_key", best),))


def label_of(value: Any) -> float | str:
    """A time as `TemporalMap` names it: a number, whole where it is one, else text."""
    found = canonical(value)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def canonical(value: Any) -> float | str:
    """A number where the value reads as one, else its text."""
    # By its text, so that 10.1 is found among float32 numbers too.
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return text if math.isnan(number) else number


def obs_labels(
    adata: AnnData, key: str, option: str, rows: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Labels of some cells as text, None where there is none.

    Missing are what pandas takes for missing, −1, and words such as "unknown". A warning lists
    these words.
    """
    codes, values = distinct(obs_column(adata, key, option).iloc[rows])
    labels = [str(value) for value in values]
    words = [label for label in labels if label.strip().lower() in _MISSING]
    if words:
        marked = np.isin(codes, np.flatnonzero(np.isin(labels, words))).sum()
        shown = ", ".join(map(repr, words))
        warn_user(f"obs[{key!r}] is {shown} in {marked} cells: taken for not known there.")
    kept = [None if label in (*words, "-1", "-1.0") else label for label in labels]
    # The code −1 of a missing value finds the None at the end.
    return np.asarray([*kept, None], dtype=object)[codes]


def obs_weights(
    adata: AnnData, key: str | None, rows: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Weights of some cells, with sum 1; None without a key."""
    if key is None:
        return None
    weight = _numbers(adata, key, "weight_key", rows, "numbers to weigh cells by")
    return check_weights(weight, len(rows), f"obs[{key!r}]", normalize=True)


def grown_weights(
    adata: AnnData,
    key: str | None,
    rows: NDArray[np.int64],
    times: Times,
    weight: NDArray[np.float64] | None,
) -> NDArray[np.float64] | None:
    """Weights of the source times exp(rate · Δt), with sum 1; as they are without a key.

    Rates are those of a column, per unit of time.
    """
    if key is None:
        return weight
    rate = _numbers(adata, key, "growth_key", rows, "growth rates")
    if times.span is None:
        raise DataError(
            "{growth_key} is a rate per unit of time, and obs[{time!r}] goes from {source!r} to "
            "{target!r}, which are not both numbers. Give the weights themselves: {weight_key}.",
            growth_key=Option("growth_key"), weight_key=Option("weight_key"),
            time=times.key, source=times.source, target=times.target,
        )  # fmt: skip
    if not np.all(np.isfinite(rate)):
        row = int(np.argmin(np.isfinite(rate)))
        raise DataError(
            f"obs[{key!r}] is {rate[row]} in {np.sum(~np.isfinite(rate))} of {len(rows)} cells of "
            f"{times.key} {times.source} (first: {adata.obs_names[rows[row]]!r}). A growth rate is "
            "a number: fill in 0 for cells that neither divide nor die, or a mean."
        )
    base = np.full(len(rows), 1 / len(rows)) if weight is None else weight
    exponent = np.where(base > 0, rate * times.span, -np.inf)
    grown = base * np.exp(exponent - exponent.max())
    grown /= grown.sum()
    after = 1 / np.sum(grown**2)
    if after < 0.1 / np.sum(base**2):
        warn_user(
            f"With obs[{key!r}] as growth rates over {times.span:g} the {len(rows)} cells of "
            f"{times.key} {times.source} count as {after:.0f}: a few are said to grow far more "
            f"than all others. Are these rates per unit of obs[{times.key!r}]?"
        )
    return np.asarray(grown)


def _numbers(
    adata: AnnData, key: str, option: str, rows: NDArray[np.int64], what: str
) -> NDArray[np.float64]:
    """A column of numbers for some cells."""
    column = obs_column(adata, key, option).iloc[rows]
    try:
        return np.asarray(column.to_numpy(dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise DataError(f"obs[{key!r}] must hold {what}: {error}.") from error
