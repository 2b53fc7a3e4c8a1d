"""The map over several legs of a fit, from one time to another."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin

from mongefit._estimators.outcomes import OutcomeQueries, check_query
from mongefit._estimators.queries import negative_rmse
from mongefit.errors import OptionError

if TYPE_CHECKING:
    from mongefit._estimators.monge_map import MongeMap
    from mongefit._fitting.chains import Chain


class Way(OneToOneFeatureMixin, TransformerMixin, OutcomeQueries):
    """The composition of fitted maps, one leg after the other; `TemporalMap.between` gives it.

    ``times`` are those at which legs start and end, empty where they are not known.
    """

    def __init__(self, legs: Sequence[MongeMap], times: Sequence[Any] = ()):
        self.legs = legs
        self.times = times

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return self.legs[0].n_features_in_

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Where every row of X is at the end of the way."""
        points: Any = X
        for leg in self.legs:
            points = leg.transform(points)
        return np.asarray(points)

    def inverse_transform(self, Y: ArrayLike) -> NDArray[np.float64]:
        """Where every row of Y was at the start of the way."""
        points: Any = Y
        for leg in reversed(self.legs):
            points = leg.inverse_transform(points)
        return np.asarray(points)

    def interpolate(self, X: ArrayLike, *, at: float, reverse: bool = False) -> NDArray[np.float64]:
        """Where points of the first time are at a time between, or those of the last with reverse.

        Within a leg they move from x to T(x) at a constant rate: along a straight line, or, where
        both clouds share a flow Φ, along Φ⁻¹ of one. Times must be numbers.
        """
        from mongefit._fitting import between

        times = list(self.times)
        if not times or not all(isinstance(time, Real) for time in times):
            raise OptionError("Only between times that are numbers can be interpolated.")
        if isinstance(at, bool) or not isinstance(at, Real) or not times[0] <= at <= times[-1]:
            raise OptionError(f"at must be a time from {times[0]} to {times[-1]}, got {at!r}.")
        order = list(zip(self.legs, times[:-1], times[1:], strict=True))
        points: Any = check_query(self, X, "X")
        for leg, first, last in reversed(order) if reverse else order:
            start, end = (last, first) if reverse else (first, last)
            if at == start:
                break
            moved = (leg.inverse_transform if reverse else leg.transform)(points)
            if first < at < last:
                return between(leg.map_, points, moved, float((at - start) / (end - start)))
            points = moved
        return np.asarray(points)

    def growth(self, X: ArrayLike) -> NDArray[np.float64]:
        """The mass that a unit of mass at each row of X is at the end: 1 unless ``tau_a`` < 1."""
        from mongefit._fitting.chains import growth_over

        return growth_over(self._chain(), check_query(self, X, "X"))

    @property
    def growth_(self) -> NDArray[np.float64]:
        """`growth` of the source points."""
        from mongefit._fitting.chains import end_of, growth_over
        from mongefit._fitting.outcomes import fitted_points

        points = fitted_points(end_of(self._chain(), source=True), source=True)
        return growth_over(self._chain(), points)

    @property
    def diagnostics_(self) -> dict[str, Any]:
        """Whether all legs were solved, the largest epsilon, and the diagnostics of each leg."""
        legs = [leg.diagnostics_ for leg in self.legs]
        return {
            "converged": all(each["converged"] for each in legs),
            "epsilon": max(each["epsilon"] for each in legs),
            "legs": legs,
        }

    @property
    def history_(self) -> dict[str, NDArray[Any]]:
        """That of the one training of all legs."""
        return self.legs[0].history_

    @property
    def data_sha256_(self) -> str:
        """Hash of what the legs were fitted to."""
        from mongefit._fitting.data import hash_texts

        return hash_texts(leg.data_sha256_ for leg in self.legs)

    @property
    def coupling_(self) -> NDArray[np.float64]:
        """The plan between the clouds at the ends, [n, m]: P = P¹ diag(1/a²) P², and so on."""
        from mongefit._fitting.chains import plan_over

        return plan_over(self._chain())

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """−RMSE of the map against Y over paired rows: higher is better."""
        return negative_rmse(self, X, Y)

    def _chain(self) -> Chain:
        return [[leg.map_] for leg in self.legs]

    def fit(self, X: Any = None, Y: Any = None) -> Self:
        """Do nothing: the legs are fitted."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True
