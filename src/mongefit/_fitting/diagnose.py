"""What is checked of a fitted map beside what its solvers say, and what users are warned of."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from mongefit._costs import Cost
from mongefit._duals import DualSolution, default_tolerance
from mongefit._fitting.data import Leg, connected_parts
from mongefit._numerics import Status
from mongefit._regression import linear_regression, standard_error
from mongefit._runtime import compile_ahead, to_device
from mongefit._transport import EntropicMap, Transported
from mongefit.errors import ConvergenceWarning, InPython, Option, warn_or_raise, warn_user

CHECKED = 1024
"""At how many of the fitted source points, evenly spread, the map is checked at most."""


def round_trip_limit(dtype: jnp.dtype) -> float:
    """Above this a flow counts as not inverted."""
    return 1e-6 if dtype == jnp.float64 else 1e-2


def evenly(size: int, most: int) -> NDArray[np.int64]:
    """Row numbers, all of them or so many evenly spread ones."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def diagnose(
    fitted: EntropicMap,
    coupling: NDArray[np.floating],
    rows: NDArray[np.int64],
    moved: Transported,
    dual: DualSolution,
) -> dict[str, Any]:
    """Whether a map is what it should be, and how far it is from that.

    ``moved`` is where the map sends the source points ``rows``, and ``coupling`` is its plan.
    """
    P, a, b = (np.asarray(part, np.float64) for part in (coupling, *fitted.masses))
    dtype = fitted.x.dtype
    tol = default_tolerance(dtype)
    off_source, off_target = np.abs(P.sum(1) - a), np.abs(P.sum(0) - b)
    error = float(off_source.sum() + off_target.sum())
    # The solver's own figure comes from a sum in another order.
    solved = bool(dual.converged) and error <= tol + 1e-3 * tol
    share = tol / (len(a) + len(b))
    # What is not finite is bad too.
    bad = {"source": ~(off_source <= share) & ~solved, "target": ~(off_target <= share) & ~solved}
    finite = np.all(np.isfinite(moved.points), axis=1)
    trips = np.asarray(moved.round_trip)
    found = moved.converged & finite & (trips <= round_trip_limit(dtype))
    bad["source"][rows] |= ~found
    least = np.finfo(coupling.dtype).eps * np.minimum(a[:, None], b)
    return {
        "converged": solved and bool(np.all(found)),
        "dual_error": float(dual.error),
        "dual_iterations": int(dual.iterations),
        "dual_status": Status(int(dual.status)).name.lower(),  # type: ignore[call-arg]
        "marginal_error": error,
        "inverse_residual": float(np.max(moved.residual)),
        "round_trip": float(np.max(trips)),
        "finite": bool(np.all(finite)) and bool(np.all(np.isfinite(P))),
        "checked_points": len(rows),
        "unsolved_source": np.flatnonzero(bad["source"]).tolist(),
        "unsolved_target": np.flatnonzero(bad["target"]).tolist(),
        "plan_components": len(np.unique(connected_parts(*np.nonzero(least < P)))),
        "map_plan_gap": _map_plan_gap(fitted, P[rows], rows, moved.points),
        "smallest_curvature": _smallest_curvature(fitted, rows, moved.points),
    }


def report(found: dict[str, Any], *, strict: bool) -> None:
    """Warn of what is wrong with a map; raise if the final solve failed and ``strict`` is set."""
    epsilon, learning_rate = Option("epsilon"), Option("learning_rate")
    if found["dual_status"] != "converged":
        warn_or_raise(
            "The dual solve did not converge at any epsilon from {first:g} to {last:g}: {why} "
            "(error {error:.1e}). Try a larger {epsilon}.",
            strict=strict, first=found["epsilon_requested"], last=found["epsilon"],
            error=found["dual_error"], why=Status[found["dual_status"].upper()].message,
            epsilon=epsilon,
        )  # fmt: skip
    elif found["epsilon"] > found["epsilon_requested"]:
        warn_or_raise(
            f"The dual solve did not converge at epsilon {found['epsilon_requested']:g}; the map "
            f"is that of epsilon {found['epsilon']:g}, the smallest that did.",
            strict=strict,
        )
    elif not found["converged"]:
        rows = found["unsolved_source"]
        warn_or_raise(
            "The map was not found at {lost} of {all} source points (first: row {row}; inverse "
            "gradient residual {residual:.1e}, round trip of the flow {trip:.1e}, marginal error "
            "{error:.1e}). Try a larger {alpha} or a smaller {learning_rate}.",
            strict=strict, lost=len(rows), all=found["checked_points"], row=rows[0] if rows else 0,
            residual=found["inverse_residual"], trip=found["round_trip"],
            error=found["marginal_error"], alpha=Option("alpha"), learning_rate=learning_rate,
        )  # fmt: skip
    if found["plan_components"] > 1:
        warn_user(
            "The plan falls into {parts} parts that exchange no mass at epsilon {at:g}. Within "
            "each the map is determined; a point between them may go with either. Raise {epsilon} "
            "if that matters.",
            ConvergenceWarning,
            parts=found["plan_components"], at=found["epsilon"], epsilon=epsilon,
        )  # fmt: skip
    if found["skipped_steps"]:
        warn_user(
            "{skipped} training steps could not be solved and were not applied{where}. If there "
            "are many, lower {learning_rate} or raise {epsilon}.",
            ConvergenceWarning,
            skipped=found["skipped_steps"], where=InPython(" (see history_['applied'])"),
            learning_rate=learning_rate, epsilon=epsilon,
        )  # fmt: skip


