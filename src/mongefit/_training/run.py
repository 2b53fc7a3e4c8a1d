"""Many steps in one compiled scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._runtime import (
    TUNED,
    Program,
    copy_to_host,
    lapack_threads,
    on_cpu,
    one_chunk,
    to_device,
)
from mongefit._training.checkpoints import Checkpoint, Keeper, Progress
from mongefit._training.problem import Problem
from mongefit._training.state import Info, State, initial_state, with_parameters
from mongefit._training.step import step
from mongefit.errors import Option, TrainingError

INTERVAL = 10
"""Steps per compiled scan, after each of which progress is reported."""

MAX_FAILURES = 30
"""Steps in a row that may fail before training gives up."""


def _interval(problem: Problem, state: State, length: int) -> tuple[State, Info]:
    arrays, static = eqx.partition(state, eqx.is_array)

    @jax.jit  # traced once, for its shapes and for the scan
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
            step_number <= problem.recipe.max_iter, take, lambda arrays: (arrays, past), arrays
        )

    arrays, infos = jax.lax.scan(body, arrays, length=length)
    return eqx.combine(arrays, static), infos


_quick, _tuned = Program(_interval), Program(_interval, TUNED)


def run_interval(problem: Problem, state: State, length: int) -> tuple[State, Info]:
    """``length`` steps in one compiled scan.

    Step ``max_iter`` is the last: it evaluates the outcome of the ``max_iter`` updates before it.
    Steps beyond it are not taken; their infos carry its number plus one or more.
    """
    # A long run of large steps makes up for compiling them longer.
    program = _quick if one_chunk(problem.pairs_per_step) else _tuned
    return program(problem, state, length)


def _run_intervals(
    problem: Problem, states: State, length: int, *, shared: bool = True
) -> tuple[State, Info]:
    """`run_interval` for several states, stacked along the first axis, in one compiled program.

    On a CPU one after the other, which keeps its cache warm and each run what it is alone. On an
    accelerator side by side, which takes as long to compile as one large problem. Unless the
    problem is shared, it is stacked as the states are.
    """
    arrays, static = eqx.partition((states, None if shared else problem), eqx.is_array)

    def one(arrays):
        state, own = eqx.combine(arrays, static)
        state, infos = _interval(problem if own is None else own, state, length)
        return eqx.filter(state, eqx.is_array), infos

    over = jax.lax.map if on_cpu() else lambda f, xs: jax.vmap(f)(xs)
    found, infos = over(one, arrays)
    return eqx.combine(found, static[0]), infos


run_intervals = Program(_run_intervals, TUNED)


class Run(NamedTuple):
    """The outcome of one run.

    Attributes
    ----------
    model
        The best good model of the last tenth of the run; the last good one with batches; the best
        on validation pairs where there are any.
    objective
        The least objective of the last tenth, or of the last good step before it; with batches the
        mean of the last tenth. Infinite if nothing was good.
    history
        One array per field of `Info`: entry k describes the model after k updates.
    failure
        Why training gave up, or None.
    """

    model: Any
    objective: float
    history: dict[str, np.ndarray]
    failure: TrainingError | None = None


def train(
    problem: Problem,
    models: Sequence[Any],
    *,
    checkpoint: Checkpoint | None = None,
    on_interval: Callable[[Info], None] | None = None,
) -> list[Run]:
    """Run all steps from one start, or from several in one compiled program.

    Parameters
    ----------
    problem
        What to train on and how.
    models
        Where to start: models that differ in their numbers only.
    checkpoint
        Where to keep the run, also when it is interrupted, and whether to go on with what is there.
    on_interval
        Called after every interval with the infos of the run whose loss is lowest. If it raises
        StopIteration, training ends there; any other error is passed on.

    Returns
    -------
    list of Run
        One for each start.

    Raises
    ------
    TrainingError
        If training gave up in every run, naming the step and the cause.
    """
    states = [initial_state(problem, model) for model in models]
    state = states[0] if len(models) == 1 else jax.tree.map(_stack, *states)
    with lapack_threads(problem.pairs_per_step):
        progress = _advance(problem, state, len(models), checkpoint, on_interval)
    runs = _runs(problem, models, progress)
    if all(run.failure for run in runs):
        raise runs[0].failure  # type: ignore[misc]
    return runs


def _advance(
    problem: Problem,
    state: State,
    n_starts: int,
    checkpoint: Checkpoint | None,
    on_interval: Callable[[Info], None] | None,
) -> Progress:
    """Take all steps that are left, and keep them where a checkpoint is asked for."""
    progress = start = Progress(state, (), 0)
    if checkpoint is None:
        for progress in _intervals(problem, start, n_starts):
            if _report(problem, progress, on_interval):
                break
        return progress
    keeper = Keeper(checkpoint, problem, state)
    with keeper.locked():
        progress = start = keeper.read()
        try:
            for progress in _intervals(problem, start, n_starts):
                if _report(problem, progress, on_interval):
                    break
                keeper.offer(progress)
        finally:
            # Also when it is interrupted: what is done is kept.
            keeper.write(progress)
    return progress


def train_each(problems: Sequence[Problem], models: Sequence[Any]) -> list[Run]:
    """Run all steps of several problems, each from a start of its own, in one compiled program.

    Problems and models differ in their numbers only, and the number of steps is the same for all.
    A run that gives up says so in its ``failure``.
    """
    states = [initial_state(*each) for each in zip(problems, models, strict=True)]
    problem, state = (jax.tree.map(_stack, *each) for each in (problems, states))
    progress = start = Progress(state, (), 0)
    with lapack_threads(problem.pairs_per_step):
        for progress in _intervals(problem, start, len(models), shared=False):
            if np.all(progress.state.failures >= MAX_FAILURES):
                break
    return _runs(problems[0], models, progress)


def _runs(problem: Problem, models: Sequence[Any], progress: Progress) -> list[Run]:
    infos, last = progress.infos(), int(problem.recipe.max_iter)
    ends = np.cumsum([part.applied.shape[1] for part in progress.history]) - 1
    gave_up = _gave_up(np.asarray(infos.applied), ends)
    best = np.asarray(progress.state.best).reshape(len(models), -1)
    runs = []
    for k, model in enumerate(models):
        of_run = _of_run(infos, k)
        failure, end = None, int(gave_up[k])
        if end or not np.any(of_run.applied):
            until = slice(None, end or None)
            shown = jax.tree.map(lambda leaf, until=until: leaf[until], of_run)
            failure = _explain(shown, problem)
        history = {field.name: getattr(of_run, field.name) for field in fields(Info)}
        history["losses"] = history.pop("terms")[:, : problem.recipe.n_losses]
        del history["solved"]
        if not problem.validates:
            del history["validation"]
        objective = _final_objective(of_run, last, mean=problem.noisy)
        runs.append(Run(with_parameters(model, best[k]), objective, history, failure))
    return runs


def _intervals(
    problem: Problem, progress: Progress, n_starts: int, *, shared: bool = True
) -> Iterator[Progress]:
    """The progress after each interval that is left.

    The next interval is begun before the outcome of the last is fetched: nothing waits for it.
    """
    last = int(np.max(np.asarray(problem.recipe.max_iter)))
    single = shared and n_starts == 1

    def begin(state: State) -> tuple[State, Info]:
        if single:
            return run_interval(problem, state, INTERVAL)
        return run_intervals(problem, state, INTERVAL, shared=shared)

    begun = begin(progress.state) if progress.done <= last else None
    while begun is not None:
        state, infos = begun
        taken = min(INTERVAL, last + 1 - progress.done)
        done = progress.done + taken
        begun = begin(state) if done <= last else None
        infos = copy_to_host(infos)
        if single:
            infos = jax.tree.map(lambda leaf: leaf[None], infos)
        infos = jax.tree.map(lambda leaf, taken=taken: leaf[:, :taken], infos)
        progress = Progress(state, (*progress.history, infos), done)
        yield progress


def _report(
    problem: Problem, progress: Progress, on_interval: Callable[[Info], None] | None
) -> bool:
    """Tell of the best run; True if training should end. Give up if all have failed too often."""
    infos = progress.history[-1]
    failures = np.ravel(progress.state.failures)
    if np.all(failures >= MAX_FAILURES):
        raise _explain(_of_run(infos, int(np.argmax(failures))), problem)
    if on_interval is None:
        return False
    loss = infos.loss[:, -1]
    shown = np.where((failures >= MAX_FAILURES) | ~np.isfinite(loss), np.inf, loss)
    try:
        on_interval(_of_run(infos, int(np.argmin(shown))))
    except StopIteration:
        return True
    return False


def _gave_up(applied: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """After how many steps too many had failed in a row at the end of an interval, or 0.

    Of applied steps [starts, steps], with the last step of each interval.
    """
    # A step that was applied starts the count anew.
    count = np.cumsum(~applied, axis=1)
    before = np.maximum.accumulate(np.where(applied, count, 0), axis=1)
    too_many = np.asarray((count - before)[:, ends] >= MAX_FAILURES)
    return np.where(too_many.any(axis=1), ends[too_many.argmax(axis=1)] + 1, 0)


def _final_objective(infos: Info, last: int, *, mean: bool) -> float:
    good = infos.objective[infos.applied]
    if len(good) == 0:
        return np.inf
    late = infos.objective[infos.applied & (infos.step >= 0.9 * last)]
    if len(late) == 0:
        late = good[-1:]
    return float(np.mean(late) if mean else np.min(late))


def _stack(*leaves):
    if not eqx.is_array(leaves[0]):
        return leaves[0]
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return to_device(np.stack(copy_to_host(leaves)))  # JAX would run a program for each


def _of_run(infos: Info, k: int) -> Info:
    return jax.tree.map(lambda leaf: leaf[k], infos)


def _explain(infos: Info, problem: Problem) -> TrainingError:
    """Why the last of some steps could not be applied."""
    where = f"Training stopped at step {infos.step[-1]}: the last steps could not be applied. "
    options = {name: Option(name) for name in ("alpha", "epsilon", "learning_rate")}
    if infos.solved[-1]:
        lost = np.flatnonzero(~np.isfinite(infos.terms[-1]))
        if len(lost):
            name, value = problem.recipe.names[lost[0]], infos.terms[-1][lost[0]]
            return TrainingError(
                f"{where}{name} is {value}, though every solve converged. Look at what it computes."
            )
        return TrainingError(
            where + "The gradient of the loss is not finite. Try a smaller {learning_rate}.",
            **options,
        )
    if not infos.inverse_residual[-1] <= infos.dual_error[-1]:
        return TrainingError(
            where + "The inverse gradient was not found (residual {residual:.1e}). Try a larger "
            "{alpha} or a smaller {learning_rate}.",
            residual=float(infos.inverse_residual[-1]),
            **options,
        )
    return TrainingError(
        where + "The dual solve did not converge at epsilon {at:.3g} (error {error:.1e}). Try a "
        "larger {epsilon}.",
        at=float(infos.epsilon[-1]),
        error=float(infos.dual_error[-1]),
        **options,
    )
