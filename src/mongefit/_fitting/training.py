"""Training tasks, alone or side by side, and building the map of what was learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from mongefit._costs import Cost
from mongefit._fitting.apply import compile_tasks, solve_map, transport_points
from mongefit._fitting.data import hash_arrays
from mongefit._fitting.diagnose import CHECKED, diagnose, evenly, report, warn_if_beaten
from mongefit._fitting.journey import parts
from mongefit._fitting.preparing import Task
from mongefit._io import StrPath
from mongefit._progress import TrainingBar
from mongefit._runtime import compile_meanwhile, device_memory, double_precision
from mongefit._training import Checkpoint, Info, Problem, Run, train_each
from mongefit._training import train as run_training
from mongefit._transport import EntropicMap, Units
from mongefit._validation import check_switch
from mongefit.errors import Option, OptionError


@dataclasses.dataclass(frozen=True)
class Record:
    """What a callback is given after every reporting interval, about its last step.

    Attributes
    ----------
    step, n_steps
        Number of the step, from 0, and how many there are.
    loss
        The weighted sum of the losses.
    terms
        Every loss and penalty by name, unweighted.
    epsilon
        Relative regularisation.
    dual_error, dual_iterations, inverse_residual, inverse_iterations
        How well the inner problems were solved, and how long that took.
    gradient_norm
        Norm of the gradient.
    skipped
        Steps so far that were not applied.
    validation_rmse
        RMSE on validation pairs in the units of the data; None without any.
    """

    step: int
    n_steps: int
    loss: float
    terms: MappingProxyType[str, float]
    epsilon: float
    dual_error: float
    dual_iterations: int
    inverse_residual: float
    inverse_iterations: int
    gradient_norm: float
    skipped: int
    validation_rmse: float | None


@dataclasses.dataclass
class _Recorder:
    """Makes records out of the infos of intervals."""

    problem: Problem
    scale: float
    skipped: int = 0

    def record(self, infos: Info) -> Record:
        self.skipped += int(np.sum(~np.asarray(infos.applied)))
        last: dict[str, Any] = {
            name: np.asarray(column)[-1].tolist() for name, column in vars(infos).items()
        }
        del last["solved"], last["applied"], last["objective"]
        names, validation = self.problem.recipe.names, last.pop("validation")
        distinct = [
            name if names.count(name) == 1 else f"{name} {names[:k].count(name) + 1}"
            for k, name in enumerate(names)
        ]
        terms = dict(zip(distinct, last.pop("terms"), strict=True))
        return Record(
            n_steps=int(self.problem.recipe.max_iter),
            terms=MappingProxyType(terms),
            skipped=self.skipped,
            validation_rmse=self.scale * validation if self.problem.validates else None,
            **last,
        )


@double_precision()
def train(
    task: Task,
    *,
    checkpoint: Checkpoint | None = None,
    callback: Callable[[Record], Any] | None = None,
) -> list[Run]:
    """Train from each start; no runs if there is nothing to learn."""
    if callback is not None and not callable(callback):
        raise OptionError(f"callback must be a function of a record, got {callback!r}.")
    if task.problem is None:
        return []
    max_iter = int(task.options.max_iter)
    if max_iter == 0:
        return [Run(model, np.inf, {}) for model in task.models]
    task.require_memory()
    recorder = _Recorder(task.problem, float(task.clouds.units.scale))
    with (
        compile_meanwhile(_compile_tasks(task)),
        TrainingBar(max_iter, enabled=bool(task.options.verbose)) as bar,
    ):

        def report(infos: Info) -> None:
            bar.report(infos)
            if callback is not None:
                callback(recorder.record(infos))

        return run_training(task.problem, task.models, checkpoint=checkpoint, on_interval=report)


@double_precision()
def train_alike(tasks: Mapping[int, Task], least: int) -> dict[int, Run]:
    """Train side by side those tasks that differ in their numbers only; their runs.

    As many at a time as fit into memory, if they take more than ``least`` steps in all. Tasks
    without a run are left to be trained by themselves.
    """
    runs: dict[int, Run] = {}
    for alike in _alike(tasks):
        if sum(int(task.options.max_iter) for task in alike.values()) <= least:
            continue
        problems = [task.problem for task in alike.values()]
        models = [task.models[0] for task in alike.values()]
        try:
            found = train_each(problems, models)  # type: ignore[arg-type]
        except jax.errors.JaxRuntimeError:
            continue  # such as too little memory: each has to take its turn
        runs.update(zip(alike, found, strict=True))
    return runs


def _alike(tasks: Mapping[int, Task]) -> list[dict[int, Task]]:
    """Tasks with one start that differ in their numbers only, two or more of each kind."""
    kinds: list[tuple[Any, dict[int, Task]]] = []
    for k, task in tasks.items():
        if task.problem is None or len(task.models) > 1 or task.options.max_iter == 0:
            continue
        kind = _kind(task)
        members = next((members for other, members in kinds if kind == other), None)
        if members is None:
            kinds.append((kind, members := {}))
        members[k] = task
    return [part for _, members in kinds for part in _parts(members) if len(part) > 1]


def _kind(task: Task) -> Any:
    """All of a task's training but its numbers."""
    trained = (task.problem, task.models)
    shapes = jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf, trained
    )
    return int(task.options.max_iter), jax.tree.structure(trained), jax.tree.leaves(shapes)


