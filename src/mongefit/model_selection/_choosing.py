"""Choosing among maps by what they say of held-out pairs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mongefit._regression import standard_error
from mongefit._validation import check_tau
from mongefit.errors import OptionError, TrainingError, did_you_mean
from mongefit.metrics._energy import distances
from mongefit.metrics._labels import log_losses
from mongefit.model_selection._judging import STRICT, HeldOut, Judged, Taus
from mongefit.model_selection._labels import answered, true_labels

GUARD = 0.5
"""Standard errors by which the RMSE of what is chosen by another score may be above the least."""

Scoring = Literal["energy", "rmse", "likelihood", "fate"]
Loss = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A candidate and what it says of held-out pairs.

    Attributes
    ----------
    name, options
        What it is, and the options of `MongeMap` that make it.
    kind
        The kind of cost.
    judged
        Its predictions.
    taus
        How strictly it keeps weights.
    """

    name: str
    options: dict[str, Any]
    kind: str
    judged: Judged
    taus: Taus = STRICT

    @property
    def family(self) -> str:
        """Candidates of one family differ in epsilon and debiasing only."""
        return f"{self.kind}{self.taus}"


def check_scoring(scoring: Any) -> Scoring | Loss:
    """Refuse what nothing can be judged by."""
    if callable(scoring) or scoring in get_args(Scoring):
        return scoring
    raise OptionError(
        f"scoring must be one of {', '.join(get_args(Scoring))}, or a function of (truth, "
        f"predicted) that gives the loss of every row, got {scoring!r}."
        + did_you_mean(str(scoring), get_args(Scoring))
    )


def check_strengths(tau_a: Any, tau_b: Any) -> list[Taus]:
    """What to choose among, from the strictest on; of each side one number or several."""
    sides = []
    for name, given in (("tau_a", tau_a), ("tau_b", tau_b)):
        several = np.ndim(given) == 1 and not isinstance(given, str)
        if several and not len(given):
            raise OptionError(f"{name} is empty. Give a number, or several to choose among.")
        sides.append({check_tau(each, name) for each in (given if several else [given])})
    both = [Taus(*each) for each in itertools.product(*sides)]
    return sorted(both, key=lambda taus: (taus.kept, taus), reverse=True)


def squares(judged: Judged, known: HeldOut) -> NDArray[np.float64]:
    """The squared error of every pair, in common units."""
    return np.sum((judged.predicted - known.truth) ** 2, axis=1)


def losses(
    scoring: Scoring | Loss, judged: Judged, known: HeldOut, out_of: Callable[..., Any]
) -> NDArray[np.float64]:
    """The loss of every pair; ``out_of`` takes points to the units of the data."""
    if scoring == "energy":
        return judged.energy
    if scoring == "likelihood":
        return judged.surprise
    if scoring == "rmse":
        return squares(judged, known)
    if scoring == "fate":
        truth = true_labels(known)
        return np.where(truth >= 0, log_losses(answered(known, judged.fates), truth), 0.0)
    found = np.asarray(scoring(out_of(known.truth), out_of(judged.predicted)), np.float64)
    if found.shape != (len(known.asked),):
        raise OptionError(
            f"scoring must give a loss for every row, ({len(known.asked)},), got shape "
            f"{found.shape}."
        )
    return found


class Comparison:
    """Means of losses over pairs, and of their differences, with standard errors over clones.

    With ``labelled`` over the pairs alone whose target has a label.
    """

    def __init__(self, known: HeldOut, *, labelled: bool = False):
        weight = known.weight[known.asked]
        if labelled:
            weight = np.where(true_labels(known) >= 0, weight, 0.0)
        self._weight: NDArray[np.float64] = weight / weight.sum()
        self._clone = known.clone[known.asked]

    def mean(self, loss: NDArray[np.float64]) -> float:
        return float(self._weight @ loss)

    def error(self, loss: NDArray[np.float64]) -> float:
        """The standard error of the mean."""
        return standard_error(loss, self._weight, self._clone)

    def apart(self, judged: Judged, known: HeldOut) -> float:
        """The energy distance between predicted and true targets: large where a map shrinks."""
        some = np.unique(np.linspace(0, len(self._weight) - 1, 512).astype(int))
        weight = self._weight[some] / self._weight[some].sum()
        points = judged.predicted[some], known.truth[some]
        between, own, true = (
            weight @ distances(x, y) @ weight
            for x, y in ((points[0], points[1]), (points[0],) * 2, (points[1],) * 2)
        )
        return float(2 * between - own - true)

    def within(
        self, loss: NDArray[np.float64], best: NDArray[np.float64], errors: float = 1
    ) -> bool:
        """Whether a loss is no more than so many standard errors above another."""
        away = loss - best
        return self.mean(away) <= errors * self.error(away)


