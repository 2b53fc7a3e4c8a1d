"""Judging maps of quadratic costs on held-out pairs, in closed form but for their potentials.

With h(z) = ½‖Bz‖² the map of a cost sends u = Φ(x) to a weighted mean of target points, so that
everything of it is known once its potentials are. Source maps and matrices are those that training
starts from (`mongefit._fitting.starting`). Held-out pairs have no weight in either cloud: they are
judged as new points are, and every fold has the same shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from mongefit._duals import DualProblem, NewtonDual, SymmetricDual, as_tau, solve_dual
from mongefit._fitting.starting import STARTED, Start
from mongefit._regression import Knobs, Regression, regress
from mongefit._runtime import double_precision, filter_jit, lapack_threads
from mongefit.metrics._energy import energy_scores

Points = NDArray[np.float64]

SCALES = (64.0, 16.0, 4.0, 2.0, 1.0, 0.5, 0.25, 1 / 16)
"""Epsilons that are tried, in units of the noise around the source map."""
LEAST_EPSILON, MOST_EPSILON = 1e-3, 20.0
ALPHA = 0.01
FEW_PAIRS = 200
"""Pairs up to which the knobs of regressions are chosen in every fold anew."""


class Family(NamedTuple):
    """Options of `MongeMap` that say what kind of quadratic cost it is."""

    diffeo: str | None
    cost: str

    def __str__(self) -> str:
        cost = {"sqeuclidean": "Euclidean", "matrix": "matrix"}[self.cost]
        return cost if self.diffeo is None else f"{cost}, {self.diffeo} source"


class Taus(NamedTuple):
    """How strictly the plan keeps the weights of the source and of the target."""

    tau_a: float = 1.0
    tau_b: float = 1.0

    @property
    def kept(self) -> float:
        """How strict they are together."""
        return self.tau_a * self.tau_b

    @property
    def options(self) -> dict[str, Any]:
        """Options of `MongeMap`, those alone that are not the default."""
        return {name: tau for name, tau in self._asdict().items() if tau != 1}

    def __str__(self) -> str:
        return "".join(f", {name} {tau:g}" for name, tau in self.options.items())


STRICT = Taus()

FAMILIES = tuple(
    Family(diffeo, cost)
    for diffeo in (None, "affine", "kernel")
    for cost in ("sqeuclidean", "matrix")
)
"""From the simplest on."""


class Judged(NamedTuple):
    """What a map says of held-out pairs, in common units.

    ``predicted`` are points; ``energy`` and ``surprise`` are how well the distribution over targets
    foretold the true one: the energy score, and −log of its density against the target's weights.
    ``fates`` are the probabilities of labels, [answers, labels]; no column without labels.
    """

    predicted: Points
    energy: NDArray[np.float64]
    surprise: NDArray[np.float64]
    fates: Points


class Fold(NamedTuple):
    """What is known without one fold, and what is asked of it: the pairs ``out``.

    The answers belong at ``places`` among those of all folds.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    weight: NDArray[np.float64]
    out: NDArray[np.bool_]
    places: NDArray[np.int64]


class HeldOut(NamedTuple):
    """Both clouds in common units, and the pairs between them with their clones and folds.

    A row of ``fold`` divides the pairs once: with few pairs that is done several times, each pair
    is asked about in each, and the answers are in the order of the rows. ``labels`` are 1 where a
    target point has a label, [m, labels].
    """

    x: Points
    y: Points
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    pairs: NDArray[np.int64]
    weight: NDArray[np.float64]
    clone: NDArray[np.int64]
    fold: NDArray[np.int64]
    between: Points
    labels: Points

    @property
    def asked(self) -> NDArray[np.int64]:
        """The pair of every answer."""
        return np.tile(np.arange(len(self.pairs)), len(self.fold))

    @property
    def truth(self) -> Points:
        """The target of the pair of every answer."""
        return self.y[self.pairs[self.asked, 1]]

    def folds(self) -> Iterator[Fold]:
        """Every fold; points of held-out pairs have no weight."""
        for row, k in itertools.product(range(len(self.fold)), range(int(self.fold.max()) + 1)):
            out = self.fold[row] == k
            places = row * len(out) + np.flatnonzero(out)
            a, b = self.a.copy(), self.b.copy()
            a[self.pairs[out, 0]] = 0
            b[self.pairs[out, 1]] = 0
            if not a.any() or not b.any():  # every point is in a held-out pair
                a, b = self.a, self.b
            yield Fold(a / a.sum(), b / b.sum(), np.where(out, 0.0, self.weight), out, places)

    def regression(
        self, kind: str, weight: NDArray[np.float64], knobs: Knobs | None = None
    ) -> Regression:
        """A regression on pairs with these weights, its knobs chosen if None."""
        counts = weight > 0
        rows, columns = self.pairs[counts].T
        points = self.x[rows], self.y[columns], weight[counts]
        with lapack_threads(len(rows) ** 2):
            if knobs is None:
                return STARTED[kind](*points, self.clone[counts])
            return regress(*points, knobs)

    def shared_knobs(self, whole: Regression | None) -> Knobs | None:
        """The knobs of all folds, from a regression on all pairs; None if each chooses its own.

        That is better, for held-out pairs have no say in them then, and quick where pairs are few.
        """
        return None if whole is None or len(self.pairs) <= FEW_PAIRS else whole.knobs

    def start(
        self, kind: str | None, weight: NDArray[np.float64], knobs: Knobs | None = None
    ) -> Start:
        """The start of one kind of source map, from pairs with these weights."""
        rows, columns = self.pairs.T
        return Start.of(kind, self.x[rows], self.y[columns], weight, self.clone, knobs)


