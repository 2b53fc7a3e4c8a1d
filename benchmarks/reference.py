"""The method written straight from the paper with the libraries at hand, to compare speed with.

One step: the cost of every pair by two `vmap`s of a scalar function, OTT's Sinkhorn (threshold
1e-6, its implicit differentiation, started from the last potentials), gradients by `jax.grad`, the
inverse gradient by optimistix's L-BFGS, point by point, differentiated implicitly and started from
the last solution, and one step of Adam. It shares nothing with mongefit but the formula of h.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
from jax.scipy.special import logsumexp
from ott.geometry import geometry
from ott.problems.linear import linear_problem
from ott.solvers.linear import implicit_differentiation, sinkhorn

from mongefit._training import DEFAULT_OPTIMISER


def network(h, z):
    """n(z) of an `ICNN`'s weights, for one displacement."""
    state = _squareplus(h.passthrough[0] @ z + h.bias[0])
    for raw, through, bias in zip(h.hidden, h.passthrough[1:], h.bias[1:], strict=True):
        weight = jax.nn.softplus(raw) / raw.shape[1]
        state = _squareplus(weight @ state + through @ z + bias)
    return jnp.exp(h.log_gain) * jax.nn.softplus(h.out) @ state / len(h.out)


def _squareplus(t):
    return 0.5 * (t + jnp.sqrt(t * t + 4))


def convex(h, z):
    """h(z) of a symmetric `ICNN`, for one displacement."""
    value = 0.5 * (network(h, z) + network(h, -z)) - network(h, jnp.zeros_like(z))
    return value + 0.5 * jnp.sum((h.quadratic @ z) ** 2) + 0.5 * h.alpha * z @ z


def inverse_gradient(h, p, z_init):
    """argmin_z h(z) − ⟨z, p⟩ for one p."""

    def objective(z, arguments):
        h, p = arguments
        return convex(h, z) - z @ p

    return optimistix.minimise(
        objective,
        optimistix.LBFGS(rtol=1e-8, atol=1e-8),
        z_init,
        (h, p),
        max_steps=500,
        throw=False,
    ).value


def maps(h, x, y, epsilon, warm):
    """T(x) and T⁻¹(y) of two clouds of equal weights, and the solutions to start from next time."""
    pairs = jax.vmap(jax.vmap(convex, (None, 0)), (None, 0))
    z = x[:, None] - y
    C = pairs(h, z)
    eps = epsilon * jax.lax.stop_gradient(jnp.mean(C))
    solver = sinkhorn.Sinkhorn(
        threshold=1e-6,
        max_iterations=20_000,
        implicit_diff=implicit_differentiation.ImplicitDiff(),
    )
    problem = linear_problem.LinearProblem(geometry.Geometry(cost_matrix=C, epsilon=eps))
    found = solver(problem, init=(warm["f"], warm["g"]))
    G = jax.vmap(jax.vmap(jax.grad(convex, argnums=1), (None, 0)), (None, 0))(h, z)
    s = jax.nn.softmax((found.g - C) / eps, axis=1)
    t = jax.nn.softmax((found.f[:, None] - C) / eps, axis=0)
    inverse = jax.vmap(inverse_gradient, (None, 0, 0))
    ahead = inverse(h, jnp.einsum("nm,nmd->nd", s, G), warm["ahead"])
    behind = inverse(h, jnp.einsum("nm,nmd->md", t, G), warm["behind"])
    kept = {"f": found.f, "g": found.g, "ahead": ahead, "behind": behind}
    return x - ahead, y + behind, C, jax.lax.stop_gradient(kept)


def train(h, x, y, *, epsilons, steps: int, rate: float, on_step=None):
    """Learn h from clouds whose rows belong together; the losses of all steps, and h."""
    optimiser = optax.chain(DEFAULT_OPTIMISER, optax.scale(-rate))
    warm = {
        "f": jnp.zeros(len(x)), "g": jnp.zeros(len(y)),
        "ahead": jnp.zeros_like(x), "behind": jnp.zeros_like(y),
    }  # fmt: skip

    @eqx.filter_jit
    def step(h, state, warm, epsilon):
        def objective(h):
            ahead, behind, C, kept = maps(h, x, y, epsilon, warm)
            errors = jnp.sum((ahead - y) ** 2, axis=1), jnp.sum((behind - x) ** 2, axis=1)
            loss = 0.5 * (jnp.mean(errors[0]) + jnp.mean(errors[1]))
            return loss + 1e-7 * logsumexp(C) ** 2, (loss, kept)

        (_, (loss, kept)), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(h)
        updates, state = optimiser.update(gradient, state, h)
        return eqx.apply_updates(h, updates), state, kept, loss

    state = optimiser.init(eqx.filter(h, eqx.is_inexact_array))
    losses = []
    for k in range(steps):
        epsilon = epsilons[0] * (epsilons[1] / epsilons[0]) ** (k / steps)
        h, state, warm, loss = step(h, state, warm, jnp.asarray(epsilon))
        losses.append(float(loss))
        if on_step is not None:
            on_step()
    return h, np.asarray(losses)
