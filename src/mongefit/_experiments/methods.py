"""The methods that the paper compares where few pairs are known, fitted and measured alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.many import Fit
from mongefit._estimators.monge_map import MongeMap
from mongefit._experiments.settings import Settings, paper
from mongefit.baselines import CouplingFit, EuclideanMap, MongeGapMap
from mongefit.losses import CorrectMass, Paired

Points = NDArray[np.float64]

MAP, COUPLING, GAP = "map", "coupling", "MLP, Monge gap"
EUCLIDEAN = "squared Euclidean"
LEARNED = (MAP, COUPLING, GAP)


@dataclasses.dataclass(frozen=True)
class GapSettings:
    """Options of `MongeGapMap`."""

    hidden_layer_sizes: tuple[int, ...]
    epsilon: float
    max_iter: int
    learning_rate: float


MethodSettings = Settings | GapSettings


def method_settings(
    default: Settings, *, quick: bool = False
) -> dict[tuple[str, str], MethodSettings]:
    """Settings of each learned method in both presets; those of the paper are for Live-seq."""
    layers, steps = ((8, 8), 40) if quick else ((64, 64, 64), 1000)
    if quick:
        default = dataclasses.replace(default, hidden_layer_sizes=layers, max_iter=steps)
    stated = paper(default, hidden_layer_sizes=layers, max_iter=steps, epsilon=0.01)
    # At the epsilon that suits the map, the plan is too blurred to tell pairs apart.
    coupling = dataclasses.replace(default, epsilon=0.01, target_fit=0.0)
    gap = GapSettings(default.hidden_layer_sizes, 0.01, default.max_iter, 0.01)
    return {
        (MAP, "default"): default,
        (COUPLING, "default"): coupling,
        (GAP, "default"): gap,
        (MAP, "paper"): stated,
        (COUPLING, "paper"): stated,
        (GAP, "paper"): GapSettings(layers, 0.01, steps, 3e-3),
    }


def method_fit(
    method: str,
    settings: MethodSettings | None,
    data: tuple[Points, Points, NDArray[np.int64]],
    seed: int,
    *,
    pair_weight: NDArray[Any] | None = None,
) -> Fit:
    """The fit of a method to two clouds and known pairs."""
    X, Y, pairs = data
    if isinstance(settings, GapSettings):
        model: Any = MongeGapMap(**dataclasses.asdict(settings), random_state=seed)
    elif settings is None:
        model = EuclideanMap(epsilon=0.01)
    elif method == MAP:
        model = settings.estimator(MongeMap, X.shape[1], seed, [Paired()])
    else:
        model = settings.estimator(CouplingFit, X.shape[1], seed, [CorrectMass()])
    return Fit(model, {"X": X, "Y": Y, "pairs": pairs, "pair_weight": pair_weight})


def skipped_steps(model: Any) -> float | None:
    """Training steps that were not applied; None where there are none."""
    found = model.diagnostics_.get("skipped_steps")
    return None if found is None else float(found)
