"""Many steps in one compiled scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit.errors import TrainingError
from mongefit.training.problem import Model, Problem
from mongefit.training.state import Info, State, initial_state, with_parameters
from mongefit.training.step import step


@eqx.filter_jit
def run_interval(problem: Problem, state: State, length: int) -> tuple[State, Info]:
    """``length`` steps in one compiled scan.

    Step ``max_iter`` is the last: it evaluates the outcome of the ``max_iter`` updates before it.
    Steps beyond it are not taken; their infos carry its number plus one or more.
    """
    arrays, static = eqx.partition(state, eqx.is_array)

    def take(arrays):
        new_state, info = step(problem, eqx.combine(arrays, static))
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


def train(
    problem: Problem,
    model: Model,
    *,
    interval: int = 10,
    max_failures: int = 30,
    on_interval: Callable[[Info], None] | None = None,
) -> tuple[Model, dict[str, np.ndarray]]:
    """Run all steps.

    Parameters
    ----------
    problem
        What to train on and how.
    model
        Where to start.
    interval
        Steps per compiled scan, after each of which ``on_interval`` is called with their infos.
    max_failures
        Steps in a row that may fail before training gives up.

    Returns
    -------
    model, history
        The best good model of the last tenth of the run, and one array per field of `Info`: entry k
        describes the model after k updates.

    Raises
    ------
    TrainingError
        After ``max_failures`` failed steps in a row, naming the step and the cause.
    """
    state = initial_state(problem, model)
    history: list[Info] = []
    while int(state.step) <= int(problem.max_iter):
        state, infos = run_interval(problem, state, interval)
        infos = jax.tree.map(np.asarray, infos)
        taken = infos.step <= int(problem.max_iter)
        infos = jax.tree.map(lambda leaf, taken=taken: leaf[taken], infos)
        history.append(infos)
        if on_interval is not None:
            on_interval(infos)
        if int(state.failures) >= max_failures:
            raise TrainingError(_explain_failure(infos))
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *history)
    best = with_parameters(state.start, state.best)
    return best, {field.name: getattr(joined, field.name) for field in fields(Info)}


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
