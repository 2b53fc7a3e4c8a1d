"""What a fitted plan says beyond a point: where mass goes, where it came from, and how surely.

Nothing here imports JAX before it is needed.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from mongefit._fitting.chains import Chain
    from mongefit._fitting.outcomes import Conditional


class OutcomeQueries(BaseEstimator, abc.ABC):
    """Queries of the conditional distributions of a plan, or of the mean of several plans."""

    @abc.abstractmethod
    def _chain(self) -> Chain:
        """The fitted maps of every leg, in order, those of one leg between the same clouds."""

    @overload
    def conditional(
        self, X: ArrayLike, *, reverse: bool = ..., drop: float = ...,
        return_dropped: Literal[False] = ...,
    ) -> csr_array: ...  # fmt: skip

    @overload
    def conditional(
        self, X: ArrayLike, *, reverse: bool = ..., drop: float = ...,
        return_dropped: Literal[True],
    ) -> tuple[csr_array, NDArray[np.float64]]: ...  # fmt: skip

    def conditional(
        self,
        X: ArrayLike,
        *,
        reverse: bool = False,
        drop: float = 1e-9,
        return_dropped: bool = False,
    ) -> csr_array | tuple[csr_array, NDArray[np.float64]]:
        """Where every row of X goes: weights s_j(x) of the target points, each row with sum 1.

            s_j(x) = softmax_j(log b_j + (g_j − c(x, y_j))/eps),

        at a source point x_i that is P_ij / Σ_j P_ij. What a debiased map corrects is not in it.

        Parameters
        ----------
        X
            Points, [N, d]: those that were fitted or any others.
        reverse
            Take X for points of the target instead, and say where they came from: weights of the
            source points, softmax_i(log a_i + (f_i − c(x_i, y))/eps).
        drop
            Leave out weights below this, but never the largest of a row, and raise the others to
            sum to 1. With 0 every weight is kept.
        return_dropped
            Return also the mass that was left out of every row, [N].

        Returns
        -------
        csr_array
            The weights, [N, m], or [N, n] in reverse; then what was dropped, if asked for.
        """
        from mongefit._validation import check_switch

        check_switch(return_dropped, "return_dropped")
        found = self._conditional(X, reverse=reverse, drop=drop)
        return (found.weights, found.dropped) if return_dropped else found.weights

    @overload
    def sample(
        self, X: ArrayLike, n: int = ..., *, reverse: bool = ...,
        return_index: Literal[False] = ..., random_state: Any = ...,
    ) -> NDArray[np.float64]: ...  # fmt: skip

    @overload
    def sample(
        self, X: ArrayLike, n: int = ..., *, reverse: bool = ..., return_index: Literal[True],
        random_state: Any = ...,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...  # fmt: skip

    def sample(
        self,
        X: ArrayLike,
        n: int = 1,
        *,
        reverse: bool = False,
        return_index: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw target points where every row of X may go, by the weights of `conditional`.

        Parameters
        ----------
        X
            Points, [N, d].
        n
            Number of draws for each.
        reverse
            Take X for points of the target, and draw source points where they may come from.
        return_index
            Return also which points were drawn, [N, n]: rows of the cloud that was fitted.
        random_state
            Seed of the draws.

        Returns
        -------
        array
            The points, [N, n, d]; then their rows, if asked for.
        """
        from mongefit._fitting.chains import end_of
        from mongefit._fitting.outcomes import draw_columns, fitted_points
        from mongefit._validation import check_count, check_seed, check_switch

        count, seed = check_count(n, "n", minimum=1), check_seed(random_state)
        check_switch(return_index, "return_index")
        found = self._conditional(X, reverse=reverse)
        drawn = draw_columns(found.weights, count, seed)
        points = fitted_points(end_of(self._chain(), source=reverse), source=reverse)[drawn]
        return (points, drawn) if return_index else points

    def entropy(self, X: ArrayLike, *, reverse: bool = False) -> NDArray[np.float64]:
        """How open the fate of every row of X is: −Σ_j s_j log s_j of `conditional`, in nats.

        It is 0 where one target point is certain and log k where k are equally likely. It grows
        with epsilon, which blurs every plan: compare entropies of one map. ``reverse`` as there.
        """
        from mongefit._fitting.outcomes import entropies

        return entropies(self._conditional(X, reverse=reverse).weights)

    def push(self, mass: ArrayLike, *, mean: bool = False) -> NDArray[np.float64]:
        """Where mass on the source points goes: (Pᵀ diag(1/a) mass)_j on the target points.

        Parameters
        ----------
        mass
            How much is on each source point, [n] or [n, k] for k at once, non-negative. True and
            False mark a set of points, which have their weights a then.
        mean
            Take ``mass`` for the values of a function on the source points, of any sign, and give
            its mean where each target point came from: Σ_i P_ij mass_i / Σ_i P_ij.

        Returns
        -------
        array [m] or [m, k]
            The mass on each target point. All of it arrives where the plan keeps the weights of the
            source; with ``tau_a`` < 1 it grows and dies on the way as `growth_` says.
        """
        return self._carry(mass, mean=mean, reverse=False)

    def pull(self, mass: ArrayLike, *, mean: bool = False) -> NDArray[np.float64]:
        """Where mass on the target points came from: (P diag(1/b) mass)_i on the source points.

        Parameters
        ----------
        mass
            How much is on each target point, [m] or [m, k] for k at once, non-negative. True and
            False mark a set of points, which have their weights b then.
        mean
            Take ``mass`` for the values of a function on the target points, of any sign, and give
            its mean where each source point goes: Σ_j P_ij mass_j / Σ_j P_ij. Of a set that is the
            probability to end in it.

        Returns
        -------
        array [n] or [n, k]
            The mass on each source point. All of it is there where the plan keeps the weights of
            the target; with ``tau_b`` < 1 some came from nowhere.
        """
        return self._carry(mass, mean=mean, reverse=True)

    def _conditional(
        self, X: ArrayLike, *, reverse: bool = False, drop: float = 1e-9
    ) -> Conditional:
        from mongefit._fitting.chains import conditional_over
        from mongefit._validation import check_share, check_switch

        check_switch(reverse, "reverse")
        smallest = check_share(drop, "drop")
        points = check_query(self, X, "X")
        return conditional_over(self._chain(), points, reverse=reverse, drop=smallest)

    def _carry(self, mass: ArrayLike, *, mean: bool, reverse: bool) -> NDArray[np.float64]:
        from mongefit._fitting.chains import end_of, mean_over, move_over
        from mongefit._validation import check_mass, check_switch

        check_is_fitted(self)
        check_switch(mean, "mean")
        chain = self._chain()
        end = end_of(chain, source=not reverse)
        weight = np.asarray(end.b if reverse else end.a, np.float64)
        given = check_mass(mass, weight, "mass", any_sign=mean)
        columns = given.reshape(len(given), -1)
        found = (
            mean_over(chain, columns, reverse=not reverse)
            if mean
            else move_over(chain, columns, reverse=reverse)
        )
        return found.reshape(-1, *given.shape[1:])


def chain_of(model: OutcomeQueries) -> Chain:
    """The entropic maps behind a fitted estimator, by leg."""
    check_is_fitted(model)
    return model._chain()


def check_query(estimator: BaseEstimator, points: ArrayLike, name: str) -> NDArray[np.float64]:
    """Points that a fitted estimator can be asked about."""
    from mongefit._validation import check_points

    check_is_fitted(estimator)
    checked = check_points(points, name)
    validate_data(estimator, points, reset=False, skip_check_array=True)
    return checked
