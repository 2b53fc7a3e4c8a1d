"""Small numerical helpers that every room uses: status codes, safe logarithms, casts."""

from __future__ import annotations

import enum
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Tree = TypeVar("Tree")


class Status(enum.IntEnum):
    """How a solve ended, and what that means. An integer array inside jit.

    Attributes
    ----------
    message
        The same in words.
    """

    message: str

    CONVERGED = 0, "it converged"
    MAX_ITER = 1, "it reached the largest number of iterations"
    STALLED = 2, "no further step lowered its error"
    NON_FINITE = 3, "the problem contains NaN or infinity"
    NO_EPS = 4, "eps is not positive"

    def __new__(cls, value: int, message: str) -> Status:
        self = int.__new__(cls, value)
        self._value_ = value
        self.message = message
        return self


def safe_log(weight: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Logarithm of a weight, −inf at zero, with a finite derivative everywhere."""
    positive = weight > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, weight, 1.0)), -jnp.inf)


def safe_sqrt(square: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Square root whose derivative at zero is zero; NaN where the argument is."""
    zero = square == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def safe_norm(z: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Euclidean norm over the last axis whose derivative at zero is zero; NaN where z is."""
    return safe_sqrt(jnp.sum(z * z, axis=-1))


def cast(tree: Tree, dtype: str | jnp.dtype) -> Tree:
    """The tree with every real array in one precision."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree
    )
