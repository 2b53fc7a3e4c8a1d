"""Choosing among settings by the error on clones that were held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone as unfitted

from mongefit._estimators.many import Fit, fit_many
from mongefit._estimators.monge_map import MongeMap
from mongefit._io import StrPath
from mongefit._progress import ProgressBar
from mongefit._validation import check_schedule, check_seed
from mongefit.baselines import EuclideanMap, IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.errors import OptionError, TrainingError, ignored_warnings, summarised_warnings
from mongefit.metrics import Table, sinkhorn_divergence
from mongefit.model_selection._folds import Known, Thinned, check_max_points, warn_of_few
from mongefit.model_selection._keeping import KeptPaths

EPSILONS = (0.4, 0.2, 0.1, 0.05, 0.02)
"""Where squared Euclidean is tried."""

EUCLIDEAN = "squared Euclidean"
HEADERS = {"rmse": "RMSE, held out", "divergence": "divergence"}

TRIVIAL: dict[str, Any] = {
    "ridge on pairs": PairedRidge,
    "nearest pair": NearestPair,
    "target mean": TargetMean,
    "identity": IdentityMap,
}
_WINDOW = 5


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen: a candidate, and the number of training steps after which it is stopped.

    ``rmse`` is its error on held-out pairs there. It is the least of many, so a little too good:
    `cross_validate` gives one that is not.
    """

    name: str
    steps: int
    rmse: float


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The outcome of `select`.

    Attributes
    ----------
    model, choice
        The chosen settings, fitted on all points and all pairs, and which they are.
    table
        Candidates and what no map should lose to, on the same folds.
    paths
        For each candidate the RMSE on held-out pairs after every number of training steps.
    folds
        Fold of each pair.
    """

    model: MongeMap
    choice: Choice
    table: Table
    paths: dict[str, NDArray[np.float64]]
    folds: NDArray[np.int64]

    def __str__(self) -> str:
        return f"{self.table}\nChosen: {self.choice.name}, {self.choice.steps} steps."


def default_candidates() -> dict[str, MongeMap]:
    """Settings that are worth trying where pairs are few and noisy, as cells are."""
    return {
        f"layers {layers}, epsilon {epsilon:g}": MongeMap(
            hidden_layer_sizes=layers,
            symmetric=False,
            epsilon=epsilon,
            max_iter=60,
            learning_rate=0.01,
            many_to_many=True,
            dtype="mixed",
        )
        for layers, epsilon in (((32,), 0.1), ((32,), 0.2), ((64, 64), 0.1))
    }


def select(
    candidates: MongeMap | Sequence[MongeMap] | Mapping[str, MongeMap] | None,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    pairs: ArrayLike,
    pair_weight: ArrayLike | None = None,
    clones: ArrayLike | None = None,
    source_weight: ArrayLike | None = None,
    target_weight: ArrayLike | None = None,
    n_folds: int | None = None,
    max_points: int | None = 512,
    random_state: int | np.random.RandomState | None = 0,
    checkpoint: StrPath | None = None,
    resume: bool = False,
    verbose: int = 0,
) -> Selection:
    """Choose settings and the number of training steps by clones that were held out.

    Every candidate is trained without the clones of one fold at a time and judged on these after
    every step. The candidate and the step with the least error are taken and fitted on everything.

    Parameters
    ----------
    candidates
        Estimators to choose among, which are themselves not changed; by default
        `default_candidates`. Each is trained for up to its ``max_iter`` steps.
    X, Y
        Source and target points, [n, d] and [m, d].
    pairs, pair_weight
        Known pairs, integers [k, 2], and how much each counts in training. In the error all count
        the same.
    clones
        A label for each pair: pairs with the same one are held out together. By default pairs that
        share a point are.
    source_weight, target_weight
        Weights of the points, non-negative with sum 1; uniform by default.
    n_folds
        Number of folds; by default 5, and with fewer than 10 clones as many as there are.
    max_points
        Points of each cloud to choose on: all that are in pairs, and others drawn anew for every
        fold. None takes all. The chosen settings are fitted on all points in any case, in batches
        of this size.
    random_state
        Seed of the folds and of the draws.
    checkpoint
        A folder in which every candidate that was judged is kept, and then the last fit.
    resume
        Go on with what is kept in the folder. The data and the seed must be the same.
    verbose
        With 1, a progress bar on stderr.
    """
    named = check_candidates(candidates)
    known = Known.of(X, Y, pairs, pair_weight, clones, source_weight, target_weight)
    warn_of_few(known)
    seed, size = check_seed(random_state), check_max_points(max_points)
    folds = known.folds(n_folds, seed)
    n_folds = int(folds.max()) + 1
    kept = KeptPaths(checkpoint, resume=resume, what=[*known, folds, np.array([size or 0, seed])])
    with (
        ProgressBar(len(named) * n_folds + 1, enabled=bool(verbose)) as bar,
        summarised_warnings("fits"),
        kept.opened(),
    ):
        paths = {}
        for name, estimator in named.items():
            bar.describe(name)
            key = f"{name}\n{estimator.get_params(deep=False)!r}"
            if key in kept.paths:
                bar.update(n_folds)
            else:
                kept.put(key, held_out_path(estimator, known, folds, size, seed, bar.update))
            paths[name] = kept.paths[key]
        choice = best_choice(paths)
        bar.describe("fitting")
        part = Thinned.of(known, size, 0)
        # More than ``size`` where so many are in pairs.
        batch_size = None if size is None else max(size, len(part.x), len(part.y))
        model = stopped(named[choice.name], choice.steps, batch_size=batch_size)
        model.fit(
            X, Y, pairs=known.pairs, pair_weight=known.weight,
            source_weight=known.a, target_weight=known.b, checkpoint=kept.of_fit,
        )  # fmt: skip
        bar.update()
    table = _table(known, folds, size, seed, paths, choice, model)
    return Selection(model, choice, table, paths, folds)


def check_candidates(candidates: Any) -> dict[str, MongeMap]:
    """Candidates by name."""
    if candidates is None:
        return default_candidates()
    if isinstance(candidates, MongeMap):
        candidates = {"MongeMap": candidates}
    elif not isinstance(candidates, Mapping):
        candidates = {f"candidate {k + 1}": each for k, each in enumerate(candidates)}
    if not candidates:
        raise OptionError("There are no candidates to choose among.")
    for name, estimator in candidates.items():
        if not isinstance(estimator, MongeMap):
            raise OptionError(f"{name} must be a MongeMap, got {type(estimator).__name__}.")
    return dict(candidates)


def held_out_path(
    estimator: MongeMap,
    known: Known,
    folds: NDArray[np.int64],
    max_points: int | None,
    seed: int,
    on_fit: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """RMSE on held-out pairs after 0, 1, … training steps; infinite where a step failed.

    Pairs in fold −1 are neither trained nor judged on. ``on_fit`` is called after each fold.
    """
    fits, parts = [], []
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        part = Thinned.of(known, max_points, seed + fold)
        # Pairs without weight are not trained on, and keep every fold in one compiled shape.
        weight = np.where(held_out | (folds < 0), 0.0, known.weight)
        trained = unfitted(estimator).set_params(many_to_many=True, batch_size=None, verbose=0)
        validation = {"validation_pairs": part.pairs[held_out]}
        fits.append(Fit(trained, part.arguments(weight) | validation))
        parts.append(part)
    failures = fit_many(fits, on_fit=on_fit)
    squares = np.zeros(int(estimator.max_iter) + 1)
    for fold, ((model, _), part, failure) in enumerate(zip(fits, parts, failures, strict=True)):
        held_out = folds == fold
        if failure is not None:
            error: Any = np.inf
        elif model.history_:
            error = np.where(model.history_["applied"], model.history_["validation_rmse"], np.inf)
        else:  # no steps
            rows, columns = part.pairs[held_out].T
            error = -model.score(part.x[rows], part.y[columns])
        squares += np.sum(held_out) * error**2
    return np.sqrt(squares / np.sum(folds >= 0))


def best_choice(paths: Mapping[str, NDArray[np.float64]]) -> Choice:
    """The candidate and the step at which the error, smoothed over a few steps, is least."""
    smooth = {name: smoothed(path) for name, path in paths.items()}
    found = [Choice(name, int(path.argmin()), float(path.min())) for name, path in smooth.items()]
    best = min(found, key=lambda choice: choice.rmse)
    if not np.isfinite(best.rmse):
        raise TrainingError(
            "No candidate could be trained on every fold. Try larger epsilon or smaller "
            "learning_rate."
        )
    return best


def stopped(estimator: MongeMap, steps: int, *, batch_size: int | None) -> MongeMap:
    """The estimator, unfitted, with training that ends after some steps of its schedules."""
    share = steps / max(int(estimator.max_iter), 1)
    schedules = {}
    for name in ("epsilon", "learning_rate", "diffeo_learning_rate"):
        with ignored_warnings():
            start, end = check_schedule(getattr(estimator, name), name)
        # Geometric, as `training.Schedule` is.
        schedules[name] = (start, start * (end / start) ** share)
    return unfitted(estimator).set_params(
        max_iter=steps,
        validation_fraction=0.0,
        many_to_many=True,
        batch_size=batch_size,
        verbose=0,
        **schedules,
    )


def references(
    known: Known, part: Thinned, folds: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.float64], Any]]:
    """What no map should lose to: squared Euclidean at every epsilon, and trivial predictors.

    Of each the name, where the sources of all pairs go by fits without the pairs of their fold,
    [k, d], and the fit to all pairs.
    """
    sources = part.x[part.pairs[:, 0]]
    for epsilon in EPSILONS:
        # It learns from no pairs: all are held out.
        model = _fitted(EuclideanMap(epsilon=epsilon), part, None)
        yield f"{EUCLIDEAN}, epsilon {epsilon:g}", model.transform(sources), model
    for name, kind in TRIVIAL.items():
        predicted = np.empty_like(known.truth)
        for fold in range(folds.max() + 1):
            held_out = folds == fold
            model = _fitted(kind(many_to_many=True), part, np.where(held_out, 0.0, known.weight))
            predicted[held_out] = model.transform(sources[held_out])
        yield name, predicted, _fitted(kind(many_to_many=True), part, known.weight)


def squared_errors(predicted: NDArray[np.float64], known: Known) -> NDArray[np.float64]:
    """The squared error of every pair."""
    return np.sum((predicted - known.truth) ** 2, axis=1)


def divergence(model: Any, part: Thinned) -> float:
    """Sinkhorn divergence of the mapped source from the target."""
    mapped = model.transform(part.x)
    return float(sinkhorn_divergence(mapped, part.y, source_weight=part.a, target_weight=part.b))


def _fitted(model: Any, part: Thinned, weight: NDArray[np.float64] | None) -> Any:
    with ignored_warnings():  # of pairs, which the caller has been warned of
        return model.fit(**part.arguments(weight))


def _table(
    known: Known,
    folds: NDArray[np.int64],
    max_points: int | None,
    seed: int,
    paths: Mapping[str, NDArray[np.float64]],
    choice: Choice,
    model: MongeMap,
) -> Table:
    part = Thinned.of(known, max_points, seed)
    headers = {"name": "", "steps": "steps"} | HEADERS
    rows: list[tuple[Any, ...]] = []
    for name, path in paths.items():
        if np.any(np.isfinite(smoothed(path))):
            best = best_choice({name: path})
            spread = divergence(model, part) if name == choice.name else None
            rows.append((name, str(best.steps), best.rmse, spread))
    for name, predicted, fitted in references(known, part, folds):
        rmse = float(np.sqrt(np.mean(squared_errors(predicted, known))))
        rows.append((name, None, rmse, divergence(fitted, part)))
    notes = (
        f"{len(known.pairs)} pairs in {known.n_clones} clones, held out in {folds.max() + 1} "
        "folds. The least of many errors is a little too good.",
        "Divergence: Sinkhorn divergence of the mapped source from the target, of a fit to all "
        "pairs.",
    )
    return Table(tuple(dict(zip(headers, row, strict=True)) for row in rows), headers, notes)


def smoothed(path: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over neighbouring steps, fewer of them at the ends."""
    width = min(_WINDOW, len(path))
    ones = np.ones(width)
    return np.convolve(path, ones, "same") / np.convolve(np.ones(len(path)), ones, "same")
