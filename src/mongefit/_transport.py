r"""The entropic map: the one kernel of T, T⁻¹ and the conditional weights.

Forward, with u = Φμ(x) and the softmax weights s of the potential,

    p(u) = Σ_j s_j ∇h(u − v_j),    T(x) = Φν⁻¹(u − (∇h)⁻¹(p(u))),

and in reverse p(v) = Σ_i t_i ∇h(u_i − v), T⁻¹(y) = Φμ⁻¹(v + (∇h)⁻¹(p(v))). No symmetry of h is
assumed. `displace` computes both from potentials; the training step and `EntropicMap` call it.

Entropic maps shrink at the boundary of a cloud. The map S of a cloud to itself shrinks alike, so a
debiased map adds u − S(u) to the latent image: T(x) = Φν⁻¹(u − (∇h)⁻¹(p(u)) + u − S(u)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mongefit._convex import ConvexFunction, QuadraticConvexFunction
from mongefit._costs import Cost, pairwise_value
from mongefit._duals import (
    Differentiation,
    DualProblem,
    DualSolution,
    DualSolver,
    SymmetricDual,
    as_floats,
    check_differentiation,
    check_regularisation,
    kept_mass,
    relaxed,
    soft_minimum,
    solve_dual,
)
from mongefit._inverse import InverseGradientSolver, inverse_gradient
from mongefit._numerics import safe_log, safe_norm
from mongefit._pairs import PairCosts, PairRequest, take
from mongefit._registry import Registered
from mongefit._runtime import double_precision, is_traced, to_device
from mongefit.errors import DataError


class Potentials(eqx.Module):
    """Weights and potentials of both clouds, and eps: all that determines an entropic map."""

    a: Float[Array, " n"]
    b: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    eps: Float[Array, ""]


class Displaced(eqx.Module):
    """Displacements (∇h)⁻¹(p) of the requested points, and how well they were found.

    Attributes
    ----------
    s, t
        Conditional weights of the requested rows over v, and of the requested columns over u.
    rows, columns
        Displacements of the requested rows, u − T, and of the requested columns, T⁻¹ − v.
    residual, converged
        Of the inverse gradient, for the rows followed by the columns.
    iterations
        Iterations that the slowest point took.
    """

    s: Float[Array, "r m"]
    t: Float[Array, "c n"]
    rows: Float[Array, "r d"]
    columns: Float[Array, "c d"]
    residual: Float[Array, " both"]
    converged: Bool[Array, " both"]
    iterations: Int[Array, ""]

    @property
    def z(self) -> Float[Array, "both d"]:
        """All displacements, the rows first."""
        return jnp.concatenate([self.rows, self.columns])


def displace(
    costs: PairCosts,
    potentials: Potentials,
    *,
    guess: Float[Array, "both d"] | None = None,
    solver: InverseGradientSolver | None = None,
    one_step: bool = False,
) -> Displaced:
    """How far the map moves the requested points of two latent clouds, in both directions.

    Parameters
    ----------
    costs
        Costs of all pairs, and the rows and columns to move.
    potentials
        Weights, potentials and eps. Those of a side that nothing is moved towards are not used.
    guess
        Where to start the search for each displacement. Rows that are not finite, and all rows by
        default, start from the mean displacement, which is the answer for quadratic h.
    solver
        Method for (∇h)⁻¹.
    one_step
        Use the fast derivative of `inverse_gradient`, which is right to first order only.
    """
    h, u, v = costs.h, costs.u, costs.v
    rows, columns, eps = costs.request.rows, costs.request.columns, potentials.eps
    # Without rows, or columns, there are no weights, and no potentials need fit.
    s = take(costs.C, rows)
    if len(rows):
        s = conditional_weights(s, potentials.b, potentials.g, eps)
    t = take(costs.C.T, columns)
    if len(columns):
        t = conditional_weights(t, potentials.a, potentials.f, eps)
    start = mean = jnp.concatenate([u[rows] - s @ v, t @ u - v[columns]])
    split = len(rows)
    if isinstance(h, QuadraticConvexFunction):
        # (∇h)⁻¹ of a mean of ∇h is the mean displacement.
        finite = jnp.all(jnp.isfinite(mean), axis=1)
        none = jnp.where(finite, 0.0, jnp.nan).astype(mean.dtype)
        return Displaced(s, t, mean[:split], mean[split:], none, finite, jnp.asarray(0))
    of_rows, of_columns = costs.gradients(s, t)
    p = jnp.concatenate(
        [jnp.einsum("Nm,Nmd->Nd", s, of_rows), jnp.einsum("Nm,Nmd->Nd", t, of_columns)]
    )
    if guess is not None:
        start = jnp.where(jnp.isfinite(guess), guess, jax.lax.stop_gradient(mean))
    found = inverse_gradient(h, p, start, solver=solver, one_step=one_step)
    return Displaced(
        s, t, found.z[:split], found.z[split:], found.residual, found.converged, found.iterations
    )


def conditional_weights(
    C: Float[Array, "N m"],
    weight: Float[Array, " m"],
    potential: Float[Array, " m"],
    eps: float | Float[Array, ""],
) -> Float[Array, "N m"]:
    """s = softmax_j(log weight_j + (potential_j − C_j)/eps), for every row of C."""
    return jax.nn.softmax(safe_log(weight) + (potential - C) / eps, axis=1)


class Units(Registered):
    """Common units of all clouds: one centre and one scalar scale.

    One scale for all features and clouds, because anything else would change what squared
    Euclidean means.
    """

    centre: Float[Array, " d"]
    scale: Float[Array, ""]

    @classmethod
    def of(cls, *clouds: tuple[np.ndarray, np.ndarray]) -> Units:
        """Those of clouds (points, weights), each of which counts the same.

        The mean of their weighted means, and their root mean square distance to it per feature.
        """
        share = 1 / len(clouds)
        centre = share * sum(weight @ points for points, weight in clouds)
        largest = max(np.abs(points - centre).max() for points, _ in clouds)
        if largest > 0:
            # Divided by the largest first: squares of 1e170 would overflow, of 1e-170 vanish.
            spread = sum(weight @ ((points - centre) / largest) ** 2 for points, weight in clouds)
            scale = largest * np.sqrt(share * np.mean(spread))
        else:
            scale = 1.0
        return cls(to_device(centre), to_device(scale))

    @classmethod
    def none(cls, dim: int) -> Units:
        """Leave the data as they are."""
        return cls(jnp.zeros(dim), jnp.ones(()))

    def into(self, x: Float[Array | np.ndarray, "N d"]) -> Float[Array, "N d"]:
        """From the data's units into common units."""
        if isinstance(x, np.ndarray) and not is_traced(self):
            # By NumPy, which has nothing to compile.
            return to_device((x - np.asarray(self.centre)) / np.asarray(self.scale))
        return (jnp.asarray(x) - self.centre) / self.scale

    def out_of(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """From common units back into the data's."""
        return x * self.scale + self.centre


class Transported(eqx.Module):
    """Mapped points and how well each was found.

    Attributes
    ----------
    points
        T(x) or T⁻¹(y).
    residual
        Relative residual of the inverse gradient.
    round_trip
        ‖Φ(Φ⁻¹(w)) − w‖ / (1 + ‖w‖) of the flow that brought each point back from the latent space.
    converged
        Whether the inverse gradient was found within tolerance.
    distance
        From each point that was mapped to the nearest one that was fitted, in common units.
    """

    points: Float[Array, "N d"]
    residual: Float[Array, " N"]
    round_trip: Float[Array, " N"]
    converged: Bool[Array, " N"]
    distance: Float[Array, " N"]


class _Moved(NamedTuple):
    """Image minus query in the latent space, and how well it was found."""

    image: Float[Array, "N d"]
    residual: Float[Array, " N"]
    converged: Bool[Array, " N"]


def _nearest(points: Float[Array, "N d"], others: Float[Array, "n d"]) -> Float[Array, " N"]:
    """The distance of each point to the nearest of others, held constant."""
    points, others = jax.lax.stop_gradient((points, others))
    squares = jnp.sum(points**2, 1)[:, None] + jnp.sum(others**2, 1) - 2 * points @ others.T
    return jnp.sqrt(jnp.maximum(jnp.min(squares, axis=1), 0.0))


class SelfPotentials(Registered):
    """Potentials of each latent cloud with itself, under the h and the eps of a map.

    Attributes
    ----------
    source
        The second potential of the source with itself, towards which sources are mapped.
    target
        The first potential of the target with itself, from which targets are mapped back.
    """

    source: Float[Array, " n"]
    target: Float[Array, " m"]


class EntropicMap(Registered):
    """An entropic map in both directions, as arrays: it can be saved, vmapped and differentiated.

    Points go in and come out in the units of the data; everything stored is in common units.

    Attributes
    ----------
    cost
        The cost c(x, y) = h(Φμ(x) − Φν(y)).
    x, a, f
        Source points, weights and potential.
    y, b, g
        Target points, weights and potential.
    eps
        Absolute regularisation.
    units
        Common units of both clouds.
    inverse_solver
        Method for (∇h)⁻¹.
    own
        Potentials of each cloud with itself, by which the map is debiased; None if it is not.
    tau_a, tau_b
        How strictly the plan keeps the weights of each side; None where it does exactly.
    """

    cost: Cost
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    eps: Float[Array, ""]
    units: Units
    inverse_solver: InverseGradientSolver | None = None
    own: SelfPotentials | None = None
    tau_a: Float[Array, ""] | None = None
    tau_b: Float[Array, ""] | None = None

    def forward(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """T(x) for every row of x."""
        return self.transport(x).points

    def reverse(self, y: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """T⁻¹(y) for every row of y."""
        return self.transport(y, reverse=True).points

    def transport(
        self, points: Float[Array, "N d"], *, reverse: bool = False, every_order: bool = True
    ) -> Transported:
        """T, or T⁻¹ if ``reverse``, with residuals; differentiable.

        Without ``every_order`` pairs that carry no mass are left out where h need not be evaluated,
        which is faster. Only first derivatives, in reverse mode, are then right.
        """
        points = _as_rows(points, self.x.shape[1])
        with double_precision(self, points):
            cost = self.cost
            inside = self.units.into(points).astype(self.x.dtype)
            if reverse:
                queries, others = cost.latent_target(inside), cost.latent_source(self.x)
            else:
                queries, others = cost.latent_source(inside), cost.latent_target(self.y)
            moved = self._displaced(
                queries, others, self._potentials, reverse=reverse, every_order=every_order
            )
            image, residual, converged = queries + moved.image, moved.residual, moved.converged
            if self.own is not None:
                # Where the map of the cloud to itself sends the queries: S(u) − u.
                if reverse:
                    cloud, weight = cost.latent_target(self.y), self.b
                    own = Potentials(weight, weight, self.own.target, self.own.target, self.eps)
                else:
                    cloud, weight = cost.latent_source(self.x), self.a
                    own = Potentials(weight, weight, self.own.source, self.own.source, self.eps)
                bias = self._displaced(
                    queries, cloud, own, reverse=reverse, every_order=every_order
                )
                image = image - bias.image
                residual = jnp.maximum(residual, bias.residual)
                converged = converged & bias.converged
            back, there = (
                (cost.source_from_latent, cost.latent_source)
                if reverse
                else (cost.target_from_latent, cost.latent_target)
            )
            result = back(image)
            round_trip = safe_norm(there(result) - image) / (1 + safe_norm(image))
            return Transported(
                self.units.out_of(result),
                residual,
                round_trip,
                converged,
                _nearest(inside, self.y if reverse else self.x),
            )

    def _displaced(
        self,
        queries: Float[Array, "N d"],
        others: Float[Array, "m d"],
        potentials: Potentials,
        *,
        reverse: bool,
        every_order: bool,
    ) -> _Moved:
        """How far the queries move towards the others, all in the latent space."""
        everything, nothing = np.arange(len(queries)), np.arange(0)
        rows, columns = (nothing, everything) if reverse else (everything, nothing)
        u, v = (others, queries) if reverse else (queries, others)
        request = PairRequest(rows, columns, len(u), len(v))
        costs = PairCosts(self.cost.h, u, v, request, every_order=every_order)
        found = displace(costs, potentials, solver=self.inverse_solver, one_step=not every_order)
        return _Moved(found.columns if reverse else -found.rows, found.residual, found.converged)

    def f_hat(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """f̂(x) = −τ_a eps log Σ_j b_j exp((g_j − c(x, y_j))/eps), at any point, in common units."""
        with double_precision(self, x):
            inside = self.units.into(x).astype(self.x.dtype)
            found = soft_minimum(self.cost.matrix(inside, self.y), self.b, self.g, self.eps)
            return relaxed(found, self.tau_a)

    def g_hat(self, y: Float[Array, "N d"]) -> Float[Array, " N"]:
        """ĝ(y) = −τ_b eps log Σ_i a_i exp((f_i − c(x_i, y))/eps), at any point, in common units."""
        with double_precision(self, y):
            inside = self.units.into(y).astype(self.x.dtype)
            found = soft_minimum(self.cost.matrix(self.x, inside).T, self.a, self.f, self.eps)
            return relaxed(found, self.tau_b)

    def growth(self, x: Float[Array, "N d"], *, reverse: bool = False) -> Float[Array, " N"]:
        """exp(−f̂(x)/ρ_a), the mass that a unit of mass at x sends: 1 where τ_a = 1.

        With ``reverse`` exp(−ĝ(y)/ρ_b), what a unit of mass at a target point receives.
        """
        with double_precision(self, x):
            potential, tau = (self.g_hat(x), self.tau_b) if reverse else (self.f_hat(x), self.tau_a)
            return kept_mass(jnp.ones_like(potential), potential, self.eps, tau)

    @property
    def masses(self) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
        """What the plan sends from each source point and what it brings to each target point."""
        with double_precision(self):
            return (
                kept_mass(self.a, self.f, self.eps, self.tau_a),
                kept_mass(self.b, self.g, self.eps, self.tau_b),
            )

    def plan(self) -> Float[Array, "n m"]:
        """The plan between the stored clouds."""
        with double_precision(self):
            C = self.cost.matrix(self.x, self.y)
            return DualProblem(C, self.a, self.b, eps=self.eps).plan(self.f, self.g)

    def conditional(
        self, x: Float[Array, "N d"], *, reverse: bool = False
    ) -> Float[Array, "N other"]:
        """Where mass at x goes: s_j(x) = softmax_j(log b_j + (g_j − c(x, y_j))/eps), at any x.

        With ``reverse`` where mass at y came from: t_i(y) = softmax_i(log a_i + (f_i − c(x_i, y))
        /eps).
        """
        with double_precision(self, x):
            inside = self.units.into(x).astype(self.x.dtype)
            if reverse:
                C, potential, weight = self.cost.matrix(self.x, inside).T, self.f, self.a
            else:
                C, potential, weight = self.cost.matrix(inside, self.y), self.g, self.b
            return jax.nn.softmax((potential - C) / self.eps + safe_log(weight), axis=1)

    def log_density(self, x: Float[Array, "N d"], y: Float[Array, "N d"]) -> Float[Array, " N"]:
        """log of the plan's density against a ⊗ b, (f̂(x) + ĝ(y) − c(x, y))/eps, of paired rows."""
        with double_precision(self, x):
            dtype, cost = self.x.dtype, self.cost
            u = cost.latent_source(self.units.into(x).astype(dtype))
            v = cost.latent_target(self.units.into(y).astype(dtype))
            return (self.f_hat(x) + self.g_hat(y) - cost.h.value(u - v)) / self.eps

    @property
    def _potentials(self) -> Potentials:
        return Potentials(self.a, self.b, self.f, self.g, self.eps)


def _as_rows(points: Any, dim: int) -> Any:
    """Points in rows with d columns, arrays as they are, lists converted."""
    array = points if isinstance(points, np.ndarray | jax.Array) else as_floats(points)
    if array.ndim != 2 or array.shape[1] != dim:
        hint = " Write x[None] for a single point." if array.ndim == 1 else ""
        raise DataError(
            f"Points must be rows of {dim} features, [N, {dim}], got shape {array.shape}.{hint}"
        )
    return array


def relative_eps(
    C: Float[Array, "n m"], a: Float[Array, " n"], b: Float[Array, " m"], epsilon: float | Array
) -> Float[Array, ""]:
    """eps = epsilon · mean_{a⊗b}(C), the mean held constant under differentiation.

    The mean is kept above rounding, so that eps is positive when every cost is zero.
    """
    mean = jax.lax.stop_gradient(a @ C @ b)
    return epsilon * jnp.maximum(mean, jnp.finfo(C.dtype).eps)


def build_map(
    cost: Cost,
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    *,
    epsilon: float | Float[Array, ""] = 0.01,
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
    units: Units | None = None,
    dual_solver: DualSolver | None = None,
    inverse_solver: InverseGradientSolver | None = None,
    differentiate: Differentiation = "implicit",
    debias: bool = False,
    tau_a: float | Float[Array, ""] | None = None,
    tau_b: float | Float[Array, ""] | None = None,
    g_init: Float[Array, " m"] | None = None,
    C: Float[Array, "n m"] | None = None,
    block_size: int | None = None,
) -> tuple[EntropicMap, DualSolution]:
    """Solve the dual problem between two clouds and build its map, differentiable throughout.

    Parameters
    ----------
    cost
        The cost.
    x, y
        Source and target points, [n, d] and [m, d], in common units.
    epsilon
        Regularisation relative to the mean cost, positive.
    a, b
        Weights, non-negative with sum 1; uniform by default.
    units
        Units in which the map's own inputs and outputs are given; as they are by default.
    dual_solver, inverse_solver
        Methods for the potentials and for (∇h)⁻¹.
    differentiate
        How the potentials are differentiated; see `solve_dual`.
    debias
        Undo the shrinking of entropic maps, by two more solves: of each cloud with itself, both
        with their weights kept.
    tau_a, tau_b
        How strictly the weights of each side are kept, in (0, 1]; exactly by default. See
        `DualProblem`.
    g_init
        Potentials to start from.
    C
        The cost matrix, where it is known; else it is evaluated.
    block_size
        Rows of the cost matrix evaluated at a time.

    Returns
    -------
    EntropicMap, DualSolution
        The map, and the status of the solve behind it; if a solve of a cloud with itself failed,
        that status and the larger error.
    """
    if not isinstance(cost, Cost):
        raise DataError(f"cost must be a Cost, such as Cost(h), got {type(cost).__name__}.")
    check_differentiation(differentiate)
    check_regularisation(epsilon, "epsilon")
    x, y = as_floats(x), as_floats(y)
    for points in (x, y):
        _as_rows(points, x.shape[-1])
    a = jnp.full(x.shape[0], 1 / x.shape[0], x.dtype) if a is None else as_floats(a)
    b = jnp.full(y.shape[0], 1 / y.shape[0], y.dtype) if b is None else as_floats(b)
    C = cost.matrix(x, y, block_size=block_size) if C is None else C
    eps = relative_eps(C, a, b, epsilon)
    problem = DualProblem(C, a, b, eps=eps, tau_a=tau_a, tau_b=tau_b)
    dual = solve_dual(problem, g_init=g_init, solver=dual_solver, differentiate=differentiate)
    units = Units.none(x.shape[1]) if units is None else units
    own = None
    if debias:
        solver = SymmetricDual() if cost.h.is_even else dual_solver
        of_source, of_target = (
            solve_dual(
                DualProblem(_costs_within(cost.h, points, block_size), mass, mass, eps=problem.eps),
                solver=solver,
                differentiate=differentiate,
            )
            for points, mass in ((cost.latent_source(x), a), (cost.latent_target(y), b))
        )
        own = SelfPotentials(of_source.g, of_target.f)
        for each in (of_source, of_target):
            dual = DualSolution(
                dual.f,
                dual.g,
                jnp.maximum(dual.error, each.error),
                jnp.maximum(dual.iterations, each.iterations),
                jnp.where(dual.converged, each.status, dual.status),
            )
    entropic_map = EntropicMap(
        cost, x, y, a, b, dual.f, dual.g, problem.eps, units, inverse_solver, own,
        problem.tau_a, problem.tau_b,
    )  # fmt: skip
    return entropic_map, dual


def _costs_within(h: ConvexFunction, points: Float[Array, "n d"], block_size: int | None):
    """h(u_i − u_j) for all pairs of one latent cloud."""
    return pairwise_value(h, points, points, block_size=block_size)
