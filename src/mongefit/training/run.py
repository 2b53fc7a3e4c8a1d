"""Many steps in one compiled scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._compilation import QUICK, UNMERGED, GpuJit
from mongefit._numerics import placed
from mongefit.errors import TrainingError
from mongefit.sparse import one_chunk
from mongefit.training.batches import Batches
from mongefit.training.checkpoints import Checkpoint, Keeper, Progress
from mongefit.training.problem import Model, Problem
from mongefit.training.state import Info, State, initial_state, with_parameters
from mongefit.training.step import step


def _interval(
    problem: Problem, state: State, length: int, batches: Batches | None
) -> tuple[State, Info]:
    arrays, static = eqx.partition(state, eqx.is_array)

    @jax.jit  # traced once, for its shapes and for the scan
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


_quick, _tuned = GpuJit(_interval, QUICK), GpuJit(_interval, UNMERGED)


def run_interval(
    problem: Problem, state: State, length: int, batches: Batches | None = None
) -> tuple[State, Info]:
    """``length`` steps in one compiled scan.

    Step ``max_iter`` is the last: it evaluates the outcome of the ``max_iter`` updates before it.
    Steps beyond it are not taken; their infos carry its number plus one or more.
    """
    n, m = len(problem.x), len(problem.y)
    if batches is not None:
        n, m = batches.source.size, batches.target.size
    # A long run of large steps makes up for compiling them longer.
    program = _quick if one_chunk(n * m) else _tuned
    return program(problem, state, length, batches)


def _run_intervals(
    problem: Problem,
    states: State,
    length: int,
    batches: Batches | None = None,
    *,
    shared: bool = True,
) -> tuple[State, Info]:
    """`run_interval` for several states, stacked along the first axis, in one compiled program.

    On a CPU one after the other, which keeps its cache warm and each run what it is alone; on an
    accelerator side by side, as slow to compile as one large problem, for as many pairs. Where the
    problem and the batches are not shared, they are stacked as the states are.
    """
    common = (problem, batches)
    arrays, static = eqx.partition((states, None if shared else common), eqx.is_array)

    def one(arrays):
        state, own = eqx.combine(arrays, static)
        problem, batches = common if own is None else own
        state, infos = _interval(problem, state, length, batches)
        return eqx.filter(state, eqx.is_array), infos

    over = jax.lax.map if jax.default_backend() == "cpu" else lambda f, xs: jax.vmap(f)(xs)
    found, infos = over(one, arrays)
    return eqx.combine(found, static[0]), infos


run_intervals = GpuJit(_run_intervals, UNMERGED)


class Run(NamedTuple):
    """The outcome of one run.

    Attributes
    ----------
    model
        The best good model of the last tenth of the run; the last good one with batches; the best
        on validation pairs where there are any.
    objective
        The least objective of the last tenth, or of the last good step before it; with batches the
        mean of the last tenth. Infinite where nothing was good.
    history
        One array per field of `Info`: entry k describes the model after k updates.
    failure
        Why training gave up, where too many steps in a row failed; else "".
    """

    model: Model
    objective: float
    history: dict[str, np.ndarray]
    failure: str = ""


def train(
    problem: Problem,
    models: Sequence[Model],
    *,
    batches: Batches | None = None,
    checkpoint: Checkpoint | None = None,
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
    checkpoint
        Where to keep the run, also when it is interrupted, and whether to go on with what is there.
    interval
        Steps per compiled scan, after each of which ``on_interval`` is called with the infos of the
        run whose loss is lowest.
    max_failures
        Steps in a row that may fail before training gives up.

    Returns
    -------
    list of Run
        One for each start.

    Raises
    ------
    TrainingError
        When training gave up in every run, naming the step and the cause.
    """
    states = [initial_state(problem, model, batches) for model in models]
    state = states[0] if len(models) == 1 else jax.tree.map(_stack, *states)
    progress = start = Progress(state, (), 0)
    if checkpoint is None:
        for progress in _intervals(problem, start, len(models), interval, batches):
            _report(progress, max_failures, on_interval)
    else:
        keeper = Keeper(checkpoint, problem, batches, state)
        with keeper.locked():
            progress = start = keeper.read()
            try:
                for progress in _intervals(problem, start, len(models), interval, batches):
                    _report(progress, max_failures, on_interval)
                    keeper.offer(progress)
            finally:
                # Also when it is interrupted: what is done is kept.
                keeper.write(progress)
    return _runs(problem, models, progress, max_failures, batched=batches is not None)


