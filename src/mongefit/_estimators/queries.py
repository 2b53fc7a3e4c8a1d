"""What every estimator with an entropic map can be asked once it is fitted.

Nothing here imports JAX before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from mongefit._estimators.outcomes import OutcomeQueries, check_query

if TYPE_CHECKING:
    from mongefit._fitting import Fitted
    from mongefit._fitting.chains import Chain
    from mongefit._io import StrPath
    from mongefit._transport import EntropicMap, Units


class Picklable(BaseEstimator):
    """An estimator whose arrays of JAX keep their precision when it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: JAX's are truncated to float32 when unpickled outside the context.
        import jax

        state = super().__getstate__()
        return {name: _convert(value, jax.Array, np.asarray) for name, value in state.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import jax.numpy as jnp

        from mongefit._runtime import double_precision

        with double_precision():
            state = {name: _convert(each, np.ndarray, jnp.asarray) for name, each in state.items()}
        super().__setstate__(state)


class EntropicQueries(Picklable, OneToOneFeatureMixin, TransformerMixin, OutcomeQueries):
    """Queries of a fitted entropic map; concrete classes give `fit`."""

    strict: bool
    map_: EntropicMap
    units_: Units
    history_: dict[str, np.ndarray]
    diagnostics_: dict[str, Any]
    losses_: tuple[Any, ...]
    scores_: NDArray[np.float64]
    data_sha256_: str
    n_iter_: int
    n_features_in_: int

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """T(x) for every row of X, at any point."""
        return self._map_points(X, "X", reverse=False)

    def inverse_transform(self, Y: ArrayLike) -> NDArray[np.float64]:
        """T⁻¹(y) for every row of Y, at any point."""
        return self._map_points(Y, "Y", reverse=True)

    def cost_matrix(self, X: ArrayLike, Y: ArrayLike) -> NDArray[np.float64]:
        """c(x_i, y_j) for all pairs of rows, in common units."""
        from mongefit._fitting import cost_matrix

        source, target = check_query(self, X, "X"), check_query(self, Y, "Y")
        return cost_matrix(self.map_, source, target)

    def growth(self, X: ArrayLike) -> NDArray[np.float64]:
        """The mass that a unit of mass at each row of X sends: 1 unless ``tau_a`` < 1."""
        from mongefit._fitting import growth

        return growth(self.map_, check_query(self, X, "X"))

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """−RMSE of T(x_i) against y_i over paired rows: higher is better."""
        return negative_rmse(self, X, Y)

    @property
    def coupling_(self) -> NDArray[np.float64]:
        """The plan between the clouds that were fitted, [n, m], computed when asked for."""
        from mongefit._fitting import coupling

        check_is_fitted(self)
        return coupling(self.map_)

    @property
    def growth_(self) -> NDArray[np.float64]:
        """The mass that each source point sends, over its weight: 1 unless ``tau_a`` < 1."""
        return self._kept()[0]

    @property
    def died_(self) -> float:
        """The share of the mass of the source that goes nowhere."""
        growth, _ = self._kept()
        return float(np.asarray(self.map_.a, np.float64) @ np.maximum(1 - growth, 0))

    @property
    def unexplained_(self) -> float:
        """The share of the mass of the target that comes from nowhere."""
        _, received = self._kept()
        return float(np.asarray(self.map_.b, np.float64) @ np.maximum(1 - received, 0))

    def _chain(self) -> Chain:
        return [[self.map_]]

    def _kept(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each point the mass in the plan over its weight; 1 where it has none."""
        check_is_fitted(self)
        weights = (np.asarray(each, np.float64) for each in (self.map_.a, self.map_.b))
        masses = (np.asarray(each, np.float64) for each in self.map_.masses)
        source, target = (
            np.divide(mass, weight, out=np.ones_like(mass), where=weight > 0)
            for mass, weight in zip(masses, weights, strict=True)
        )
        return source, target

    def _map_points(self, points: ArrayLike, name: str, *, reverse: bool) -> NDArray[np.float64]:
        from mongefit._fitting import map_points

        checked = check_query(self, points, name)
        return map_points(self.map_, checked, reverse=reverse, strict=self.strict)

    def _store(self, X: ArrayLike, fitted: Fitted) -> Self:
        """Keep what was fitted. A fit that fails before leaves an unfitted one, or the last fit."""
        validate_data(self, X, skip_check_array=True)
        for name, value in vars(fitted).items():
            setattr(self, f"{name}_", value)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Saved:
    """A fitted estimator that can be written to a file."""

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the fitted estimator to one file; `mongefit.load` reads it."""
        from mongefit._storage import save

        check_is_fitted(self)
        save(self, path, overwrite=overwrite)  # type: ignore[arg-type]


def negative_rmse(estimator: Any, X: ArrayLike, Y: ArrayLike) -> float:
    """−RMSE of T(x_i) against y_i over paired rows."""
    from mongefit.errors import DataError
    from mongefit.metrics import rmse

    target = check_query(estimator, Y, "Y")
    mapped = np.asarray(estimator.transform(X))
    if len(mapped) != len(target):
        raise DataError(
            f"score compares row by row: X has {len(mapped)} rows and Y has {len(target)}."
        )
    return -rmse(mapped, target)


def _convert(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays of one kind in a module, or in a sequence of them."""
    import equinox as eqx
    import jax

    if not isinstance(value, eqx.Module | tuple | list):
        return value
    return jax.tree.map(lambda leaf: function(leaf) if isinstance(leaf, kind) else leaf, value)
