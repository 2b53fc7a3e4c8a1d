"""How a fitted map does beside the squared Euclidean one, as tables and lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._cli.console import Console
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.monge_map import MongeMap
from mongefit._training import learns
from mongefit.errors import ignored_warnings

# What people read for the names that programs read.
_LABELS = {
    "identity": "identity",
    "target_mean": "target mean",
    "squared_euclidean": "squared Euclidean",
    "learned_cost": "learned cost",
}

Points = NDArray[np.float64]
Map = MongeMap | MongeMapCV
Errors = Mapping[str, Mapping[str, float]]


def fit_baseline(
    console: Console, model: Map, X: ArrayLike, Y: ArrayLike, **weights: Any
) -> MongeMap:
    """The map of the squared Euclidean cost, at the epsilon that was asked of the model."""
    epsilon = model.diagnostics_["epsilon_requested"]
    fitted = model.best_estimator_ if isinstance(model, MongeMapCV) else model
    baseline = MongeMap(
        "sqeuclidean",
        epsilon=epsilon,
        normalize_weight=model.normalize_weight,
        dtype="float32" if model.map_.x.dtype == "float32" else "float64",
        tau_a=fitted.tau_a,
        tau_b=fitted.tau_b,
    )
    # Of the data the model has warned; the one thing that matters here is noted below.
    with ignored_warnings():
        baseline.fit(X, Y, **weights)
    found = baseline.diagnostics_
    if not found["converged"] or found["epsilon"] > epsilon:
        console.note(
            f"note: squared Euclidean could not be solved at epsilon {epsilon:g}; its row is that "
            f"of epsilon {found['epsilon']:g} (dual error {found['dual_error']:.1e})."
        )
    return baseline


def rmse(mapped: Points, truth: Points, weight: Points | None = None) -> float:
    """√(mean ‖mapped − truth‖²) over the rows, which may have weights."""
    return float(np.sqrt(np.average(np.sum((mapped - truth) ** 2, axis=1), weights=weight)))


def table(rows: Errors, columns: Mapping[str, str]) -> str:
    """Errors of several maps, one in each row, within 60 characters."""
    lines = [f"{'RMSE':<18}" + "".join(f"{title:>17}" for title in columns.values())]
    for name, errors in rows.items():
        lines.append(f"{_LABELS[name]:<18}" + "".join(f"{errors[key]:>17.4g}" for key in columns))
    return "\n".join(lines)


def titled(models: Mapping[str, Map], rows: Errors, columns: Mapping[str, str]) -> dict[str, Map]:
    """The models by the titles of their pictures, with the error in the last column if any."""
    titles = {}
    for name, model in models.items():
        error = ""
        for key, where in columns.items():
            error = f"\nRMSE {rows[name][key]:.3g} on {where}"
        titles[_LABELS[name] + error] = model
    return titles


def mass(model: Map) -> str:
    """What grew and died, in one line; nothing where all mass is kept."""
    if model.map_.tau_a is None and model.map_.tau_b is None:
        return ""
    return (
        f"Mass: {model.died_:.1%} of the source goes nowhere, {model.unexplained_:.1%} of the "
        "target comes from nowhere."
    )


def health(model: Map, seconds: float) -> str:
    """Training and solver in one line."""
    found = model.diagnostics_
    if isinstance(model, MongeMapCV) and model.cv_results_:
        text = f"Chosen among {len(model.cv_results_['rmse'])} candidates in {seconds:.1f} s"
    elif found["trained"]:
        text = f"{model.n_iter_} steps in {seconds:.1f} s, {found['skipped_steps']} skipped"
    else:
        text = f"{'Untrained' if learns(model.map_.cost) else 'Solved'} in {seconds:.1f} s"
    text += f"; dual error {found['dual_error']:.0e}"
    return text if found["converged"] else f"{text}, not converged"