def _parts(members: dict[int, Task]) -> list[dict[int, Task]]:
    """Parts that fit into memory."""
    free = device_memory()
    size = next(iter(members.values())).bytes_per_step()
    at_once = len(members) if free is None else max(1, int(free // size))
    items = list(members.items())
    return [dict(items[k : k + at_once]) for k in range(0, len(items), at_once)]


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


def finish(task: Task, runs: Sequence[Run]) -> Fitted:
    """Keep the best run and build its map; without runs, that of the cost as it is."""
    return finish_legs(task, runs)[0]


@double_precision()
def finish_legs(task: Task, runs: Sequence[Run]) -> list[Fitted]:
    """`finish` for every leg of a task."""
    if not runs:
        return [finish_cost(task, task.costs[0].of(k), leg=k) for k in range(len(task.legs))]
    scores = np.asarray([_score(task, run) for run in runs])
    best = runs[int(np.argmin(scores))]
    history = dict(best.history)
    if "validation" in history:
        history["validation_rmse"] = history.pop("validation") * float(task.clouds.units.scale)
    n_losses = 0 if task.problem is None else task.problem.recipe.n_losses
    found = []
    for k, leg in enumerate(task.legs):
        fitted = finish_cost(task, best.model.of(k).cost, history, leg=k)
        if leg.spared is not None:
            rows = leg.clouds.source[leg.known.pairs[leg.spared, 0]]  # type: ignore[index]
            mapped = transport_points(fitted.map, rows, reverse=False).points
            warn_if_beaten(leg, np.asarray(mapped))
        terms = best.model.terms[:n_losses]
        found.append(dataclasses.replace(fitted, losses=terms, scores=scores))
    return found


@double_precision()
def finish_cost(
    task: Task, cost: Cost, history: dict[str, NDArray[Any]] | None = None, *, leg: int = 0
) -> Fitted:
    """Build the map of a cost, check it, and report what is wrong with it."""
    clouds, known, held_out, _ = task.legs[leg]
    history = {} if history is None else history
    solved = solve_map(clouds, cost, task.how)
    rows = evenly(len(clouds.source), CHECKED)
    moved = transport_points(solved.map, clouds.source[rows], reverse=False)
    n_iter = max(len(history.get("step", ())) - 1, 0)
    diagnostics = diagnose(solved.map, np.asarray(solved.plan), rows, moved, solved.dual) | {
        "epsilon": solved.epsilon,
        "epsilon_requested": task.how.epsilon,
        "skipped_steps": int(np.sum(~history.get("applied", np.ones(0, bool)))),
        "trained": n_iter > 0,
        "input_warnings": clouds.notes,
    }
    report(diagnostics, strict=task.options.strict)
    digest = hash_arrays(
        clouds.source, clouds.target, clouds.a, clouds.b, *known.arrays(), held_out
    )
    return Fitted(solved.map, clouds.units, history, diagnostics, digest, n_iter)


def _score(task: Task, run: Run) -> float:
    """What a run is chosen by: RMSE on pairs that it was not trained on, or its objective."""
    if run.failure is not None:
        return np.inf
    every = parts(task.legs, task.through)
    if all(each.held_out is None for each in every):
        return run.objective
    maps = []
    for k, leg in enumerate(task.legs):
        solved = solve_map(leg.clouds, run.model.of(k).cost, task.how)
        if not solved.dual.converged:
            return np.inf
        maps.append(solved.map)
    chains = [*((k,) for k in range(len(maps))), *(each.chain for each in task.through)]
    missed = []
    for part, chain in zip(every, chains, strict=True):
        if part.held_out is None:
            continue
        points = part.clouds.source[part.held_out[:, 0]]
        for k in chain:
            found = transport_points(maps[k], points, reverse=False)
            if not np.all(found.converged):
                return np.inf
            points = np.asarray(found.points, np.float64)
        missed.append(np.sum((points - part.clouds.target[part.held_out[:, 1]]) ** 2, axis=1))
    error = float(np.sqrt(np.mean(np.concatenate(missed))))
    return error if np.isfinite(error) else np.inf


def _compile_tasks(task: Task) -> list[Callable[[], None]]:
    """What compiles the programs that the end of a fit calls, once for legs of one size."""
    sizes: dict[tuple[int, int], list[Callable[[], None]]] = {}
    for k, leg in enumerate(task.legs):
        size = len(leg.clouds.x), len(leg.clouds.y)
        if size not in sizes:
            sizes[size] = compile_tasks(leg.clouds, task.models[0].of(k).cost, task.how)
    return [each for tasks in sizes.values() for each in tasks]


def check_checkpoint(checkpoint: StrPath | Checkpoint | None, resume: bool) -> Checkpoint | None:
    """Where to keep a run, out of the two arguments of ``fit``."""
    check_switch(resume, "resume")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        return Checkpoint(checkpoint, resume=resume)
    if resume:
        raise OptionError(
            "{resume} needs {checkpoint}, a folder to go on from.",
            resume=Option("resume"), checkpoint=Option("checkpoint"),
        )  # fmt: skip
    return checkpoint


def fit(
    task: Task,
    *,
    checkpoint: Checkpoint | None = None,
    callback: Callable[[Record], Any] | None = None,
) -> Fitted:
    """Train a task and build the map of what was learned."""
    return finish(task, train(task, checkpoint=checkpoint, callback=callback))
