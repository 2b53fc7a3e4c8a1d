"""The map of a fixed cost: what optimal transport gives when nothing is known."""

from __future__ import annotations

import dataclasses

from mongefit._convex import ConvexFunction
from mongefit._estimators.queries import EntropicQueries
from mongefit._fitting import FitData, FitOptions, fit, prepare
from mongefit._validation import check_choice
from mongefit.baselines._base import FitMixin


@dataclasses.dataclass(eq=False, repr=False)
class EuclideanMap(FitMixin, EntropicQueries):
    """The entropic map of the squared Euclidean cost ½‖x − y‖², or of another fixed convex cost.

    Parameters
    ----------
    cost : "sqeuclidean" or ConvexFunction, default="sqeuclidean"
        The convex function h of the displacement, in common units. It is not trained. It may be
        one that another estimator learned, ``other.map_.cost.h``.
    epsilon : float, default=0.01
        Entropic regularisation relative to the mean cost.
    tau_a, tau_b, normalize_weight, dtype, strict
        As for `MongeMap`.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import EuclideanMap
    >>> X, Y = datasets.moon(16, seed=0)
    >>> EuclideanMap(epsilon=0.1).fit(X, Y).transform(X).shape
    (16, 2)
    """

    cost: str | ConvexFunction = "sqeuclidean"
    _: dataclasses.KW_ONLY
    epsilon: float = 0.01
    tau_a: float = 1.0
    tau_b: float = 1.0
    normalize_weight: bool = False
    dtype: str = "float64"
    strict: bool = False

    def _fit(self, data: FitData) -> None:
        if not isinstance(self.cost, ConvexFunction):
            others = "a ConvexFunction (learned costs belong to MongeMap or CouplingFit)"
            check_choice(self.cost, "cost", ["sqeuclidean"], others=others)
        options = FitOptions(**self.get_params(deep=False))
        self._store(data.X, fit(prepare(options, data, learn=False, use_knowledge=False)))
