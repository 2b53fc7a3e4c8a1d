"""What `MongeMapCV.fit` does: judge candidates on held-out pairs, and fit the best on all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone as unfitted

from mongefit._estimators.monge_map import MongeMap
from mongefit._fitting.starting import kernel_map
from mongefit._progress import ProgressBar
from mongefit._runtime import double_precision
from mongefit._transport import Units
from mongefit._validation import check_seed, check_switch
from mongefit.errors import OptionError, summarised_warnings, warn_user
from mongefit.metrics import Table, label_scores, sinkhorn_divergence
from mongefit.metrics._energy import distances
from mongefit.model_selection._choosing import (
    Comparison,
    Entry,
    Loss,
    Scoring,
    check_scoring,
    check_strengths,
    negligible,
    pick,
    results,
    squares,
)
from mongefit.model_selection._folds import (
    FEW_CLONES,
    Known,
    Thinned,
    check_max_points,
    warn_of_few,
)
from mongefit.model_selection._judging import (
    FAMILIES,
    Family,
    HeldOut,
    Judged,
    Taus,
    judge_family,
)
from mongefit.model_selection._keeping import KeptPaths
from mongefit.model_selection._labels import (
    TargetLabels,
    answered,
    check_labelled,
    label_predictors,
    true_labels,
)
from mongefit.model_selection._predictors import Predictor, simple_predictors
from mongefit.model_selection._selecting import check_candidates
from mongefit.model_selection._training import Trainer, keep, recall
from mongefit.penalties import Departure

if TYPE_CHECKING:
    from mongefit._estimators.chosen import MongeMapCV

SAFE: dict[str, Any] = {"cost": "sqeuclidean", "epsilon": 0.05, "debias": True}
"""Where nothing is known."""
FOR_GROUPS: dict[str, Any] = {
    "cost": "matrix", "diffeo": "affine", "epsilon": 0.05, "debias": True, "max_iter": 100,
    "learning_rate": 0.02, "diffeo_learning_rate": 0.01,
}  # fmt: skip
"""Where groups are known, and no pairs to choose by."""
TRAINING: dict[str, Any] = {
    "max_iter": 100, "learning_rate": 0.02, "diffeo_learning_rate": 0.01,
}  # fmt: skip
LENIENT = 1.3
"""What starts from the identity goes on if its error on the first fold is below this times that of
the best candidate; what starts from a candidate has to be better."""
TRAINED = "; trained"
FREE = "Euclidean, kernel source; trained from the identity"
FREE_EPSILONS = (0.07, 0.05)
"""Epsilons of what starts from the identity."""
REPEATS, MANY_CLONES = 3, 40
"""How often the pairs are divided into folds, with fewer clones than these."""
HEADERS = {
    "name": "held-out pairs", "rmse": "RMSE", "energy": "energy", "divergence": "divergence",
}  # fmt: skip
LABELLED = {"log_loss": "log-loss", "auroc": "AUROC"}


class Best(NamedTuple):
    """What was chosen, fitted, and what it was chosen from."""

    model: MongeMap
    score: float
    results: dict[str, Any]
    report: Table | None


def fit_best(
    settings: MongeMapCV, X: ArrayLike, Y: ArrayLike, *, pairs: Any, pair_weight: Any, clones: Any,
    groups: Any, labels: Any, source_weight: Any, target_weight: Any, checkpoint: Any,
    resume: bool, reported: bool = True,
) -> Best:  # fmt: skip
    """Choose, fit and report, unless nobody will read it."""
    scoring = check_scoring(settings.scoring)
    if scoring == "fate" and labels is None:
        raise OptionError(
            "scoring='fate' judges by the labels of target points, and there are none. Give "
            "labels=, one for each row of Y."
        )
    strengths = check_strengths(settings.tau_a, settings.tau_b)
    seed, size = check_seed(settings.random_state), check_max_points(settings.max_points)
    check_switch(settings.normalize_weight, "normalize_weight")
    base = MongeMap(
        many_to_many=True, normalize_weight=settings.normalize_weight, random_state=seed,
        strict=settings.strict, max_iter=0, **strengths[0].options,
    )  # fmt: skip
    weights = {"source_weight": source_weight, "target_weight": target_weight}
    if pairs is None or len(pairs) == 0:
        warn_user(
            "No pairs are known, so that nothing can be chosen by them: "
            + ("the map is trained on the groups with fixed options." if groups is not None else
               "the map is that of the squared Euclidean distance.")
        )  # fmt: skip
        options = SAFE if groups is None else FOR_GROUPS
        model = base.set_params(**options, verbose=settings.verbose)
        model.fit(X, Y, groups=groups, clones=clones, pair_weight=pair_weight, **weights)
        return Best(model, np.nan, {}, None)
    known = Known.of(
        X, Y, pairs, pair_weight, clones, source_weight, target_weight,
        several=False, normalize=settings.normalize_weight,
    )  # fmt: skip
    if known.n_clones < 2:
        warn_user(
            "All pairs belong to one clone, so that none can be held out to choose by: the map is "
            "that of the squared Euclidean distance. Give pairs of two clones at least."
        )
        model = base.set_params(**SAFE).fit(X, Y, **weights)
        return Best(model, np.nan, {}, None)
    warn_of_few(known)
    targets = TargetLabels.of(labels, len(known.y))
    chooser = _Chooser.of(known, settings, scoring, seed, size, targets)
    kept = KeptPaths(checkpoint, resume=resume, what=chooser.arrays())
    named = None if settings.candidates is None else check_candidates(settings.candidates)
    stages = len(strengths) * len(FAMILIES if named is None else named) + (named is None)
    with (
        ProgressBar(stages + 1, enabled=bool(settings.verbose)) as bar,
        kept.opened(),
    ):
        with summarised_warnings("fits"):
            training = Trainer(
                chooser.held, chooser.part, chooser.centre, chooser.scale, scoring, kept, groups
            )
            if named is None:
                entries = chooser.families(strengths, kept, bar, training)
            else:
                entries = []
                for (name, estimator), taus in itertools.product(named.items(), strengths):
                    bar.describe(f"{name}{taus}")
                    entries += training.judge(name, unfitted(estimator).set_params(**taus.options))
                    bar.update()
            best = chooser.pick(entries)
        bar.describe("fitting")
        model = base.set_params(**best.options)
        if model.max_iter and size is not None:
            part = chooser.part
            model.set_params(batch_size=max(size, len(part.x), len(part.y)))
        told: dict[str, Any] = {
            "pairs": known.pairs, "pair_weight": known.weight, "clones": known.clone,
            "groups": groups,
        }  # fmt: skip
        if model.cost == "sqeuclidean" and model.diffeo is None:
            told = {}  # nothing to learn
        own = kept.of_fit if model.max_iter else None
        with warnings.catch_warnings():
            # At this very epsilon it predicts what was held out.
            warnings.filterwarnings("ignore", message="The plan falls into")
            model.fit(X, Y, **told, **weights, checkpoint=own)
        bar.update()
        report = None
        if reported:
            simple = chooser.simple()
            report = chooser.report(entries, best, model, simple)
    if reported:
        chooser.warn_if_beaten(best, simple)
    found = results(entries, chooser.held, scoring, chooser.out_of, chooser.scale)
    score = float(found["mean_test_score"][entries.index(best)])
    return Best(model, score, found, report)


class _Chooser(NamedTuple):
    """What candidates are judged on."""

    held: HeldOut
    part: Thinned
    centre: NDArray[np.float64]
    scale: float
    scoring: Scoring | Loss
    n_jobs: int | None
    seed: int
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        known: Known,
        settings: MongeMapCV,
        scoring: Any,
        seed: int,
        size: int | None,
        labels: TargetLabels,
    ) -> _Chooser:
        # What a few pairs say depends on how they are divided.
        times = REPEATS if FEW_CLONES <= known.n_clones < MANY_CLONES else 1
        fold = [known.folds(settings.cv, seed + k) for k in range(times)]
        part = Thinned.of(known, size, seed)
        a, b = (
            np.full(len(points), 1 / len(points)) if mass is None else mass
            for points, mass in ((known.x, known.a), (known.y, known.b))
        )
        with double_precision():
            units = Units.of((known.x, a), (known.y, b))
            x, y = (np.asarray(units.into(points), np.float64) for points in (part.x, part.y))
            centre, scale = np.asarray(units.centre), float(units.scale)
        held = HeldOut(
            x, y, part.a, part.b, part.pairs, known.weight, known.clone, np.stack(fold),
            distances(y, y), labels.indicator[part.columns],
        )  # fmt: skip
        if scoring == "fate":
            check_labelled(held)
        return cls(held, part, centre, scale, scoring, settings.n_jobs, seed, labels.names)

    def arrays(self) -> list[Any]:
        """All that judgements depend on."""
        held = self.held
        arrays = [held.x, held.y, held.a, held.b, held.pairs, held.weight, held.clone, held.fold]
        return [*arrays, held.labels] if held.labels.size else arrays

    def pick(self, entries: list[Entry]) -> Entry:
        return pick(entries, self.held, self.scoring, self.out_of)

    def out_of(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(points * self.scale + self.centre)

    def families(
        self, strengths: list[Taus], kept: KeptPaths, bar: ProgressBar, training: Trainer
    ) -> list[Entry]:
        """The quadratic families in closed form, and those with a matrix trained further."""
        entries: list[Entry] = []
        # Together: where weights are wrong no family looks better than another.
        for family, taus in itertools.product(FAMILIES, strengths):
            name = f"{family}{taus}"
            bar.describe(name)
            found = recall(kept, name)
            if found is None:
                found = judge_family(family, self.held, taus, n_jobs=self.n_jobs)
                keep(kept, name, found)
            entries += [_entry(family, taus, *key, judged) for key, judged in found.items()]
            bar.update()
        # By labels costs are not trained further: steps are counted by the RMSE.
        if not entries or self.scoring == "fate":
            bar.update()
            return entries
        best, compare = self.pick(entries), Comparison(self.held)
        bar.describe("training")
        if compare.mean(squares(best.judged, self.held)) > negligible(self.held, compare):
            limit = self._first_fold(best)
            for name, options, lenient in self._to_train(entries, best.taus):
                estimator = MongeMap(**options)
                entries += training.judge(name, estimator, lenient * limit)
        bar.update()
        # The simplest first: what leaves the identity step by step comes after what stays there.
        names = [str(family) for family in FAMILIES]
        names.insert(sum(family.diffeo is None for family in FAMILIES), FREE)
        return sorted(entries, key=lambda entry: names.index(entry.kind.removesuffix(TRAINED)))

    def _to_train(
        self, entries: list[Entry], taus: Taus
    ) -> Iterator[tuple[str, dict[str, Any], float]]:
        """What to train: the families with a matrix from where they are best in closed form, and
        a kernel source map from the identity with these strengths."""
        for diffeo in (None, "affine"):
            name = str(Family(diffeo, "matrix"))
            same = [entry for entry in entries if entry.kind == name]
            start = self._pick_or_none(same)
            if start is not None:
                yield name + TRAINED, start.options | TRAINING, 1.0
        sources = np.unique(self.held.x[self.held.pairs[:, 0]], axis=0)
        phi = kernel_map(sources)
        for epsilon in FREE_EPSILONS:
            yield FREE, TRAINING | taus.options | {
                "cost": "sqeuclidean", "diffeo": (phi, None), "epsilon": epsilon,
                "diffeo_learning_rate": 0.002, "penalties": [1e-2 * Departure()],
            }, LENIENT  # fmt: skip

    def _first_fold(self, entry: Entry) -> float:
        """The RMSE on the first fold, in the units of the data."""
        fold = next(self.held.folds())
        return self.scale * float(np.sqrt(np.mean(squares(entry.judged, self.held)[fold.places])))

    def simple(self) -> dict[str, tuple[NDArray[np.float64], Predictor]]:
        return simple_predictors(self.held)

    def report(
        self,
        entries: list[Entry],
        best: Entry,
        model: MongeMap,
        simple: dict[str, tuple[NDArray[np.float64], Predictor]],
    ) -> Table:
        """The best of each family, and the simple predictors."""
        held, compare = self.held, Comparison(self.held)
        rows: list[tuple[Any, ...]] = []
        # Of the kind that was chosen every strength, of the others the best.
        parts: dict[str, list[Entry]] = {}
        for each in entries:
            part = each.family if each.kind == best.kind else each.kind
            parts.setdefault(part, []).append(each)
        for same in parts.values():
            entry = best if best in same else self._pick_or_none(same)
            if entry is None:
                continue
            spread = None
            if entry is best:
                spread = self._divergence(model.transform(self.part.x))
            rmse = self.scale * compare.mean(squares(entry.judged, held)) ** 0.5
            energy = self.scale * compare.mean(entry.judged.energy)
            chosen = entry is best
            fates = self._label_scores(entry.judged.fates)
            rows.append(
                (entry.family, rmse, energy, spread, *fates, "candidate", entry.name, chosen)
            )
        none = (None, None) if self.names else ()
        for name, (predicted, predict) in simple.items():
            missed = np.linalg.norm(predicted - held.truth, axis=1)
            rmse, mean = compare.mean(missed**2) ** 0.5, compare.mean(missed)
            spread = self._divergence(self.out_of(predict(held.x)))
            rows.append(
                (name, self.scale * rmse, self.scale * mean, spread, *none, "simple", name, False)
            )
        if self.names:
            for name, probability in label_predictors(held).items():
                scores = self._scores_of(probability)
                rows.append((name, None, None, None, *scores, "simple", name, False))
        often = "" if len(held.fold) == 1 else f", {len(held.fold)} times"
        notes: tuple[str, ...] = (
            f"{len(held.pairs)} pairs in {int(held.clone.max()) + 1} clones, held out in "
            f"{int(held.fold.max()) + 1} folds{often}. Chosen: {best.name}.",
            "Of each family the best candidate. Energy: the energy score, in units of the data. "
            "Divergence: Sinkhorn divergence of the mapped source from the target, of a fit to all "
            "pairs.",
        )
        headers: dict[str, str] = HEADERS
        if self.names:
            headers = HEADERS | LABELLED
            notes += (
                f"Log-loss and AUROC: of the labels of held-out targets, {', '.join(self.names)}.",
            )
        keys = (*headers, "kind", "what", "chosen")
        return Table(tuple(dict(zip(keys, row, strict=True)) for row in rows), headers, notes)

    def _label_scores(self, masses: NDArray[np.float64]) -> tuple[float, ...]:
        """Log-loss and AUROC of what a candidate says of labels; nothing without labels."""
        return self._scores_of(answered(self.held, masses)) if self.names else ()

    def _scores_of(self, probability: NDArray[np.float64]) -> tuple[float, ...]:
        truth = true_labels(self.held)
        some, weight = truth >= 0, self.held.weight[self.held.asked]
        if not some.any():
            return (np.nan, np.nan)
        found = label_scores(probability[some], truth[some], weight=weight[some])
        return found.log_loss, found.mean_auroc

    def _pick_or_none(self, entries: list[Entry]) -> Entry | None:
        finite = [each for each in entries if np.all(np.isfinite(each.judged.predicted))]
        return self.pick(finite) if finite else None

    def _divergence(self, mapped: NDArray[np.float64]) -> float:
        part = self.part
        found = sinkhorn_divergence(mapped, part.y, source_weight=part.a, target_weight=part.b)
        return float(found)

    def warn_if_beaten(
        self, best: Entry, simple: dict[str, tuple[NDArray[np.float64], Predictor]]
    ) -> None:
        """Say so where a simple predictor is better on held-out pairs."""
        held, compare = self.held, Comparison(self.held)
        errors = {
            name: np.sum((predicted - held.truth) ** 2, axis=1)
            for name, (predicted, _) in simple.items()
        }
        name = min(errors, key=lambda each: compare.mean(errors[each]))
        own = squares(best.judged, held)
        if compare.within(own, errors[name], 2) or compare.mean(own) <= negligible(held, compare):
            return
        ours, theirs = (self.scale * np.sqrt(compare.mean(each)) for each in (own, errors[name]))
        warn_user(
            f"On held-out pairs the best map has an RMSE of {ours:.4g}, and {name} has "
            f"{theirs:.4g}. Where only the predicted point matters use that; for a better map try "
            "more pairs, other features, or scoring='rmse'."
        )


def _entry(family: Family, taus: Taus, epsilon: float, debias: bool, judged: Judged) -> Entry:
    options = {
        "cost": family.cost, "diffeo": family.diffeo, "epsilon": epsilon, "debias": debias,
        "max_iter": 0, **taus.options,
    }  # fmt: skip
    name = f"{family}, epsilon {epsilon:.2g}" + (", debiased" if debias else "")
    return Entry(f"{name}{taus}", options, str(family), judged, taus)
