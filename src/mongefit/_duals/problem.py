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

        f_i = −τ_a eps log Σ_j b_j exp((g_j − C_ij)/eps),
        g_j = −τ_b eps log Σ_i a_i exp((f_i − C_ij)/eps),
        P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps).

    With τ = 1 the plan has exactly the weights of that side. With τ < 1 it need not: mass is
    created or destroyed at a price of ρ KL(mass | weights), τ = ρ/(ρ + eps).

    Parameters
    ----------
    C
        Cost matrix, [n, m].
    a, b
        Non-negative weights of the rows and columns, each with sum 1; uniform if None.
    eps
        Absolute regularisation, positive.
    tau_a, tau_b
        How strictly the plan keeps the weights of the rows and of the columns, in (0, 1].

    Attributes
    ----------
    tau_a, tau_b
        None where the weights are kept exactly.
    """

    C: Float[Array, "n m"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    eps: Float[Array, ""]
    tau_a: Float[Array, ""] | None
    tau_b: Float[Array, ""] | None

    def __init__(
        self,
        C: Any,
        a: Any = None,
        b: Any = None,
        *,
        eps: Any,
        tau_a: Any = None,
        tau_b: Any = None,
    ):
        C = as_floats(C)
        if C.ndim != 2:
            raise DataError(f"C must be a matrix [n, m], got an array of shape {C.shape}.")
        check_regularisation(eps, "eps")
        n, m = C.shape
        self.C = C
        self.a = jnp.full(n, 1 / n, C.dtype) if a is None else as_floats(a)
        self.b = jnp.full(m, 1 / m, C.dtype) if b is None else as_floats(b)
        self.eps = jnp.asarray(eps, C.dtype)
        self.tau_a = as_tau(tau_a, "tau_a", C.dtype)
        self.tau_b = as_tau(tau_b, "tau_b", C.dtype)
        if self.a.shape != (n,) or self.b.shape != (m,):
            raise DataError(
                f"C is {n} × {m}: weights of shapes ({n},) and ({m},) are needed, got "
                f"{self.a.shape} and {self.b.shape}."
            )

    def at(self, eps: Float[Array, ""]) -> DualProblem:
        """The same problem, with the same ρ, at another regularisation."""
        tau_a, tau_b = (
            None if tau is None else tau * self.eps / (tau * self.eps + (1 - tau) * eps)
            for tau in (self.tau_a, self.tau_b)
        )
        return DualProblem(self.C, self.a, self.b, eps=eps, tau_a=tau_a, tau_b=tau_b)

    def transposed(self) -> DualProblem:
        """The problem from the columns to the rows."""
        taus = {"tau_a": self.tau_b, "tau_b": self.tau_a}
        return DualProblem(self.C.T, self.b, self.a, eps=self.eps, **taus)

    @property
    def balanced(self) -> bool:
        """Whether the weights of both sides are kept exactly."""
        return self.tau_a is None and self.tau_b is None

    def plan(self, f: Float[Array, " n"], g: Float[Array, " m"]) -> Float[Array, "n m"]:
        """P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps)."""
        weights = safe_log(self.a)[:, None] + safe_log(self.b)[None, :]
        return jnp.exp(weights + self.log_density(f, g))

    def log_density(self, f: Float[Array, " n"], g: Float[Array, " m"]) -> Float[Array, "n m"]:
        """log of P_ij/(a_i b_j), (f_i + g_j − C_ij)/eps."""
        return (f[:, None] + g[None, :] - self.C) / self.eps

    def source_potential(self, g: Float[Array, " m"]) -> Float[Array, " n"]:
        """The best f for g: then every row of the plan has its mass, `source_mass`."""
        return relaxed(soft_minimum(self.C, self.b, g, self.eps), self.tau_a)

    def target_potential(self, f: Float[Array, " n"]) -> Float[Array, " m"]:
        """The best g for f: then every column of the plan has its mass, `target_mass`."""
        return relaxed(soft_minimum(self.C.T, self.a, f, self.eps), self.tau_b)

    def source_mass(self, f: Float[Array, " n"]) -> Float[Array, " n"]:
        """What each row of the best plan sends, a exp(−f/ρ_a): a where τ_a = 1."""
        return kept_mass(self.a, f, self.eps, self.tau_a)

    def target_mass(self, g: Float[Array, " m"]) -> Float[Array, " m"]:
        """What each column of the best plan receives, b exp(−g/ρ_b): b where τ_b = 1."""
        return kept_mass(self.b, g, self.eps, self.tau_b)

    def marginal_error(self, f: Float[Array, " n"], g: Float[Array, " m"]) -> Float[Array, ""]:
        """How far rows and columns of the plan of f and g are from their mass, in L1."""
        P = self.plan(f, g)
        rows, columns = P.sum(1) - self.source_mass(f), P.sum(0) - self.target_mass(g)
        return jnp.sum(jnp.abs(rows)) + jnp.sum(jnp.abs(columns))


class DualSolution(eqx.Module):
    """Potentials of an entropic transport problem and how well they were found.

    Attributes
    ----------
    f, g
        Potentials, finite whatever happened, with Σ a_i f_i = Σ b_j g_j where τ_a = τ_b = 1.
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


def relaxed(potential: Float[Array, " n"], tau: Float[Array, ""] | None) -> Float[Array, " n"]:
    """The potential of a side that keeps its weights with strength τ, from that of τ = 1."""
    return potential if tau is None else tau * potential


def kept_mass(
    weight: Float[Array, " n"],
    potential: Float[Array, " n"],
    eps: Float[Array, ""],
    tau: Float[Array, ""] | None,
) -> Float[Array, " n"]:
    """weight · exp(−potential/ρ), ρ = eps τ/(1 − τ): the mass that the best plan has there."""
    return weight if tau is None else weight * jnp.exp(-potential * strictness(eps, tau))


def strictness(eps: Float[Array, ""], tau: Float[Array, ""]) -> Float[Array, ""]:
    """1/ρ = (1 − τ)/(τ eps): the larger, the less mass is kept where the potential is high."""
    return (1 - tau) / (tau * eps)


def expm1_over(x: Float[Array, "*n"], k: Float[Array, ""]) -> Float[Array, "*n"]:
    """(exp(kx) − 1)/k, which is x at k = 0."""
    positive = k > 0
    return jnp.where(positive, jnp.expm1(k * x) / jnp.where(positive, k, 1.0), x)


def default_tolerance(dtype: Any) -> float:
    """Marginal error at which a dual counts as solved: 1e-9, or 1e-3 in float32.

    In float32 the exponent (f + g − C)/eps alone carries an error of max(C)/eps · 6e-8.
    """
    return 1e-9 if dtype == jnp.float64 else 1e-3


def as_floats(values: Any) -> Float[Array, "..."]:
    """A real array out of arrays, lists and whole numbers."""
    array = jnp.asarray(values)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_tau(value: Any, name: str, dtype: Any) -> Float[Array, ""] | None:
    """A strength in (0, 1] as an array, None for 1; one that is traced is not checked."""
    if value is None:
        return None
    if not is_traced(value):
        number = np.asarray(value)
        if number.shape != () or not 0 < number <= 1:
            raise OptionError(f"{name} must be a number above 0 and at most 1, got {value}.")
        if number == 1:
            return None
    return jnp.asarray(value, dtype)


def check_regularisation(value: Any, name: str) -> None:
    """Refuse a number that is not positive. One that is traced shows in the status of the solve."""
    if not is_traced(value) and not np.all(np.asarray(value) > 0):
        raise OptionError(f"{name} must be positive, got {value}.")
