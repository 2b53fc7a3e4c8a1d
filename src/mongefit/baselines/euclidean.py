"""The map of a fixed cost: what optimal transport gives when nothing is known."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from mongefit._numerics import cast, double_precision
from mongefit.baselines.base import check_unused
from mongefit.convex import ConvexFunction
from mongefit.errors import OptionError, did_you_mean
from mongefit.families import build_cost
from mongefit.fitted import EntropicEstimator
from mongefit.validation import check_positive


class EuclideanMap(EntropicEstimator):
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
        epsilon = check_positive(self.epsilon, "epsilon")
        if not isinstance(self.cost, ConvexFunction) and self.cost != "sqeuclidean":
            raise OptionError(
                f"cost must be 'sqeuclidean' or a ConvexFunction, got {self.cost!r}; a cost that "
                "is learned belongs to MongeMap or CouplingFit."
                + did_you_mean(str(self.cost), ["sqeuclidean"])
            )
        with double_precision():
            clouds = self._check_clouds(X, Y, source_weight, target_weight)
            a, b = np.asarray(clouds.a), np.asarray(clouds.b)
            check_unused(pairs, pair_weight, groups, a, b)
            cost = build_cost(
                clouds.dim, cost=self.cost, diffeo=None, hidden_layer_sizes=(1,), symmetric=True,
                alpha=1.0, random_state=0,
            )  # fmt: skip
            return self._finish(X, clouds, cast(cost, clouds.x.dtype), epsilon=epsilon)
