"""The current device, and arrays on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array


def current_device() -> jax.Device:
    """The device that JAX computes on: its default device, or the first one it has."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def on_cpu() -> bool:
    """Whether the current device is a CPU."""
    return current_device().platform == "cpu"


def device_summary() -> str:
    """Kind and number of the devices, such as "cpu (1 device)"."""
    count = len(jax.local_devices(backend=current_device().platform))
    return f"{current_device().device_kind} ({count} device{'' if count == 1 else 's'})"


def to_device(array: np.ndarray | np.number) -> Array:
    """The array on the current device. ``jnp.asarray`` would compile a program for each shape."""
    return jax.device_put(np.asarray(array))


def copy_to_host(tree: Any) -> Any:
    """The tree with NumPy arrays in the place of JAX's."""
    return jax.device_get(tree)


def draw_on_cpu(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function of random keys returns, computed on the CPU, on the current device.

    A CPU compiles such a program sooner than an accelerator.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves out the CPU
        cpu = None
    with jax.default_device(cpu):
        drawn = function(*arguments, **options)
    return jax.tree.map(to_device, copy_to_host(drawn))


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is a placeholder inside `jax.jit`, `jax.grad` or another transformation."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))
