"""Training a task, with progress, callbacks and checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from mongefit._fitting.apply import compile_tasks
from mongefit._fitting.finishing import Fitted, finish
from mongefit._fitting.preparing import Task
from mongefit._io import StrPath
from mongefit._progress import TrainingBar
from mongefit._runtime import compile_meanwhile, double_precision
from mongefit._training import Checkpoint, Info, Problem, Run
from mongefit._training import train as run_training
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
        compile_meanwhile(compile_tasks(task.clouds, task.models[0].cost)),
        TrainingBar(max_iter, enabled=bool(task.options.verbose)) as bar,
    ):

        def report(infos: Info) -> None:
            bar.report(infos)
            if callback is not None:
                callback(recorder.record(infos))

        return run_training(task.problem, task.models, checkpoint=checkpoint, on_interval=report)


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
