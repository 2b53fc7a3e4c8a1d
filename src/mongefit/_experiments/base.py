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

PRESETS = ("default", "paper")


@dataclasses.dataclass(frozen=True)
class Run:
    """One thing to fit and measure.

    Attributes
    ----------
    case
        Which problem, such as "moon".
    method
        What is fitted, such as "map".
    preset
        "default", "paper", or "" where the method has no settings of its own.
    seed
        Seed of the data and of the training.
    """

    case: str
    method: str
    preset: str
    seed: int

    @property
    def name(self) -> str:
        """The run in words that a file may be named by."""
        parts = (self.case, self.method, self.preset, f"seed {self.seed}")
        return "-".join(part.replace(" ", "_") for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run found.

    Attributes
    ----------
    values
        Measures by name; None where one does not exist.
    arrays
        What the picture needs, as nested lists.
    """

    values: dict[str, float | None]
    arrays: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    """A run that was done, or failed.

    Attributes
    ----------
    run
        The run.
    options
        Everything that it depends on.
    outcome
        What it found; None where it failed.
    error
        Why it failed, or "".
    seconds
        How long it took, compilation included; of runs side by side, its share.
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
    """Something that the experiment should show.

    Attributes
    ----------
    what
        The claim in words, with its bound.
    found
        The number, in words.
    met
        Whether it holds.
    """

    what: str
    found: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.what} (found {self.found})"


def presets(*, quick: bool) -> tuple[str, ...]:
    """The presets to run; in a small version, which is mostly compilation, the default alone."""
    return PRESETS[:1] if quick else PRESETS


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
        return run.case, run.method, run.preset

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
        """Mean ± standard deviation of every measure over the seeds; failed runs are counted."""
        return summarise(results, self.measures, self.notes())


def crossed(plans: Iterable[tuple[str, str]], cases: Iterable[str], n_seeds: int) -> list[Run]:
    """Every plan, a method and a preset, on every case with every seed."""
    each = list(cases)
    return [
        Run(case, method, preset, seed)
        for method, preset in plans
        for case in each
        for seed in range(n_seeds)
    ]


def group(results: Sequence[Result], key: Callable[[Run], Any]) -> dict[Any, list[Result]]:
    """Results by a property of their runs, in order of appearance."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result.run), []).append(result)
    return groups


def summarise(results: Sequence[Result], measures: dict[str, str], notes: tuple[str, ...]) -> Table:
    """One row for each case, method and preset."""
    rows = []
    for (case, method, preset), those in group(
        results, lambda run: (run.case, run.method, run.preset)
    ).items():
        done = [result for result in those if result.outcome is not None]
        row: dict[str, Any] = {
            "case": case,
            "method": method,
            "preset": preset or None,
            "seeds": str(len(those)),
            "failed": str(len(those) - len(done)),
        }
        for measure in measures:
            values = np.array([result.value(measure) for result in done])
            values = values[~np.isnan(values)]
            known = len(values) > 0
            mean, spread = (values.mean(), values.std()) if known else (None, None)
            row[measure] = f"{mean:.3g} ± {spread:.2g}" if known else None
            row[f"{measure}_mean"] = mean
            row[f"{measure}_std"] = spread
            row[f"{measure}_median"] = np.median(values) if known else None
        row["seconds"] = np.mean([result.seconds for result in those])
        rows.append(row)
    failed = [f"Failed: {r.run.name}: {r.error}" for r in results if r.outcome is None]
    titles = {"case": "problem", "method": "method", "preset": "settings"}
    headers = titles | measures | {"seeds": "seeds", "failed": "failed", "seconds": "s/run"}
    return Table(tuple(rows), headers, (*notes, *failed))
