"""How well fates are predicted of clones that neither a fit nor the choice of its options saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.monge_map import MongeMap
from mongefit._estimators.outcomes import chain_of
from mongefit._progress import ProgressBar
from mongefit._validation import check_seed
from mongefit.errors import OptionError, did_you_mean, summarised_warnings
from mongefit.metrics import LabelScores, Table, label_scores
from mongefit.metrics._labels import area_under_curve, log_losses
from mongefit.model_selection import Difference
from mongefit.model_selection._best import fit_best
from mongefit.model_selection._folds import Known, Thinned, check_max_points, warn_of_few
from mongefit.model_selection._judging import Fold, HeldOut
from mongefit.model_selection._labels import (
    TargetLabels,
    check_labelled,
    class_shares,
    label_predictors,
    mixed,
    true_labels,
)
from mongefit.single_cell._cells import Cells
from mongefit.single_cell._fate_fitting import DIFFUSION, N_COMPONENTS, take_views

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

Numbers = NDArray[np.float64]

FATES = "fates"
EUCLIDEAN = "squared Euclidean"
EPSILONS = (0.4, 0.2, 0.1, 0.05)
SCORES = ("log_loss", "brier", "auroc")
_HEADERS = {
    "name": "held-out cells", "log_loss": "log-loss", "brier": "Brier", "auroc": "AUROC",
    "calibration_error": "calibration",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class FateValidation:
    """The outcome of `cross_validate_fates`.

    Attributes
    ----------
    names
        The labels.
    probability
        For each way to predict, the probabilities for every held-out pair whose target has one of
        the labels, [k, labels].
    truth
        The number of the label of each of these targets, [k].
    weight
        How much each counts: every clone the same.
    clones
        The clone of each.
    """

    names: tuple[str, ...]
    probability: dict[str, Numbers]
    truth: NDArray[np.int64]
    weight: Numbers
    clones: NDArray[np.int64]

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def scores(self, name: str = FATES) -> LabelScores:
        """The scores of one way to predict."""
        return label_scores(self._of(name), self.truth, names=self.names, weight=self.weight)

    @property
    def table(self) -> Table:
        """The scores of all."""
        rows = []
        for name in self.probability:
            found = self.scores(name)
            row = {"name": name, "log_loss": found.log_loss, "brier": found.brier}
            row |= {"auroc": found.mean_auroc, "calibration_error": found.calibration_error}
            rows.append(row | {f"auroc_{label}": area for label, area in found.auroc.items()})
        count = len(np.unique(self.clones))
        notes = (
            f"{len(self.truth)} pairs in {count} clones, held out; labels {', '.join(self.names)}.",
            "All but AUROC: lower is better.",
        )
        return Table(tuple(rows), _HEADERS, notes)

    def best_euclidean(self) -> str:
        """The epsilon at which squared Euclidean has the least log-loss, in words."""
        names = (name for name in self.probability if name.startswith(EUCLIDEAN))
        return min(names, key=lambda name: self.scores(name).log_loss)

    def difference(
        self,
        other: str,
        name: str = FATES,
        *,
        score: str = "log_loss",
        n_resamples: int = 2000,
        seed: int = 0,
    ) -> Difference:
        """A score of one way to predict less that of another, with a bootstrap over clones.

        Parameters
        ----------
        other, name
            Two of the names in ``probability``.
        score
            "log_loss", "brier" or "auroc", which is the mean over labels.
        """
        if score not in SCORES:
            raise OptionError(
                f"score must be one of {', '.join(SCORES)}, got {score!r}."
                + did_you_mean(str(score), SCORES)
            )
        number = np.unique(self.clones, return_inverse=True)[1]
        count = int(number.max()) + 1
        drawn = np.random.default_rng(seed).multinomial(
            count, np.full(count, 1 / count), size=n_resamples
        )
        both = [self._score_of(each, score) for each in (name, other)]
        whole = [measure(self.weight) for measure in both]
        resampled = np.array(
            [[measure(self.weight * times[number]) for measure in both] for times in drawn]
        )
        away = resampled[:, 0] - resampled[:, 1]
        away = away[np.isfinite(away)]  # one label alone has no AUROC
        low, high = np.quantile(away, [0.025, 0.975])
        better = np.mean(away > 0 if score == "auroc" else away < 0)
        return Difference(whole[0] - whole[1], float(low), float(high), float(better))

    def _score_of(self, name: str, score: str) -> Callable[[Numbers], float]:
        """A score as a function of the weights."""
        p, code = self._of(name), self.truth
        if score == "auroc":
            return lambda weight: _mean_area(p, code, weight)
        losses = log_losses(p, code)
        if score == "brier":
            losses = np.sum((p - (code[:, None] == np.arange(p.shape[1]))) ** 2, axis=1)
        return lambda weight: float(weight @ losses / weight.sum())

    def _of(self, name: str) -> Numbers:
        if name not in self.probability:
            raise OptionError(
                f"There is no {name!r} here, only: {', '.join(self.probability)}."
                + did_you_mean(name, self.probability)
            )
        return self.probability[name]


def _mean_area(p: Numbers, code: NDArray[np.int64], weight: Numbers) -> float:
    areas, counts = [], []
    for k in range(p.shape[1]):
        positive = code == k
        share = weight @ positive
        if 0 < share < weight.sum():
            areas.append(area_under_curve(p[:, k], positive, weight))
            counts.append(share)
    return float(np.average(areas, weights=counts)) if areas else float("nan")


def cross_validate_fates(
    adata: AnnData,
    *,
    time_key: str,
    source: Any,
    target: Any,
    key: str,
    exclude: str | Iterable[str] = (),
    use_rep: str | None = None,
    n_components: Sequence[int] = N_COMPONENTS,
    diffusion: int | None = DIFFUSION,
    pair_key: str | None = None,
    pairs: DataFrame | Sequence[Sequence[Any]] | None = None,
    weight_key: str | None = None,
    growth_key: str | None = None,
    n_folds: int | None = None,
    max_cells: int | None = 2048,
    random_state: int | None = 0,
    verbose: int = 0,
) -> FateValidation:
    """Estimate how well `fit_fates` predicts, on clones that it has not seen.

    For every fold all of `fit_fates` is done without its clones, whose cells have no weight. Beside
    it are its maps one by one, squared Euclidean in the first representation at several epsilons,
    and class shares, logistic regression and nearest pairs there, each with its own setting chosen
    in every fold. All are mixed with 0.1 % of the class shares, so that none is certain.

    Parameters
    ----------
    adata, time_key, source, target, key, exclude, use_rep, n_components, diffusion, pair_key, \