def warn_if_beaten(leg: Leg, mapped: NDArray[np.float64]) -> None:
    """Say so where a simple predictor is better on pairs that were kept from training.

    ``mapped`` is where the map sends the sources of these pairs. An error below a hundredth of the
    spread of the targets is good enough.
    """
    clouds, known, _, spared = leg
    if known.pairs is None or known.pair_weight is None or known.clones is None or spared is None:
        return
    x, y, told = clouds.source, clouds.target, known.pair_weight > 0
    if not np.any(told):
        return
    rows, columns = known.pairs[told].T
    ridge = linear_regression(x[rows], y[columns], known.pair_weight[told], known.clones[told])
    sources, truth = x[known.pairs[spared, 0]], y[known.pairs[spared, 1]]
    squares = {
        name: np.sum((each - truth) ** 2, axis=1)
        for name, each in (
            ("ridge regression on the other pairs", ridge(sources)),
            ("the mean of the target", np.asarray(clouds.b, np.float64) @ y),
            ("the identity", sources),
        )
    }
    best = min(squares, key=lambda name: squares[name].mean())
    own, spread = (((each - truth) ** 2).sum(axis=1) for each in (mapped, truth.mean(axis=0)))
    away = own - squares[best]
    doubt = 2 * standard_error(away, np.ones(len(away)), known.clones[spared])
    if away.mean() <= doubt or own.mean() <= 1e-4 * spread.mean():
        return
    warn_user(
        "On the pairs that were kept from training the map has an RMSE of {own:.4g}, and {best} "
        "has {least:.4g}. Try MongeMapCV, which chooses by such pairs, or other values of {cost}, "
        "{diffeo} and {epsilon}.",
        own=np.sqrt(own.mean()), best=best, least=np.sqrt(squares[best].mean()),
        cost=Option("cost"), diffeo=Option("diffeo"), epsilon=Option("epsilon"),
    )  # fmt: skip


def _map_plan_gap(fitted: EntropicMap, P, rows, images) -> float:
    """sqrt(Σ_i a_i ‖Φν(T(x_i)) − Σ_j P_ij v_j / a_i‖²) over some points, in common units."""
    cost, inside = fitted.cost, fitted.units.into(images).astype(fitted.x.dtype)
    latent, v = (
        np.asarray(y if cost.phi_nu is None else _flow(cost, y)) for y in (inside, fitted.y)
    )
    mass = P.sum(1)
    weight = np.asarray(fitted.a, np.float64)[rows] * (mass > 0)
    mean = P @ v / np.where(mass > 0, mass, 1.0)[:, None]
    total = weight.sum()
    return float(np.sqrt(weight @ ((latent - mean) ** 2).sum(1) / total)) if total > 0 else 0.0


def compile_checks(fitted: EntropicMap, rows: NDArray[np.int64]) -> None:
    """Compile what `diagnose` computes of such a map and of so many of its points."""
    dim = fitted.x.shape[1]
    some = np.zeros((_curved(dim), dim), fitted.x.dtype)
    compile_ahead(_hessians, fitted.cost, some, to_device(some))
    if fitted.cost.phi_nu is not None:
        compile_ahead(_flow, fitted.cost, to_device(np.asarray(fitted.x)[rows]))
        compile_ahead(_flow, fitted.cost, fitted.y)


def _curved(dim: int) -> int:
    """At how many points the curvature of h is checked: a Hessian has d² entries."""
    return max(1, min(64, 2**24 // dim**2))


def _smallest_curvature(fitted: EntropicMap, rows, images) -> float:
    """The smallest eigenvalue of ∇²h at the displacements of some points."""
    # Always as many of them, so that one program serves clouds of any size.
    size = _curved(fitted.x.shape[1])
    some = np.resize(evenly(len(rows), size), size)
    x = np.asarray(fitted.x)[rows[some]]
    y = fitted.units.into(np.asarray(images)[some]).astype(x.dtype)
    hessians = np.asarray(_hessians(fitted.cost, x, y))
    if not np.all(np.isfinite(hessians)):
        return np.nan
    return float(np.linalg.eigvalsh(hessians).min())  # by NumPy: nothing to compile


@eqx.filter_jit
def _flow(cost: Cost, y: Float[Array, "N d"]) -> Float[Array, "N d"]:
    return cost.latent_target(y)


@eqx.filter_jit
def _hessians(cost: Cost, x: Float[Array, "N d"], y: Float[Array, "N d"]) -> Float[Array, "N d d"]:
    z = cost.latent_source(x) - cost.latent_target(y)
    return jax.lax.map(lambda one: cost.h.hessian(one[None])[0], z)
