"""An unstructured cost learned from the coupling, and a neural map with the Monge gap for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from mongefit._numerics import double_precision
from mongefit.baselines.base import Baseline, Points
from mongefit.baselines.coupling_fit import coupling_losses
from mongefit.baselines.networks import MLPCost, NeuralMap
from mongefit.baselines.plans import check_memory, rounded_up
from mongefit.duals import DualSolution, plan, solve_dual
from mongefit.errors import ConvergenceWarning, DataError, TrainingError
from mongefit.losses import Context, Pairs, Subset, Subsets
from mongefit.losses.divergences import point_divergence, total_variance
from mongefit.maps import Units, relative_eps
from mongefit.progress import TrainingBar
from mongefit.training import DEFAULT_OPTIMISER
from mongefit.validation import (
    Knowledge,
    check_count,
    check_layers,
    check_positive,
    check_seed,
)


class _Data(eqx.Module):
    """Both clouds in common units."""

    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]


class _Known(eqx.Module):
    """What is known of the plan."""

    pairs: Pairs | None
    subsets: Subsets | None

    @classmethod
    def of(cls, known: Knowledge, data: _Data) -> _Known:
        pairs = subsets = None
        if known.pairs is not None:
            pairs = Pairs.of(known.pairs, jnp.asarray(known.pair_weight))
        if known.groups is not None:
            source, target = known.groups
            subsets = Subsets(Subset.of(source, data.a), Subset.of(target, data.b))
        return cls(pairs, subsets)


def cost_objective(cost: MLPCost, known: _Known, data: _Data, epsilon, g: Float[Array, " m"]):
    """The losses of `CouplingFit` on the plan of the cost."""
    x, y, a, b = data.x, data.y, data.a, data.b
    C = cost.matrix(x, y)
    eps = relative_eps(C, a, b, epsilon)
    dual = solve_dual(C, a, b, eps, g_init=g)
    P = plan(C, a, b, eps, dual.f, dual.g)
    unstructured: Any = cost
    nothing = jnp.full_like(x, jnp.nan), jnp.full_like(y, jnp.nan)  # there is no map yet
    context = Context(unstructured, x, y, a, b, C, P, known.pairs, known.subsets, *nothing)
    losses = coupling_losses(pairs=known.pairs is not None, groups=known.subsets is not None)
    return sum(loss(context) for loss in losses), dual


def monge_gap(
    C: Float[Array, "n n"],
    a: Float[Array, " n"],
    eps: Float[Array, ""],
    g: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, ""], DualSolution]:
    r"""The Monge gap Σ_i a_i c(x_i, T(x_i)) − OT_eps(μ, T#μ), and the solve behind it.

    With P the plan of OT_eps it is eps (KL(diag(a) | P) − H(a)), H(a) = −Σ a_i log a_i: at least
    −eps H(a). Without regularisation it is at least zero, which it is where T is optimal for c. Its
    derivative in C is diag(a) − P.

    Parameters
    ----------
    C
        C_ij = c(x_i, T(x_j)).
    a
        Weights of the points.
    eps
        Absolute regularisation.
    g
        Potentials to start from.
    """
    dual = solve_dual(C, a, a, eps, g_init=g, differentiate="none")
    # By the envelope theorem the potentials can be held constant.
    mass = jnp.sum(plan(C, a, a, eps, dual.f, dual.g))
    return a @ jnp.diagonal(C) - (a @ dual.f + a @ dual.g - eps * (mass - 1)), dual


def map_objective(
    neural_map: NeuralMap, cost: MLPCost, gap_weight, data: _Data, epsilon, g: Float[Array, " n"]
):
    """S(T#μ, ν) + λ · gap: where the cloud lands, and how far the map is from optimal."""
    mapped = neural_map(data.x)
    # A target of one point has no variance; in common units that of other targets is near 1.
    variance = jnp.maximum(total_variance(data.y, data.b), 1e-3)
    fit = point_divergence(mapped, data.a, data.y, data.b, 0.05 * variance)
    C = cost.matrix(data.x, mapped)
    gap, dual = monge_gap(C, data.a, relative_eps(C, data.a, data.a, epsilon), g)
    return fit + gap_weight * gap, dual


class _State(eqx.Module):
    """What the next step needs: parameters now and at the last step that worked, and the rest."""

    model: Any
    good: Any
    optimiser: optax.OptState
    g: Float[Array, " k"]
    step: Int[Array, ""]


class _Steps(NamedTuple):
    """What a person wants to see of some steps."""

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    applied: NDArray[np.bool_]


# Steps per compiled scan, after each of which the bar moves.
INTERVAL = 10
# Steps in a row that may fail before training gives up.
MAX_FAILURES = 30


@eqx.filter_jit
def _run_interval(objective, state: _State, arguments, rate, max_iter):
    """Steps of Adam in one compiled scan; those after ``max_iter`` change nothing.

    A step that could not be solved, or whose gradient is not finite, is not applied: the parameters
    go half the way back to the last ones that worked.
    """

    def take(state: _State):
        evaluate = jax.value_and_grad(objective, has_aux=True)
        (loss, dual), gradient = evaluate(state.model, *arguments, state.g)
        ok = dual.converged & jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient))
        updates, optimiser = DEFAULT_OPTIMISER.update(gradient, state.optimiser)
        moved = jax.tree.map(lambda leaf, update: leaf - rate * update, state.model, updates)
        back = jax.tree.map(lambda bad, good: 0.5 * (bad + good), state.model, state.good)
        applied = _State(moved, state.model, optimiser, dual.g, state.step + 1)
        skipped = _State(back, state.good, state.optimiser, state.g, state.step + 1)
        chosen = jax.tree.map(lambda new, old: jnp.where(ok, new, old), applied, skipped)
        return chosen, (state.step, loss, ok)

    def rest(state: _State):
        return state, (state.step, jnp.zeros(()), jnp.zeros((), bool))

    def body(state: _State, _):
        return jax.lax.cond(state.step <= max_iter, take, rest, state)

    return jax.lax.scan(body, state, length=INTERVAL)


