"""What baselines share."""

from __future__ import annotations

import abc
import dataclasses
from typing import Self

from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from mongefit._estimators.outcomes import check_query
from mongefit._estimators.queries import negative_rmse
from mongefit._fitting import FitData
from mongefit._validation import (
    Knowledge,
    check_groups,
    check_pairs,
    check_points,
    check_positive,
    check_same_features,
    check_switch,
    check_weights,
)
from mongefit.baselines._plans import Matrix, Points, Weights, entropic_plan
from mongefit.errors import ConvergenceWarning, warn_user


class FitMixin(abc.ABC):
    """The method `fit` with the arguments of `MongeMap`."""

    @abc.abstractmethod
    def _fit(self, data: FitData) -> None:
        """Check the options and the data, and set what is learned."""

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the map.

        The arguments are those of `MongeMap.fit`, so that one loop can fit all estimators. What a
        baseline does not learn from is checked and not used.
        """
        data = FitData(
            X, Y, pairs=pairs, pair_weight=pair_weight, groups=groups,
            source_weight=source_weight, target_weight=target_weight,
        )  # fmt: skip
        self._fit(data)
        return self


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Baseline(FitMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A map from a source cloud to a target cloud, and the cost that belongs to it.

    A family says how it learns, how it moves points and what moving costs; checks, plans and scores
    are common to all.
    """

    epsilon: float = 0.01
    many_to_many: bool = False
    normalize_weight: bool = False

    @abc.abstractmethod
    def _learn(self, x: Points, y: Points, a: Weights, b: Weights, known: Knowledge) -> None:
        """Set what is learned; raise before anything is set."""

    @abc.abstractmethod
    def _move(self, x: Points) -> Points:
        """T(x) for every row of x."""

    @abc.abstractmethod
    def _cost(self, x: Points, y: Points) -> Matrix:
        """c(x_i, y_j) for all pairs of rows."""

    def _fit(self, data: FitData) -> None:
        check_positive(self.epsilon, "epsilon")
        for name in ("many_to_many", "normalize_weight"):
            check_switch(getattr(self, name), name)
        x, y = check_points(data.X, "X"), check_points(data.Y, "Y")
        check_same_features(data.X, data.Y, x, y)
        normalize = self.normalize_weight
        a = check_weights(data.source_weight, len(x), "source_weight", normalize=normalize)
        b = check_weights(data.target_weight, len(y), "target_weight", normalize=normalize)
        table, weight = check_pairs(
            data.pairs, len(x), len(y), weight=data.pair_weight, many_to_many=self.many_to_many
        )
        self._learn(x, y, a, b, Knowledge(table, weight, check_groups(data.groups, a, b)))
        validate_data(self, data.X, skip_check_array=True)
        # Copies: the caller may go on to write into the arrays.
        self.source_, self.target_ = x.copy(), y.copy()
        self.source_weight_, self.target_weight_ = a, b

    def transform(self, X: ArrayLike) -> Points:
        """T(x) for every row of X, at any point."""
        return self._move(check_query(self, X, "X"))

    def cost_matrix(self, X: ArrayLike, Y: ArrayLike) -> Matrix:
        """c(x_i, y_j) for all pairs of rows."""
        return self._cost(check_query(self, X, "X"), check_query(self, Y, "Y"))

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """−RMSE of T(x_i) against y_i over paired rows: higher is better."""
        return negative_rmse(self, X, Y)

    @property
    def coupling_(self) -> Matrix:
        """The entropic plan of `cost_matrix` between the clouds that were fitted, [n, m]."""
        check_is_fitted(self)
        C = self._cost(self.source_, self.target_)
        P, used = entropic_plan(C, self.source_weight_, self.target_weight_, self.epsilon)
        if used > self.epsilon:
            warn_user(
                f"The dual solve did not converge at epsilon {self.epsilon:g}; the plan is that of "
                f"epsilon {used:g}, the smallest that did.",
                ConvergenceWarning,
            )
        return P

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
