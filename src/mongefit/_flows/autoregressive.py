"""Masked autoregressive flows. The only file that knows flowjax."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection, Chain, MaskedAutoregressive
from flowjax.utils import get_ravelled_pytree_constructor
from jaxtyping import Array, Float, PRNGKeyArray

from mongefit._flows.base import Diffeo
from mongefit.errors import OptionError


class _BoundedAffine(AbstractBijection):
    """x ↦ e^s x + t with |s| ≤ bound: smooth, and far from overflow however long training runs."""

    location: Float[Array, ""]
    raw_log_scale: Float[Array, ""]
    bound: float = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    cond_shape: None = eqx.field(static=True)

    def __init__(self, bound: float):
        # float32, so that it never widens a flow that is cast to float32 later.
        self.location = jnp.zeros((), jnp.float32)
        self.raw_log_scale = jnp.zeros((), jnp.float32)
        self.bound = bound
        self.shape = ()
        self.cond_shape = None

    def _log_scale(self):
        return self.bound * jnp.tanh(self.raw_log_scale / self.bound)

    def transform_and_log_det(self, x, condition=None):
        log_scale = self._log_scale()
        return x * jnp.exp(log_scale) + self.location, log_scale

    def inverse_and_log_det(self, y, condition=None):
        log_scale = self._log_scale()
        return (y - self.location) * jnp.exp(-log_scale), -log_scale


class _Reverse(AbstractBijection):
    """The coordinates in reverse order."""

    shape: tuple[int, ...] = eqx.field(static=True)
    cond_shape: None = eqx.field(static=True, default=None)

    def transform_and_log_det(self, x, condition=None):
        return x[::-1], jnp.zeros(())

    def inverse_and_log_det(self, y, condition=None):
        return y[::-1], jnp.zeros(())


class AutoregressiveFlow(Diffeo):
    """Masked autoregressive (MADE) blocks with alternating variable order; starts as the identity.

    Φ is evaluated in one pass, Φ⁻¹ coordinate by coordinate (d passes per block).

    Parameters
    ----------
    dim
        Dimension d.
    n_blocks
        Number of autoregressive blocks; every second one sees the coordinates in reverse order.
    width, depth
        Hidden layers of each block's network.
    max_log_scale
        Bound on the logarithm of each block's coordinate-wise scale.
    key
        Random key for the hidden layers.
    """

    # Weights alone: flowjax's masks, permutations and functions could not be differentiated.
    weights: tuple[Float[Array, "..."], ...]
    dim: int = eqx.field(static=True)
    n_blocks: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    max_log_scale: float = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        *,
        key: PRNGKeyArray,
        n_blocks: int = 4,
        width: int = 32,
        depth: int = 1,
        max_log_scale: float = 2.0,
    ):
        for name, value in {"n_blocks": n_blocks, "width": width, "depth": depth}.items():
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
                raise OptionError(
                    f"AutoregressiveFlow needs a whole number {name} >= 1, got {value!r}."
                )
        if not isinstance(max_log_scale, numbers.Real) or not 0 < max_log_scale < math.inf:
            raise OptionError(
                f"AutoregressiveFlow needs a finite max_log_scale > 0, got {max_log_scale!r}."
            )
        # Plain numbers, whatever NumPy made of them: static fields and model files need these.
        self.dim = int(dim)
        self.n_blocks = int(n_blocks)
        self.width = int(width)
        self.depth = int(depth)
        self.max_log_scale = float(max_log_scale)
        drawn = _build(self.dim, self.n_blocks, self.width, self.depth, self.max_log_scale, key)
        self.weights = tuple(leaf for leaf in jax.tree.leaves(drawn) if _is_weight(leaf))

    def __check_init__(self):
        if [weight.shape for weight in self.weights] != self._shapes():
            raise OptionError("The weights of an AutoregressiveFlow do not fit its sizes.")

    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights. Known without building anything, so that a file can be checked."""
        if len(self.weights) != 2 * (self.depth + 1) * self.n_blocks:
            return []
        sizes = [self.dim, *[self.width] * self.depth, 2 * self.dim]
        shapes: list[tuple[int, ...]] = []
        for rows, columns in zip(sizes[1:], sizes[:-1], strict=True):
            shapes += [(rows, columns), (rows,)]
        return shapes * self.n_blocks

    def _bijection(self) -> Any:
        """The flow as flowjax has it."""
        leaves, structure = _skeleton(
            self.dim, self.n_blocks, self.width, self.depth, self.max_log_scale
        )
        weights = iter(self.weights)
        filled = [next(weights) if leaf is _WEIGHT else leaf for leaf in leaves]
        return paramax.unwrap(jax.tree.unflatten(structure, filled))

    def forward(self, x):
        return jax.vmap(self._bijection().transform)(x)

    def inverse(self, u):
        return jax.vmap(self._bijection().inverse)(u)

    def log_det(self, x):
        # The library adds up in its own default precision.
        _, log_det = jax.vmap(self._bijection().transform_and_log_det)(x)
        return log_det.astype(x.dtype)


_WEIGHT = object()


def _is_weight(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", jnp.int32), jnp.floating)


@functools.cache
def _skeleton(
    dim: int, n_blocks: int, width: int, depth: int, bound: float
) -> tuple[list[Any], Any]:
    """Everything of a flow but its weights, and how to put it together."""
    # Concrete even when the first flow is used while something is being traced.
    with jax.ensure_compile_time_eval():
        built = _build(dim, n_blocks, width, depth, bound, jr.key(0))
    leaves, structure = jax.tree.flatten(built)
    masks = [np.asarray(leaf) if eqx.is_array(leaf) else leaf for leaf in leaves]
    return [_WEIGHT if _is_weight(leaf) else leaf for leaf in masks], structure


def _build(
    dim: int, n_blocks: int, width: int, depth: int, bound: float, key: PRNGKeyArray
) -> Chain:
    reverse = _Reverse((dim,))
    steps: list[AbstractBijection] = []
    for block_key in jr.split(key, n_blocks):
        block = MaskedAutoregressive(
            block_key,
            transformer=_BoundedAffine(bound),
            dim=dim,
            nn_width=width,
            nn_depth=depth,
            nn_activation=jnp.tanh,
        )
        steps += [_prepare(block, bound), reverse]
    # Reversing twice is the identity; an odd number of reversals is undone at the end.
    return Chain(steps if n_blocks % 2 == 0 else [*steps, reverse])


@functools.cache
def _transformer_constructor(bound: float) -> Any:
    """The function from conditioner outputs to a transformer, one object per bound.

    Flowjax makes a new function for every block. As part of what jit compares it would make every
    new flow compile anew.
    """
    with jax.ensure_compile_time_eval():
        return get_ravelled_pytree_constructor(_BoundedAffine(bound), eqx.is_inexact_array)[0]


def _prepare(block: MaskedAutoregressive, bound: float) -> MaskedAutoregressive:
    """Zero the last layer of the conditioner, so that the block is exactly the identity."""

    def last_layer(block):
        # Parameterize(jnp.where, mask, weight, 0) holds the free weight as its second argument.
        layer = block.masked_autoregressive_mlp.layers[-1]
        return layer.weight.args[1], layer.bias

    block = eqx.tree_at(last_layer, block, replace_fn=jnp.zeros_like)
    constructor = _transformer_constructor(bound)
    return eqx.tree_at(lambda block: block.transformer_constructor, block, constructor)
