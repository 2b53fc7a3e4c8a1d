"""Settings of the learned maps: the best that are known here, and those of the paper's text."""

from __future__ import annotations

import dataclasses
from typing import Any

from mongefit._estimators.monge_map import CostLearner
from mongefit._runtime import double_precision
from mongefit.losses import TargetFit
from mongefit.penalties import CostSize, DirichletEnergy


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a cost h(Φμ(x) − Φν(y)) is learned.

    Names are those of `MongeMap`, but for these.

    Attributes
    ----------
    quadratic
        Whether h has the learned quadratic term. The paper's h has none.
    dirichlet
        Weight of the Dirichlet energy of the flows.
    target_fit
        Weight of `TargetFit` beside the other losses.
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

    def estimator(
        self, kind: type[CostLearner], dim: int, seed: int, losses: list[Any]
    ) -> CostLearner:
        """An estimator with these settings."""
        penalties: list[Any] = [1e-7 * CostSize()]
        if self.dirichlet:
            penalties.append(self.dirichlet * DirichletEnergy())
        if self.target_fit:
            losses = [*losses, self.target_fit * TargetFit()]
        return kind(
            "icnn" if self.quadratic else _plain_network(dim, self, seed),
            self.diffeo,
            hidden_layer_sizes=self.hidden_layer_sizes,
            alpha=self.alpha,
            epsilon=self.epsilon,
            max_iter=self.max_iter,
            learning_rate=self.learning_rate,
            diffeo_learning_rate=self.diffeo_learning_rate,
            losses=losses,
            penalties=penalties,
            random_state=seed,
            dtype=self.dtype,
        )


def paper(settings: Settings, **changes: Any) -> Settings:
    """Settings with what the paper says of all its experiments.

    Its α‖z‖² with α = 0.01 is (α/2)‖z‖² with α = 0.02 here, and its h has no quadratic term beside
    it. It gives the rates of Adam for Live-seq only; they are taken for all.
    """
    stated = {
        "alpha": 0.02,
        "quadratic": False,
        "learning_rate": 3e-3,
        "diffeo_learning_rate": 1e-3,
        "dirichlet": 0.0,
        "target_fit": 0.0,
    }
    return dataclasses.replace(settings, **(stated | changes))


def _plain_network(dim: int, settings: Settings, seed: int) -> Any:
    import equinox as eqx
    import jax.random as jr

    from mongefit._convex import ICNN

    with double_precision():
        build = eqx.filter_jit(ICNN)
        return build(
            dim,
            settings.hidden_layer_sizes,
            key=jr.key(seed),
            alpha=settings.alpha,
            quadratic=False,
            gain=1.0,
        )
