"""Many steps in one compiled scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit.errors import TrainingError
from mongefit.training.batches import Batches
from mongefit.training.problem import Model, Problem
from mongefit.training.state import Info, State, initial_state, with_parameters
from mongefit.training.step import step


def _interval(
    problem: Problem, state: State, length: int, batches: Batches | None
) -> tuple[State, Info]:
    arrays, static = eqx.partition(state, eqx.is_array)

    def take(arrays):
        new_state, info = step(problem, eqx.combine(arrays, static), batches)
        return eqx.filter(new_state, eqx.is_array), info

    blank = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(take, arrays)[1]
    )

    def body(arrays, _):
        step_number = eqx.combine(arrays, static).step
        past = eqx.tree_at(lambda info: info.step, blank, step_number)
        return jax.lax.cond(
            step_number <= problem.max_iter, take, lambda arrays: (arrays, past), arrays
        )

    arrays, infos = jax.lax.scan(body, arrays, length=length)
    return eqx.combine(arrays, static), infos


@eqx.filter_jit
def run_interval(
    problem: Problem, state: State, length: int, batches: Batches | None = None
) -> tuple[State, Info]:
    """``length`` steps in one compiled scan.

    Step ``max_iter`` is the last: it evaluates the outcome of the ``max_iter`` updates before it.
    Steps beyond it are not taken; their infos carry its number plus one or more.
    """
    return _interval(problem, state, length, batches)


@eqx.filter_jit
def run_intervals(
    problem: Problem, states: State, length: int, batches: Batches | None = None
) -> tuple[State, Info]:
    """`run_interval` for several states, stacked along the first axis, in one compiled program.

    On a CPU one after the other, which keeps its cache warm and each run what it is alone; on an
    accelerator side by side.
    """
    arrays, static = eqx.partition(states, eqx.is_array)

    def one(arrays):
        state, infos = _interval(problem, eqx.combine(arrays, static), length, batches)
        return eqx.filter(state, eqx.is_array), infos

    over = jax.lax.map if jax.default_backend() == "cpu" else lambda f, xs: jax.vmap(f)(xs)
    arrays, infos = over(one, arrays)
    return eqx.combine(arrays, static), infos


class Run(NamedTuple):
    """The outcome of one run.

    Attributes
    ----------
    model
        The best good model of the last tenth of the run.
    objective
        Its objective; infinite where training gave up.
    history
        One array per field of `Info`: entry k describes the model after k updates.
    """

    model: Model
    objective: float
    history: dict[str, np.ndarray]


def train(
    problem: Problem,
    models: Sequence[Model],
    *,
    batches: Batches | None = None,
    interval: int = 10,
    max_failures: int = 30,
    on_interval: Callable[[Info], None] | None = None,
) -> list[Run]:
    """Run all steps from one start, or from several in one compiled program.

    Parameters
    ----------
    problem
        What to train on and how.
    models
        Where to start: models that differ in their numbers only.
    batches
        How to draw the points of each step; all points by default.
    interval
        Steps per compiled scan, after each of which ``on_interval`` is called with the infos of the
        run whose loss is lowest.
    max_failures
        Steps in a row that may fail before training gives up.

    Returns
    -------
    list of Run
        One for each start. Where training gave up the objective is infinite.

    Raises
    ------
    TrainingError
        When training gave up in every run, naming the step and the cause.
    """
    states = [initial_state(problem, model, batches) for model in models]
    state = states[0] if len(models) == 1 else jax.tree.map(_stack, *states)
    last, given_up = int(problem.max_iter), np.zeros(len(models), bool)
    history: list[Info] = []
    for start in range(0, last + 1, interval):
        if len(models) == 1:
            state, infos = run_interval(problem, state, interval, batches)
            infos = jax.tree.map(lambda leaf: np.asarray(leaf)[None], infos)
        else:
            state, infos = run_intervals(problem, state, interval, batches)
        taken = min(interval, last + 1 - start)
        history.append(jax.tree.map(lambda leaf, taken=taken: np.asarray(leaf)[:, :taken], infos))
        given_up |= np.ravel(state.failures) >= max_failures
        if np.all(given_up):
            raise TrainingError(_explain_failure(_of_run(history[-1], 0)))
        if on_interval is not None:
            loss = np.where(given_up, np.inf, history[-1].loss[:, -1])
            on_interval(_of_run(history[-1], int(np.argmin(loss))))
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *history)
    runs = []
    for k, model in enumerate(models):
        best, objective = (
            np.asarray(leaf).reshape(len(models), -1)[k]
            for leaf in (state.best, state.best_objective)
        )
        of_run = _of_run(joined, k)
        runs.append(
            Run(
                with_parameters(model, jnp.asarray(best)),
                np.inf if given_up[k] else float(objective[0]),
                {field.name: getattr(of_run, field.name) for field in fields(Info)},
            )
        )
    return runs


def _stack(*leaves):
    return jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0]


def _of_run(infos: Info, k: int) -> Info:
    return jax.tree.map(lambda leaf: leaf[k], infos)


def _explain_failure(infos: Info) -> str:
    where = f"Training stopped at step {infos.step[-1]}: the last steps could not be applied. "
    if not np.isfinite(infos.objective[-1]) or not np.isfinite(infos.gradient_norm[-1]):
        return where + "The loss or its gradient is not finite. Try a smaller learning_rate."
    if infos.inverse_residual[-1] > infos.dual_error[-1]:
        return where + (
            f"The inverse gradient was not found (residual {infos.inverse_residual[-1]:.1e}). "
            "Try a larger alpha or a smaller learning_rate."
        )
    return where + (
        f"The dual solve did not converge at epsilon {infos.epsilon[-1]:.3g} "
        f"(error {infos.dual_error[-1]:.1e}). Try a larger epsilon."
    )
