"""What cross-validation gives: errors on held-out pairs, and how they differ."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import OptionError, did_you_mean
from mongefit.metrics import Table
from mongefit.model_selection._selecting import EUCLIDEAN, Choice

LEARNED = "learned"


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much lower one RMSE is than another, over resampled clones.

    Attributes
    ----------
    mean
        The difference on the clones as they are; negative where the first is better.
    low, high
        Its 95 % bootstrap interval.
    better
        Share of the resamples in which the first is better.
    """

    mean: float
    low: float
    high: float
    better: float


@dataclasses.dataclass(frozen=True, eq=False)
class CrossValidation:
    """The outcome of `cross_validate`.

    Attributes
    ----------
    table
        RMSE on held-out pairs and divergence from the target, of the learned map and of what no
        map should lose to.
    squared_errors
        For each of them the squared error of every pair.
    choices
        What was chosen for each fold, without its clones; empty for a `TemporalMap`.
    clones, folds
        Clone and fold of every pair.
    """

    table: Table
    squared_errors: dict[str, NDArray[np.float64]]
    choices: tuple[Choice, ...]
    clones: NDArray[np.int64]
    folds: NDArray[np.int64]

    def __str__(self) -> str:
        return str(self.table)

    def rmse(self, name: str = LEARNED) -> float:
        """RMSE on held-out pairs."""
        return float(np.sqrt(np.mean(self._errors(name))))

    def best_euclidean(self) -> str:
        """The epsilon at which squared Euclidean has the least error, in words."""
        return min((name for name in self.squared_errors if EUCLIDEAN in name), key=self.rmse)

    def difference(
        self, other: str, name: str = LEARNED, *, n_resamples: int = 10_000, seed: int = 0
    ) -> Difference:
        """RMSE of one method minus that of another, with a paired bootstrap over clones."""
        count = np.bincount(self.clones)
        sums = [np.bincount(self.clones, self._errors(each)) for each in (name, other)]
        drawn = np.random.default_rng(seed).multinomial(
            len(count), np.full(len(count), 1 / len(count)), size=n_resamples
        )
        first, second = (np.sqrt(drawn @ total / (drawn @ count)) for total in sums)
        low, high = np.quantile(first - second, [0.025, 0.975])
        mean, better = self.rmse(name) - self.rmse(other), float(np.mean(first < second))
        return Difference(mean, float(low), float(high), better)

    def _errors(self, name: str) -> NDArray[np.float64]:
        if name not in self.squared_errors:
            raise OptionError(
                f"There is no {name!r} here, only: {', '.join(self.squared_errors)}."
                + did_you_mean(name, self.squared_errors)
            )
        return self.squared_errors[name]
