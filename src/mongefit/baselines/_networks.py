"""Networks without structure: a cost of two points, and a map."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from mongefit._costs import pairwise_value


class Network(eqx.Module):
    """A multilayer perceptron with gelu activations and a linear last layer."""

    weight: tuple[Float[Array, "w v"], ...]
    bias: tuple[Float[Array, " w"], ...]

    def __init__(self, widths: tuple[int, ...], *, key: PRNGKeyArray):
        keys = jr.split(key, (len(widths) - 1, 2))
        weight, bias = [], []
        for (of_weight, of_bias), (before, after) in zip(keys, pairwise(widths), strict=True):
            # Uniform in ±1/√(fan-in), which keeps the size of what goes through.
            limit = 1 / before**0.5
            weight.append(jr.uniform(of_weight, (after, before), minval=-limit, maxval=limit))
            bias.append(jr.uniform(of_bias, (after,), minval=-limit, maxval=limit))
        self.weight, self.bias = tuple(weight), tuple(bias)

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N e"]:
        return self.after_first(x @ self.weight[0].T + self.bias[0])

    def after_first(self, x: Float[Array, "N w"]) -> Float[Array, "N e"]:
        """The output, from that of the first layer before its activation."""
        for weight, bias in zip(self.weight[1:], self.bias[1:], strict=True):
            x = jax.nn.gelu(x) @ weight.T + bias
        return x


class MLPCost(eqx.Module):
    """c(x, y) = softplus of a network of both points: positive, and otherwise without structure."""

    network: Network

    def __init__(self, dim: int, widths: tuple[int, ...], *, key: PRNGKeyArray):
        self.network = Network((2 * dim, *widths, 1), key=key)

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """c(x_i, y_j) for all pairs."""
        # The first layer is a sum of a part of x and one of y, which need not be computed per pair.
        first, dim = self.network.weight[0], x.shape[1]
        u = x @ first[:, :dim].T + self.network.bias[0]
        v = -y @ first[:, dim:].T
        cost: Any = self
        return pairwise_value(cost, u, v)

    def value(self, z: Float[Array, "N w"]) -> Float[Array, " N"]:
        """The cost as a function of u − v, the output of the first layer."""
        return jax.nn.softplus(self.network.after_first(z)[:, 0])


class NeuralMap(eqx.Module):
    """T(x) = x + a network of x, zero at the start."""

    network: Network

    def __init__(self, dim: int, widths: tuple[int, ...], *, key: PRNGKeyArray):
        self.network = eqx.tree_at(
            lambda network: (network.weight[-1], network.bias[-1]),
            Network((dim, *widths, dim), key=key),
            replace_fn=jnp.zeros_like,
        )

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        return x + self.network(x)