class _Latent(NamedTuple):
    """Both clouds as a quadratic cost sees them: c(x, y) = ½‖Bu − Bv‖² with u = Φ(x), v = y."""

    u: Points
    root: Points

    @classmethod
    def of(cls, start: Start, family: Family, x: Points) -> _Latent:
        dim = x.shape[1]
        u = x if start.regression is None else start.regression(x)
        matrix = start.matrix(dim, 2 * ALPHA) if family.cost == "matrix" else np.eye(dim)
        return cls(u, np.asarray(np.linalg.cholesky(matrix), np.float64))

    def epsilons(self, start: Start, known: HeldOut) -> list[float]:
        """What to try, relative to the mean cost, from the largest on."""
        u, v = self.u @ self.root, known.y @ self.root
        squares = known.a @ (u * u).sum(1) + known.b @ (v * v).sum(1)
        mean = 0.5 * squares - (known.a @ u) @ (known.b @ v)
        noise = 0.0
        if start.covariance is not None:
            noise = np.trace(self.root.T @ start.covariance @ self.root) / len(self.root)
        found = np.clip(np.multiply(SCALES, noise / mean), LEAST_EPSILON, MOST_EPSILON)
        return [float(each) for each in np.unique(found)[::-1]]


def _solve(u, v, a, b, epsilon, g_init, taus):
    """Potentials of both clouds, and of the source with itself, and whether all were found."""

    def costs(left, right):
        squares = jnp.sum(left**2, 1)[:, None] + jnp.sum(right**2, 1)
        return jnp.maximum(0.5 * squares - left @ right.T, 0.0)

    C = costs(u, v)
    eps = epsilon * (a @ C @ b)
    problem = DualProblem(C, a, b, eps=eps, tau_a=taus.tau_a, tau_b=taus.tau_b)
    found = solve_dual(problem, g_init=g_init, solver=NewtonDual(), differentiate="none")
    own = solve_dual(
        DualProblem(costs(u, u), a, a, eps=eps), solver=SymmetricDual(), differentiate="none"
    )
    return found.f, found.g, own.g, eps, found.converged, own.converged


_solve_fast = filter_jit(_solve)


class _Soft(NamedTuple):
    """Conditional weights of one cloud at points, and the points' own potential."""

    weights: Points
    potential: NDArray[np.float64]

    @classmethod
    def of(cls, points: Points, others: Points, mass: Any, other: Any, eps: Any) -> _Soft:
        squares = (points**2).sum(1)[:, None] + (others**2).sum(1) - 2 * points @ others.T
        with np.errstate(divide="ignore"):
            exponents = (other - 0.5 * np.maximum(squares, 0)) / eps + np.log(mass)
        highest = exponents.max(axis=1, keepdims=True)
        weights = np.exp(exponents - highest)
        total = weights.sum(axis=1, keepdims=True)
        return cls(weights / total, -eps * (highest + np.log(total))[:, 0])


class _Answer(NamedTuple):
    """A fold's answers without and with the correction of the bias; None where not solved."""

    judged: tuple[Judged | None, Judged | None]
    g: Any


