"""What all tests share: float64 for the mathematics, and random problems of a few fixed sizes."""

from __future__ import annotations

import os
from typing import NamedTuple

import jax
import numpy as np
import pytest

# Compilation is most of the time of the suite, and the problems are small. The older emitters
# compile four times faster; JAX reads the variable when it first computes.
jax.config.update("jax_disable_most_optimizations", True)
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"


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


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Free what a module compiled: thousands of programs use up a process's memory maps."""
    yield
    jax.clear_caches()
