"""One table that says how good maps are, beside what no map should lose to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._validation import check_pairs, check_points, check_positive, check_weights
from mongefit.baselines._plans import entropic_plan
from mongefit.baselines._trivial import IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.errors import ConvergenceWarning, DataError, OptionError, warn_user
from mongefit.metrics._couplings import (
    incorrect_mass,
    incorrect_mass_floor,
    is_one_to_one,
    one_pair_will_do,
    recovered_pairs,
)
from mongefit.metrics._divergence import divergences
from mongefit.metrics._points import check_rows, check_same_dimension, l2_uvp, rmse
from mongefit.metrics._table import Table


@runtime_checkable
class Predictor(Protocol):
    """A fitted map."""

    def transform(self, X: Any) -> Any:
        """T(x) for every row of X."""


@runtime_checkable
class CostedPredictor(Predictor, Protocol):
    """A fitted map that has a cost."""

    def cost_matrix(self, X: Any, Y: Any) -> Any:
        """c(x_i, y_j) for all pairs of rows."""


def evaluate(
    estimators: Predictor | Mapping[str, Predictor],
    X: ArrayLike,
    Y: ArrayLike,
    *,
    pairs: ArrayLike | str | None = None,
    train: tuple[Any, ...] | None = None,
    truth: ArrayLike | None = None,
    source_weight: ArrayLike | None = None,
    target_weight: ArrayLike | None = None,
    normalize_weight: bool = False,
    epsilon: float = 0.05,
    eps: float | None = None,
    plan_epsilon: float = 0.01,
) -> Table:
    """Judge fitted maps on two clouds, beside trivial predictors, in one table.

    Parameters
    ----------
    estimators
        A fitted estimator, or several by name. Anything with ``transform`` will do; one with
        ``cost_matrix`` too is also judged by its cost.
    X, Y
        Source and target points, [n, d] and [m, d], best such as were not used in training.
    pairs
        Known pairs: integers [k, 2], row of X and row of Y; or "rows" if row i of X belongs to row
        i of Y. Without it there are columns only for what needs no pairs.
    train
        What the trivial predictors learn from: (X, Y) or (X, Y, pairs), best the data of the
        estimators. Without it the identity is the only one.
    truth
        The true map at every row of X, [n, d], where it is known.
    source_weight, target_weight, normalize_weight, epsilon, eps
        As for `sinkhorn_divergence`; all rows have one eps.
    plan_epsilon
        Regularisation of the plans whose incorrect mass is measured, relative to the mean cost.

    Returns
    -------
    Table
        One row per predictor. Keys of its ``rows``: ``name``; ``rmse`` over the pairs;
        ``sinkhorn_divergence`` of T(X) from Y, and its ``eps``; ``incorrect_mass`` of the plan
        between X and Y under the predictor's cost, and its ``incorrect_mass_floor``;
        ``recovered_pairs``, by exact assignment of the paired rows under that cost; ``l2_uvp``.

    Examples
    --------
    >>> from mongefit import MongeMap, datasets
    >>> from mongefit.metrics import evaluate
    >>> X, Y = datasets.t_shape(16, seed=0)
    >>> new_X, new_Y = datasets.t_shape(16, seed=1)
    >>> model = MongeMap(cost="sqeuclidean", epsilon=0.1).fit(X, Y)
    >>> table = evaluate(model, new_X, new_Y, pairs="rows", train=(X, Y, "rows"))
    >>> [row["name"] for row in table.rows]
    ['MongeMap', 'identity', 'target mean', 'ridge on pairs', 'nearest pair']
    """
    x, y = check_points(X, "X"), check_points(Y, "Y")
    check_same_dimension(x, y, "X", "Y")
    n, m = len(x), len(y)
    a = check_weights(source_weight, n, "source_weight", normalize=normalize_weight)
    b = check_weights(target_weight, m, "target_weight", normalize=normalize_weight)
    check_positive(plan_epsilon, "plan_epsilon")
    if truth is not None:
        _, truth = check_rows(x, truth, "X", "truth")
    with one_pair_will_do():
        known = _check_known(pairs, n, m)
        trivial = _trivial_predictors(X, Y, train)
    missing = [name for name, predictor in trivial.items() if predictor is None]
    predictors = _by_name(estimators, taken=trivial)
    predictors |= {name: fitted for name, fitted in trivial.items() if fitted is not None}

    images = {}
    for name, predictor in predictors.items():
        label = f"T(X) of {name}"
        _, images[label] = check_rows(x, predictor.transform(X), "X", label)
    distances = divergences(images, x, y, a, b, epsilon=epsilon, eps=eps)
    used = distances[0].eps

    floor = None
    if known is not None:
        floor = incorrect_mass_floor(n, m, known, source_weight=a, target_weight=b)
    rows: list[dict[str, Any]] = []
    judged = zip(predictors.items(), images.values(), distances, strict=True)
    for (name, predictor), mapped, distance in judged:
        row: dict[str, Any] = {"name": name}
        if known is not None:
            row["rmse"] = rmse(mapped[known[:, 0]], y[known[:, 1]])
        row |= {"sinkhorn_divergence": float(distance), "eps": used}
        if known is not None:
            mass, recovered, plan_used = None, None, plan_epsilon
            if isinstance(predictor, CostedPredictor):
                C = check_points(predictor.cost_matrix(X, Y), f"The cost matrix of {name}")
                plan, plan_used = entropic_plan(C, a, b, plan_epsilon)
                mass = incorrect_mass(plan, known)
                # Exact assignment pairs one to one; of other pairs it could not recover all.
                if is_one_to_one(known):
                    recovered = recovered_pairs(C[np.ix_(*known.T)])
            row |= {"incorrect_mass": mass, "incorrect_mass_floor": floor}
            row["recovered_pairs"] = recovered
            if plan_used > plan_epsilon:
                warn_user(
                    f"The plan of {name} did not converge at plan_epsilon {plan_epsilon:g}; its "
                    f"incorrect mass is that of {plan_used:g}, the smallest that did.",
                    ConvergenceWarning,
                )
        if truth is not None:
            row["l2_uvp"] = l2_uvp(mapped, truth, y, weight=a, target_weight=b)
        rows.append(row)

    notes = [f"S is the Sinkhorn divergence of T(X) from Y at eps {used:.4g}."]
    if known is not None:
        notes.append(
            f"Incorrect mass is that of the plan of each cost at epsilon {plan_epsilon:g}; no plan "
            "is below the floor."
        )
    if missing:
        notes.append(
            f"Left out for want of data to train on: {', '.join(missing)}. Pass "
            "train=(X, Y, pairs)."
        )
    return Table(tuple(rows), _headers(rows[0]), tuple(notes))


def _trivial_predictors(X: Any, Y: Any, train: Any) -> dict[str, Predictor | None]:
    """Trivial predictors by name, None where there is nothing to fit them on."""
    if train is not None and (not isinstance(train, tuple | list) or len(train) not in (2, 3)):
        raise OptionError(
            "train must be (X, Y) or (X, Y, pairs), the data that the estimators were fitted on."
        )
    X, Y, *rest = (X, Y) if train is None else train
    n, m = len(check_points(X, "X of train")), len(check_points(Y, "Y of train"))
    pairs = _check_known(rest[0] if rest else None, n, m)
    count = 0 if pairs is None else len(pairs)
    ridge, nearest = PairedRidge(many_to_many=True), NearestPair(many_to_many=True)
    return {
        "identity": IdentityMap().fit(X, Y),
        "target mean": None if train is None else TargetMean().fit(X, Y),
        "ridge on pairs": ridge.fit(X, Y, pairs=pairs) if count > 1 else None,
        "nearest pair": nearest.fit(X, Y, pairs=pairs) if count > 0 else None,
    }


def _headers(row: dict[str, Any]) -> dict[str, str]:
    """Titles of the columns that a row has, with the eps and the floor that belong to them."""
    titles = {
        "name": "",
        "rmse": "RMSE",
        "sinkhorn_divergence": "S (eps {eps:.3g})",
        "incorrect_mass": "incorrect mass (floor {incorrect_mass_floor:.3g})",
        "recovered_pairs": "recovered pairs",
        "l2_uvp": "L2-UVP (%)",
    }
    return {key: title.format(**row) for key, title in titles.items() if key in row}


def _check_known(pairs: ArrayLike | str | None, n: int, m: int) -> NDArray[np.int64] | None:
    """The pairs given, or those that "rows" stands for; None when there are none."""
    if isinstance(pairs, str):
        if pairs != "rows":
            raise OptionError(f"pairs must be integers [k, 2], 'rows' or None, got {pairs!r}.")
        if n != m:
            raise DataError(
                f"pairs='rows' pairs row i of X with row i of Y: they have {n} and {m} rows. Give "
                "pairs as integers [k, 2]."
            )
        pairs = np.column_stack([np.arange(n)] * 2)
    return check_pairs(pairs, n, m, many_to_many=True)[0]


def _by_name(
    estimators: Predictor | Mapping[str, Predictor], *, taken: Iterable[str]
) -> dict[str, Predictor]:
    if not isinstance(estimators, Mapping):
        estimators = {type(estimators).__name__: estimators}
    named = {str(name): estimator for name, estimator in estimators.items()}
    for name, estimator in named.items():
        if not isinstance(estimator, Predictor) or isinstance(estimator, type):
            raise OptionError(
                f"{name} cannot be evaluated: it has no transform method. Give a fitted estimator, "
                "or a dictionary of them by name."
            )
        if name in taken:
            raise OptionError(
                f"{name!r} is a trivial predictor that stands in the table already. Give your "
                "estimator another name."
            )
    return named
