"""The semi-dual of an entropic transport problem: its value and derivatives at given g."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mongefit._duals.problem import DualProblem
from mongefit._numerics import safe_log, safe_sqrt
from mongefit._runtime import LARGEST_FACTORISED, on_cpu


class Point(eqx.Module):
    """The semi-dual at g: everything that a solver wants to know there."""

    g: Float[Array, " m"]
    conditional: Float[Array, "n m"]  # P̃, the plan with rows normalised to 1
    column: Float[Array, " m"]  # colsum(P)
    value: Float[Array, ""]  # F(g)
    size: Float[Array, ""]  # Σ a|f| + Σ b|g|, the scale of rounding in F
    error: Float[Array, ""]  # ‖b − colsum(P)‖₁


def semidual(problem: DualProblem, g: Float[Array, " m"]) -> Point:
    """F(g) = Σ a_i f_i(g) + Σ b_j g_j, and what belongs to it."""
    a, b, eps = problem.a, problem.b, problem.eps
    logits = safe_log(b) + (g - problem.C) / eps
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    weight = jnp.exp(logits - peak)
    total = jnp.sum(weight, axis=1, keepdims=True)
    # Not exp(logits − log total): at large |logits| its rows would sum to 1 + 1e-9, and the Hessian
    # of the semi-dual would not be semidefinite.
    conditional = weight / total
    f = -eps * (peak + jnp.log(total))[:, 0]
    column = a @ conditional
    return Point(
        g=g,
        conditional=conditional,
        column=column,
        value=a @ f + b @ g,
        size=a @ jnp.abs(f) + b @ jnp.abs(g),
        error=jnp.sum(jnp.abs(b - column)),
    )


class _ScaledHessian(eqx.Module):
    """eps c^(−1/2) (−∇²F) c^(−1/2) with the constants deflated: I − KᵀK + √c √cᵀ / Σc.

    K = diag(√a) P̃ diag(c^(−1/2)) has singular values in [0, 1].
    """

    root_a: Float[Array, " n"]
    root: Float[Array, " m"]
    inverse_root: Float[Array, " m"]
    conditional: Float[Array, "n m"]

    def __init__(self, a, conditional, column):
        self.root_a = safe_sqrt(a)
        self.root = safe_sqrt(column)
        positive = column > 0
        self.inverse_root = jnp.where(positive, 1 / jnp.where(positive, self.root, 1.0), 0.0)
        self.conditional = conditional

    def matrix(self) -> Float[Array, "m m"]:
        K = self.root_a[:, None] * self.conditional * self.inverse_root
        outer = jnp.outer(self.root, self.root) / jnp.sum(self.root**2)
        return jnp.eye(len(self.root), dtype=K.dtype) - K.T @ K + outer

    def multiply(self, vector: Float[Array, " m"]) -> Float[Array, " m"]:
        Kx = self.root_a * (self.conditional @ (self.inverse_root * vector))
        constant = self.root * (self.root @ vector) / jnp.sum(self.root**2)
        return vector - self.inverse_root * ((self.root_a * Kx) @ self.conditional) + constant


def hessian_inverse(
    problem: DualProblem, point: Point, *, rtol: float = 1e-8, atol: float = 0.0
) -> Callable[..., Float[Array, " m"]]:
    r"""The map (r, damping) ↦ (−∇²F + damping · diag(c)/eps)⁺ r at a point, with c = colsum(P).

    It is differentiable in r, in the problem and in the point, any number of times.

    −∇²F = (diag(c) − P̃ᵀ diag(a) P̃)/eps. Scaled by c^(−1/2) on both sides it is I − KᵀK with the
    singular values of K in [0, 1]. Each connected component of the plan contributes one null
    vector. The overall constant is deflated exactly; the offsets between components that exchange
    no mass in this precision by a shift just above rounding, whose effect on all other directions
    two rounds of refinement undo. A right-hand side that conserves the mass of each component has
    nothing along them, so these offsets stay where the last connected solve left them.

    Beyond ``LARGEST_FACTORISED`` columns the system is solved by conjugate gradients, which need
    only the plan, until the scaled residual is below ``rtol`` times the first or below ``atol``;
    in a reverse derivative only ``rtol`` counts. To first order, the scaled residual bounds the L1
    error of the marginal after a Newton step.
    """
    scaled = _ScaledHessian(problem.a, point.conditional, point.column)
    if point.column.shape[0] <= LARGEST_FACTORISED:
        return _by_factorisation(scaled, problem.eps)

    def solve(right, damping):
        solution = jax.lax.custom_linear_solve(
            lambda vector: scaled.multiply(vector) + damping * vector,
            scaled.inverse_root * right,
            partial(conjugate_gradients, rtol=rtol, atol=atol),
            partial(conjugate_gradients, rtol=rtol, atol=0.0),
            symmetric=True,
        )
        return problem.eps * scaled.inverse_root * solution

    return solve


def conjugate_gradients(
    multiply: Callable[[Float[Array, " m"]], Float[Array, " m"]],
    right: Float[Array, " m"],
    *,
    rtol: float,
    atol: float,
    max_iter: int = 1000,
) -> Float[Array, " m"]:
    """The solution of a positive semidefinite system, consistent where it is singular."""
    rtol = max(rtol, 4 * float(jnp.finfo(right.dtype).eps))
    square = right @ right
    limit = jnp.maximum(rtol**2 * square, atol**2)

    def unfinished(carry):
        _, _, _, square, curvature, iteration = carry
        return (square > limit) & (curvature > 0) & (iteration < max_iter)

    def iterate(carry):
        solution, rest, direction, square, _, iteration = carry
        image = multiply(direction)
        curvature = direction @ image
        length = jnp.where(curvature > 0, square / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        rest = rest - length * image
        next_square = rest @ rest
        return (
            solution + length * direction,
            rest,
            rest + next_square / square * direction,
            next_square,
            curvature,
            iteration + 1,
        )

    start = (jnp.zeros_like(right), right, right, square, jnp.ones_like(square), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, iterate, start)[0]


def _factored_solve(factor: Float[Array, "m m"]) -> Callable[[Array], Array]:
    """The function that multiplies by the inverse of LLᵀ."""
    if on_cpu() or factor.shape[0] > 1024:
        return lambda right: jax.scipy.linalg.cho_solve((factor, True), right)
    # An accelerator takes longer for one triangular solve of this size than for the inverse of L.
    inverse = triangular_inverse(factor)
    return lambda right: inverse.T @ (inverse @ right)


def triangular_inverse(factor: Float[Array, "m m"], *, base: int = 16) -> Float[Array, "m m"]:
    """L⁻¹ by blocks: those on the diagonal are inverted all at once, then joined two by two.

    The inverse of [[A, 0], [B, C]] is [[A⁻¹, 0], [−C⁻¹BA⁻¹, C⁻¹]]. All but the smallest blocks are
    matrix products, of which an accelerator waits for few.
    """
    m = factor.shape[0]
    blocks = 1
    while base * blocks < m:
        blocks *= 2
    size = base * blocks
    whole = jnp.eye(size, dtype=factor.dtype).at[:m, :m].set(factor)

    def diagonal(blocks):
        return jnp.einsum("iaib->iab", whole.reshape(blocks, size // blocks, blocks, -1))

    identity = jnp.broadcast_to(jnp.eye(base, dtype=factor.dtype), (blocks, base, base))
    inverse = jax.scipy.linalg.solve_triangular(diagonal(blocks), identity, lower=True)
    while blocks > 1:
        blocks //= 2
        half = inverse.shape[-1]
        first, second = inverse[0::2], inverse[1::2]
        corner = -second @ diagonal(blocks)[:, half:, :half] @ first
        upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
        inverse = jnp.concatenate([upper, jnp.concatenate([corner, second], axis=2)], axis=1)
    return inverse[0, :m, :m]


def _by_factorisation(scaled: _ScaledHessian, eps):
    undamped = scaled.matrix()
    size, dtype = undamped.shape[0], undamped.dtype
    identity = jnp.eye(size, dtype=dtype)
    shift = 20 * size * jnp.finfo(dtype).eps

    def solve(right, damping):
        matrix = undamped + damping * identity
        factor = jnp.linalg.cholesky(jax.lax.stop_gradient(matrix) + shift * identity)
        # Should it fail all the same, the identity makes a short safe step of the rest.
        factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, identity)
        apply = _factored_solve(factor)

        def refined(multiply, right):
            def refine(_, solution):
                return solution + apply(right - multiply(solution))

            return jax.lax.fori_loop(0, 3, refine, jnp.zeros_like(right))

        solution = jax.lax.custom_linear_solve(
            lambda vector: matrix @ vector, scaled.inverse_root * right, refined, symmetric=True
        )
        return eps * scaled.inverse_root * solution

    return solve
