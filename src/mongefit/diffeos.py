"""Diffeomorphisms Φ of R^d. The only file that knows the flow library."""

from __future__ import annotations

import abc
import functools
import math
import numbers
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import paramax
from flowjax.bijections import AbstractBijection, Chain, MaskedAutoregressive, Permute
from flowjax.utils import get_ravelled_pytree_constructor
from jaxtyping import Array, Float, PRNGKeyArray


class Diffeo(eqx.Module):
    """A smooth invertible map of R^d, applied to a batch of points."""

    @abc.abstractmethod
    def forward(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ(x) for every row of x."""

    @abc.abstractmethod
    def inverse(self, u: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Φ⁻¹(u) for every row of u."""

    @abc.abstractmethod
    def log_det(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """log |det ∂Φ/∂x| for every row of x."""


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

    bijection: Chain
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
                raise ValueError(
                    f"AutoregressiveFlow needs a whole number {name} >= 1, got {value!r}."
                )
        if not isinstance(max_log_scale, numbers.Real) or not 0 < max_log_scale < math.inf:
            raise ValueError(
                f"AutoregressiveFlow needs a finite max_log_scale > 0, got {max_log_scale!r}."
            )
        # Plain numbers, whatever NumPy made of them: static fields and model files need these.
        self.n_blocks = int(n_blocks)
        self.width = int(width)
        self.depth = int(depth)
        self.max_log_scale = float(max_log_scale)
        reverse = Permute(jnp.arange(dim)[::-1])
        steps: list[AbstractBijection] = []
        for block_key in jr.split(key, self.n_blocks):
            block = MaskedAutoregressive(
                block_key,
                transformer=_BoundedAffine(self.max_log_scale),
                dim=dim,
                nn_width=self.width,
                nn_depth=self.depth,
                nn_activation=jnp.tanh,
            )
            steps += [_prepared(block, self.max_log_scale), reverse]
        # Reversing twice is the identity; an odd number of reversals is undone at the end.
        self.bijection = Chain(steps if self.n_blocks % 2 == 0 else [*steps, reverse])

    def __reduce__(self):
        # The library's blocks hold functions that cannot be pickled; sizes and weights can.
        sizes = (self.n_blocks, self.width, self.depth, self.max_log_scale)
        weights = [leaf for leaf in jax.tree.leaves(self) if _is_weight(leaf)]
        return _restore, (self.bijection.shape[0], sizes, weights)

    def forward(self, x):
        return jax.vmap(paramax.unwrap(self.bijection).transform)(x)

    def inverse(self, u):
        return jax.vmap(paramax.unwrap(self.bijection).inverse)(u)

    def log_det(self, x):
        # The library adds up in its own default precision.
        _, log_det = jax.vmap(paramax.unwrap(self.bijection).transform_and_log_det)(x)
        return log_det.astype(x.dtype)


def _is_weight(leaf) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", jnp.int32), jnp.floating)


def _restore(dim: int, sizes: tuple[int, int, int, float], weights: list) -> AutoregressiveFlow:
    n_blocks, width, depth, max_log_scale = sizes
    flow = AutoregressiveFlow(
        dim, key=jr.key(0),
        n_blocks=n_blocks, width=width, depth=depth, max_log_scale=max_log_scale,
    )  # fmt: skip
    leaves, structure = jax.tree.flatten(flow)
    remaining = iter(weights)
    restored = [next(remaining) if _is_weight(leaf) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, restored)


@functools.cache
def _transformer_constructor(bound: float) -> Callable:
    """The function from conditioner outputs to a transformer, one object per bound.

    Flowjax makes a new function for every block; as part of what jit compares it would make every
    new flow compile anew.
    """
    # Concrete zeros even when the first flow is made while something is being traced.
    with jax.ensure_compile_time_eval():
        return get_ravelled_pytree_constructor(_BoundedAffine(bound), eqx.is_inexact_array)[0]


def _prepared(block: MaskedAutoregressive, bound: float) -> MaskedAutoregressive:
    """Zero the last layer of the conditioner, so that the block is exactly the identity."""

    def last_layer(block):
        # Parameterize(jnp.where, mask, weight, 0) holds the free weight as its second argument.
        layer = block.masked_autoregressive_mlp.layers[-1]
        return layer.weight.args[1], layer.bias

    block = eqx.tree_at(last_layer, block, replace_fn=jnp.zeros_like)
    constructor = _transformer_constructor(bound)
    return eqx.tree_at(lambda block: block.transformer_constructor, block, constructor)