def negligible(known: HeldOut, compare: Comparison) -> float:
    """The mean square below which no error needs to be smaller: a ten-thousandth of the spread."""
    centre = known.truth.mean(axis=0)
    return 1e-4 * compare.mean(np.sum((known.truth - centre) ** 2, axis=1))


def pick(
    entries: Sequence[Entry],
    known: HeldOut,
    scoring: Scoring | Loss,
    out_of: Callable[..., Any],
) -> Entry:
    """The simplest of the candidates that cannot be told from the best; entries are in order.

    The same goes for those whose error is negligible. Of one family that is the candidate whose
    predictions are spread most like the true targets: a map that shrinks predicts points as well.
    Weights are kept as strictly as was tried, or as little as the pairs allow.

    What is chosen by the score of a distribution has an RMSE close to the least in any case:
    with few pairs a score alone may prefer a map that misses more. By labels the best is taken as
    it is: what is asked for are their probabilities, and nothing else.
    """
    compare = Comparison(known)
    judge = Comparison(known, labelled=scoring == "fate")
    missed = [squares(entry.judged, known) for entry in entries]
    scores = [losses(scoring, entry.judged, known, out_of) for entry in entries]
    finite = [k for k in range(len(entries)) if np.all(np.isfinite(missed[k] + scores[k]))]
    if not finite:
        raise TrainingError(
            "No candidate could be judged on every fold. Try larger epsilon or smaller "
            "learning_rate."
        )
    exact = [k for k in finite if compare.mean(missed[k]) <= negligible(known, compare)]
    if exact:
        same = [k for k in exact if entries[k].family == entries[exact[0]].family]
        return entries[min(same, key=lambda k: judge.mean(scores[k]))]
    if scoring in ("energy", "likelihood"):
        least = min(finite, key=lambda k: compare.mean(missed[k]))
        finite = [k for k in finite if compare.within(missed[k], missed[least], GUARD)]
    best = min(finite, key=lambda k: judge.mean(scores[k]))
    if scoring == "fate":
        return entries[best]
    close = [k for k in finite if judge.within(scores[k], scores[best])]
    family = _family([entries[k] for k in close], entries)
    same = [k for k in close if entries[k].family == family]
    if scoring in ("energy", "likelihood"):
        return entries[min(same, key=lambda k: compare.apart(entries[k].judged, known))]
    return entries[min(same, key=lambda k: judge.mean(scores[k]))]


def _family(close: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """The simplest family that keeps weights as strictly as any that was tried; if there is none,
    the least strict of the simplest kind.

    Pairs are of points that are on both sides. They show where true moves are refused, which comes
    of keeping weights too little; what keeping them too much does to the neighbours of points that
    died or belong to nothing, they hardly show.
    """
    strictest = max(entry.taus.kept for entry in entries)
    found = [entry for entry in close if entry.taus.kept == strictest]
    if not found:
        same = [entry for entry in close if entry.kind == close[0].kind]
        found = [min(same, key=lambda entry: entry.taus.kept)]
    return found[0].family


def results(
    entries: Sequence[Entry],
    known: HeldOut,
    scoring: Scoring | Loss,
    out_of: Callable[..., Any],
    scale: float,
) -> dict[str, Any]:
    """`cv_results_`: an entry for each candidate; of scores more is better."""
    compare, judge = Comparison(known), Comparison(known, labelled=scoring == "fate")
    scores = [losses(scoring, entry.judged, known, out_of) for entry in entries]
    mean = np.array([judge.mean(each) for each in scores])
    unit = 1.0 if callable(scoring) or scoring in ("likelihood", "fate") else scale
    if scoring == "rmse":
        mean = np.sqrt(mean)
    order = np.empty(len(entries), np.int64)
    order[np.argsort(mean, kind="stable")] = np.arange(1, len(entries) + 1)
    taus = {name: [getattr(entry.taus, name) for entry in entries] for name in Taus._fields}
    return {
        "params": [entry.options for entry in entries],
        "name": np.array([entry.name for entry in entries]),
        **{name: np.array(column) for name, column in taus.items() if min(column) < 1},
        "mean_test_score": -unit * mean,
        "rank_test_score": order,
        "rmse": scale
        * np.array([np.sqrt(compare.mean(squares(e.judged, known))) for e in entries]),
        "energy": scale * np.array([compare.mean(e.judged.energy) for e in entries]),
    }
