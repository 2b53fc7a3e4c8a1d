"""Going over the pairs that are kept, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mongefit._runtime import SEARCHED, chunk_size


def sweep(
    keep: Bool[Array, "n m"],
    body: Callable[[Int[Array, " k"], Int[Array, " k"], Bool[Array, " k"]], Any],
    nothing: tuple[Any, Any],
    finish: Callable[[Any], Any] = lambda vectors: (vectors, None),
) -> tuple[Any, Any]:
    """``vectors, terms = body(rows, columns, real)`` for the pairs to keep, chunk by chunk.

    Pairs that are not ``real`` fill up the last chunk of a block of rows. ``nothing`` is what
    ``body`` gives for no pairs: vectors of none, and terms of zeros. ``finish`` makes of the
    vectors of a block, zero for pairs not kept, what is wanted of its rows, and more terms.
    Returns what is wanted of all rows, and the sums of the terms of both kinds.
    """
    n, m = keep.shape
    rows = min(n, max(1, SEARCHED // max(m, 1)))
    blocks = -(-n // rows)

    def block(part, start):
        vectors, terms = _sweep_block(part, start, body, nothing)
        wanted, more = finish(vectors)
        return (terms, more), wanted

    if blocks == 1:
        total, wanted = block(keep, jnp.zeros((), jnp.int32))
        return wanted, total
    parts = jnp.pad(keep, ((0, blocks * rows - n), (0, 0))).reshape(blocks, rows, m)
    starts = rows * jnp.arange(blocks, dtype=jnp.int32)
    none = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(block, parts[0], starts[0])[0],
    )

    def add(total, part):
        terms, wanted = block(*part)
        return jax.tree.map(jnp.add, total, terms), wanted

    total, wanted = jax.lax.scan(add, none, (parts, starts))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], wanted), total


def _sweep_block(keep, first, body, nothing) -> tuple[Float[Array, "rows m d"] | None, Any]:
    m = keep.shape[1]
    size = chunk_size(keep.size)
    capacity = -(-keep.size // size) * size
    flat, everywhere = keep.ravel(), jnp.arange(keep.size, dtype=jnp.int32)
    position = jnp.cumsum(flat, dtype=jnp.int32) - 1
    count = position[-1] + 1
    # Their numbers, in order; those not to keep go beyond the end, each to a place of its own.
    index = jnp.zeros(capacity, jnp.int32)
    target = jnp.where(flat, position, capacity + everywhere)
    index = index.at[target].set(everywhere, mode="drop", unique_indices=True)

    def chunk(start):
        part = jax.lax.dynamic_slice(index, (start,), (size,))
        real = start + jnp.arange(size, dtype=jnp.int32) < count
        # What fills up may lie in a row of padding, beyond the last.
        part = jnp.where(real, part, 0)
        return body(first + part // m, part % m, real)

    # Written in order and brought to their places afterwards, by one gather: scattering every
    # chunk is slow on a CPU.
    vectors, terms = nothing
    vectors = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), vectors)

    def step(carry):
        start, vectors, total = carry
        found, terms = chunk(start)
        vectors = jax.tree.map(
            lambda whole, part: jax.lax.dynamic_update_slice_in_dim(
                whole, part.astype(whole.dtype), start, 0
            ),
            vectors,
            found,
        )
        return start + size, vectors, jax.tree.map(jnp.add, total, terms)

    start = jnp.zeros_like(count)
    _, vectors, total = jax.lax.while_loop(
        lambda carry: carry[0] < count, step, (start, vectors, terms)
    )
    if vectors is None:
        return None, total
    place = position.reshape(keep.shape)
    return jnp.where(keep[..., None], vectors[jnp.maximum(place, 0)], 0.0), total
