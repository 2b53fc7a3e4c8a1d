"""Small numerical helpers that every room uses: precision, status codes, safe logarithms."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Status(enum.IntEnum):
    """How an inner solve ended. Stored as an integer array, so that it can live inside jit."""

    CONVERGED = 0
    MAX_ITER = 1
    STALLED = 2
    NON_FINITE = 3


@contextlib.contextmanager
def double_precision(*trees: Any) -> Iterator[None]:
    """Enable float64 for the block when any array in ``trees`` is float64, and restore it after.

    Outside such a block JAX silently truncates float64 arrays to float32. With no argument float64
    is enabled unconditionally. Products of float32 are exact to float32 in it, where an accelerator
    would otherwise round their factors to ten bits: gradients keep three digits then, not six.
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


def placed(array: np.ndarray | np.number) -> Array:
    """The array on JAX's device. ``jnp.asarray`` compiles a program for each shape to do that."""
    return jax.device_put(np.asarray(array))


def safe_log(weight: Float[Array, " n"]) -> Float[Array, " n"]:
    """Logarithm of a weight, −inf at zero, with a finite derivative everywhere."""
    positive = weight > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, weight, 1.0)), -jnp.inf)


def safe_norm(z: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Euclidean norm over the last axis whose derivative at zero is zero; NaN where z is."""
    square = jnp.sum(z * z, axis=-1)
    zero = square == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def cast(tree, dtype):
    """The tree with every real array in one precision."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree
    )
