"""Programs that are compiled while training goes on: the same ones, once, and nobody's worry."""

from __future__ import annotations

import logging
import threading

import jax
import numpy as np
import pytest

from mongefit import MongeMap, programs

PAIRS = np.stack([np.arange(5)] * 2, axis=1)


def fit(dim=3):
    X, Y = np.random.default_rng(0).normal(size=(2, 19, dim))
    return MongeMap(hidden_layer_sizes=(4,), max_iter=3).fit(X, Y, pairs=PAIRS)


@pytest.fixture
def spare_cores(monkeypatch):
    monkeypatch.setattr(programs, "_cores", lambda: programs.CORES_TO_SPARE)


@pytest.fixture
def compiled(caplog):
    """Names of the programs that this thread has compiled so far."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax._src.interpreters.pxla"):
        yield lambda: {
            record.getMessage().split()[1]
            for record in caplog.records
            if record.getMessage().startswith("Compiling jit(")
        }


def compiling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "mongefit-compile"]


OF_THE_MAP = {"jit(transport)", "jit(_solve)", "jit(_curvatures)"}


@pytest.mark.parametrize("spare", [True, False])
def test_the_map_is_compiled_while_training_where_there_are_cores(compiled, monkeypatch, spare):
    monkeypatch.setattr(programs, "_cores", lambda: programs.CORES_TO_SPARE - (not spare))
    fit(dim=5 if spare else 6)  # shapes that no other test has
    assert "jit(run_interval)" in compiled()
    assert compiled() & OF_THE_MAP == (set() if spare else OF_THE_MAP)
    assert not compiling_threads()


def test_a_fit_is_the_same_with_and_without_cores_to_spare(monkeypatch):
    fits = []
    for cores in (1, programs.CORES_TO_SPARE):
        monkeypatch.setattr(programs, "_cores", lambda cores=cores: cores)
        fits.append(fit())
    np.testing.assert_array_equal(*(each.transform(np.eye(3)) for each in fits))


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
        begun.append(program)
        first.set()
        go_on.wait(60)

    monkeypatch.setattr(programs, "_programs", lambda clouds, cost: [program, program])
    with pytest.raises(KeyboardInterrupt), programs.compiled_meanwhile(None, None):
        assert first.wait(60)
        raise KeyboardInterrupt
    (thread,) = compiling_threads()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(begun) == 1
