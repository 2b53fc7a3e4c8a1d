"""Checks at the user's boundary: what passes is safe for the core, what does not is named."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from mongefit._runtime import require_memory
from mongefit.errors import DataError, Option, OptionError, did_you_mean, warn_user, wrong_option


def _as_array(value: Any, name: str) -> NDArray[Any]:
    if np.ma.is_masked(value):
        rows = np.flatnonzero(np.ma.getmaskarray(value).reshape(len(value), -1).any(axis=1))
        raise DataError(
            f"{name} is masked in {len(rows)} rows (first: row {rows[0]}). Remove these rows or "
            "fill them in."
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"{name} is not a table: its rows differ in length ({error}). Make them equal."
        ) from error


def check_points(points: Any, name: str) -> NDArray[np.float64]:
    """A finite float64 array [n, d] with n, d ≥ 1, in C order; a copy unless it already was one."""
    if scipy.sparse.issparse(points):
        what = f"{name} is sparse, and making it dense needs about"
        remedy = "Reduce it first, for example to components."
        require_memory(16 * math.prod(points.shape), what, remedy)
        points = points.toarray()
    array = _as_array(points, name)
    if array.dtype.kind not in "iuf":
        hint = "Complex data not supported. " if array.dtype.kind == "c" else ""
        raise DataError(
            f"{name} holds values of type {array.dtype}; real numbers are needed. {hint}"
            "Convert it with numpy.asarray(…, dtype=float)."
        )
    if array.ndim != 2:
        hint = " Reshape your data: one feature with .reshape(-1, 1)." if array.ndim == 1 else ""
        raise DataError(
            f"{name} must be two-dimensional, points in rows: Expected 2D array, got "
            f"{array.ndim}D array instead, with shape {array.shape}.{hint}"
        )
    if not array.size:
        raise DataError(
            f"{name} has no points or no features: 0 sample(s) or 0 feature(s) "
            f"(shape={array.shape}) while a minimum of 1 is required."
        )
    if not np.all(finite := np.isfinite(array)):
        places = np.argwhere(~finite)
        shown = ", ".join(f"row {row} column {column}" for row, column in places[:3])
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        raise DataError(
            f"{name} contains NaN or infinity in {len(np.unique(places[:, 0]))} rows: {shown}{more}"
            ". Remove these rows or fill them in."
        )
    # In one memory layout, because sums depend on it in the last bit.
    return np.ascontiguousarray(array, dtype=np.float64)


def check_weights(
    weight: Any, size: int, name: str, *, normalize: bool = False
) -> NDArray[np.float64]:
    """Non-negative weights with sum 1; uniform when None."""
    if weight is None:
        return np.full(size, 1 / size)
    array = _as_array(weight, name)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name} holds values of type {array.dtype}; real numbers are needed.")
    if array.shape != (size,):
        raise DataError(
            f"{name} has shape {array.shape}; one weight per point, ({size},), is needed."
        )
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise DataError(
            f"{name} is NaN or infinite at row {np.argmin(np.isfinite(array))}. Set it to 0 to "
            "leave the point out."
        )
    if np.any(array < 0):
        row = int(np.argmin(array))
        raise DataError(f"{name} is negative at row {row} ({array[row]:.3g}). Weights are ≥ 0.")
    total = array.sum()
    if total == 0:
        raise DataError(f"{name} is zero everywhere. At least one weight must be positive.")
    if not normalize and abs(total - 1) > 1e-6:
        raise DataError(
            "{name} has sum {total:.6g}, not 1. Divide by the sum, or set {normalize}.",
            name=name, total=total, normalize=Option("normalize_weight", True),
        )  # fmt: skip
    return array / total


def check_mass(
    mass: Any, weight: NDArray[np.float64], name: str, *, any_sign: bool = False
) -> NDArray[np.float64]:
    """Amounts on each of some points, [n] or [n, k]; a set has the weights of its points.

    With ``any_sign`` they are values of a function instead, and a set is 1 in it and 0 elsewhere.
    """
    array = mass.toarray() if scipy.sparse.issparse(mass) else _as_array(mass, name)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{name} holds values of type {array.dtype}; numbers are needed, or True and False for "
            "a set of points."
        )
    if array.ndim not in (1, 2) or len(array) != len(weight) or array.size == 0:
        raise DataError(
            f"{name} has shape {array.shape}; one value for each of the {len(weight)} points is "
            f"needed, ({len(weight)},), or columns of them. Mark a set by True and False."
        )
    if array.dtype.kind == "b":
        empty, what = ~np.any(array, axis=0), "marks no point"
    elif any_sign:
        empty, what = np.zeros(array.shape[1:], bool), ""
    else:
        empty, what = ~np.any(array, axis=0), "is zero everywhere"
    if np.any(empty):
        column = f" in column {np.argmax(empty)}" if array.ndim == 2 else ""
        raise DataError(f"{name} {what}{column}.")
    found = array.astype(np.float64)
    if array.dtype.kind == "b" and not any_sign:
        found = found * (weight if array.ndim == 1 else weight[:, None])
        if np.any(found.sum(axis=0) == 0):
            raise DataError(f"{name} marks points without weight only.")
    rows = found.reshape(len(found), -1)
    if not np.all(np.isfinite(rows)):
        row = int(np.argmin(np.all(np.isfinite(rows), axis=1)))
        raise DataError(f"{name} is NaN or infinite at row {row}.")
    if not any_sign and np.any(rows < 0):
        row = int(np.argmax(np.any(rows < 0, axis=1)))
        raise DataError(
            f"{name} is negative at row {row} ({rows[row].min():.3g}). Mass is ≥ 0; for the mean "
            "of a function set mean=True."
        )
    return found


class Knowledge(NamedTuple):
    """What is known of the map, checked: pairs [k, 2], their weights, and the rows of each group.

    The groups of the source and of the target are in the same order. ``clones`` numbers the pairs
    that belong together.
    """

    pairs: NDArray[np.int64] | None = None
    pair_weight: NDArray[np.float64] | None = None
    groups: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] | None = None
    clones: NDArray[np.int64] | None = None

    def trained_on(self) -> NDArray[np.int64] | None:
        """The pairs that have weight."""
        if self.pairs is None or self.pair_weight is None:
            return self.pairs
        return self.pairs[self.pair_weight > 0]

    def arrays(self) -> tuple[NDArray[Any] | None, ...]:
        """Everything as arrays, for a hash of the data."""
        members = [] if self.groups is None else [*self.groups[0], *self.groups[1]]
        return (self.pairs, self.pair_weight, *members)


def check_pairs(
    pairs: Any, n: int, m: int, *, weight: Any = None, many_to_many: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | tuple[None, None]:
    """Known pairs as integers [k, 2], each counted once, and their weights; None without pairs."""
    array = _check_pair_table(pairs, n, m, "pairs")
    if len(array) == 0:
        if weight is not None:
            raise DataError("pair_weight was given without pairs.")
        return None, None
    # Only relative weights matter. They are one on average over the pairs that count: a pair of
    # weight 0 is as good as left out.
    confidence = np.ones(len(array))
    if weight is not None:
        share = check_weights(weight, len(array), "pair_weight", normalize=True)
        confidence = np.count_nonzero(share) * share
    _, first = np.unique(array, axis=0, return_index=True)
    if len(first) < len(array):
        warn_user(
            f"{len(array) - len(first)} of {len(array)} pairs are repeated; each is counted once."
        )
        array, confidence = array[np.sort(first)], confidence[np.sort(first)]
    if not many_to_many:
        _check_one_to_one(array)
    if len(array) == 1:
        warn_user(
            "Only one pair is known: it can be met by many costs, and says little about the map "
            "elsewhere."
        )
    return array, confidence


def check_validation_pairs(
    validation_pairs: Any, n: int, m: int, pairs: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """Pairs to choose by, none of which is trained on; None when there are none."""
    array = _check_pair_table(validation_pairs, n, m, "validation_pairs")
    if len(array) == 0:
        return None
    trained_on = set() if pairs is None else set(map(tuple, pairs.tolist()))
    both = [pair for pair in map(tuple, array.tolist()) if pair in trained_on]
    if both:
        raise DataError(
            f"{len(both)} of {len(array)} validation_pairs are trained on too (first: source row "
            f"{both[0][0]}, target row {both[0][1]}). Leave them out of one of the two."
        )
    return array


def _check_pair_table(pairs: Any, n: int, m: int, name: str) -> NDArray[np.int64]:
    """Integers [k, 2] within range; no rows when there are no pairs."""
    array = np.zeros((0, 2), int) if pairs is None else _as_array(pairs, name)
    if array.size == 0:
        return np.zeros((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise DataError(
            f"{name} has shape {array.shape}; (k, 2) is needed, a source row and a target row each."
        )
    if array.dtype.kind not in "iu":
        raise DataError(
            f"{name} holds values of type {array.dtype}; integer row numbers are needed. "
            "Convert it with .astype(int) if these are row numbers."
        )
    for column, size, cloud in ((0, n, "source"), (1, m, "target")):
        outside = (array[:, column] < 0) | (array[:, column] >= size)
        if np.any(outside):
            k = int(np.argmax(outside))
            raise DataError(
                f"{outside.sum()} of {len(array)} {name} name a {cloud} row that does not exist "
                f"(first: pair {k}, row {array[k, column]}). Rows are numbered 0 to {size - 1}."
            )
    return array.astype(np.int64)


def _check_one_to_one(pairs: NDArray[np.int64]) -> None:
    sources, counts = np.unique(pairs[:, 0], return_counts=True)
    if np.any(counts > 1):
        row = int(sources[np.argmax(counts > 1)])
        targets = pairs[pairs[:, 0] == row, 1].tolist()
        raise DataError(
            "Source row {row} is paired with {count} targets: {targets}. A map sends a point to "
            "one place. Keep one of them, or set {many_to_many} to fit their mean.",
            row=row, count=len(targets), targets=targets[:5],
            many_to_many=Option("many_to_many", True),
        )  # fmt: skip
    targets, counts = np.unique(pairs[:, 1], return_counts=True)
    if np.any(several := counts > 1):
        warn_user(
            f"{several.sum()} targets are paired with several sources (first: target row "
            f"{targets[np.argmax(several)]}); the reverse map will fit their mean."
        )


def check_groups(
    groups: Any, a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] | None:
    """Rows of each group in both clouds, from a pair of label arrays; None when there are none.

    A point whose label is None, or −1 among whole numbers, belongs to no group.
    """
    if groups is None:
        return None
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise DataError(
            "groups must be a pair (labels of X, labels of Y), each with one label per point."
        )
    sides = []
    for labels, weight, cloud in zip(groups, (a, b), ("X", "Y"), strict=True):
        array = np.asarray(labels, dtype=object)
        if array.shape != (len(weight),):
            raise DataError(
                f"groups has {array.shape} labels for the {len(weight)} points of {cloud}; one "
                "label per point is needed."
            )
        rows: dict[Any, list[int]] = {}
        for row, label in enumerate(array.tolist()):
            if label != label:  # NaN in all its forms
                raise DataError(
                    f"groups has NaN for row {row} of {cloud}. Points whose group is not known "
                    "are marked by None."
                )
            if label is not None and not (isinstance(label, numbers.Integral) and label == -1):
                rows.setdefault(label, []).append(row)
        sides.append(rows)
    for here, there, cloud in ((0, 1, "X"), (1, 0, "Y")):
        for label in sides[here]:
            if label not in sides[there]:
                near = did_you_mean(str(label), sides[there])
                raise DataError(
                    f"The group {label!r} occurs in {cloud} only; a group needs points on both "
                    f"sides.{near} Points whose group is not known are marked by None."
                )
    if not sides[0]:
        raise DataError("groups labels no point: all of them are None or −1.")
    for side, weight, cloud in zip(sides, (a, b), ("X", "Y"), strict=True):
        for label in sides[0]:
            if weight[side[label]].sum() <= 0:
                raise DataError(f"The group {label!r} has no mass in {cloud}: its weights are 0.")
    members = [[np.asarray(side[label]) for label in sides[0]] for side in sides]
    return members[0], members[1]


def check_same_features(X: Any, Y: Any, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """Refuse clouds with different numbers, names or order of features."""
    if x.shape[1] != y.shape[1]:
        raise DataError(
            f"X has {x.shape[1]} features and Y has {y.shape[1]}; both clouds must have the same."
        )
    names = [list(getattr(table, "columns", [])) for table in (X, Y)]
    if all(names) and names[0] != names[1]:
        raise DataError(
            f"The columns of X and Y differ: {names[0][:5]} and {names[1][:5]}. Bring them into "
            "the same order, as in Y[X.columns]."
        )


def check_switch(value: Any, name: str) -> None:
    """Refuse all but True and False; Python takes texts such as "no" for true."""
    if not isinstance(value, bool | np.bool_):
        raise wrong_option(name, "True or False", value)


def check_tau(value: Any, name: str) -> float:
    """How strictly a side keeps its weights: above 0 and at most 1."""
    number = math.nan if isinstance(value, bool | str) or value is None else value
    if not isinstance(number, numbers.Real) or not 0 < float(number) <= 1:
        raise wrong_option(name, "a number above 0 and at most 1", value)
    return float(number)


def check_choice(value: Any, name: str, choices: Iterable[str], *, others: str = "") -> str:
    """One of several words; ``others`` says what else there could have been."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        needed = f"one of {', '.join(words)}{f' or {others}' if others else ''}"
        raise wrong_option(name, needed, value, hint=did_you_mean(str(value), words))
    return value


