"""Progress on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
from tqdm import tqdm

if TYPE_CHECKING:
    from mongefit._training import Info

SECONDS = 5.0
"""How often a line is written where stderr is no terminal."""


class ProgressBar:
    """How much of some work is done, and how long the rest will take.

    TQDM_DISABLE in the environment switches it off, as ``enabled=False`` does.
    """

    def __init__(self, total: int, *, enabled: bool, description: str = ""):
        shown = enabled and not os.environ.get("TQDM_DISABLE")
        terminal = sys.stderr.isatty()
        self._writes_lines = shown and not terminal
        self._description = description
        self._shown: dict[str, str] = {}
        self.done = 0
        self._total, self._first = total, 0
        self._started = self._written = time.monotonic()
        self._bar = tqdm(
            total=total,
            desc=description,
            file=sys.stderr,
            disable=not (shown and terminal),
            dynamic_ncols=True,
            # Short enough for 60 columns.
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}",
        )

    def describe(self, description: str) -> None:
        """Say what is being done now."""
        self._description = description
        self._bar.set_description_str(description, refresh=False)

    def update(self, parts: int = 1, shown: Mapping[str, str] | None = None) -> None:
        """Say that more parts are done, and show some values."""
        self.done += parts
        if shown:
            self._shown = dict(shown)
            self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(parts)
        if self._writes_lines and time.monotonic() - self._written >= SECONDS:
            self._written = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def restart_clock(self) -> None:
        """Reckon the time left from here on, such as when compilation is over."""
        self._first, self._started = self.done, time.monotonic()
        if not self._bar.disable:
            self._bar.initial = self._bar.last_print_n = self._bar.n
            self._bar.start_t = self._bar.last_print_t = time.time()
            self._bar.refresh()

    def _line(self) -> str:
        words = [f"{self._description} {self.done}/{self._total}".strip()]
        words += [f"{name} {value}" for name, value in self._shown.items()]
        if self.done > self._first:
            pace = (time.monotonic() - self._started) / (self.done - self._first)
            words.append(f"{pace * (self._total - self.done):.0f} s left")
        return ", ".join(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


class TrainingBar(ProgressBar):
    """The progress of training, with loss, epsilon and the number of skipped steps."""

    def __init__(self, total: int, *, enabled: bool):
        super().__init__(total, enabled=enabled, description="compiling")
        self._skipped = 0

    def report(self, infos: Info) -> None:
        """Advance by the steps that ``infos`` describe."""
        self._skipped += int(np.sum(~np.asarray(infos.applied)))
        self.describe("training")
        shown = {"loss": f"{infos.loss[-1]:.2e}", "eps": f"{infos.epsilon[-1]:.3g}"}
        if self._skipped:
            shown["skipped"] = str(self._skipped)
        begins = self.done == 0
        # The last info evaluates the outcome; it is not a step of its own.
        self.update(min(int(infos.step[-1]) + 1, self._total) - self.done, shown)
        if begins:
            self.restart_clock()