def _descend(
    name: str,
    objective: Callable[..., Any],
    model: Any,
    arguments: tuple[Any, ...],
    *,
    g: Float[Array, " k"],
    epsilon: float,
    rate: float,
    max_iter: int,
    on_interval: Callable[[_Steps], None],
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The last good parameters of ``max_iter`` steps, and loss and success before each and after.

    Raises
    ------
    TrainingError
        After many failed steps in a row, or when none could be applied.
    """
    state = _State(model, model, DEFAULT_OPTIMISER.init(model), g, jnp.asarray(0))
    losses, applied = np.zeros(0), np.zeros(0, bool)
    # As arrays: plain numbers would be compiled in.
    arguments = (*arguments, jnp.asarray(epsilon))
    settings = jnp.asarray(rate), jnp.asarray(max_iter)
    while int(state.step) <= max_iter:
        state, infos = _run_interval(objective, state, arguments, *settings)
        step, loss, ok = (np.asarray(part) for part in infos)
        taken = step <= max_iter
        losses = np.concatenate([losses, loss[taken]])
        applied = np.concatenate([applied, ok[taken]])
        on_interval(_Steps(step[taken], loss[taken], np.full(taken.sum(), epsilon), ok[taken]))
        recent = applied[-MAX_FAILURES:]
        if not np.any(applied) or (len(recent) == MAX_FAILURES and not np.any(recent)):
            raise TrainingError(
                f"Training of the {name} stopped at step {len(applied) - 1}: the last steps could "
                f"not be solved at epsilon {epsilon:g}. Try a larger epsilon or a smaller "
                "learning_rate."
            )
    return state.good, {f"{name}_loss": losses, f"{name}_applied": applied}


class MongeGapMap(Baseline):
    """Learn an unstructured cost from the coupling, then a neural map that is optimal for it.

    First c(x, y), a network of both points, is trained on the losses of `CouplingFit`, so that its
    plan puts mass on known pairs and within known groups. Then a network T is trained on
    S(T#μ, ν) + λ · gap, where the Monge gap, the mean of c(x, T(x)) less OT_eps(μ, T#μ), is zero,
    up to the regularisation, for maps that are optimal for c (Uscidda and Cuturi 2023). The map has
    no inverse.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Hidden layers of both networks.
    epsilon : float, default=0.01
        Entropic regularisation relative to the mean cost.
    gap_weight : float, default=1.0
        λ.
    max_iter : int, default=500
        Steps for the cost, and as many for the map. With 0 the map is the identity.
    learning_rate : float, default=0.003
        Adam's rate.
    many_to_many, normalize_weight
        As for `MongeMap`.
    random_state : int, RandomState or None, default=0
        Seed of the initial weights.
    verbose : int, default=0
        With 1, a progress bar on stderr.

    Attributes
    ----------
    cost_ : MLPCost
        The learned cost, in common units.
    map_ : NeuralMap
        The learned map, in common units.
    units_ : Units
        Centre and scale that take the data to common units.
    history_ : dict of arrays
        ``cost_loss`` and ``map_loss``, entry k after k updates; ``cost_applied`` and
        ``map_applied`` tell which could be solved.
    diagnostics_ : dict
        ``trained``, and ``skipped_steps``, how many could not be solved.
    n_iter_ : int
        Training steps taken, of either network.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import MongeGapMap
    >>> X, Y = datasets.moon(16, seed=0)
    >>> model = MongeGapMap(hidden_layer_sizes=(4,), epsilon=0.1, max_iter=10)
    >>> model.fit(X, Y, pairs=[[0, 0], [9, 9]]).transform(X).shape
    (16, 2)
    """

    def __init__(
        self,
        *,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        epsilon: float = 0.01,
        gap_weight: float = 1.0,
        max_iter: int = 500,
        learning_rate: float = 0.003,
        many_to_many: bool = False,
        normalize_weight: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        verbose: int = 0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epsilon = epsilon
        self.gap_weight = gap_weight
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.many_to_many = many_to_many
        self.normalize_weight = normalize_weight
        self.random_state = random_state
        self.verbose = verbose

    def _learn(self, x, y, a, b, known) -> None:
        if known.pairs is None and known.groups is None:
            raise DataError("MongeGapMap learns its cost from what is known: give pairs or groups.")
        widths = check_layers(self.hidden_layer_sizes)
        steps = check_count(self.max_iter, "max_iter")
        rate = check_positive(self.learning_rate, "learning_rate")
        gap_weight = check_positive(self.gap_weight, "gap_weight", zero=True)
        epsilon, seed = float(self.epsilon), check_seed(self.random_state)
        with double_precision():
            units = Units.of(x, y, a, b)
            data = _Data(units.into(x), units.into(y), jnp.asarray(a), jnp.asarray(b))
            keys = jr.split(jr.key(seed))
            # Compiled as one: drawing the weights one by one compiles each shape for itself.
            cost = eqx.filter_jit(MLPCost)(x.shape[1], widths, key=keys[0])
            neural_map = eqx.filter_jit(NeuralMap)(x.shape[1], widths, key=keys[1])
            history: dict[str, NDArray[Any]] = {}
            if steps > 0:
                with TrainingBar(2 * steps, enabled=bool(self.verbose)) as bar:

                    def show(infos: _Steps, done: int) -> None:
                        shown: Any = infos._replace(step=np.minimum(infos.step, steps - 1) + done)
                        bar.update(shown)

                    cost, history = _descend(
                        "cost", cost_objective, cost, (_Known.of(known, data), data),
                        g=jnp.zeros_like(data.b), epsilon=epsilon, rate=rate, max_iter=steps,
                        on_interval=lambda infos: show(infos, 0),
                    )  # fmt: skip
                    neural_map, more = _descend(
                        "map", map_objective, neural_map, (cost, jnp.asarray(gap_weight), data),
                        g=jnp.zeros_like(data.a), epsilon=epsilon, rate=rate, max_iter=steps,
                        on_interval=lambda infos: show(infos, steps),
                    )  # fmt: skip
                    history |= more
            # As NumPy arrays: JAX's are truncated to float32 when unpickled outside the context.
            learned = jax.tree.map(np.asarray, (cost, neural_map, units))
        self.cost_, self.map_, self.units_ = learned
        self.history_ = history
        self.n_iter_ = steps
        skipped = sum(int(np.sum(~history[f"{part}_applied"])) for part in ("cost", "map") if steps)
        self.diagnostics_ = {"trained": steps > 0, "skipped_steps": skipped}
        if skipped:
            warnings.warn(
                f"{skipped} training steps could not be solved and were not applied (see "
                "history_). If there are many, lower learning_rate or raise epsilon.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _move(self, x: Points) -> Points:
        with double_precision():
            mapped = _transport(self.map_, self.units_, _padded(x))
            return np.array(mapped[: len(x)], dtype=np.float64)

    def _cost(self, x: Points, y: Points) -> NDArray[np.float64]:
        check_memory(len(x), len(y), matrices=2)
        with double_precision():
            matrix = _cost_matrix(self.cost_, self.units_, _padded(x), _padded(y))
            return np.array(matrix[: len(x), : len(y)], dtype=np.float64)


def _padded(points: Points) -> Float[Array, "N d"]:
    """Points with copies of the last one, in one of few sizes, so that few are compiled."""
    missing = rounded_up(len(points)) - len(points)
    return jnp.asarray(np.pad(points, ((0, missing), (0, 0)), mode="edge"))


@eqx.filter_jit
def _transport(neural_map: NeuralMap, units: Units, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
    return units.out_of(neural_map(units.into(x)))


@eqx.filter_jit
def _cost_matrix(
    cost: MLPCost, units: Units, x: Float[Array, "n d"], y: Float[Array, "m d"]
) -> Float[Array, "n m"]:
    return cost.matrix(units.into(x), units.into(y))
