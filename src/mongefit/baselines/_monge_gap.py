"""An unstructured cost learned from the coupling, and a neural map with the Monge gap for it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from mongefit._costs import pairwise_value
from mongefit._duals import DualProblem, DualSolution, solve_dual
from mongefit._progress import TrainingBar
from mongefit._runtime import double_precision
from mongefit._training import Evaluation, Problem, Recipe, train
from mongefit._training.costs import evaluate_terms
from mongefit._transport import Units, relative_eps
from mongefit._validation import Knowledge, check_count, check_layers, check_positive, check_seed
from mongefit.baselines._base import Baseline
from mongefit.baselines._coupling_fit import coupling_losses
from mongefit.baselines._plans import Matrix, Points, check_memory, rounded_up
from mongefit.errors import ConvergenceWarning, DataError, Option, TrainingError, warn_user
from mongefit.losses import Context, Pairs, Subset, Subsets, Term
from mongefit.losses._divergences import point_divergence, total_variance


class Network(eqx.Module):
    """A multilayer perceptron with gelu activations and a linear last layer."""

    weight: tuple[Float[Array, "w v"], ...]
    bias: tuple[Float[Array, " w"], ...]

    def __init__(self, widths: tuple[int, ...], *, key: PRNGKeyArray):
        keys = jr.split(key, (len(widths) - 1, 2))
        weight, bias = [], []
        for (of_weight, of_bias), (before, after) in zip(keys, pairwise(widths), strict=True):
            # Uniform in ±1/√(fan-in), which keeps the size of what goes through.
            limit = 1 / before**0.5
            weight.append(jr.uniform(of_weight, (after, before), minval=-limit, maxval=limit))
            bias.append(jr.uniform(of_bias, (after,), minval=-limit, maxval=limit))
        self.weight, self.bias = tuple(weight), tuple(bias)

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N e"]:
        return self.after_first(x @ self.weight[0].T + self.bias[0])

    def after_first(self, x: Float[Array, "N w"]) -> Float[Array, "N e"]:
        """The output, from that of the first layer before its activation."""
        for weight, bias in zip(self.weight[1:], self.bias[1:], strict=True):
            x = jax.nn.gelu(x) @ weight.T + bias
        return x


class MLPCost(eqx.Module):
    """c(x, y) = softplus of a network of both points: positive, and otherwise without structure."""

    network: Network

    def __init__(self, dim: int, widths: tuple[int, ...], *, key: PRNGKeyArray):
        self.network = Network((2 * dim, *widths, 1), key=key)

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """c(x_i, y_j) for all pairs."""
        # The first layer is a sum of a part of x and one of y, which need not be computed per pair.
        first, dim = self.network.weight[0], x.shape[1]
        u = x @ first[:, :dim].T + self.network.bias[0]
        v = -y @ first[:, dim:].T
        cost: Any = self
        return pairwise_value(cost, u, v)

    def value(self, z: Float[Array, "N w"]) -> Float[Array, " N"]:
        """The cost as a function of u − v, the output of the first layer."""
        return jax.nn.softplus(self.network.after_first(z)[:, 0])


class NeuralMap(eqx.Module):
    """T(x) = x + a network of x, zero at the start."""

    network: Network

    def __init__(self, dim: int, widths: tuple[int, ...], *, key: PRNGKeyArray):
        self.network = eqx.tree_at(
            lambda network: (network.weight[-1], network.bias[-1]),
            Network((dim, *widths, dim), key=key),
            replace_fn=jnp.zeros_like,
        )

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        return x + self.network(x)


class _CloudProblem(Problem):
    """What to train between two clouds in common units."""

    recipe: Recipe
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]

    @property
    def dtype(self) -> jnp.dtype:
        return self.x.dtype


class PlanProblem(_CloudProblem):
    """Train any cost, an `MLPCost`, on losses that look at its plan alone."""

    pairs: Pairs | None
    subsets: Subsets | None
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, x, y, a, b, known: Knowledge, settings: dict[str, Any]) -> PlanProblem:
        """With the losses of `CouplingFit`."""
        pairs = subsets = None
        if known.pairs is not None:
            pairs = Pairs.of(known.pairs, jnp.asarray(known.pair_weight))
        if known.groups is not None:
            subsets = Subsets(Subset.of(known.groups[0], a), Subset.of(known.groups[1], b))
        terms = coupling_losses(known)
        recipe = Recipe([term.name for term in terms], **settings)
        return cls(recipe, x, y, a, b, pairs, subsets, tuple(terms))

    @property
    def pairs_per_step(self) -> int:
        return len(self.x) * len(self.y)

    def cold_start(self, model):
        return jnp.zeros_like(self.b)

    def evaluate(self, model, epsilon, warm, step):
        x, y, a, b = self.x, self.y, self.a, self.b
        C = model.matrix(x, y)
        problem = DualProblem(C, a, b, eps=relative_eps(C, a, b, epsilon))
        dual = solve_dual(problem, g_init=warm, differentiate="one_step")
        P = problem.plan(dual.f, dual.g)
        nothing = jnp.full_like(x, jnp.nan), jnp.full_like(y, jnp.nan)  # there is no map yet
        density = problem.log_density(dual.f, dual.g)
        context = Context(model, x, y, a, b, C, P, self.pairs, self.subsets, *nothing, density)
        return _evaluation(evaluate_terms(self.terms, context, self.recipe.names), dual)


class GapProblem(_CloudProblem):
    """Train a map T on S(T#μ, ν) + λ · gap: where it lands, and how far it is from optimal."""

    cost: MLPCost

    @property
    def pairs_per_step(self) -> int:
        return len(self.x) ** 2

    def cold_start(self, model):
        return jnp.zeros_like(self.a)

    def evaluate(self, model, epsilon, warm, step):
        x, y, a, b = self.x, self.y, self.a, self.b
        mapped = model(x)
        # A target of one point has no variance; in common units that of other targets is near 1.
        variance = jnp.maximum(total_variance(y, b), 1e-3)
        fit = point_divergence(mapped, a, y, b, 0.05 * variance)
        C = self.cost.matrix(x, mapped)
        gap, dual = monge_gap(C, a, relative_eps(C, a, a, epsilon), warm)
        return _evaluation(jnp.stack([fit, gap]), dual)


def _evaluation(values: Float[Array, " terms"], dual: DualSolution) -> Evaluation:
    nothing = jnp.zeros((), values.dtype)
    return Evaluation(
        values, jax.lax.stop_gradient(dual.g), dual.error, dual.iterations, nothing,
        jnp.zeros_like(dual.iterations), jnp.full_like(nothing, jnp.nan), dual.converged,
    )  # fmt: skip


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

    C_ij = c(x_i, T(x_j)), and g are potentials to start from.
    """
    problem = DualProblem(C, a, a, eps=eps)
    dual = solve_dual(problem, g_init=g, differentiate="none")
    # By the envelope theorem the potentials can be held constant.
    mass = jnp.sum(problem.plan(dual.f, dual.g))
    return a @ jnp.diagonal(C) - (a @ dual.f + a @ dual.g - eps * (mass - 1)), dual


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
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
    many_to_many, normalize_weight, random_state, verbose
        As for `MongeMap`.

    Attributes
    ----------
    cost_ : MLPCost
        The learned cost, in common units.
    map_ : NeuralMap
        The learned map, in common units.
    units_ : Units
        As for `MongeMap`.
    history_ : dict of arrays
        ``cost_loss`` and ``map_loss``, entry k after k updates; ``cost_applied`` and
        ``map_applied``: whether the step could be solved.
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

    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    gap_weight: float = 1.0
    max_iter: int = 500
    learning_rate: float = 0.003
    random_state: int | np.random.RandomState | None = 0
    verbose: int = 0

    def _learn(self, x, y, a, b, known) -> None:
        if known.pairs is None and known.groups is None:
            raise DataError("MongeGapMap learns its cost from what is known: give pairs or groups.")
        widths = check_layers(self.hidden_layer_sizes)
        steps = check_count(self.max_iter, "max_iter")
        rate = check_positive(self.learning_rate, "learning_rate")
        gap_weight = check_positive(self.gap_weight, "gap_weight", zero=True)
        epsilon, seed = float(self.epsilon), check_seed(self.random_state)
        with double_precision():
            units = Units.of((x, a), (y, b))
            clouds = units.into(x), units.into(y), jnp.asarray(a), jnp.asarray(b)
            settings: dict[str, Any] = {
                "epsilon": (epsilon, epsilon), "learning_rate": (rate, rate), "max_iter": steps
            }  # fmt: skip
            keys = jr.split(jr.key(seed))
            # Compiled as one: drawing the weights one by one compiles each shape for itself.
            cost = eqx.filter_jit(MLPCost)(x.shape[1], widths, key=keys[0])
            neural_map = eqx.filter_jit(NeuralMap)(x.shape[1], widths, key=keys[1])
            history: dict[str, NDArray[Any]] = {}
            if steps > 0:
                of_plan = PlanProblem.of(*clouds, known, settings)
                cost, history = _train("cost", of_plan, cost, self.verbose)
                recipe = Recipe(["TargetFit", "MongeGap"], weight=[1.0, gap_weight], **settings)
                of_gap = GapProblem(recipe, *clouds, cost)
                neural_map, of_map = _train("map", of_gap, neural_map, self.verbose)
                history |= of_map
            # As NumPy arrays: JAX's are truncated to float32 when unpickled outside the context.
            learned = jax.tree.map(np.asarray, (cost, neural_map, units))
        self.cost_, self.map_, self.units_ = learned
        self.history_ = history
        self.n_iter_ = steps
        skipped = sum(int(np.sum(~history[f"{part}_applied"])) for part in ("cost", "map") if steps)
        self.diagnostics_ = {"trained": steps > 0, "skipped_steps": skipped}
        if skipped:
            warn_user(
                "{skipped} training steps could not be solved and were not applied (see history_). "
                "If there are many, lower {learning_rate} or raise {epsilon}.",
                ConvergenceWarning,
                skipped=skipped, learning_rate=Option("learning_rate"), epsilon=Option("epsilon"),
            )  # fmt: skip

    def _move(self, x: Points) -> Points:
        with double_precision():
            mapped = _transport(self.map_, self.units_, _padded(x))
            return np.array(mapped[: len(x)], dtype=np.float64)

    def _cost(self, x: Points, y: Points) -> Matrix:
        check_memory(len(x), len(y), matrices=2)
        with double_precision():
            matrix = _cost_matrix(self.cost_, self.units_, _padded(x), _padded(y))
            return np.array(matrix[: len(x), : len(y)], dtype=np.float64)


def _train(
    name: str, problem: Problem, model: Any, verbose: int
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The trained model, and loss and success before each step and after the last."""
    with TrainingBar(int(problem.recipe.max_iter), enabled=bool(verbose)) as bar:
        try:
            (run,) = train(problem, [model], on_interval=bar.report)
        except TrainingError as error:
            raise TrainingError(f"The {name}: {error}") from error
    return run.model, {f"{name}_{part}": run.history[part] for part in ("loss", "applied")}


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
