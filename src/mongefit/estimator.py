"""MongeMap, the scikit-learn estimator: NumPy in, NumPy out, the only mutable class."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from mongefit._numerics import Status, double_precision
from mongefit.convex import ICNN, ConvexFunction, SquaredEuclidean
from mongefit.costs import Cost
from mongefit.diffeos import AutoregressiveFlow, Diffeo
from mongefit.duals import DualSolution
from mongefit.errors import (
    ConvergenceError,
    ConvergenceWarning,
    DataError,
    OptionError,
    did_you_mean,
)
from mongefit.losses import Paired, Pairs
from mongefit.maps import EntropicMap, Units, build_map
from mongefit.penalties import CostSize
from mongefit.progress import TrainingBar
from mongefit.training import Problem, Schedule, train
from mongefit.validation import (
    check_count,
    check_epsilon,
    check_layers,
    check_pairs,
    check_points,
    check_positive,
    check_seed,
    check_weights,
)

COSTS = ("icnn", "sqeuclidean")
DIFFEOS = ("shared", "separate")


class MongeMap(TransformerMixin, BaseEstimator):
    """Learn what moving costs and where things move, from two clouds and some known pairs.

    The cost is c(x, y) = h(Φμ(x) − Φν(y)) with h convex; its entropic optimal transport map is
    trained, through its cost, to send each known source to its target and back.

    Parameters
    ----------
    cost : {"icnn", "sqeuclidean"} or ConvexFunction, default="icnn"
        The convex function h: learned, ½‖z‖², or an object of `mongefit.convex`. It is applied to
        displacements in common units (see `units_`).
    diffeo : None, {"shared", "separate"}, Diffeo or pair of them, default=None
        The flows Φμ and Φν: none, one for both clouds, one each, or objects of `mongefit.diffeos`.
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Hidden layers of the learned h.
    symmetric : bool, default=True
        Whether h(−z) = h(z).
    alpha : float, default=0.01
        Strong convexity of the learned h, which contains (alpha/2)‖z‖².
    epsilon : float or (float, float), default=0.01
        Entropic regularisation relative to the mean cost, or its (start, end) over training.
    max_iter : int, default=500
        Training steps. With 0 the map of the initial cost is built.
    learning_rate, diffeo_learning_rate : float
        Adam's rates for h and for the flows.
    cost_size_penalty : float, default=1e-7
        Weight of LogSumExp(|C|)², which keeps h from growing.
    many_to_many : bool, default=False
        Accept several targets for one source; the map then fits their mean.
    normalize_weight : bool, default=False
        Divide weights by their sum instead of refusing a sum other than 1.
    random_state : int, RandomState or None, default=0
        Seed of the initial weights.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the computation. Results are float64 arrays either way.
    strict : bool, default=False
        Raise `ConvergenceError` where a solve did not converge, instead of warning.
    verbose : int, default=0
        With 1, a progress bar on stderr.

    Attributes
    ----------
    map_ : EntropicMap
        The fitted map, with its cost, clouds and potentials.
    units_ : Units
        Centre and scale that take the data to common units.
    history_ : dict of arrays
        Per training step: loss, epsilon, solver errors, whether it was applied. Entry k describes
        the cost after k updates.
    diagnostics_ : dict
        Whether and how well the final problem was solved.
    data_sha256_ : str
        Hash of the arrays that were fitted.
    n_features_in_ : int
        Number of features.
    n_iter_ : int
        Training steps taken.

    Examples
    --------
    >>> from mongefit import MongeMap, datasets
    >>> X, Y = datasets.t_shape(32, seed=0)
    >>> euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)
    >>> euclidean.transform(X).shape
    (32, 2)
    """

    def __init__(
        self,
        cost: str | ConvexFunction = "icnn",
        diffeo: str | Diffeo | tuple[Diffeo | None, Diffeo | None] | None = None,
        *,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        symmetric: bool = True,
        alpha: float = 0.01,
        epsilon: float | tuple[float, float] = 0.01,
        max_iter: int = 500,
        learning_rate: float = 0.05,
        diffeo_learning_rate: float = 0.005,
        cost_size_penalty: float = 1e-7,
        many_to_many: bool = False,
        normalize_weight: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        dtype: str = "float64",
        strict: bool = False,
        verbose: int = 0,
    ):
        self.cost = cost
        self.diffeo = diffeo
        self.hidden_layer_sizes = hidden_layer_sizes
        self.symmetric = symmetric
        self.alpha = alpha
        self.epsilon = epsilon
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.diffeo_learning_rate = diffeo_learning_rate
        self.cost_size_penalty = cost_size_penalty
        self.many_to_many = many_to_many
        self.normalize_weight = normalize_weight
        self.random_state = random_state
        self.dtype = dtype
        self.strict = strict
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
    ) -> MongeMap:
        """Learn the cost and build its map.

        Parameters
        ----------
        X, Y
            Source and target points, [n, d] and [m, d].
        pairs
            Known pairs, integers [k, 2]: row of X, row of Y. Not needed where nothing is learned,
            that is with a fixed cost and no flow.
        source_weight, target_weight
            Weights of the points, non-negative with sum 1; uniform by default.

        Returns
        -------
        MongeMap
            This estimator.
        """
        with _collected_warnings() as notes:
            epsilon = check_epsilon(self.epsilon)
        max_iter = check_count(self.max_iter, "max_iter")
        rates = [
            check_positive(getattr(self, name), name)
            for name in ("learning_rate", "diffeo_learning_rate")
        ]
        penalty = check_positive(self.cost_size_penalty, "cost_size_penalty", zero=True)
        if self.dtype not in ("float64", "float32"):
            raise OptionError(f"dtype must be 'float64' or 'float32', got {self.dtype!r}.")
        source = check_points(X, "X")
        target = check_points(Y, "Y")
        if source.shape[1] != target.shape[1]:
            raise DataError(
                f"X has {source.shape[1]} features and Y has {target.shape[1]}; both clouds must "
                "have the same."
            )
        normalize = self.normalize_weight
        a = check_weights(source_weight, len(source), "source_weight", normalize=normalize)
        b = check_weights(target_weight, len(target), "target_weight", normalize=normalize)
        _check_feature_names(X, Y)
        with _collected_warnings(notes):
            known = check_pairs(pairs, len(source), len(target), many_to_many=self.many_to_many)
            _warn_of_constant_features(source, target)

        with double_precision():
            dtype = jnp.dtype(self.dtype)
            units = Units.of(source, target, a, b)
            x, y = (units.into(points).astype(dtype) for points in (source, target))
            mass_a, mass_b = (jnp.asarray(weight, dtype) for weight in (a, b))
            cost = _cast(self._initial_cost(source.shape[1]), dtype)
            learns = cost.h.learned or cost.phi_mu is not None or cost.phi_nu is not None
            if learns and known is None:
                raise DataError(
                    "There is a cost to learn and nothing to learn it from: give pairs, or use "
                    "cost='sqeuclidean' and no diffeo for a map with a fixed cost."
                )
            if not learns and known is not None:
                warnings.warn(
                    "pairs are not used: with a fixed cost and no diffeo nothing is learned.",
                    stacklevel=2,
                )
            history: dict[str, np.ndarray] = {}
            if known is not None and learns and max_iter > 0:
                problem = Problem(
                    x, y, mass_a, mass_b,
                    pairs=Pairs(
                        jnp.asarray(known[:, 0]), jnp.asarray(known[:, 1]),
                        jnp.ones(len(known), dtype),
                    ),
                    terms=((1.0, Paired()), (penalty, CostSize())),
                    epsilon=Schedule(*epsilon),
                    learning_rate=Schedule(rates[0], rates[0]),
                    diffeo_learning_rate=Schedule(rates[1], rates[1]),
                    max_iter=max_iter,
                )  # fmt: skip
                with TrainingBar(max_iter, enabled=bool(self.verbose)) as bar:
                    cost, history = train(problem, cost, on_interval=bar.update)
            fitted, dual, final_epsilon = _final_map(cost, x, y, mass_a, mass_b, epsilon[1], units)
            # Attributes only now: a fit that fails leaves an unfitted estimator, or the last fit.
            validate_data(self, X, skip_check_array=True)
            self.map_ = fitted
            self.units_ = units
            self.history_ = history
            self.data_sha256_ = _hash(source, target, a, b, known)
            self.n_iter_ = max(len(history["step"]) - 1, 0) if history else 0
            self.diagnostics_ = self._diagnose(dual, epsilon[1], final_epsilon, history)
            self.diagnostics_["input_warnings"] = notes
        self._report()
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """T(x) for every row of X, at any point."""
        return self._transport(X, reverse=False)

    def inverse_transform(self, Y: ArrayLike) -> NDArray[np.float64]:
        """T⁻¹(y) for every row of Y, at any point."""
        return self._transport(Y, reverse=True)

    def cost_matrix(self, X: ArrayLike, Y: ArrayLike) -> NDArray[np.float64]:
        """c(x_i, y_j) for all pairs of rows, in common units."""
        source, target = self._check_query(X, "X"), self._check_query(Y, "Y")
        with double_precision():
            cost, units = self.map_.cost, self.map_.units
            dtype = self.map_.x.dtype
            y = units.into(target).astype(dtype)
            blocks = _in_blocks(
                lambda points: _cost_matrix(cost, units.into(points).astype(dtype), y),
                source,
                len(target),
            )
            return np.concatenate(blocks).astype(np.float64)

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """−RMSE of T(x_i) against y_i over paired rows: higher is better."""
        target = self._check_query(Y, "Y")
        mapped = self.transform(X)
        if len(mapped) != len(target):
            raise DataError(
                f"score compares row by row: X has {len(mapped)} rows and Y has {len(target)}."
            )
        return -float(np.sqrt(np.mean(np.sum((mapped - target) ** 2, axis=1))))

    @property
    def coupling_(self) -> NDArray[np.float64]:
        """The plan between the clouds that were fitted, [n, m], computed when asked for."""
        check_is_fitted(self)
        with double_precision():
            return np.asarray(_plan(self.map_), dtype=np.float64)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted estimator to one file; `mongefit.load` reads it."""
        from mongefit.storage import save

        check_is_fitted(self)
        save(self, path, overwrite=overwrite)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: JAX's are truncated to float32 when unpickled outside the context.
        state = super().__getstate__()
        return {name: _convert(value, jax.Array, np.asarray) for name, value in state.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with double_precision():
            super().__setstate__(
                {name: _convert(value, np.ndarray, jnp.asarray) for name, value in state.items()}
            )

    def _initial_cost(self, dim: int) -> Cost:
        alpha = check_positive(self.alpha, "alpha")
        sizes = check_layers(self.hidden_layer_sizes)
        keys = jr.split(jr.key(check_seed(self.random_state)), 3)
        if isinstance(self.cost, ConvexFunction):
            h = self.cost
        elif self.cost == "icnn":
            # Compiled as one: drawing the weights one by one compiles each shape for itself.
            h = eqx.filter_jit(ICNN)(dim, sizes, key=keys[0], symmetric=self.symmetric, alpha=alpha)
        elif self.cost == "sqeuclidean":
            h = SquaredEuclidean()
        else:
            raise OptionError(
                f"cost must be one of {', '.join(COSTS)} or a ConvexFunction, got {self.cost!r}."
                + did_you_mean(str(self.cost), COSTS)
            )
        _check_dimension(h, dim)
        if self.diffeo is None:
            return Cost(h)
        if isinstance(self.diffeo, Diffeo):
            return Cost(h, self.diffeo, self.diffeo)
        if _is_pair_of_diffeos(self.diffeo):
            return Cost(h, *self.diffeo)
        if self.diffeo == "shared":
            flow = AutoregressiveFlow(dim, key=keys[1])
            return Cost(h, flow, flow)
        if self.diffeo == "separate":
            return Cost(h, *(AutoregressiveFlow(dim, key=key) for key in keys[1:]))
        raise OptionError(
            f"diffeo must be None, one of {', '.join(DIFFEOS)}, a Diffeo or a pair of them, got "
            f"{self.diffeo!r}." + did_you_mean(str(self.diffeo), DIFFEOS)
        )

    def _check_query(self, points: ArrayLike, name: str) -> NDArray[np.float64]:
        check_is_fitted(self)
        checked = check_points(points, name)
        validate_data(self, points, reset=False, skip_check_array=True)
        return checked

    def _transport(self, points: ArrayLike, *, reverse: bool) -> NDArray[np.float64]:
        checked = self._check_query(points, "Y" if reverse else "X")
        other = len(self.map_.x if reverse else self.map_.y)
        with double_precision():
            blocks = _in_blocks(
                lambda block: _transport(self.map_, block, reverse=reverse), checked, other
            )
        result = jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)
        limit = 1e-6 if self.map_.x.dtype == jnp.float64 else 1e-2
        broken = np.isnan(result.round_trip) | (result.round_trip > limit)
        if np.any(broken):
            raise ConvergenceError(
                f"The flow could not be inverted at {broken.sum()} of {len(checked)} points "
                f"(first: row {np.argmax(broken)}, round trip {result.round_trip.max():.1e}). "
                "They may lie too far from the data."
            )
        if not np.all(result.converged):
            self._complain(
                f"The inverse gradient did not converge at {np.sum(~result.converged)} of "
                f"{len(checked)} points (first: row {np.argmin(result.converged)}, residual "
                f"{result.residual.max():.1e}). map_.transport tells which; a larger alpha helps."
            )
        return result.points.astype(np.float64)

    def _diagnose(
        self, dual: DualSolution, requested: float, used: float, history: dict[str, np.ndarray]
    ) -> dict[str, Any]:
        coupling = np.asarray(_plan(self.map_))
        rounding = np.finfo(coupling.dtype).eps
        smaller = np.minimum(np.asarray(self.map_.a)[:, None], np.asarray(self.map_.b)[None, :])
        applied = history.get("applied", np.ones(0, bool))
        return {
            "converged": bool(dual.converged),
            "dual_error": float(dual.error),
            "dual_iterations": int(dual.iterations),
            "dual_status": Status(int(dual.status)).name.lower(),
            "epsilon": used,
            "epsilon_requested": requested,
            "plan_components": _count_components(coupling > rounding * smaller),
            "trained": self.n_iter_ > 0,
            "skipped_steps": int(np.sum(~applied)),
        }

    def _report(self) -> None:
        found = self.diagnostics_
        if not found["converged"]:
            self._complain(
                "The dual solve did not converge at any epsilon from "
                f"{found['epsilon_requested']:g} to {found['epsilon']:g} "
                f"(error {found['dual_error']:.1e}). Try a larger epsilon."
            )
        elif found["epsilon"] > found["epsilon_requested"]:
            self._complain(
                f"The dual solve did not converge at epsilon {found['epsilon_requested']:g}; the "
                f"map is that of epsilon {found['epsilon']:g}, the smallest that did."
            )
        if found["plan_components"] > 1:
            warnings.warn(
                f"The plan falls into {found['plan_components']} parts that exchange no mass at "
                f"epsilon {found['epsilon']:g}. Within each the map is determined; a point between "
                "them may go with either. Raise epsilon if that matters.",
                ConvergenceWarning,
                stacklevel=3,
            )
        if found["skipped_steps"]:
            warnings.warn(
                f"{found['skipped_steps']} training steps could not be solved and were not applied "
                "(see history_['applied']). If there are many, lower learning_rate or raise "
                "epsilon.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _complain(self, message: str) -> None:
        if self.strict:
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=4)


