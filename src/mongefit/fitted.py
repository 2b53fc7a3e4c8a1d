"""Estimators that end in an entropic map: checked clouds going in, and all that is asked of it."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from mongefit._numerics import double_precision
from mongefit.costs import Cost
from mongefit.diagnostics import (
    CHECKED,
    complaint,
    diagnose,
    evenly,
    round_trip_limit,
    warn_of,
)
from mongefit.errors import ConvergenceError, ConvergenceWarning, DataError, OptionError, warn_user
from mongefit.maps import EntropicMap, Units
from mongefit.programs import Clouds, cost_matrix, coupling, solved_map, transported
from mongefit.validation import check_points, check_weights

DTYPES = ("float64", "mixed", "float32")


class EntropicEstimator(TransformerMixin, BaseEstimator):
    """What every estimator with an entropic map can do once it is fitted.

    A concrete class gives `fit`, which brings its clouds in by `_check_clouds` and hands the cost
    that it found to `_finish`.
    """

    dtype: str
    strict: bool
    normalize_weight: bool
    map_: EntropicMap
    units_: Units
    history_: dict[str, np.ndarray]
    diagnostics_: dict[str, Any]
    data_sha256_: str
    n_iter_: int
    n_features_in_: int

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
            return cost_matrix(self.map_, source, target).astype(np.float64)

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
            return coupling(self.map_).astype(np.float64)

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

    def _check_clouds(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        source_weight: ArrayLike | None,
        target_weight: ArrayLike | None,
    ) -> Clouds:
        """Check both clouds and bring them to common units. To be called in double precision."""
        if self.dtype not in DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")
        source, target = check_points(X, "X"), check_points(Y, "Y")
        if source.shape[1] != target.shape[1]:
            raise DataError(
                f"X has {source.shape[1]} features and Y has {target.shape[1]}; both clouds must "
                "have the same."
            )
        normalize = self.normalize_weight
        a = check_weights(source_weight, len(source), "source_weight", normalize=normalize)
        b = check_weights(target_weight, len(target), "target_weight", normalize=normalize)
        _check_feature_names(X, Y)
        with collected_warnings() as notes:
            _warn_of_constant_features(source, target)
        dtype = jnp.dtype("float32" if self.dtype == "float32" else "float64")
        units = Units.of(source, target, a, b)
        x, y = (units.into(points).astype(dtype) for points in (source, target))
        mass_a, mass_b = (jnp.asarray(weight, dtype) for weight in (a, b))
        return Clouds(source, target, units, x, y, mass_a, mass_b, notes)

    def _finish(
        self,
        X: ArrayLike,
        clouds: Clouds,
        cost: Cost,
        *,
        epsilon: float,
        history: dict[str, np.ndarray] | None = None,
        known: tuple[np.ndarray | None, ...] = (),
    ) -> Self:
        """Build the map of a cost and set the fitted attributes. To be called in double precision.

        A fit that fails before this leaves an unfitted estimator, or the last fit.
        """
        solved = solved_map(clouds, cost, epsilon)
        fitted, used = solved.map, solved.epsilon
        history = {} if history is None else history
        n_iter = max(len(history["step"]) - 1, 0) if history else 0
        rows = evenly(len(clouds.source), CHECKED)
        moved = transported(fitted, clouds.source[rows], reverse=False)
        applied = history.get("applied", np.ones(0, bool))
        diagnostics = diagnose(fitted, np.asarray(solved.plan), rows, moved, solved.dual)
        diagnostics |= {
            "epsilon": used,
            "epsilon_requested": epsilon,
            "skipped_steps": int(np.sum(~applied)),
            "trained": n_iter > 0,
            "input_warnings": clouds.warnings,
        }
        wrong = complaint(diagnostics)
        if wrong and self.strict:
            raise ConvergenceError(wrong)
        validate_data(self, X, skip_check_array=True)
        self.map_ = fitted
        self.units_ = clouds.units
        self.history_ = history
        self.data_sha256_ = _hash(clouds.source, clouds.target, clouds.a, clouds.b, *known)
        self.n_iter_ = n_iter
        self.diagnostics_ = diagnostics
        if wrong:
            warn_user(wrong, ConvergenceWarning)
        warn_of(diagnostics)
        return self

    def _check_query(self, points: ArrayLike, name: str) -> NDArray[np.float64]:
        check_is_fitted(self)
        checked = check_points(points, name)
        validate_data(self, points, reset=False, skip_check_array=True)
        return checked

    def _transport(self, points: ArrayLike, *, reverse: bool) -> NDArray[np.float64]:
        checked = self._check_query(points, "Y" if reverse else "X")
        with double_precision():
            result = transported(self.map_, checked, reverse=reverse)
        lost = ~np.all(np.isfinite(result.points), axis=1)
        if np.any(lost):
            raise ConvergenceError(
                f"The map is not finite at {lost.sum()} of {len(checked)} points (first: row "
                f"{np.argmax(lost)}). They may lie too far from the data, or the map itself is "
                "broken: see diagnostics_."
            )
        broken = ~(result.round_trip <= round_trip_limit(self.map_.x.dtype))
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
        self._warn_of_distance(np.asarray(result.distance))
        return np.asarray(result.points, np.float64)

    def _warn_of_distance(self, distance: NDArray[np.floating]) -> None:
        """Warn of points further from the fitted ones than three times the radius of the data."""
        both = np.concatenate([self.map_.x, self.map_.y])
        radius = max(np.sqrt(np.max(np.sum(both**2, axis=1))), 1.0)
        far = distance > 3 * radius
        if np.any(far):
            row = int(np.argmax(far))
            warn_user(
                f"{far.sum()} of {len(far)} points lie far outside the data that were fitted "
                f"(first: row {row}, {distance[row] / radius:.1f} times the radius of the data "
                "away from them). There the map is a guess."
            )

    def _complain(self, message: str) -> None:
        if self.strict:
            raise ConvergenceError(message)
        warn_user(message, ConvergenceWarning)


def _hash(*arrays: np.ndarray | jax.Array | None) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(np.zeros(0) if array is None else array)
        digest.update(f"{plain.dtype.str} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def collected_warnings(notes: list[str] | None = None) -> Iterator[list[str]]:
    """Let warnings through and note what they said, so that diagnostics_ can tell it later."""
    notes = [] if notes is None else notes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    for warning in caught:
        notes.append(str(warning.message))
        warn_user(str(warning.message), warning.category)


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
        warn_user(
            f"{len(constant)} features are constant over both clouds (columns {names}); they carry "
            "no information and could be left out."
        )


def _convert(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays of one kind in a module, or in a sequence of them."""
    if not isinstance(value, eqx.Module | tuple | list):
        return value
    return jax.tree.map(lambda leaf: function(leaf) if isinstance(leaf, kind) else leaf, value)
