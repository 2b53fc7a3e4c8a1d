"""Costs by name: h and flows out of an estimator's options."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from mongefit._compilation import filter_jit
from mongefit._numerics import placed
from mongefit.conjugate import ConjugateICNN
from mongefit.convex import ICNN, ConvexFunction, SquaredEuclidean
from mongefit.costs import Cost
from mongefit.diffeos import AutoregressiveFlow, Diffeo
from mongefit.errors import DataError, OptionError, did_you_mean
from mongefit.validation import check_layers, check_positive, check_seed

LEARNED: dict[str, Any] = {"icnn": ICNN, "conjugate_icnn": ConjugateICNN}
COSTS = (*LEARNED, "sqeuclidean")
DIFFEOS = ("shared", "separate")


@jax.jit
def _keys(seed: int) -> tuple[PRNGKeyArray, ...]:
    """Keys of the function and of two flows."""
    return tuple(jr.split(jr.key(seed), 3))


def _draw(
    family: type[ConvexFunction], dim: int, sizes: tuple[int, ...], seed: np.ndarray, **options: Any
) -> ConvexFunction:
    return family(dim, sizes, key=_keys(seed)[0], **options)


# As one, or each shape would be compiled for itself; and not optimised, for it runs once.
_drawn = filter_jit(_draw, compiler_options={"xla_backend_optimization_level": 0})


def _learned(name: str, dim: int, sizes: tuple[int, ...], seed: int, **options: Any) -> Any:
    """A function to learn, its weights drawn by the CPU, which compiles that sooner."""
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to know others only
        cpu = None
    with jax.default_device(cpu):
        drawn = _drawn(LEARNED[name], dim, sizes, np.asarray(seed), **options)
    return jax.tree.map(placed, jax.device_get(drawn))


def build_cost(
    dim: int,
    *,
    cost: Any,
    diffeo: Any,
    hidden_layer_sizes: Any,
    symmetric: Any,
    alpha: Any,
    random_state: Any,
) -> Cost:
    """The cost at the start of training, from options as `MongeMap` documents them."""
    alpha = check_positive(alpha, "alpha")
    sizes = check_layers(hidden_layer_sizes)
    if not isinstance(symmetric, bool):
        raise OptionError(f"symmetric must be True or False, got {symmetric!r}.")
    seed = check_seed(random_state)
    if isinstance(cost, ConvexFunction):
        h = cost
        _check_dimension(h, dim)
    elif isinstance(cost, str) and cost in LEARNED:
        h = _learned(cost, dim, sizes, seed, symmetric=symmetric, alpha=alpha)
    elif cost == "sqeuclidean":
        h = SquaredEuclidean()
    else:
        raise OptionError(
            f"cost must be one of {', '.join(COSTS)} or a ConvexFunction, got {cost!r}."
            + did_you_mean(str(cost), COSTS)
        )
    if diffeo is None:
        return Cost(h)
    if isinstance(diffeo, Diffeo):
        return Cost(h, diffeo, diffeo)
    if _is_pair_of_diffeos(diffeo):
        return Cost(h, *diffeo)
    if diffeo == "shared":
        flow = AutoregressiveFlow(dim, key=_keys(seed)[1])
        return Cost(h, flow, flow)
    if diffeo == "separate":
        return Cost(h, *(AutoregressiveFlow(dim, key=key) for key in _keys(seed)[1:]))
    raise OptionError(
        f"diffeo must be None, one of {', '.join(DIFFEOS)}, a Diffeo or a pair of them, got "
        f"{diffeo!r}." + did_you_mean(str(diffeo), DIFFEOS)
    )


def _check_dimension(h: ConvexFunction, dim: int) -> None:
    try:
        eqx.filter_eval_shape(h.value_and_gradient, jax.ShapeDtypeStruct((1, dim), jnp.float64))
    except TypeError as error:
        raise DataError(
            f"The cost is made for another number of features than the {dim} of the data."
        ) from error


def _is_pair_of_diffeos(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(phi is None or isinstance(phi, Diffeo) for phi in value)
    )
