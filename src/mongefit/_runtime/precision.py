"""Double precision for a block of code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp


@contextlib.contextmanager
def double_precision(*trees: Any) -> Iterator[None]:
    """Enable float64 for the block if any array in ``trees`` is float64, and restore it after.

    Outside such a block JAX truncates float64 arrays to float32 without a word. With no argument
    float64 is always enabled. As ``@double_precision()`` it decorates a function.

    Matrix products of float32 numbers are exact to float32 in the block. An accelerator would
    otherwise round their factors to ten bits, and gradients would keep three digits instead of six.
    """
    needed = not trees or any(
        getattr(leaf, "dtype", None) == jnp.float64 for leaf in jax.tree_util.tree_leaves(trees)
    )
    with jax.default_matmul_precision("highest"):
        if needed and not jax.config.read("jax_enable_x64"):
            with jax.enable_x64(True):
                yield
        else:
            yield
