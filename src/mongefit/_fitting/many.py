"""Tasks that are alike, trained side by side in one compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax

from mongefit._fitting.preparing import Task
from mongefit._runtime import device_memory, double_precision
from mongefit._training import Run, train_each


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
        for other, members in kinds:
            if kind == other:
                members[k] = task
                break
        else:
            kinds.append((kind, {k: task}))
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
