"""Compiling ahead of time, and programs that fail on an accelerator."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mongefit import MongeMap
from mongefit._fitting import apply as of_maps
from mongefit._runtime import programs

PAIRS = np.stack([np.arange(5)] * 2, axis=1)


def fit(dim=3):
    X, Y = np.random.default_rng(0).normal(size=(2, 19, dim))
    return MongeMap(hidden_layer_sizes=(4,), max_iter=3).fit(X, Y, pairs=PAIRS)


@pytest.fixture
def spare_cores(monkeypatch):
    monkeypatch.setattr(programs, "usable_cores", lambda: programs.SPARE_CORES)


@pytest.fixture
def compiled():
    """Programs that were compiled, by the name of the thread that did it."""
    found: dict[str, set[str]] = {}

    def listen(event, seconds, *, fun_name="", **other):
        if event == "/jax/core/compile/backend_compile_duration":
            found.setdefault(threading.current_thread().name, set()).add(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


OF_THE_MAP = {"jit(_map_fast)", "jit(_map_and_plan)", "jit(_hessians)"}


@pytest.mark.parametrize("spare", [True, False])
def test_the_map_is_compiled_while_training_where_there_are_cores(compiled, monkeypatch, spare):
    monkeypatch.setattr(programs, "usable_cores", lambda: programs.SPARE_CORES - (not spare))
    fit(dim=5 if spare else 6)  # shapes that no other test has
    here, there = compiled["MainThread"], compiled.get("mongefit-compile", set())
    assert "jit(_interval)" in here
    assert (there, here & OF_THE_MAP) == ((OF_THE_MAP, set()) if spare else (set(), OF_THE_MAP))


def test_a_fit_is_the_same_with_and_without_cores_to_spare(monkeypatch):
    fits = []
    for cores in (1, programs.SPARE_CORES):
        monkeypatch.setattr(programs, "usable_cores", lambda cores=cores: cores)
        fits.append(fit())
    np.testing.assert_array_equal(*(each.transform(np.eye(3)) for each in fits))


class Gpu:
    """What a program sees of a GPU."""

    platform = "gpu"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(programs, "current_device", Gpu)
    programs._warn_of_failure.cache_clear()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("options", [programs.QUICK, programs.TUNED])
def test_xla_has_the_options_that_a_gpu_is_asked_for(options):
    assert float(programs.Program(jnp.dot, options)(jnp.ones(3), jnp.ones(3))) == 3


class Fails:
    """A compiled function that raises what XLA raises."""

    def __init__(self, reason):
        self.reason = reason
        self.calls = 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        raise jax.errors.JaxRuntimeError(self.reason)


@pytest.mark.usefixtures("gpu")
def test_a_program_that_fails_on_a_gpu_is_compiled_without_options():
    program = programs.Program(jnp.dot)
    program._tuned = failing = Fails("INTERNAL: cublasLtMatmul: not supported\nmore")
    with pytest.warns(UserWarning, match="compiled again without them.*cublasLtMatmul"):
        assert float(program(jnp.ones(3), jnp.ones(3))) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(program(jnp.ones(4), jnp.ones(4))) == 4
        other = programs.Program(jnp.vdot)
        other._tuned = Fails(failing.reason)
        assert float(other(jnp.ones(4), jnp.ones(4))) == 4
    assert failing.calls == 1


@pytest.mark.usefixtures("gpu")
def test_too_little_memory_is_no_reason_to_compile_again():
    program = programs.Program(jnp.dot)
    program._tuned = Fails("RESOURCE_EXHAUSTED: out of memory")
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        program(jnp.ones(3), jnp.ones(3))


@pytest.mark.usefixtures("spare_cores")
def test_what_cannot_be_compiled_is_told_where_it_is_needed(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no such program")

    monkeypatch.setattr(of_maps, "_solve", broken)
    with pytest.raises(RuntimeError, match="no such program"):
        fit()


@pytest.mark.usefixtures("spare_cores")
def test_an_interrupted_fit_waits_for_no_program():
    first, go_on = threading.Event(), threading.Event()
    begun = []

    def program():
        begun.append(threading.current_thread())
        first.set()
        go_on.wait(60)

    with pytest.raises(KeyboardInterrupt), programs.compile_meanwhile([program, program]):
        assert first.wait(60)
        raise KeyboardInterrupt
    (thread,) = begun
    assert thread.is_alive()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert begun == [thread]


def test_programs_are_dropped_before_memory_maps_run_out(monkeypatch):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not say how many memory maps a process has")

    def used():
        return maps.read_bytes().count(b"\n")

    first = fit(dim=7)
    kept = used()
    programs.drop_programs_if_crowded()
    assert used() >= kept  # far from the limit
    monkeypatch.setattr(programs, "MOST_MAPS", 0.0)
    programs.drop_programs_if_crowded()
    assert used() < 0.9 * kept
    np.testing.assert_array_equal(fit(dim=7).coupling_, first.coupling_)
