"""From trained costs to a fitted map."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mongefit._costs import Cost
from mongefit._fitting.apply import solve_map, transport_points
from mongefit._fitting.data import hash_arrays
from mongefit._fitting.diagnose import CHECKED, diagnose, evenly, report
from mongefit._fitting.preparing import Task
from mongefit._runtime import double_precision
from mongefit._training import Run
from mongefit._transport import EntropicMap, Units


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """What an estimator with an entropic map learns; its attributes are these with a trailing _."""

    map: EntropicMap
    units: Units
    history: dict[str, NDArray[Any]]
    diagnostics: dict[str, Any]
    data_sha256: str
    n_iter: int
    losses: tuple[Any, ...] = ()
    scores: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(0))


@double_precision()
def finish(task: Task, runs: Sequence[Run]) -> Fitted:
    """Keep the best run and build its map; without runs, that of the cost as it is."""
    if not runs:
        return finish_cost(task, task.costs[0])
    scores = np.asarray([_score(task, run) for run in runs])
    best = runs[int(np.argmin(scores))]
    history = dict(best.history)
    if "validation" in history:
        history["validation_rmse"] = history.pop("validation") * float(task.clouds.units.scale)
    fitted = finish_cost(task, best.model.cost, history)
    n_losses = 0 if task.problem is None else task.problem.recipe.n_losses
    return dataclasses.replace(fitted, losses=best.model.terms[:n_losses], scores=scores)


@double_precision()
def finish_cost(task: Task, cost: Cost, history: dict[str, NDArray[Any]] | None = None) -> Fitted:
    """Build the map of a cost, check it, and report what is wrong with it."""
    clouds, history = task.clouds, {} if history is None else history
    solved = solve_map(clouds, cost, task.epsilon)
    rows = evenly(len(clouds.source), CHECKED)
    moved = transport_points(solved.map, clouds.source[rows], reverse=False)
    n_iter = max(len(history.get("step", ())) - 1, 0)
    diagnostics = diagnose(solved.map, np.asarray(solved.plan), rows, moved, solved.dual) | {
        "epsilon": solved.epsilon,
        "epsilon_requested": task.epsilon,
        "skipped_steps": int(np.sum(~history.get("applied", np.ones(0, bool)))),
        "trained": n_iter > 0,
        "input_warnings": clouds.notes,
    }
    report(diagnostics, strict=task.options.strict)
    digest = hash_arrays(
        clouds.source, clouds.target, clouds.a, clouds.b, *task.known.arrays(), task.held_out
    )
    return Fitted(solved.map, clouds.units, history, diagnostics, digest, n_iter)


def _score(task: Task, run: Run) -> float:
    """What a run is chosen by: RMSE on pairs that it was not trained on, or its objective."""
    if run.failure is not None:
        return np.inf
    if task.held_out is None:
        return run.objective
    clouds, pairs = task.clouds, task.held_out
    solved = solve_map(clouds, run.model.cost, task.epsilon)
    found = transport_points(solved.map, clouds.source[pairs[:, 0]], reverse=False)
    missed = np.sum((found.points - clouds.target[pairs[:, 1]]) ** 2, axis=1)
    error = float(np.sqrt(np.mean(missed)))
    good = solved.dual.converged and np.all(found.converged) and np.isfinite(error)
    return error if good else np.inf
