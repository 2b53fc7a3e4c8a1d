"""Programs that are compiled while training goes on: the same ones, once, and nobody's worry."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mongefit import MongeMap, programs
from mongefit._compilation import QUICK, UNMERGED, GpuJit

PAIRS = np.stack([np.arange(5)] * 2, axis=1)


def fit(dim=3):
    X, Y = np.random.default_rng(0).normal(size=(2, 19, dim))
    return MongeMap(hidden_layer_sizes=(4,), max_iter=3).fit(X, Y, pairs=PAIRS)


@pytest.fixture
def spare_cores(monkeypatch):
    monkeypatch.setattr(programs, "usable_cores", lambda: programs.CORES_TO_SPARE)


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


OF_THE_MAP = {"jit(transport)", "jit(_map_and_plan)", "jit(_hessians)"}


@pytest.mark.parametrize("spare", [True, False])
def test_the_map_is_compiled_while_training_where_there_are_cores(compiled, monkeypatch, spare):
    monkeypatch.setattr(programs, "usable_cores", lambda: programs.CORES_TO_SPARE - (not spare))
    fit(dim=5 if spare else 6)  # shapes that no other test has
    here, there = compiled["MainThread"], compiled.get("mongefit-compile", set())
    assert "jit(_interval)" in here
    assert (there, here & OF_THE_MAP) == ((OF_THE_MAP, set()) if spare else (set(), OF_THE_MAP))


def test_a_fit_is_the_same_with_and_without_cores_to_spare(monkeypatch):
    fits = []
    for cores in (1, programs.CORES_TO_SPARE):
        monkeypatch.setattr(programs, "usable_cores", lambda cores=cores: cores)
        fits.append(fit())
    np.testing.assert_array_equal(*(each.transform(np.eye(3)) for each in fits))


@pytest.mark.parametrize("options", [QUICK, UNMERGED])
def test_what_a_gpu_is_asked_for_is_an_option_that_xla_has(monkeypatch, options):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert float(GpuJit(jnp.dot, options)(jnp.ones(3), jnp.ones(3))) == 3


@pytest.mark.usefixtures("spare_cores")
def test_what_cannot_be_compiled_is_told_where_it_is_needed(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no such program")

    monkeypatch.setattr(programs, "_solve", broken)
    with pytest.raises(RuntimeError, match="no such program"):
        fit()


@pytest.mark.usefixtures("spare_cores")
def test_an_interrupted_fit_waits_for_no_program(monkeypatch):
    first, go_on = threading.Event(), threading.Event()
    begun = []

    def program():
        begun.append(threading.current_thread())
        first.set()
        go_on.wait(60)

    monkeypatch.setattr(programs, "_programs", lambda clouds, cost: [program, program])
    with pytest.raises(KeyboardInterrupt), programs.compiled_meanwhile(None, None):
        assert first.wait(60)
        raise KeyboardInterrupt
    (thread,) = begun
    assert thread.is_alive()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert begun == [thread]
