"""The Sinkhorn divergence between two clouds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._duals import SymmetricDual
from mongefit._validation import check_points, check_positive, check_weights
from mongefit.baselines._plans import (
    Points,
    Weights,
    at_smallest_eps,
    check_memory,
    solve,
    squared_euclidean,
)
from mongefit.errors import ConvergenceWarning, DataError, warn_user
from mongefit.metrics._points import check_same_dimension


class Divergence(float):
    """A Sinkhorn divergence: a number with the absolute regularisation ``eps`` behind it."""

    eps: float

    def __new__(cls, value: float, eps: float) -> Divergence:
        self = float.__new__(cls, value)
        self.eps = eps
        return self

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.eps

    def __repr__(self) -> str:
        return f"Divergence({float(self)!r}, eps={self.eps!r})"

    # Printed and written to files it is the number alone.
    __str__ = float.__repr__


class Cloud(NamedTuple):
    """A cloud about its mean, with weights: all that its terms of the divergence need.

    Means are seen from one point of the target, so that far from the origin no digits are lost.
    """

    mean: NDArray[np.float64]
    centred: Points
    weight: Weights

    @classmethod
    def of(cls, points: Points, weight: Weights, origin: Points, name: str) -> Cloud:
        """The cloud, unless its costs cannot be represented."""
        if np.abs(points).max() > 1e150:
            raise DataError(
                f"{name} holds values up to {np.abs(points).max():.3g}, whose squares overflow. "
                "Divide all points by a common scale."
            )
        shifted = points - origin
        mean = weight @ shifted
        return cls(mean, shifted - mean, weight)

    @property
    def variance(self) -> float:
        """Σ_i a_i ‖x_i − x̄‖², which is the mean of ½‖x − x'‖² over the cloud with itself."""
        return float(self.weight @ np.sum(self.centred**2, axis=1))


def sinkhorn_divergence(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    source_weight: ArrayLike | None = None,
    target_weight: ArrayLike | None = None,
    epsilon: float = 0.05,
    eps: float | None = None,
    normalize_weight: bool = False,
) -> Divergence:
    """The Sinkhorn divergence S = OT_eps(x, y) − ½ OT_eps(x, x) − ½ OT_eps(y, y).

    The cost is ½‖x − y‖², and every term the regularised dual value Σ a_i f_i + Σ b_j g_j. S is
    zero for equal clouds and positive for others; that of a cloud and its translation by t is
    ½‖t‖². Values compare at one eps only.

    Parameters
    ----------
    X, Y
        Points, [n, d] and [m, d]; of a map, T(x) and the target.
    source_weight, target_weight
        Weights of the points, non-negative with sum 1; uniform by default.
    epsilon
        Regularisation relative to the mean of ½‖y − y'‖² over Y with itself, its total variance,
        so that different X compare with one Y at one eps. Where Y does not vary it is relative to
        the mean of ½‖x − y‖².
    eps
        Absolute regularisation, which overrides ``epsilon``.
    normalize_weight
        Divide weights by their sum instead of refusing a sum other than 1.

    Returns
    -------
    Divergence
        A float whose attribute ``eps`` is the absolute regularisation. It is larger than the one
        asked for only where that was too small to be solved; a warning then says so.

    Examples
    --------
    >>> from mongefit.metrics import sinkhorn_divergence
    >>> distance = sinkhorn_divergence([[0.0], [2.0]], [[3.0], [5.0]])
    >>> round(distance, 6), distance.eps
    (4.5, 0.05)
    """
    x, y = check_points(X, "X"), check_points(Y, "Y")
    check_same_dimension(x, y, "X", "Y")
    a = check_weights(source_weight, len(x), "source_weight", normalize=normalize_weight)
    b = check_weights(target_weight, len(y), "target_weight", normalize=normalize_weight)
    (value,) = divergences({"X": x}, x, y, a, b, epsilon=epsilon, eps=eps)
    return value


def divergences(
    images: Mapping[str, Points],
    x: Points,
    y: Points,
    a: Weights,
    b: Weights,
    *,
    epsilon: float,
    eps: float | None,
) -> list[Divergence]:
    """S(T(x), y) of each image of x, by name, at one eps, as `sinkhorn_divergence` takes it."""
    source, target = Cloud.of(x, a, y[0], "X"), Cloud.of(y, b, y[0], "Y")
    if eps is None:
        # In turn, for a target of one place, and for two clouds in the same place, where S is 0.
        shift = source.mean - target.mean
        reference = target.variance or 0.5 * (source.variance + float(shift @ shift)) or 1.0
        asked = check_positive(epsilon, "epsilon") * reference
    else:
        asked = check_positive(eps, "eps")
    sources = [Cloud.of(points, a, y[0], name) for name, points in images.items()]
    size = max(len(a), len(b))
    check_memory(size, size, matrices=7)
    check_memory(len(a), len(b))

    def solve_all(eps: float) -> tuple[list[float], bool]:
        values = []
        of_target, converged = _with_itself(target, eps)
        for source in sources:
            if not converged:
                break
            of_source, solved_source = _with_itself(source, eps)
            across, solved_across = _across(source, target, eps)
            converged = solved_source and solved_across
            values.append(across - 0.5 * (of_source + of_target))
        return values, converged

    mean_cost = max(source.variance for source in sources) + target.variance
    values, used = at_smallest_eps(solve_all, asked, mean_cost)
    if used > asked:
        warn_user(
            f"The Sinkhorn divergence did not converge at eps {asked:.3g}; its value is that of "
            f"eps {used:.3g}, the smallest that did. Raise epsilon or eps to choose one yourself.",
            ConvergenceWarning,
        )
    return [Divergence(value, used) for value in values]


def _with_itself(cloud: Cloud, eps: float) -> tuple[float, bool]:
    C, a = squared_euclidean(cloud.centred, cloud.centred), cloud.weight
    (f, g), converged = solve(C, a, a, eps, solvers=(SymmetricDual(),))
    # With f the soft minimum of g the plan has mass 1, and the dual value has no other term.
    return float(a @ f + a @ g), converged


def _across(source: Cloud, target: Cloud, eps: float) -> tuple[float, bool]:
    # About their means, whose distance adds ½‖x̄ − ȳ‖² exactly: the rest of what centring changes is
    # a function of x plus one of y with mean zero. A map that is far off then costs no digits.
    C = squared_euclidean(source.centred, target.centred)
    a, b = source.weight, target.weight
    if len(a) < len(b):
        # Newton factorises a matrix of the size of the second cloud.
        C, a, b = C.T, b, a
    (f, g), converged = solve(C, a, b, eps)
    shift = source.mean - target.mean
    return float(a @ f + b @ g) + 0.5 * float(shift @ shift), converged
