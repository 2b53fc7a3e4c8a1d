"""The current device, the memory it has, and the sizes of blocks that suit it."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mongefit import _runtime
from mongefit._runtime import devices, memory
from mongefit.errors import DataError


class Accelerator:
    platform = "gpu"

    @staticmethod
    def memory_stats():
        return {"bytes_limit": 3 * 2**30, "bytes_in_use": 2**30}


def test_the_default_device_decides():
    assert devices.current_device() is jax.devices()[0] and _runtime.on_cpu()
    with jax.default_device("cpu"):
        assert devices.current_device().platform == "cpu"
    # Any other object is taken for a device, as JAX does.
    with jax.default_device(jax.devices("cpu")[0]):
        assert devices.current_device() is jax.devices("cpu")[0]


def test_another_default_device_is_used_throughout(tmp_path):
    """A fit under `jax.default_device` leaves every array of its map there."""
    program = """
import jax, numpy as np
from mongefit import MongeMap
X, Y = np.random.default_rng(0).normal(size=(2, 8, 2))
other = jax.devices()[1]
with jax.default_device(other):
    model = MongeMap(hidden_layer_sizes=(4,), max_iter=2).fit(X, Y, pairs=[[0, 0], [1, 1]])
    model.transform(X)
print({str(leaf.device) for leaf in jax.tree.leaves(model.map_) if isinstance(leaf, jax.Array)})
print(other)
"""
    flags = "--xla_force_host_platform_device_count=2 --xla_cpu_use_fusion_emitters=false"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )  # fmt: skip
    used, other = done.stdout.splitlines()
    assert used == f"{{'{other}'}}"


def test_blocks_follow_the_device(monkeypatch):
    assert _runtime.chunk_size(2**20) == 2**10
    assert _runtime.rows_per_block(100, 2**9) == 2
    monkeypatch.setattr("mongefit._runtime.blocks.on_cpu", lambda: False)
    assert _runtime.chunk_size(2**18) == 2**18
    assert _runtime.chunk_size(2**18 + 1) == 2**17
    assert _runtime.rows_per_block(100, 2**9) == 100


def test_on_an_accelerator_its_own_memory_counts(monkeypatch):
    free = memory.available_memory()
    assert memory.device_memory() == pytest.approx(free, rel=0.1)
    monkeypatch.setattr(memory, "current_device", Accelerator)
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    with pytest.raises(DataError, match=r"It needs 2.5 GiB; 2 GiB are free. Do less."):
        memory.require_memory(2.5 * 2**30, "It needs", "Do less.", on_device=True)
    memory.require_memory(1.5 * 2**30, "It needs", "Do less.", on_device=True)


def test_what_is_traced_is_known():
    seen = []
    jax.jit(lambda x: seen.append((_runtime.is_traced({"x": x}), _runtime.is_traced(np.ones(2)))))(
        jnp.ones(2)
    )
    assert seen == [(True, False)]
