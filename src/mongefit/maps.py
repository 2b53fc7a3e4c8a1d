r"""The entropic map: the one builder of T and T⁻¹, in training and after it.

Forward, with u = Φμ(x) and the softmax weights s of the potential,

    p(u) = Σ_j s_j ∇h(u − v_j),    T(x) = Φν⁻¹(u − (∇h)⁻¹(p(u))),

and in reverse p(v) = Σ_i s_i ∇h(u_i − v), T⁻¹(y) = Φμ⁻¹(v + (∇h)⁻¹(p(v))). No symmetry of h is
assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mongefit._numerics import double_precision, placed, safe_log, safe_norm
from mongefit.conjugate import InverseGradientSolver, inverse_gradient
from mongefit.costs import Cost, pairwise_value_and_gradient
from mongefit.duals import Differentiation, DualSolution, DualSolver, plan, soft_minimum, solve_dual
from mongefit.sparse import Asked, gradients, pairwise


class Units(eqx.Module):
    """Common units of both clouds: one centre and one scalar scale.

    One scale for all features and both sides, because anything else would change what squared
    Euclidean means.
    """

    centre: Float[Array, " d"]
    scale: Float[Array, ""]

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> Units:
        """Weighted mean of both clouds, and their root mean square distance to it per feature."""
        centre = 0.5 * (a @ x + b @ y)
        largest = max(np.abs(x - centre).max(), np.abs(y - centre).max())
        if largest > 0:
            # Divided by the largest first: squares of 1e170 would overflow, of 1e-170 vanish.
            spread = a @ ((x - centre) / largest) ** 2 + b @ ((y - centre) / largest) ** 2
            scale = largest * np.sqrt(0.5 * np.mean(spread))
        else:
            scale = 1.0
        return cls(placed(centre), placed(scale))

    @classmethod
    def none(cls, dim: int) -> Units:
        """Leave the data as they are."""
        return cls(jnp.zeros(dim), jnp.ones(()))

    def into(self, x: Float[Array | np.ndarray, "N d"]) -> Float[Array, "N d"]:
        """From the data's units into common units."""
        traced = isinstance(self.centre, jax.core.Tracer) or isinstance(self.scale, jax.core.Tracer)
        if isinstance(x, np.ndarray) and not traced:
            # By NumPy, which has nothing to compile.
            return placed((x - np.asarray(self.centre)) / np.asarray(self.scale))
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


def conditional_weights(
    C: Float[Array, "N m"],
    weight: Float[Array, " m"],
    potential: Float[Array, " m"],
    eps: Float[Array, ""],
) -> Float[Array, "N m"]:
    """s = softmax_j(log weight_j + (potential_j − C_j)/eps), for every row of C."""
    return jax.nn.softmax(safe_log(weight) + (potential - C) / eps, axis=1)


def conditional_mean(s: Float[Array, "N m"], values: Float[Array, "N m d"]) -> Float[Array, "N d"]:
    """Σ_j s_j values_j; of ∇h(u − v_j) it is p(u), the gradient of the entropic potential."""
    return jnp.einsum("Nm,Nmd->Nd", s, values)


def _nearest(points: Float[Array, "N d"], others: Float[Array, "n d"]) -> Float[Array, " N"]:
    """The distance of each point to the nearest of others, held constant."""
    points, others = jax.lax.stop_gradient((points, others))
    squares = jnp.sum(points**2, 1)[:, None] + jnp.sum(others**2, 1) - 2 * points @ others.T
    return jnp.sqrt(jnp.maximum(jnp.min(squares, axis=1), 0.0))