pairs, weight_key, growth_key
        As in `fit_fates`.
    n_folds
        Number of folds; by default 5, and with fewer than 10 clones as many as there are.
    max_cells
        Cells of each time to fit on, with all that are in clones; None takes all.
    random_state
        Seed of the folds and draws.
    verbose
        With 1, a progress bar on stderr.
    """
    seed, size = check_seed(random_state), check_max_points(max_cells, "max_cells")
    taken, labels = take_views(
        adata, time_key=time_key, source=source, target=target, key=key, exclude=exclude,
        use_rep=use_rep, n_components=n_components, diffusion=diffusion, pair_key=pair_key,
        pairs=pairs, weight_key=weight_key, growth_key=growth_key,
    )  # fmt: skip
    targets = TargetLabels.of(labels, len(labels))
    problems = [_Problem.of(cells, targets, n_folds, size, seed) for cells in taken]
    first = problems[0].held
    check_labelled(first)
    warn_of_few(problems[0].known)
    folds = list(first.folds())
    parts: dict[str, Numbers] = {}
    with (
        ProgressBar(len(folds), enabled=bool(verbose), description="folds") as bar,
        summarised_warnings("fits"),
    ):
        for k in range(len(folds)):
            shares = []
            for cells, problem in zip(taken, problems, strict=True):
                masses, fold = problem.fates(k, labels, seed)
                name = cells.representation.text(problem.known.x.shape[1])
                _put(
                    parts, name, mixed(masses, class_shares(problem.held, fold.weight)), first, fold
                )
                shares.append(parts[name][fold.places])
            _put(parts, FATES, np.mean(shares, axis=0), first, fold)
            for name, masses in problems[0].euclidean(fold):
                _put(parts, name, mixed(masses, class_shares(first, fold.weight)), first, fold)
            bar.update()
    ordered = {FATES: parts.pop(FATES)} | parts | label_predictors(first)
    truth = true_labels(first)
    some = truth >= 0
    return FateValidation(
        targets.names,
        {name: each[some] for name, each in ordered.items()},
        truth[some],
        first.weight[first.asked][some],
        first.clone[first.asked][some],
    )


def _put(parts: dict[str, Numbers], name: str, found: Numbers, held: HeldOut, fold: Fold) -> None:
    whole = parts.setdefault(name, np.empty((len(held.asked), held.labels.shape[1])))
    whole[fold.places] = found


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    """The cells in one representation, and what is held out of them."""

    known: Known
    part: Thinned
    held: HeldOut
    labels: TargetLabels

    @classmethod
    def of(
        cls, cells: Cells, labels: TargetLabels, n_folds: int | None, size: int | None, seed: int
    ) -> _Problem:
        known = Known.of(cells.x, cells.y, **cells.known_pairs())
        part = Thinned.of(known, size, seed)
        fold = known.folds(n_folds, seed)[None]
        # In units in which classifiers know what is large.
        scale = float(np.sqrt(np.mean((part.x - part.x.mean(axis=0)) ** 2)))
        x, y = (points / (scale if scale > 0 else 1.0) for points in (part.x, part.y))
        held = HeldOut(
            x, y, part.a, part.b, part.pairs, known.weight, known.clone, fold,
            np.zeros((0, 0)), labels.indicator[part.columns],
        )  # fmt: skip
        return cls(known, part, held, labels)

    def fates(self, k: int, labels: NDArray[Any], seed: int) -> tuple[Numbers, Fold]:
        """The mass on each label for the pairs of one fold, of what is chosen and fitted without
        them."""
        fold, part = list(self.held.folds())[k], self.part
        left = ~fold.out
        found = fit_best(
            MongeMapCV(scoring="fate", random_state=seed), part.x, part.y,
            pairs=part.pairs[left], pair_weight=self.known.weight[left],
            clones=self.known.clone[left], groups=None, labels=labels[part.columns],
            source_weight=fold.a, target_weight=fold.b, checkpoint=None, resume=False,
            reported=False,
        )  # fmt: skip
        return self._ask(found.model, fold), fold

    def euclidean(self, fold: Fold) -> Iterator[tuple[str, Numbers]]:
        """The same of squared Euclidean at several epsilons."""
        for epsilon in EPSILONS:
            model = MongeMap(cost="sqeuclidean", epsilon=epsilon)
            model.fit(self.part.x, self.part.y, source_weight=fold.a, target_weight=fold.b)
            yield f"{EUCLIDEAN}, epsilon {epsilon:g}", self._ask(model, fold)

    def _ask(self, model: MongeMap, fold: Fold) -> Numbers:
        from mongefit._fitting.chains import mean_over

        points = self.part.x[self.part.pairs[fold.out, 0]]
        return mean_over(chain_of(model), self.held.labels, points=points)