def train_each(
    problems: Sequence[Problem],
    models: Sequence[Model],
    batches: Sequence[Batches | None],
    *,
    interval: int = 10,
    max_failures: int = 30,
) -> list[Run]:
    """Run all steps of several problems, each from a start of its own, in one compiled program.

    Problems, models and batches differ in their numbers only, and the number of steps is the same
    for all. A run that gives up says so in its ``failure``.
    """
    states = [initial_state(*each) for each in zip(problems, models, batches, strict=True)]
    problem, state, drawn = (jax.tree.map(_stack, *each) for each in (problems, states, batches))
    progress = start = Progress(state, (), 0)
    for progress in _intervals(problem, start, len(models), interval, drawn, shared=False):
        if np.all(progress.state.failures >= max_failures):
            break
    batched = batches[0] is not None
    return _runs(problems[0], models, progress, max_failures, batched=batched)


def _runs(
    problem: Problem,
    models: Sequence[Model],
    progress: Progress,
    max_failures: int,
    *,
    batched: bool,
) -> list[Run]:
    infos, last = progress.infos(), int(problem.max_iter)
    ends = np.cumsum([part.applied.shape[1] for part in progress.history]) - 1
    gave_up = _gave_up(np.asarray(infos.applied), max_failures, ends)
    best = np.asarray(progress.state.best).reshape(len(models), -1)
    names = [field.name for field in fields(Info)]
    if problem.validation is None:
        names.remove("validation")
    runs = []
    for k, model in enumerate(models):
        of_run = _of_run(infos, k)
        end = int(gave_up[k])
        runs.append(
            Run(
                with_parameters(model, best[k]),
                _final_objective(of_run, last, mean=batched),
                {name: getattr(of_run, name) for name in names},
                _explain_failure(jax.tree.map(lambda leaf, end=end: leaf[:end], of_run))
                if end
                else "",
            )
        )
    return runs


def _intervals(
    problem: Problem,
    progress: Progress,
    n_starts: int,
    interval: int,
    batches: Batches | None,
    *,
    shared: bool = True,
) -> Iterator[Progress]:
    """The progress after each interval that is left.

    The next interval is begun before the outcome of the last is fetched: nothing waits for it.
    """
    last = int(np.max(np.asarray(problem.max_iter)))

    def begin(state: State) -> tuple[State, Info]:
        if shared and n_starts == 1:
            return run_interval(problem, state, interval, batches)
        return run_intervals(problem, state, interval, batches, shared=shared)

    begun = begin(progress.state) if progress.done <= last else None
    while begun is not None:
        state, infos = begun
        taken = min(interval, last + 1 - progress.done)
        done = progress.done + taken
        begun = begin(state) if done <= last else None
        infos = jax.device_get(infos)
        if shared and n_starts == 1:
            infos = jax.tree.map(lambda leaf: leaf[None], infos)
        infos = jax.tree.map(lambda leaf, taken=taken: leaf[:, :taken], infos)
        progress = Progress(state, (*progress.history, infos), done)
        yield progress


def _report(
    progress: Progress, max_failures: int, on_interval: Callable[[Info], None] | None
) -> None:
    """Tell of the best run, or give up where all have failed too often."""
    infos = progress.history[-1]
    failures = np.ravel(progress.state.failures)
    if np.all(failures >= max_failures):
        raise TrainingError(_explain_failure(_of_run(infos, int(np.argmax(failures)))))
    if on_interval is not None:
        loss = infos.loss[:, -1]
        shown = np.where((failures >= max_failures) | ~np.isfinite(loss), np.inf, loss)
        on_interval(_of_run(infos, int(np.argmin(shown))))


def _gave_up(
    applied: NDArray[np.bool_], max_failures: int, ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """After how many steps so many had failed in a row at the end of an interval, or 0.

    Of applied steps [starts, steps], with the last step of each interval.
    """
    # A step that was applied starts the count anew.
    count = np.cumsum(~applied, axis=1)
    before = np.maximum.accumulate(np.where(applied, count, 0), axis=1)
    too_many = np.asarray((count - before)[:, ends] >= max_failures)
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
    return placed(np.stack(jax.device_get(leaves)))  # JAX would run a program for each


def _of_run(infos: Info, k: int) -> Info:
    return jax.tree.map(lambda leaf: leaf[k], infos)


def _explain_failure(infos: Info) -> str:
    where = f"Training stopped at step {infos.step[-1]}: the last steps could not be applied. "
    if not np.isfinite(infos.objective[-1]) or not np.isfinite(infos.gradient_norm[-1]):
        return where + "The loss or its gradient is not finite. Try a smaller learning_rate."
    if not infos.inverse_residual[-1] <= infos.dual_error[-1]:
        return where + (
            f"The inverse gradient was not found (residual {infos.inverse_residual[-1]:.1e}). "
            "Try a larger alpha or a smaller learning_rate."
        )
    return where + (
        f"The dual solve did not converge at epsilon {infos.epsilon[-1]:.3g} "
        f"(error {infos.dual_error[-1]:.1e}). Try a larger epsilon."
    )