class EntropicMap(eqx.Module):
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

    def forward(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """T(x) for every row of x."""
        return self.transport(x).points

    def reverse(self, y: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """T⁻¹(y) for every row of y."""
        return self.transport(y, reverse=True).points

    def transport(self, points: Float[Array, "N d"], *, reverse: bool = False) -> Transported:
        """T, or T⁻¹ when ``reverse``, with residuals; differentiable."""
        with double_precision(self, points):
            cost = self.cost
            u, v = cost.latent_source(self.x), cost.latent_target(self.y)
            inside = self.units.into(points).astype(self.x.dtype)
            back: Callable[[Array], Array]
            there: Callable[[Array], Array]
            if reverse:
                w = cost.latent_target(inside)
                s, gradient = self._weighted_gradients(u, w, self.a, self.f, reverse=True)
                p, mean, sign = conditional_mean(s, gradient), s @ u - w, 1.0
                back, there = cost.source_from_latent, cost.latent_source
            else:
                w = cost.latent_source(inside)
                s, gradient = self._weighted_gradients(w, v, self.b, self.g, reverse=False)
                p, mean, sign = conditional_mean(s, gradient), w - s @ v, -1.0
                back, there = cost.target_from_latent, cost.latent_target
            # The mean displacement is where to start, and the answer for quadratic h.
            found = inverse_gradient(cost.h, p, mean, solver=self.inverse_solver)
            image = w + sign * found.z
            result = back(image)
            round_trip = safe_norm(there(result) - image) / (1 + safe_norm(image))
            return Transported(
                self.units.out_of(result),
                found.residual,
                round_trip,
                found.converged,
                _nearest(inside, self.y if reverse else self.x),
            )

    def _weighted_gradients(
        self,
        u: Float[Array, "n d"],
        v: Float[Array, "m d"],
        weight: Float[Array, " k"],
        potential: Float[Array, " k"],
        *,
        reverse: bool,
    ) -> tuple[Float[Array, "N k"], Float[Array, "N k d"]]:
        """Weights of the stored points for each new one, and ∇h where they are not negligible."""
        h = self.cost.h
        if h.solves:
            C, gradient = pairwise_value_and_gradient(h, u, v)
            if reverse:
                C, gradient = C.T, gradient.swapaxes(0, 1)
            return conditional_weights(C, weight, potential, self.eps), gradient
        everything, nothing = np.arange(len(v if reverse else u)), np.arange(0)
        rows, columns = (nothing, everything) if reverse else (everything, nothing)
        asked = Asked(rows, columns, len(u), len(v))
        C, token = pairwise(h, u, v, asked)
        s = conditional_weights(C.T if reverse else C, weight, potential, self.eps)
        none = jnp.zeros((0, len(s)), s.dtype)
        both = gradients(token, h, u, v, asked, *((none, s) if reverse else (s, none)))
        return s, both[1 if reverse else 0]

    def f_hat(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """f̂(x) = −eps log Σ_j b_j exp((g_j − c(x, y_j))/eps), at any point, in common units."""
        with double_precision(self, x):
            inside = self.units.into(x).astype(self.x.dtype)
            return soft_minimum(self.cost.matrix(inside, self.y), self.b, self.g, self.eps)

    def g_hat(self, y: Float[Array, "N d"]) -> Float[Array, " N"]:
        """ĝ(y) = −eps log Σ_i a_i exp((f_i − c(x_i, y))/eps), at any point, in common units."""
        with double_precision(self, y):
            inside = self.units.into(y).astype(self.x.dtype)
            return soft_minimum(self.cost.matrix(self.x, inside).T, self.a, self.f, self.eps)

    def plan(self) -> Float[Array, "n m"]:
        """The plan between the stored clouds."""
        with double_precision(self):
            C = self.cost.matrix(self.x, self.y)
            return plan(C, self.a, self.b, self.eps, self.f, self.g)


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
        Source and target points, in common units.
    epsilon
        Regularisation relative to the mean cost.
    a, b
        Weights, non-negative with sum 1; uniform by default.
    units
        Units in which the map's own inputs and outputs are given; as they are by default.
    dual_solver, inverse_solver
        Methods for the potentials and for (∇h)⁻¹.
    differentiate
        How the potentials are differentiated; see `mongefit.duals.solve_dual`.
    g_init
        Potentials to start from.
    C
        The cost matrix, where it is known; else it is evaluated.
    block_size
        Rows of the cost matrix evaluated at a time.

    Returns
    -------
    EntropicMap, DualSolution
        The map, and the status of the solve behind it.
    """
    a = jnp.full(x.shape[0], 1 / x.shape[0], x.dtype) if a is None else a
    b = jnp.full(y.shape[0], 1 / y.shape[0], y.dtype) if b is None else b
    C = cost.matrix(x, y, block_size=block_size) if C is None else C
    eps = relative_eps(C, a, b, epsilon)
    dual = solve_dual(C, a, b, eps, g_init=g_init, solver=dual_solver, differentiate=differentiate)
    units = Units.none(x.shape[1]) if units is None else units
    entropic_map = EntropicMap(cost, x, y, a, b, dual.f, dual.g, eps, units, inverse_solver)
    return entropic_map, dual