def _hash(*arrays: np.ndarray | jax.Array | None) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(np.zeros(0) if array is None else array)
        digest.update(f"{plain.dtype.str} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _collected_warnings(notes: list[str] | None = None) -> Iterator[list[str]]:
    """Let warnings through and note what they said, so that diagnostics_ can tell it later."""
    notes = [] if notes is None else notes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    for warning in caught:
        notes.append(str(warning.message))
        warnings.warn(str(warning.message), warning.category, stacklevel=4)


def _check_feature_names(X: ArrayLike, Y: ArrayLike) -> None:
    """Refuse two tables whose columns have other names or another order."""
    if hasattr(X, "columns") and hasattr(Y, "columns") and list(X.columns) != list(Y.columns):
        raise DataError(
            f"The columns of X and Y differ: {list(X.columns)[:5]} and {list(Y.columns)[:5]}. "
            "Bring them into the same order, as in Y[X.columns]."
        )


def _warn_of_constant_features(source: np.ndarray, target: np.ndarray) -> None:
    both_low = np.minimum(source.min(0), target.min(0))
    both_high = np.maximum(source.max(0), target.max(0))
    constant = np.nonzero(both_low == both_high)[0]
    if len(constant) and len(source) + len(target) > 2:
        names = ", ".join(map(str, constant[:5]))
        warnings.warn(
            f"{len(constant)} features are constant over both clouds (columns {names}); they carry "
            "no information and could be left out.",
            stacklevel=3,
        )


def _check_dimension(h: ConvexFunction, dim: int) -> None:
    try:
        eqx.filter_eval_shape(h.value_and_gradient, jax.ShapeDtypeStruct((1, dim), jnp.float64))
    except TypeError as error:
        raise DataError(
            f"The cost is made for another number of features than the {dim} of the data."
        ) from error


def _is_pair_of_diffeos(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(phi is None or isinstance(phi, Diffeo) for phi in value)
    )


def _convert(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays of one kind in a module, or in a pair of them."""
    if not isinstance(value, eqx.Module | tuple):
        return value
    return jax.tree.map(lambda leaf: function(leaf) if isinstance(leaf, kind) else leaf, value)


def _cast(tree, dtype):
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree
    )


_build_map = eqx.filter_jit(build_map)
_transport = eqx.filter_jit(EntropicMap.transport)
_plan = eqx.filter_jit(EntropicMap.plan)
_cost_matrix = eqx.filter_jit(Cost.matrix)


def _final_map(cost, x, y, a, b, epsilon, units) -> tuple[EntropicMap, DualSolution, float]:
    """The map at epsilon or, where that cannot be solved, at the smallest doubling that can."""
    # Below rounding no epsilon can be solved; at 1, the mean cost, every finite cost can.
    used = max(epsilon, float(jnp.finfo(x.dtype).eps))
    while True:
        entropic_map, dual = _build_map(
            cost, x, y, epsilon=jnp.asarray(used, x.dtype), a=a, b=b, units=units,
            differentiate="implicit",
        )  # fmt: skip
        if dual.converged or used >= 1:
            return entropic_map, dual, used
        used *= 2


def _count_components(connected: NDArray[np.bool_]) -> int:
    """Connected components, with at least one edge, of a bipartite graph."""
    n, m = connected.shape
    rows, columns = np.nonzero(connected)
    graph = scipy.sparse.coo_array((np.ones(len(rows)), (rows, n + columns)), shape=(n + m, n + m))
    _, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    return len(np.unique(label[rows]))


def _in_blocks(function, points: np.ndarray, other: int) -> list:
    """Apply a function to blocks of rows, padded to a few sizes so that few shapes are compiled.

    The block is chosen so that it meets about 2^16 pairs with the ``other`` points.
    """
    largest = int(np.clip(2 ** int(np.log2(max(2**16 / other, 1))), 8, 1024))
    block = int(np.clip(2 ** int(np.ceil(np.log2(len(points)))), 8, largest))
    results = []
    for start in range(0, len(points), block):
        part = points[start : start + block]
        padded = np.concatenate([part, np.repeat(part[-1:], block - len(part), axis=0)])
        size = len(part)
        results.append(
            jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], function(padded))
        )
    return results
