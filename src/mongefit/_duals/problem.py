"""An entropic transport problem, seen only through its cost matrix."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from mongefit._numerics import Status, safe_log
from mongefit._runtime import is_traced
from mongefit.errors import DataError, OptionError


class DualProblem(eqx.Module):
    r"""Costs, weights and the regularisation of an entropic transport problem.

    The weights appear exactly once,

        f_i = −eps log Σ_j b_j exp((g_j − C_ij)/eps),    P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps).

    Parameters
    ----------
    C
        Cost matrix, [n, m].
    a, b
        Non-negative weights of the rows and columns, each with sum 1; uniform if None.
    eps
        Absolute regularisation, positive.
    """

    C: Float[Array, "n m"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    eps: Float[Array, ""]

    def __init__(self, C: Any, a: Any = None, b: Any = None, *, eps: Any):
        C = as_floats(C)
        if C.ndim != 2:
            raise DataError(f"C must be a matrix [n, m], got an array of shape {C.shape}.")
        check_regularisation(eps, "eps")
        n, m = C.shape
        self.C = C
        self.a = jnp.full(n, 1 / n, C.dtype) if a is None else as_floats(a)
        self.b = jnp.full(m, 1 / m, C.dtype) if b is None else as_floats(b)
        self.eps = jnp.asarray(eps, C.dtype)
        if self.a.shape != (n,) or self.b.shape != (m,):
            raise DataError(
                f"C is {n} × {m}: weights of shapes ({n},) and ({m},) are needed, got "
                f"{self.a.shape} and {self.b.shape}."
            )

    def at(self, eps: Float[Array, ""]) -> DualProblem:
        """The same problem with another regularisation."""
        return DualProblem(self.C, self.a, self.b, eps=eps)

    def transposed(self) -> DualProblem:
        """The problem from the columns to the rows."""
        return DualProblem(self.C.T, self.b, self.a, eps=self.eps)

    def plan(self, f: Float[Array, " n"], g: Float[Array, " m"]) -> Float[Array, "n m"]:
        """P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps)."""
        exponent = (f[:, None] + g[None, :] - self.C) / self.eps
        return jnp.exp(safe_log(self.a)[:, None] + safe_log(self.b)[None, :] + exponent)

    def source_potential(self, g: Float[Array, " m"]) -> Float[Array, " n"]:
        """The best f for g: then every row of the plan has its mass."""
        return soft_minimum(self.C, self.b, g, self.eps)

    def target_potential(self, f: Float[Array, " n"]) -> Float[Array, " m"]:
        """The best g for f: then every column of the plan has its mass."""
        return soft_minimum(self.C.T, self.a, f, self.eps)

    def marginal_error(self, f: Float[Array, " n"], g: Float[Array, " m"]) -> Float[Array, ""]:
        """‖P1 − a‖₁ + ‖Pᵀ1 − b‖₁ of the plan that f and g define."""
        P = self.plan(f, g)
        return jnp.sum(jnp.abs(P.sum(1) - self.a)) + jnp.sum(jnp.abs(P.sum(0) - self.b))


class DualSolution(eqx.Module):
    """Potentials of an entropic transport problem and how well they were found.

    Attributes
    ----------
    f, g
        Potentials, finite whatever happened, with Σ a_i f_i = Σ b_j g_j.
    error
        L1 error of both marginals of the plan that f and g define, recomputed from them.
    iterations
        Newton or Sinkhorn iterations, over all stages.
    status
        A `Status`: whether ``error`` is within tolerance, and if not why the solver stopped.
    """

    f: Float[Array, " n"]
    g: Float[Array, " m"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    status: Int[Array, ""]

    @property
    def converged(self):
        """Whether the marginal error was checked to be within tolerance."""
        return self.status == Status.CONVERGED


def soft_minimum(
    C: Float[Array, "n m"],
    weight: Float[Array, " m"],
    potential: Float[Array, " m"],
    eps: Float[Array, ""],
) -> Float[Array, " n"]:
    """−eps log Σ_j weight_j exp((potential_j − C_ij)/eps), for every row i."""
    return -eps * logsumexp(safe_log(weight) + (potential - C) / eps, axis=1)


def default_tolerance(dtype: Any) -> float:
    """Marginal error at which a dual counts as solved: 1e-9, or 1e-3 in float32.

    In float32 the exponent (f + g − C)/eps alone carries an error of max(C)/eps · 6e-8.
    """
    return 1e-9 if dtype == jnp.float64 else 1e-3


def as_floats(values: Any) -> Float[Array, "..."]:
    """A real array out of arrays, lists and whole numbers."""
    array = jnp.asarray(values)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def check_regularisation(value: Any, name: str) -> None:
    """Refuse a number that is not positive. One that is traced shows in the status of the solve."""
    if not is_traced(value) and not np.all(np.asarray(value) > 0):
        raise OptionError(f"{name} must be positive, got {value}.")
