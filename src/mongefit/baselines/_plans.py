"""Entropic plans of any cost matrix, and the memory that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from mongefit._duals import DualProblem, DualSolver, NewtonDual, SinkhornDual, solve_dual
from mongefit._runtime import double_precision, lapack_threads, require_memory
from mongefit.errors import ConvergenceError

Points = NDArray[np.float64]
Weights = NDArray[np.float64]
Matrix = NDArray[np.float64]
Solution = TypeVar("Solution")

# Sinkhorn's iterations are cheap and often enough; where they are not, Newton's are few.
SOLVERS: tuple[DualSolver, ...] = (SinkhornDual(max_iter=500), NewtonDual())


@eqx.filter_jit
def compiled_solve_dual(C, a, b, eps, **options):
    """`solve_dual` with the potentials held constant, compiled once for matrices of one shape."""
    return solve_dual(DualProblem(C, a, b, eps=eps), differentiate="none", **options)


def check_memory(n: int, m: int, *, matrices: int = 13) -> None:
    """Refuse what would not fit into memory: by default a dual solve between n and m points.

    ``matrices`` counts the n×m matrices that live at the same time.
    """
    require_memory(
        8 * matrices * rounded_up(n) * rounded_up(m),
        f"Costs and plans between {n} and {m} points need",
        "Take a random part of the points.",
    )


def squared_euclidean(x: Points, y: Points) -> Matrix:
    """½‖x_i − y_j‖² for all pairs, from the differences themselves: nothing cancels."""
    check_memory(len(x), len(y), matrices=2)
    return 0.5 * cdist(x, y, "sqeuclidean")


def at_smallest_eps(
    solve: Callable[[float], tuple[Solution, bool]], eps: float, mean_cost: float
) -> tuple[Solution, float]:
    """The solution at eps or, where that does not converge, at the smallest doubling that does."""
    # Below 1e-9 of the mean cost rounding alone is above tolerance; from the mean cost on every
    # problem can be solved.
    used = max(eps, 1e-9 * mean_cost)
    while True:
        solution, converged = solve(used)
        if converged:
            return solution, used
        if used >= mean_cost:
            raise ConvergenceError(
                f"The transport problem could not be solved at any eps from {eps:.3g} to "
                f"{used:.3g}. Remove points that lie very far from all others."
            )
        used *= 2


def solve(
    C: Matrix, a: Weights, b: Weights, eps: float, *, solvers: Sequence[DualSolver] = SOLVERS
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], bool]:
    """The potentials (f, g) of the first solver that converges, or those of the last."""
    n, m = C.shape
    # Points of weight zero change no potential of the others, and with them few sizes have to be
    # compiled.
    rows, columns = rounded_up(n) - n, rounded_up(m) - m
    with double_precision(), lapack_threads(n * m):
        # eps too as an array: a plain number would be compiled in.
        problem = (
            jnp.asarray(np.pad(C, ((0, rows), (0, columns)), mode="edge")),
            jnp.asarray(np.pad(a, (0, rows))),
            jnp.asarray(np.pad(b, (0, columns))),
            jnp.asarray(eps),
        )
        for solver in solvers:
            dual = compiled_solve_dual(*problem, solver=solver)
            if dual.converged:
                break
        return (np.asarray(dual.f)[:n], np.asarray(dual.g)[:m]), bool(dual.converged)


def rounded_up(size: int) -> int:
    """A multiple of 32, for large sizes at most a quarter larger; there are few of them."""
    step = max(32, 2 ** (size.bit_length() - 1) // 4)
    return step * math.ceil(size / step)


def entropic_plan(C: Matrix, a: Weights, b: Weights, epsilon: float) -> tuple[Matrix, float]:
    """The plan of C at eps = epsilon · mean_{a⊗b}(|C|), and the epsilon at which it was solved.

    An epsilon that is too small to be solved is doubled until it is not.
    """
    check_memory(*C.shape)
    mean_cost = float(a @ np.abs(C) @ b)
    if mean_cost == 0:
        # Every cost that carries weight is zero: all eps have the plan a⊗b.
        return np.outer(a, b), epsilon
    asked = epsilon * mean_cost
    (f, g), eps = at_smallest_eps(lambda eps: solve(C, a, b, eps), asked, mean_cost)
    with double_precision():
        P = np.asarray(DualProblem(C, a, b, eps=eps).plan(jnp.asarray(f), jnp.asarray(g)))
    return P, epsilon if eps == asked else eps / mean_cost
