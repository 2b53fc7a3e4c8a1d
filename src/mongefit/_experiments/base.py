"""What an experiment is: runs that can be done one by one, a table and a picture of all of them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mongefit._estimators.many import Fit
from mongefit.metrics import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Run:
    """One thing to fit and measure: a method such as "map" on a problem such as "moon".

    The preset is "default", "paper", or "" where the method has no settings of its own. The seed is
    that of the data and of the training.
    """

    case: str
    method: str
    preset: str
    seed: int

    @property
    def plan(self) -> tuple[str, str, str]:
        """All but the seed."""
        return self.case, self.method, self.preset

    @property
    def name(self) -> str:
        """The run in words that a file may be named by."""
        parts = (*self.plan, f"seed {self.seed}")
        return "-".join(part.replace(" ", "_") for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run found: measures, None where there is none, and lists that the picture shows."""

    values: dict[str, float | None]
    arrays: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    """A run, everything that it depends on, and what it found.

    Where it failed there is no outcome, and the error says why. Its seconds include compilation; of
    runs side by side they are its share.
    """

    run: Run
    options: dict[str, Any]
    outcome: Outcome | None
    error: str
    seconds: float

    def value(self, measure: str) -> float:
        """A measure, infinite where the run failed and NaN where it does not exist."""
        if self.outcome is None:
            return np.inf
        found = self.outcome.values.get(measure)
        return np.nan if found is None else found


@dataclasses.dataclass(frozen=True)
class Goal:
    """Something that the experiment should show, with its bound; what was found, in words."""

    what: str
    found: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.what} (found {self.found})"


class Experiment(abc.ABC):
    """An experiment of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]
    measures: ClassVar[dict[str, str]]
    """Measures of a run, and their titles in the table."""

    @abc.abstractmethod
    def runs(self) -> list[Run]:
        """All runs, in the order in which they are done."""

    @abc.abstractmethod
    def options(self, run: Run) -> dict[str, Any]:
        """Everything that a run depends on, as JSON has it."""

    @abc.abstractmethod
    def fit(self, run: Run) -> Fit:
        """What is to be fitted, and to what."""

    @abc.abstractmethod
    def measure(self, run: Run, model: Any) -> Outcome:
        """What the fitted model shows."""

    def alike(self, run: Run) -> Hashable:
        """The same for runs, one after the other, that may be trained side by side."""
        return run.plan

    @abc.abstractmethod
    def draw(self, results: Sequence[Result]) -> Figure:
        """The picture."""

    @abc.abstractmethod
    def goals(self, results: Sequence[Result]) -> list[Goal]:
        """What should be seen."""

    def notes(self) -> tuple[str, ...]:
        """What the reader of the table should know."""
        return ()

    def table(self, results: Sequence[Result]) -> Table:
        """Mean ± standard deviation of every measure over the seeds, and what failed."""
        failed = [f"Failed: {r.run.name}: {r.error}" for r in results if r.outcome is None]
        return summarise(results, self.measures, (*self.notes(), *failed))


def select(results: Iterable[Result], **wanted: str | int) -> list[Result]:
    """The results of runs with these properties."""
    return [
        result
        for result in results
        if all(getattr(result.run, name) == value for name, value in wanted.items())
    ]


def values(results: Iterable[Result], measure: str) -> list[float]:
    """A measure of every result."""
    return [result.value(measure) for result in results]


def group(results: Sequence[Result], key: Callable[[Run], Any]) -> dict[Any, list[Result]]:
    """Results by a property of their runs, in order of appearance."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result.run), []).append(result)
    return groups


def summarise(results: Sequence[Result], measures: dict[str, str], notes: tuple[str, ...]) -> Table:
    """One row for each case, method and preset."""
    rows = []
    for (case, method, preset), those in group(results, lambda run: run.plan).items():
        done = [result for result in those if result.outcome is not None]
        row: dict[str, Any] = {
            "case": case,
            "method": method,
            "preset": preset or None,
            "seeds": str(len(those)),
            "failed": str(len(those) - len(done)),
        }
        for measure in measures:
            found = np.array(values(done, measure))
            found = found[~np.isnan(found)]
            known = len(found) > 0
            mean, spread = (found.mean(), found.std()) if known else (None, None)
            row[measure] = f"{mean:.3g} ± {spread:.2g}" if known else None
            row[f"{measure}_mean"] = mean
            row[f"{measure}_std"] = spread
            row[f"{measure}_median"] = np.median(found) if known else None
        row["seconds"] = np.mean([result.seconds for result in those])
        rows.append(row)
    titles = {"case": "problem", "method": "method", "preset": "settings"}
    headers = titles | measures | {"seeds": "seeds", "failed": "failed", "seconds": "s/run"}
    return Table(tuple(rows), headers, notes)