def _judge(
    known: HeldOut, latent: _Latent, fold: Fold, epsilon: float, taus: Taus, g_init: Any
) -> _Answer:
    u, v = latent.u @ latent.root, known.y @ latent.root
    with double_precision():
        # As arrays, so that one program serves all; None for 1.
        both: Any = [as_tau(each, "tau", np.float64) for each in taus]
        found = _solve_fast(u, v, fold.a, fold.b, np.float64(epsilon), g_init, Taus(*both))
    f, g, own, eps, converged, own_converged = map(np.asarray, found)
    if not converged:
        return _Answer((None, None), None)
    rows, columns = known.pairs[fold.out].T
    there = _Soft.of(u[rows], v, fold.b, g, eps)
    truth, fates = known.y[columns], there.weights @ known.labels

    def judged(moved: Points) -> Judged:
        image = (truth - moved) @ latent.root
        # Where mass at x goes is a distribution whatever it grows to: no τ_a here.
        back = taus.tau_b * _Soft.of(image, u, fold.a, f, eps).potential
        cost = 0.5 * np.sum((u[rows] - image) ** 2, axis=1)
        return Judged(
            there.weights @ known.y + moved,
            energy_scores(there.weights, known.y, truth - moved, known.between),
            (cost - there.potential - back) / eps,
            fates,
        )

    plain = judged(np.zeros_like(truth))
    if not own_converged:
        return _Answer((plain, None), g)
    stays = _Soft.of(u[rows], u, fold.a, own, eps).weights @ latent.u
    return _Answer((plain, judged(latent.u[rows] - stays)), g)


def judge_family(
    family: Family, known: HeldOut, taus: Taus, *, n_jobs: int | None = None
) -> dict[tuple[float, bool], Judged]:
    """Every epsilon and debiasing of one family on held-out pairs.

    Epsilon falls until all scores rise: the RMSE, the energy score, and that of labels if any.
    """
    folds = list(known.folds())
    whole = known.start(family.diffeo, known.weight)
    knobs = known.shared_knobs(whole.regression)
    starts = [known.start(family.diffeo, fold.weight, knobs) for fold in folds]
    latents = [_Latent.of(start, family, known.x) for start in starts]
    epsilons = _Latent.of(whole, family, known.x).epsilons(whole, known)
    found: dict[tuple[float, bool], Judged] = {}
    labelled = known.labels[known.pairs[known.asked, 1]]
    best = np.full(2 + bool(labelled.any()), np.inf)
    g: list[Any] = [np.zeros(len(known.y))] * len(folds)
    with lapack_threads(len(known.x) * len(known.y)), Parallel(n_jobs, prefer="threads") as pool:
        for epsilon in epsilons:
            answers = pool(
                delayed(_judge)(known, latent, fold, epsilon, taus, start)
                for latent, fold, start in zip(latents, folds, g, strict=True)
            )
            scores = []
            for debias in (False, True):
                parts = [answer.judged[debias] for answer in answers]
                if any(part is None for part in parts):
                    continue
                joined = join(parts, folds)
                found[epsilon, debias] = joined
                missed = np.sum((joined.predicted - known.truth) ** 2, axis=1)
                weight = known.weight[known.asked]
                score = [weight @ missed, weight @ joined.energy]
                if labelled.any():
                    score.append(weight @ _label_losses(joined.fates, labelled))
                scores.append(score)
            if not scores or np.all(np.min(scores, axis=0) > best):
                break
            best = np.minimum(best, np.min(scores, axis=0))
            g = [answer.g for answer in answers]
    return found


def _label_losses(masses: Points, labelled: Points) -> NDArray[np.float64]:
    """−log of the share of the mass on labels that is on the true one; 0 without a true one."""
    floor = 1e-3 / masses.shape[1]
    right = np.sum(masses * labelled, axis=1) + floor
    lost = -np.log(right / (masses.sum(axis=1) + 1e-3))
    return np.asarray(np.where(labelled.any(axis=1), lost, 0.0))


def join(parts: Any, folds: list[Fold]) -> Judged:
    """The answers of all folds, each in its place."""
    count = sum(len(fold.places) for fold in folds)
    joined = Judged(*(np.empty((count, *piece.shape[1:])) for piece in parts[0]))
    for part, fold in zip(parts, folds, strict=True):
        for whole, piece in zip(joined, part, strict=True):
            whole[fold.places] = piece
    return joined
