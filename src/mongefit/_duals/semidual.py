"""The semi-dual of an entropic transport problem: its value and derivatives at given g."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from mongefit._duals.problem import DualProblem, expm1_over, strictness
from mongefit._numerics import safe_log, safe_sqrt
from mongefit._runtime import LARGEST_FACTORISED, on_cpu


class Point(eqx.Module):
    """The semi-dual at g: everything that a solver wants to know there."""

    g: Float[Array, " m"]
    conditional: Float[Array, "n m"]  # P̃, the plan with rows normalised to 1
    row: Float[Array, " n"]  # r = rowsum(P)
    column: Float[Array, " m"]  # c = colsum(P)
    gradient: Float[Array, " m"]  # ∇F = b exp(−g/ρ_b) − c
    diagonal: Float[Array, " m"]  # c + (eps/ρ_b) b exp(−g/ρ_b)
    value: Float[Array, ""]  # F(g)
    size: Float[Array, ""]  # Σ a|f| + Σ b|g|, the scale of rounding in F
    error: Float[Array, ""]  # ‖∇F‖₁


def semidual(problem: DualProblem, g: Float[Array, " m"], *, centred: bool = False) -> Point:
    """F(g) = −ρ_a Σ a_i (exp(−f_i/ρ_a) − 1) − ρ_b Σ b_j (exp(−g_j/ρ_b) − 1) − eps (Σ P_ij − 1).

    f is the best one for g, so that r_i = a_i exp(−f_i/ρ_a) is the mass of row i. With
    τ_a = τ_b = 1 it is F(g) = Σ a_i f_i(g) + Σ b_j g_j.

    If ``centred`` it is the best point that differs from g by a constant, where a side is relaxed.
    The plan is then the same but for a factor, so that this costs nothing.
    """
    a, b, eps, tau_a, tau_b = problem.a, problem.b, problem.eps, problem.tau_a, problem.tau_b
    logits = safe_log(b) + (g - problem.C) / eps
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    weight = jnp.exp(logits - peak)
    total = jnp.sum(weight, axis=1, keepdims=True)
    # Not exp(logits − log total): at large |logits| its rows would sum to 1 + 1e-9, and the Hessian
    # of the semi-dual would not be semidefinite.
    conditional = weight / total
    f = -eps * (peak + jnp.log(total))[:, 0]
    if centred and not problem.balanced:
        shift = _best_shift(problem, f, g)
        f, g = f - shift, g + shift
    of_f, of_g, row, kept = f, g, a, b
    if tau_a is not None:
        # With f that of τ_a = 1 a row has the mass a exp(−(1 − τ_a) f/eps), and the terms of F that
        # belong to it are a eps (1 − exp(−(1 − τ_a) f/eps))/(1 − τ_a).
        of_f = -eps * expm1_over(-f / eps, 1 - tau_a)
        row = a * jnp.exp(-(1 - tau_a) * f / eps)
        f = tau_a * f
    column = row @ conditional
    diagonal = column
    if tau_b is not None:
        of_g = -expm1_over(-g, strictness(eps, tau_b))
        kept = problem.target_mass(g)
        diagonal = column + kept * (1 - tau_b) / tau_b
    gradient = kept - column
    return Point(
        g=g,
        conditional=conditional,
        row=row,
        column=column,
        gradient=gradient,
        diagonal=diagonal,
        value=a @ of_f + b @ of_g,
        size=a @ jnp.abs(f) + b @ jnp.abs(g),
        error=jnp.sum(jnp.abs(gradient)),
    )


def _best_shift(problem: DualProblem, f: Float[Array, " n"], g: Float[Array, " m"]):
    """The constant t at which F(g + t) is largest: there rows and columns hold the same mass.

    ``f`` is that of τ_a = 1. Rows hold Σ a exp(−(1 − τ_a)(f − t)/eps), and columns hold
    Σ b exp(−(g + t)/ρ_b).
    """
    eps, tau_a, tau_b = problem.eps, problem.tau_a, problem.tau_b
    of_rows = 0.0 if tau_a is None else (1 - tau_a) / eps
    of_columns = 0.0 if tau_b is None else strictness(eps, tau_b)
    rows = logsumexp(safe_log(problem.a) - of_rows * f)
    columns = logsumexp(safe_log(problem.b) - of_columns * g)
    rate = of_rows + of_columns
    # Nothing is free where both τ are 1.
    return jnp.where(rate > 0, (columns - rows) / jnp.where(rate > 0, rate, 1.0), 0.0)


class _ScaledHessian(eqx.Module):
    """eps D^(−1/2) (−∇²F) D^(−1/2) = I − KᵀK, D the diagonal of a point.

    K = diag(√(τ_a r)) P̃ D^(−1/2) has singular values in [0, 1]. Where both sides keep their
    weights the constants are a null vector, which is deflated: √D √Dᵀ / ΣD is added.
    """

    root_row: Float[Array, " n"]
    root: Float[Array, " m"]
    inverse_root: Float[Array, " m"]
    conditional: Float[Array, "n m"]
    deflate: bool = eqx.field(static=True)

    def __init__(self, problem: DualProblem, point: Point):
        row = point.row if problem.tau_a is None else problem.tau_a * point.row
        self.root_row = safe_sqrt(row)
        self.root = safe_sqrt(point.diagonal)
        positive = point.diagonal > 0
        self.inverse_root = jnp.where(positive, 1 / jnp.where(positive, self.root, 1.0), 0.0)
        self.conditional = point.conditional
        self.deflate = problem.balanced

    def matrix(self) -> Float[Array, "m m"]:
        K = self.root_row[:, None] * self.conditional * self.inverse_root
        found = jnp.eye(len(self.root), dtype=K.dtype) - K.T @ K
        if self.deflate:
            found = found + jnp.outer(self.root, self.root) / jnp.sum(self.root**2)
        return found

    def multiply(self, vector: Float[Array, " m"]) -> Float[Array, " m"]:
        Kx = self.root_row * (self.conditional @ (self.inverse_root * vector))
        found = vector - self.inverse_root * ((self.root_row * Kx) @ self.conditional)
        if self.deflate:
            found = found + self.root * (self.root @ vector) / jnp.sum(self.root**2)
        return found


def hessian_inverse(
    problem: DualProblem, point: Point, *, rtol: float = 1e-8, atol: float = 0.0
) -> Callable[..., Float[Array, " m"]]:
    r"""The map (v, damping) ↦ (−∇²F + damping · diag(D)/eps)⁺ v at a point, D its ``diagonal``.

    It is differentiable in v, in the problem and in the point, any number of times.

    −∇²F = (diag(D) − τ_a P̃ᵀ diag(r) P̃)/eps. Scaled by D^(−1/2) on both sides it is I − KᵀK with
    the singular values of K in [0, 1], below 1 where a side is relaxed. Else each connected
    component of the plan contributes one null vector. The overall constant is deflated exactly; the
    offsets between components that exchange no mass in this precision by a shift just above
    rounding, whose effect on all other directions two rounds of refinement undo. A right-hand side
    that conserves the mass of each component has nothing along them, so these offsets stay where
    the last connected solve left them.

    Beyond ``LARGEST_FACTORISED`` columns the system is solved by conjugate gradients, which need
    only the plan, until the scaled residual is below ``rtol`` times the first or below ``atol``;
    in a reverse derivative only ``rtol`` counts. To first order, the scaled residual bounds the L1
    error of the marginal after a Newton step.
    """
    scaled = _ScaledHessian(problem, point)
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