def check_positive(value: Any, name: str, *, zero: bool = False) -> float:
    """A finite number above zero, or from zero on with ``zero``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_option(name, "a number", value)
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise wrong_option(name, f"{'non-negative' if zero else 'positive'} and finite", value)
    return number


def check_share(value: Any, name: str) -> float:
    """A number from 0 on and below 1."""
    number = check_positive(value, name, zero=True)
    if number >= 1:
        raise wrong_option(name, "a number from 0 on and below 1", value)
    return number


def check_count(value: Any, name: str, *, minimum: int = 0) -> int:
    """A whole number from ``minimum`` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise wrong_option(name, f"a whole number >= {minimum}", value)
    return int(value)


def check_schedule(value: Any, name: str) -> tuple[float, float]:
    """What goes from a start to an end over training, from a number or a pair."""
    if isinstance(value, numbers.Real):
        number = check_positive(value, name)
        return number, number
    try:
        start, end = value
    except (TypeError, ValueError):
        raise wrong_option(name, "a number or a pair (start, end)", value) from None
    start, end = check_positive(start, f"{name}'s start"), check_positive(end, f"{name}'s end")
    if end > start:
        warn_user(
            "{name} rises from {start:g} to {end:g}; training usually goes from a large one to a "
            "small one.",
            name=Option(name), start=start, end=end,
        )  # fmt: skip
    return start, end


def check_layers(sizes: Any) -> tuple[int, ...]:
    """Widths of the hidden layers, at least one."""
    name = "hidden_layer_sizes"
    try:
        sizes = (sizes,) if isinstance(sizes, numbers.Integral) else tuple(sizes)
    except TypeError:
        raise wrong_option(name, "a tuple of widths, such as (64, 64)", sizes) from None
    if not sizes:
        raise OptionError(
            "{name} is empty; give at least one width, such as (64, 64).", name=Option(name)
        )
    return tuple(check_count(size, name, minimum=1) for size in sizes)


def check_seed(random_state: Any) -> int:
    """A seed: the number itself, or one drawn from the generator."""
    try:
        generator = check_random_state(random_state)
    except ValueError as error:
        raise OptionError(
            "{name} cannot be {value!r}: {error}.",
            name=Option("random_state"), value=random_state, error=error,
        ) from error  # fmt: skip
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(generator.randint(2**31 - 1))
