"""Several fits, those alike trained side by side in one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax

from mongefit._numerics import double_precision
from mongefit.errors import TrainingError
from mongefit.estimator import CostEstimator
from mongefit.trained import Training
from mongefit.training import Run, train_each
from mongefit.validation import device_memory

LEAST_STEPS = 2_500
"""Steps, of all fits that are alike, from which on side by side pays for the time that a program of
several takes to compile beyond one of a single fit; measured on an H200 (docs/paper.md)."""


class Fit(NamedTuple):
    """An estimator and the arguments of its ``fit``."""

    estimator: Any
    arguments: dict[str, Any]


def can_be_together(fit: Fit) -> bool:
    """Whether it is of a kind that can be trained beside others."""
    return isinstance(fit.estimator, CostEstimator)


def fit_together(
    fits: Sequence[Fit],
    *,
    side_by_side: bool | None = None,
    on_fit: Callable[[], object] = lambda: None,
) -> list[TrainingError | None]:
    """Fit every estimator to its data; for each that could not be trained, why.

    Side by side are trained those that learn a cost, on problems of the same shapes, as many as
    memory takes; all others one after the other. By default that is done where it is faster: on an
    accelerator, most of which a step between small clouds leaves idle, where more than
    ``LEAST_STEPS`` are to be taken; not on a CPU. ``on_fit`` is called after each.
    """
    least = LEAST_STEPS if side_by_side is None else 0
    if side_by_side is None:
        side_by_side = jax.default_backend() != "cpu"
    failures: list[TrainingError | None] = [None] * len(fits)
    with double_precision():
        begun = {
            k: fit.estimator._begin(**fit.arguments)
            for k, fit in enumerate(fits)
            if side_by_side and can_be_together(fit)
        }
        runs = _trained({k: fitting.training for k, fitting in begun.items()}, least)
    for k, (estimator, arguments) in enumerate(fits):
        try:
            if k not in begun:
                estimator.fit(**arguments)
            else:
                with double_precision():
                    found = [runs[k]] if k in runs else estimator._run(begun[k])
                    if k in runs and runs[k].failure:
                        raise TrainingError(runs[k].failure)
                    estimator._complete(begun[k], found)
        except TrainingError as error:
            failures[k] = error
        on_fit()
    return failures


def _trained(trainings: Mapping[int, Training | None], least: int) -> dict[int, Run]:
    """The runs of those that are trained side by side, more than ``least`` steps in all."""
    runs: dict[int, Run] = {}
    for alike in _alike(trainings):
        steps = sum(int(training.problem.max_iter) for training in alike.values())
        if steps <= least:
            continue
        problems, models, batches = zip(*alike.values(), strict=True)
        try:
            found = train_each(problems, [model for (model,) in models], batches)
        except jax.errors.JaxRuntimeError:
            continue  # such as too little memory: each has to take its turn
        runs.update(zip(alike, found, strict=True))
    return runs


def _alike(trainings: Mapping[int, Training | None]) -> list[dict[int, Training]]:
    """Those with one start that differ in their numbers only, two or more of each kind."""
    kinds: list[tuple[Any, dict[int, Training]]] = []
    for k, training in trainings.items():
        if training is None or len(training.models) > 1 or training.problem.max_iter == 0:
            continue
        kind = _kind(training)
        for other, members in kinds:
            if kind == other:
                members[k] = training
                break
        else:
            kinds.append((kind, {k: training}))
    return [part for _, members in kinds for part in _parts(members) if len(part) > 1]


def _kind(training: Training) -> Any:
    """All of a training but its numbers."""
    shapes = jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf, training
    )
    return int(training.problem.max_iter), jax.tree.structure(training), jax.tree.leaves(shapes)


def _parts(members: dict[int, Training]) -> list[dict[int, Training]]:
    """Parts that fit into memory."""
    free = device_memory()
    size, _ = next(iter(members.values())).memory()
    at_once = len(members) if free is None else max(1, int(free // size))
    items = list(members.items())
    return [dict(items[k : k + at_once]) for k in range(0, len(items), at_once)]
