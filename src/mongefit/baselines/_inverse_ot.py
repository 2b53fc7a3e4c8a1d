"""Inverse optimal transport: the cost under which the observed pairs are most likely."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float
from numpy.typing import NDArray

from mongefit._convex import ConvexFunction
from mongefit._costs import Cost, pairwise_value
from mongefit._duals import DualProblem
from mongefit._estimators.queries import EntropicQueries
from mongefit._fitting import FitData, FitOptions, finish_cost, prepare
from mongefit._numerics import cast
from mongefit._runtime import double_precision
from mongefit._validation import check_choice, check_count, check_positive
from mongefit.baselines._base import FitMixin
from mongefit.baselines._linear_costs import (
    POWERS,
    FeatureCost,
    LinearCost,
    PowersCost,
    QuadraticCost,
)
from mongefit.baselines._plans import at_smallest_eps, compiled_solve_dual, squared_euclidean
from mongefit.errors import (
    ConvergenceError,
    ConvergenceWarning,
    DataError,
    Message,
    Option,
    OptionError,
    warn_user,
)

FEATURES = ("powers", "quadratic")


@dataclasses.dataclass(eq=False, repr=False)
class InverseOT(FitMixin, EntropicQueries):
    r"""Learn the cost that makes the known pairs most likely, and build its map.

    The pairs, with their weights brought to sum 1, are a plan π̂ between their own sources and
    targets, with marginals a and b. ``pair_weight`` says how often a pair was observed. The pairs
    are taken for samples of an entropic plan P_θ, and

        J(θ) = ⟨c_θ, π̂⟩ − OT_eps(c_θ) + λ R(θ) = eps (KL(π̂ | P_θ) − KL(π̂ | a⊗b)) + λ R(θ)

    is minimised, with the potentials at their optimum (the semi-dual). KL(π̂ | a⊗b) does not depend
    on θ: J is eps times the negative log-likelihood up to a constant. It is convex in θ. Without
    its penalty it is at least −eps KL(π̂ | a⊗b), which for K pairs of equal weight, one to one, is
    −eps log K. The map is then that of the cost at an epsilon relative to the mean cost, as
    everywhere.

    Parameters
    ----------
    features : {"powers", "quadratic"} or list of ConvexFunction, default="powers"
        What the cost is linear in. "powers": |z_k|^q / q for every coordinate and q = 1.5, 2, 3.
        "quadratic": all products z_k z_l, as a positive semidefinite matrix.
    penalty : float, default=1e-3
        λ. The penalty is Σ θ_k, which makes θ sparse, or with "quadratic" the trace of the matrix,
        which makes its rank low.
    alpha : float, default=0.01
        The cost contains (alpha/2)‖z‖².
    epsilon : float, default=0.01
        Regularisation: relative to the mean of ½‖x − y‖² over the pairs' clouds in J, and relative
        to the mean cost in the map.
    tau_a, tau_b : float, default=1.0
        How strictly the plan of the map keeps weights, as for `MongeMap`. J is that of the pairs'
        own plan, which has their weights.
    max_iter : int, default=200
        Largest number of L-BFGS iterations.
    many_to_many, normalize_weight, strict
        As for `MongeMap`.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the map. The cost is learned in float64 in any case.

    Attributes
    ----------
    theta_ : array
        Weights of the features: with "powers" [3, d], with "quadratic" the matrix [d, d], else one
        for each. The pairs determine ``theta_ / eps_``.
    eps_ : float
        eps in J, in common units.
    objective_ : float
        J at the end.
    history_ : dict of arrays
        ``step`` and ``objective``: J after each iteration.
    diagnostics_ : dict
        As for `MongeMap`; also ``likelihood_converged``, whether the smallest J was found, and
        ``likelihood_epsilon``, the epsilon in J.
    map_, units_, data_sha256_, n_features_in_, n_iter_
        As for `MongeMap`.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import InverseOT
    >>> X, Y = datasets.moon(16, seed=0)
    >>> model = InverseOT("quadratic", epsilon=0.1)
    >>> model.fit(X, Y, pairs=[[0, 0], [5, 5], [9, 9], [14, 14]]).theta_.shape
    (2, 2)
    """

    features: str | Sequence[ConvexFunction] = "powers"
    _: dataclasses.KW_ONLY
    penalty: float = 1e-3
    alpha: float = 0.01
    epsilon: float = 0.01
    tau_a: float = 1.0
    tau_b: float = 1.0
    max_iter: int = 200
    many_to_many: bool = False
    normalize_weight: bool = False
    dtype: str = "float64"
    strict: bool = False

    def _fit(self, data: FitData) -> None:
        penalty = check_positive(self.penalty, "penalty", zero=True)
        max_iter = check_count(self.max_iter, "max_iter")
        epsilon = check_positive(self.epsilon, "epsilon")
        params = self.get_params(deep=False)
        del params["features"], params["penalty"]
        task = prepare(FitOptions(cost="sqeuclidean", **params), data, learn=False)
        table, weight = task.known.pairs, task.known.pair_weight
        if table is None or weight is None or not np.any(weight > 0):
            raise DataError(
                "InverseOT learns from known pairs: give pairs, with a weight above zero."
            )
        with double_precision():
            observed = Observed.of(task.clouds.x, task.clouds.y, table, weight)
            start = self._initial_cost(task.clouds.dim)
            found = _minimise(start, observed, epsilon=epsilon, penalty=penalty, max_iter=max_iter)
            cost = cast(Cost(found.cost), task.clouds.x.dtype)
            h = found.cost
            theta = np.array(h.root @ h.root.T if isinstance(h, QuadraticCost) else h.theta)
        complaint = _complaint(found, epsilon, max_iter)
        if complaint is not None and self.strict:
            raise ConvergenceError(complaint.template, **complaint.fields)
        self._store(data.X, finish_cost(task, cost, found.history))
        self.diagnostics_ |= {
            "trained": max_iter > 0,
            "likelihood_converged": found.converged,
            "likelihood_epsilon": found.epsilon,
        }
        self.objective_ = float(found.history["objective"][-1])
        self.eps_ = found.eps
        self.theta_: NDArray[np.float64] = theta
        if complaint is not None:
            warn_user(complaint.template, ConvergenceWarning, **complaint.fields)

    def _initial_cost(self, dim: int) -> LinearCost:
        alpha = check_positive(self.alpha, "alpha")
        features: Any = self.features
        if isinstance(features, str):
            check_choice(features, "features", FEATURES, others="a list of ConvexFunction")
            if features == "quadratic":
                return QuadraticCost(jnp.eye(dim), alpha)
            return PowersCost(jnp.full((len(POWERS), dim), 1 / (len(POWERS) * dim)), alpha)
        if not isinstance(features, Sequence) or len(features) == 0:
            raise OptionError(
                "features must be a list of at least one ConvexFunction, or one of "
                f"{', '.join(FEATURES)}, got {features!r}."
            )
        for k, feature in enumerate(features):
            if not isinstance(feature, ConvexFunction):
                raise OptionError(f"features holds no ConvexFunction at place {k}: {feature!r}.")
            try:
                eqx.filter_eval_shape(feature.value, jax.ShapeDtypeStruct((1, dim), jnp.float64))
            except TypeError as error:
                raise DataError(
                    f"The feature at place {k} is made for another number of features than the "
                    f"{dim} of the data: {error}."
                ) from error
        weight = jnp.full(len(features), 1 / len(features))
        return FeatureCost(theta=weight, features=tuple(features), alpha=alpha)


class Observed(eqx.Module):
    """The pairs as a plan π̂ with marginals a and b, between the points that occur in them."""

    x: Float[Array, "r d"]
    y: Float[Array, "s d"]
    plan: Float[Array, "r s"]
    a: Float[Array, " r"]
    b: Float[Array, " s"]

    @classmethod
    def of(cls, x, y, pairs: NDArray[np.int64], weight: NDArray[np.float64]) -> Observed:
        """The pairs that have weight."""
        pairs, weight = pairs[weight > 0], weight[weight > 0]
        rows, row = np.unique(pairs[:, 0], return_inverse=True)
        columns, column = np.unique(pairs[:, 1], return_inverse=True)
        plan = np.zeros((len(rows), len(columns)))
        np.add.at(plan, (row, column), weight / weight.sum())
        parts = (np.asarray(x)[rows], np.asarray(y)[columns], plan, plan.sum(1), plan.sum(0))
        return cls(*(jnp.asarray(part, jnp.float64) for part in parts))


class Objective(NamedTuple):
    """J at a cost, its gradient, whether it was solved for, and g to start the next solve from."""

    value: float
    gradient: NDArray[np.float64]
    converged: bool
    g: Float[Array, " s"]


def objective(
    h: LinearCost,
    data: Observed,
    eps: Float[Array, ""],
    penalty: Float[Array, ""],
    g: Float[Array, " s"],
) -> Objective:
    """J and its derivative in what h learns, ⟨π̂ − P, ∂c⟩ + λ ∂R; to be called in float64.

    The solve sees a matrix and is compiled once for costs of all kinds.
    """
    C = _cost_matrix(h, data)
    dual = compiled_solve_dual(C, data.a, data.b, eps, g_init=g)
    value, gradient = map(np.asarray, _at_potentials(h, data, C, eps, penalty, dual.f, dual.g))
    converged = dual.converged and np.isfinite(value) and np.all(np.isfinite(gradient))
    return Objective(float(value), gradient, bool(converged), dual.g)


@eqx.filter_jit
def _cost_matrix(h: LinearCost, data: Observed) -> Float[Array, "r s"]:
    return pairwise_value(h, data.x, data.y)


@eqx.filter_jit
def _at_potentials(h: LinearCost, data: Observed, C, eps, penalty, f, g):
    """J and its gradient at given potentials, which by the envelope theorem stay constant."""
    P = DualProblem(C, data.a, data.b, eps=eps).plan(f, g)
    best = data.a @ f + data.b @ g - eps * (jnp.sum(P) - 1)
    value = jnp.sum(C * data.plan) - best + penalty * h.size

    def linearised(parameter):
        changed = eqx.tree_at(lambda h: h.parameter, h, parameter)
        return jnp.sum((data.plan - P) * _cost_matrix(changed, data)) + penalty * changed.size

    return value, jax.grad(linearised)(h.parameter)


class _Minimum(NamedTuple):
    """The cost with the smallest J, and how it was found."""

    cost: LinearCost
    eps: float
    epsilon: float
    converged: bool
    history: dict[str, NDArray]


def _minimise(
    start: LinearCost, data: Observed, *, epsilon: float, penalty: float, max_iter: int
) -> _Minimum:
    """Minimise J by L-BFGS, at epsilon or, where that cannot be solved, at the next that can."""
    weight, cold = jnp.asarray(penalty), jnp.zeros(len(data.y))
    x, y, a, b = (np.asarray(part) for part in (data.x, data.y, data.a, data.b))
    # Above rounding, so that eps is positive where all points are one.
    mean = max(float(a @ squared_euclidean(x, y) @ b), float(np.finfo(float).eps))

    def at_start(eps):
        found = objective(start, data, jnp.asarray(eps), weight, cold)
        return found, found.converged

    now, unit = at_smallest_eps(at_start, epsilon * mean, mean)
    eps = jnp.asarray(unit)
    # In units of eps J is a log-likelihood, and tolerances mean the same for all data.
    values = [now.value / unit]
    g, highest = now.g, values[0]

    def with_parameter(flat):
        parameter = jnp.asarray(flat.reshape(start.parameter.shape))
        return eqx.tree_at(lambda h: h.parameter, start, parameter)

    def for_scipy(flat):
        nonlocal g, highest
        now = objective(with_parameter(flat), data, eps, weight, g)
        if not now.converged:
            # Higher than anything yet, so that the search takes a shorter step. Not infinity, after
            # which it would claim to have converged.
            return highest + 1.0, np.zeros_like(flat)
        g, highest = now.g, max(highest, now.value / unit)
        return now.value / unit, np.ravel(now.gradient) / unit

    best, converged = start, False
    if max_iter > 0:  # SciPy would take one step all the same
        first = np.ravel(start.parameter)
        result = scipy.optimize.minimize(
            for_scipy, first, jac=True, method="L-BFGS-B",
            bounds=[(start.lowest, None)] * len(first),
            callback=lambda intermediate_result: values.append(float(intermediate_result.fun)),
            options={"maxiter": max_iter, "ftol": 1e-12, "gtol": 1e-6},
        )  # fmt: skip
        best, converged = with_parameter(result.x), bool(result.success)
    history = {"step": np.arange(len(values)), "objective": unit * np.asarray(values)}
    used = epsilon if unit == epsilon * mean else unit / mean
    return _Minimum(best, unit, used, converged, history)


def _complaint(found: _Minimum, epsilon: float, max_iter: int) -> Message | None:
    """What went wrong with the likelihood, or None."""
    if found.epsilon > epsilon:
        return Message(
            f"The likelihood could not be evaluated at epsilon {epsilon:g}; the cost is that of "
            f"epsilon {found.epsilon:g}, the smallest that could be.",
            {},
        )
    if max_iter > 0 and not found.converged:
        return Message(
            "The likelihood was not maximised in {steps} iterations. Raise {max_iter}, or the "
            "{penalty}.",
            {"steps": max_iter, "max_iter": Option("max_iter"), "penalty": Option("penalty")},
        )
    return None
