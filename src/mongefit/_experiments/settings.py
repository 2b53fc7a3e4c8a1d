"""Settings of the learned maps: the best that are known here, and those of the paper's text."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.random as jr

from mongefit._convex import ICNN
from mongefit._estimators.monge_map import CostLearner
from mongefit._runtime import double_precision
from mongefit.losses import TargetFit
from mongefit.penalties import CostSize, DirichletEnergy


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a cost h(Φμ(x) − Φν(y)) is learned.

    Names are those of `MongeMap`, but for whether h has the learned quadratic term, and the weights
    of `DirichletEnergy` and `TargetFit` beside other penalties and losses.
    """

    hidden_layer_sizes: tuple[int, ...]
    epsilon: float | tuple[float, float]
    max_iter: int
    learning_rate: float | tuple[float, float] = 0.05
    diffeo_learning_rate: float | tuple[float, float] = 0.005
    diffeo: str | None = None
    alpha: float = 0.01
    quadratic: bool = True
    dirichlet: float = 0.0
    target_fit: float = 0.0
    dtype: str = "float64"
    debias: bool = False

    def estimator(
        self, kind: type[CostLearner], dim: int, seed: int, losses: list[Any]
    ) -> CostLearner:
        """An estimator with these settings."""
        options = dataclasses.asdict(self)
        penalties: list[Any] = [1e-7 * CostSize()]
        if dirichlet := options.pop("dirichlet"):
            penalties.append(dirichlet * DirichletEnergy())
        if target_fit := options.pop("target_fit"):
            losses = [*losses, target_fit * TargetFit()]
        cost: str | ICNN = "icnn"
        if not options.pop("quadratic"):
            layers, key = self.hidden_layer_sizes, jr.key(seed)
            with double_precision():
                cost = eqx.filter_jit(ICNN)(
                    dim, layers, key=key, alpha=self.alpha, quadratic=False, gain=1.0
                )
        # Errors are measured on pairs of their own.
        options["validation_fraction"] = 0.0
        return kind(cost, losses=losses, penalties=penalties, random_state=seed, **options)


SHARED_FLOW = Settings(
    (64, 64),
    epsilon=0.01,
    max_iter=300,
    learning_rate=(0.02, 0.001),
    diffeo_learning_rate=(0.01, 0.0005),
    diffeo="shared",
    dirichlet=1e-3,
    dtype="mixed",
)
"""What the comparisons of several methods start from."""


def paper(settings: Settings, **changes: Any) -> Settings:
    """Settings with what the paper says of all its experiments.

    Its α‖z‖² with α = 0.01 is (α/2)‖z‖² with α = 0.02 here, and its h has no quadratic term beside
    it. It gives the rates of Adam for Live-seq only; they are taken for all.
    """
    stated = {"alpha": 0.02, "quadratic": False, "dirichlet": 0.0, "target_fit": 0.0}
    stated["debias"] = False
    rates = {"learning_rate": 3e-3, "diffeo_learning_rate": 1e-3}
    return dataclasses.replace(settings, **(stated | rates | changes))
