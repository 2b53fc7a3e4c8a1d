"""How much worse squared Euclidean does than the true cost, and problems where it does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mongefit._convex import SquaredEuclidean
from mongefit._costs import Cost
from mongefit._runtime import double_precision
from mongefit._transport import build_map
from mongefit._validation import check_count, check_positive
from mongefit.datasets._ground_truth import Family, GroundTruth, Points, make_ground_truth
from mongefit.errors import OptionError
from mongefit.metrics import l2_uvp

# Wide enough for either cost to have its best inside: relative to the mean cost, a wrong cost wants
# more blur, and a large common displacement less.
EPSILONS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)

# So that draws with different seeds never try the same problem.
_SEEDS_PER_DRAW = 1000


@dataclasses.dataclass(frozen=True)
class CostComparison:
    """L2-UVP of entropic maps on new points, for the true cost and for squared Euclidean.

    Attributes
    ----------
    true_uvp, euclidean_uvp
        Error with either cost, 100 · mean ‖T(x) − T*(x)‖² / Var(ν), at its best epsilon; infinite
        where no epsilon could be solved.
    true_epsilon, euclidean_epsilon
        The epsilon of either.
    displacement
        Root mean square of ‖T*(x) − x‖, over that of ‖x − x̄‖.
    variation
        The same without the mean displacement, which costs no method an error.
    """

    true_uvp: float
    euclidean_uvp: float
    true_epsilon: float
    euclidean_epsilon: float
    displacement: float
    variation: float

    @property
    def ratio(self) -> float:
        """Error of squared Euclidean over that of the true cost; NaN where either is infinite."""
        known = math.isfinite(self.true_uvp) and math.isfinite(self.euclidean_uvp)
        return self.euclidean_uvp / self.true_uvp if known else math.nan


@dataclasses.dataclass(frozen=True)
class DrawnGroundTruth:
    """A problem on which squared Euclidean fails, and those that were drawn before it.

    Attributes
    ----------
    problem
        The problem; ``problem.seed`` makes it again.
    comparison
        The errors that it was accepted for.
    rejected
        Seeds that were tried and rejected, with their comparisons.
    """

    problem: GroundTruth
    comparison: CostComparison
    rejected: dict[int, CostComparison]


def compare_costs(
    problem: GroundTruth, *, n: int = 512, epsilons: Sequence[float] = EPSILONS, seed: int = 0
) -> CostComparison:
    """Fit entropic maps with both costs and measure them on new points.

    Parameters
    ----------
    problem
        The problem.
    n
        Size of the source and of the target, which are not paired, and number of new points.
    epsilons
        Relative regularisations, of which each cost gets its best.
    seed
        Seed of the points.
    """
    n = check_count(n, "n", minimum=2)
    first = 3 * check_count(seed, "seed")
    if not epsilons:
        raise OptionError("epsilons needs at least one value.")
    x, _ = problem.sample(n, first)
    _, y = problem.sample(n, first + 1)
    x_new, y_new = problem.sample(n, first + 2)

    def error(cost: Cost, epsilon: float) -> float:
        epsilon = check_positive(epsilon, "epsilons")
        with double_precision():
            mapped, converged = _map_new_points(cost, x, y, x_new, jnp.asarray(epsilon))
            return l2_uvp(mapped, y_new, y_new) if converged else math.inf

    true, euclidean = (
        min((error(cost, epsilon), epsilon) for epsilon in epsilons)
        for cost in (problem.cost, Cost(SquaredEuclidean()))
    )
    deviation = _root_mean_square(x_new - x_new.mean(axis=0))
    moved = y_new - x_new
    return CostComparison(
        true_uvp=true[0],
        euclidean_uvp=euclidean[0],
        true_epsilon=true[1],
        euclidean_epsilon=euclidean[1],
        displacement=_root_mean_square(moved) / deviation,
        variation=_root_mean_square(moved - moved.mean(axis=0)) / deviation,
    )


def draw_ground_truth(
    h: Family,
    dim: int,
    *,
    seed: int = 0,
    flows: bool = False,
    ratio: float = 2.0,
    n: int = 512,
    epsilons: Sequence[float] = EPSILONS,
    max_draws: int = 20,
) -> DrawnGroundTruth:
    """Draw problems until squared Euclidean has ``ratio`` times the true cost's error.

    On other problems nothing can be learned: the true cost itself would hardly do better.

    Parameters
    ----------
    h, dim, flows
        As for `make_ground_truth`.
    seed
        Seed of the draws: the problems have the seeds 1000 · seed, 1000 · seed + 1, ….
    ratio
        The ratio of errors to reach.
    n, epsilons
        As for `compare_costs`.
    max_draws
        Number of problems to try, at most 1000.

    Returns
    -------
    DrawnGroundTruth
        The first problem that reaches the ratio, and what was rejected before it. It was judged on
        points sampled with the seeds 0, 1 and 2: take others for an experiment.

    Raises
    ------
    RuntimeError
        When none of the problems reaches the ratio.
    """
    ratio = check_positive(ratio, "ratio")
    start = _SEEDS_PER_DRAW * check_count(seed, "seed")
    if check_count(max_draws, "max_draws", minimum=1) > _SEEDS_PER_DRAW:
        raise OptionError(f"max_draws must be at most {_SEEDS_PER_DRAW}, got {max_draws}.")
    rejected: dict[int, CostComparison] = {}
    for candidate in range(start, start + max_draws):
        problem = make_ground_truth(h, dim, seed=candidate, flows=flows)
        comparison = compare_costs(problem, n=n, epsilons=epsilons)
        if comparison.ratio >= ratio:
            return DrawnGroundTruth(problem, comparison, rejected)
        rejected[candidate] = comparison
    tried = ", ".join(f"{number}: {found.ratio:.2f}" for number, found in rejected.items())
    raise RuntimeError(
        f"No problem with h={h!r} and dim={dim} reached the ratio {ratio:g} with n={n}. Seeds and "
        f"ratios: {tried}. Lower ratio, or raise n or max_draws."
    )


@eqx.filter_jit
def _map_new_points(cost, x, y, x_new, epsilon):
    fitted, dual = build_map(
        cost, jnp.asarray(x), jnp.asarray(y), epsilon=epsilon, differentiate="none"
    )
    found = fitted.transport(jnp.asarray(x_new))
    return found.points, dual.converged & jnp.all(found.converged)


def _root_mean_square(points: Points) -> float:
    return float(np.sqrt(np.mean(np.sum(points**2, axis=1))))
