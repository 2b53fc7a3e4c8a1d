"""Several fits of estimators, those alike trained side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mongefit._estimators.monge_map import CostLearner
from mongefit._fitting import finish, train, train_alike
from mongefit._runtime import on_cpu
from mongefit.errors import TrainingError

LEAST_STEPS = 2_500
"""Steps, of all fits that are alike, from which on side by side pays for the time that a program of
several takes to compile beyond one of a single fit; measured on an H200 (docs/paper.md)."""


class Fit(NamedTuple):
    """An estimator and the arguments of its ``fit``."""

    estimator: Any
    arguments: dict[str, Any]

    @property
    def learns_cost(self) -> bool:
        """Whether it can be trained beside others."""
        return isinstance(self.estimator, CostLearner)


def fit_many(
    fits: Sequence[Fit],
    *,
    side_by_side: bool | None = None,
    on_fit: Callable[[], object] = lambda: None,
) -> list[TrainingError | None]:
    """Fit every estimator to its data; for each that could not be trained, why.

    Fits that learn a cost are trained side by side if their problems have the same shapes, all
    others one after the other. By default that is done where it is faster: on an accelerator, most
    of which a step between small clouds leaves idle, for more than ``LEAST_STEPS`` steps; not on a
    CPU. ``on_fit`` is called after each.
    """
    least = LEAST_STEPS if side_by_side is None else 0
    if side_by_side is None:
        side_by_side = not on_cpu()
    tasks = {
        k: fit.estimator._prepare(**fit.arguments)
        for k, fit in enumerate(fits)
        if side_by_side and fit.learns_cost
    }
    runs = train_alike(tasks, least)
    failures: list[TrainingError | None] = [None] * len(fits)
    for k, (estimator, arguments) in enumerate(fits):
        try:
            if k not in tasks:
                estimator.fit(**arguments)
            elif k in runs and runs[k].failure is not None:
                failures[k] = runs[k].failure
            else:
                found = [runs[k]] if k in runs else train(tasks[k])
                estimator._store(arguments["X"], finish(tasks[k], found))
        except TrainingError as error:
            failures[k] = error
        on_fit()
    return failures
