"""What all tests share: float64, random problems of a few fixed sizes, lengths of campaigns."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jaxtyping import install_import_hook

# Inside the numerical core, shapes and types of annotated arguments are checked at every call.
# Public functions take NumPy arrays, lists and numbers too, and have checks of their own. Solvers
# are left out: their inner functions would be compiled by Python while a model file is watched.
CORE = (
    "_convex.network", "_pairs", "_duals.problem", "_duals.semidual", "_training.batches",
    "_training.costs", "_training.problem", "_training.run", "_training.state", "_training.step",
)  # fmt: skip
install_import_hook([f"mongefit.{name}" for name in CORE], "beartype.beartype")

# Compilation is most of the time of the suite, and the problems are small. The older emitters
# compile four times faster, and a program in one piece a tenth; JAX reads the variable when it
# first computes.
jax.config.update("jax_disable_most_optimizations", True)
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"

# Tracing allocates much and leaves little to collect: at Python's thresholds the collector took a
# fifth of the time.
gc.set_threshold(200_000, 20, 100)


# Properties of a test that say how many cases of what it ran.
CASES = "cases: "


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the campaigns at full length")


def pytest_collection_finish():
    """Spare the collector what stays: packages and test modules."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Say how many cases the campaigns ran."""
    tally: dict[str, int] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, cases in report.user_properties:
                if name.startswith(CASES):
                    what = name.removeprefix(CASES)
                    tally[what] = tally.get(what, 0) + cases
    if tally:
        terminalreporter.section("cases")
        for what, cases in sorted(tally.items()):
            terminalreporter.write_line(f"{cases:>8,}  {what}")


class Campaign:
    """How many cases to run, and a tally of those that were.

    Attributes
    ----------
    long
        Whether the campaign is run at its full length.
    """

    def __init__(self, long: bool, properties: list[tuple[str, object]]):
        self.long = long
        self._properties = properties
        self._tally: dict[str, int] = {}

    def pick(self, short: int, long: int) -> int:
        """A number for the short campaign or for the long one."""
        return long if self.long else short

    def count(self, what: str, cases: int = 1) -> None:
        """Add to the tally that is printed in the end."""
        self._tally[what] = self._tally.get(what, 0) + cases
        self._properties[:] = [(CASES + name, number) for name, number in self._tally.items()]

    def cases(self, what: str, *, short: int, long: int) -> Iterator[int]:
        """Number the cases, and count those that are over."""
        for case in range(self.pick(short, long)):
            yield case
            self.count(what)


@pytest.fixture
def campaign(request):
    """The length of a campaign, and its tally."""
    return Campaign(request.config.getoption("--long"), request.node.user_properties)


class Clouds(NamedTuple):
    """Two weighted clouds, in NumPy."""

    x: np.ndarray
    y: np.ndarray
    a: np.ndarray
    b: np.ndarray


def random_clouds(n=16, m=12, d=2, *, uniform=True, seed=0) -> Clouds:
    """Gaussian clouds apart by half a standard deviation, with uniform or Dirichlet weights."""
    rng = np.random.default_rng(seed)
    a = np.full(n, 1 / n) if uniform else rng.dirichlet(np.ones(n))
    b = np.full(m, 1 / m) if uniform else rng.dirichlet(np.ones(m))
    return Clouds(rng.normal(size=(n, d)), 0.5 + 1.3 * rng.normal(size=(m, d)), a, b)


@pytest.fixture
def x64():
    """float64 for the duration of a test, as the library itself enters it."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def untrained(monkeypatch):
    """Fits with small networks and no steps: what is tested is what surrounds training."""
    from mongefit._estimators import monge_map

    options = monge_map.FitOptions
    small = {"hidden_layer_sizes": (4,), "max_iter": 0}
    monkeypatch.setattr(monge_map, "FitOptions", lambda **given: options(**given | small))


@pytest.fixture
def few_families(monkeypatch):
    """`MongeMapCV` chooses among squared Euclidean and a matrix at two epsilons, untrained."""
    from mongefit.model_selection import _best, _judging

    monkeypatch.setattr(_judging, "SCALES", (1.0, 0.25))
    monkeypatch.setattr(_best, "REPEATS", 1)
    monkeypatch.setattr(_best, "FAMILIES", _best.FAMILIES[:2])
    monkeypatch.setattr(_best._Chooser, "_to_train", lambda *_: ())


@pytest.fixture(autouse=True, scope="session")
def _keep_compiled_programs():
    """Compile what several modules need once. Each worker has files of its own: JAX locks none."""
    if jax.config.jax_compilation_cache_dir is not None:  # they are kept for more than this run
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mongefit-programs-") as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield
        jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module")
def programs_in_memory():
    """Write no files of compiled programs: what a test does to files is looked at."""
    folder = jax.config.jax_compilation_cache_dir
    for value in (None, folder):
        jax.config.update("jax_compilation_cache_dir", value)
        reset_cache()
        if value is None:
            yield


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Free what a module compiled: thousands of programs use up a process's memory maps."""
    yield
    jax.clear_caches()
    gc.collect()
