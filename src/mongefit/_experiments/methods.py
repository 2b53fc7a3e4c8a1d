"""The methods that the paper compares, fitted and measured alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mongefit._estimators.many import Fit
from mongefit._estimators.monge_map import MongeMap
from mongefit._experiments.base import Run
from mongefit._experiments.settings import Settings, paper
from mongefit.baselines import CouplingFit, EuclideanMap, MongeGapMap
from mongefit.losses import CorrectMass, Paired, Term

EUCLIDEAN = "squared Euclidean"
MAP, COUPLING, GAP = "map", "coupling", "MLP, Monge gap"


@dataclasses.dataclass(frozen=True)
class EuclideanSettings:
    """Options of `EuclideanMap`."""

    epsilon: float = 0.01


@dataclasses.dataclass(frozen=True)
class GapSettings:
    """Options of `MongeGapMap`."""

    hidden_layer_sizes: tuple[int, ...]
    epsilon: float
    max_iter: int
    learning_rate: float


MethodSettings = Settings | GapSettings | EuclideanSettings
Plans = dict[tuple[str, str, str], MethodSettings]
"""Settings of each case, method and preset, in the order of the runs."""


def learned_cost(
    default: Mapping[str, Settings], *, quick: bool, quick_steps: int, **changes: Any
) -> Plans:
    """Squared Euclidean and a learned cost on every case, in the presets of `method_settings`.

    ``changes`` are made to the paper's preset.
    """
    small: dict[str, Any] = {"max_iter": quick_steps, "hidden_layer_sizes": (8, 8)} if quick else {}
    plans: Plans = {(case, EUCLIDEAN, ""): EuclideanSettings() for case in default}
    for case, settings in default.items():
        plans[case, "learned cost", "default"] = dataclasses.replace(settings, **small)
    if not quick:
        for case, settings in default.items():
            plans[case, "learned cost", "paper"] = paper(settings, **changes)
    return plans


def method_settings(default: Settings, *, quick: bool) -> dict[tuple[str, str], MethodSettings]:
    """Settings of each method in both presets; those of the paper are for Live-seq.

    In a small version, which is mostly compilation, there is the default preset alone.
    """
    if quick:
        default = dataclasses.replace(default, hidden_layer_sizes=(8, 8), max_iter=40)
    # At the epsilon that suits the map, the plan is too blurred to tell pairs apart.
    coupling = dataclasses.replace(default, epsilon=0.01, target_fit=0.0)
    found: dict[tuple[str, str], MethodSettings] = {
        (EUCLIDEAN, ""): EuclideanSettings(),
        (MAP, "default"): default,
        (COUPLING, "default"): coupling,
        (GAP, "default"): GapSettings(default.hidden_layer_sizes, 0.01, default.max_iter, 0.01),
    }
    if not quick:
        layers, steps = (64, 64, 64), 1000
        stated = paper(default, hidden_layer_sizes=layers, max_iter=steps, epsilon=0.01)
        found[MAP, "paper"] = found[COUPLING, "paper"] = stated
        found[GAP, "paper"] = GapSettings(layers, 0.01, steps, 3e-3)
    return found


def method_fit(
    run: Run, settings: MethodSettings, data: dict[str, Any], *, loss: Term | None = None
) -> Fit:
    """The fit of a method to two clouds and what is known of them.

    A map is learned from the loss, by default from known pairs.
    """
    dim = data["X"].shape[1]
    if isinstance(settings, EuclideanSettings):
        model: Any = EuclideanMap(**dataclasses.asdict(settings))
    elif isinstance(settings, GapSettings):
        model = MongeGapMap(**dataclasses.asdict(settings), random_state=run.seed)
    elif run.method == COUPLING:
        model = settings.estimator(CouplingFit, dim, run.seed, [CorrectMass()])
    else:
        model = settings.estimator(MongeMap, dim, run.seed, [loss or Paired()])
    return Fit(model, data)


def skipped_steps(run: Run, model: Any) -> float | None:
    """Training steps that were not applied; None where there are none."""
    found = model.diagnostics_.get("skipped_steps") if run.preset else None
    return None if found is None else float(found)
