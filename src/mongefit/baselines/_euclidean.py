"""The map of a fixed cost: what optimal transport gives when nothing is known."""

from __future__ import annotations

from typing import Self

from numpy.typing import ArrayLike

from mongefit._convex import ConvexFunction
from mongefit._estimators.queries import EntropicQueries
from mongefit._fitting import FitData, FitOptions, fit, prepare
from mongefit._validation import check_choice


class EuclideanMap(EntropicQueries):
    """The entropic map of the squared Euclidean cost ½‖x − y‖², or of another fixed convex cost.

    Parameters
    ----------
    cost : "sqeuclidean" or ConvexFunction, default="sqeuclidean"
        The convex function h of the displacement, in common units. It stays as it is: of one that
        another estimator learned, ``other.map_.cost.h``, too.
    epsilon : float, default=0.01
        Entropic regularisation relative to the mean cost.
    normalize_weight : bool, default=False
        Divide weights by their sum instead of refusing a sum other than 1.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the computation.
    strict : bool, default=False
        Raise `ConvergenceError` where a solve did not converge, instead of warning.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import EuclideanMap
    >>> X, Y = datasets.moon(16, seed=0)
    >>> EuclideanMap(epsilon=0.1).fit(X, Y).transform(X).shape
    (16, 2)
    """

    def __init__(
        self,
        cost: str | ConvexFunction = "sqeuclidean",
        *,
        epsilon: float = 0.01,
        normalize_weight: bool = False,
        dtype: str = "float64",
        strict: bool = False,
    ):
        self.cost = cost
        self.epsilon = epsilon
        self.normalize_weight = normalize_weight
        self.dtype = dtype
        self.strict = strict

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
        """Build the map.

        Arguments are those of `MongeMap.fit`, so that one loop can fit all estimators; ``pairs``,
        ``pair_weight`` and ``groups`` are checked and not used.
        """
        if not isinstance(self.cost, ConvexFunction):
            others = "a ConvexFunction (learned costs belong to MongeMap or CouplingFit)"
            check_choice(self.cost, "cost", ["sqeuclidean"], others=others)
        options = FitOptions(**self.get_params(deep=False))
        data = FitData(
            X, Y, pairs=pairs, pair_weight=pair_weight, groups=groups,
            source_weight=source_weight, target_weight=target_weight,
        )  # fmt: skip
        task = prepare(options, data, learn=False, use_knowledge=False)
        return self._store(X, fit(task))
