"""The progress bar of a training run."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

import numpy as np
from tqdm import tqdm

from mongefit.training import Info


class TrainingBar:
    """A bar on stderr with loss, epsilon and solver health; time left is tqdm's own.

    Parameters
    ----------
    total
        Number of training steps.
    enabled
        Whether anything is shown. TQDM_DISABLE in the environment switches it off too.
    """

    def __init__(self, total: int, *, enabled: bool):
        hidden = not enabled or bool(os.environ.get("TQDM_DISABLE"))
        self._bar = tqdm(
            total=total,
            desc="compiling",
            file=sys.stderr,
            # None hides the bar where stderr is no terminal.
            disable=True if hidden else None,
            dynamic_ncols=True,
            # Short enough for 60 columns.
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}",
        )
        self._skipped = 0

    def update(self, infos: Info) -> None:
        """Advance by the steps that ``infos`` describe."""
        self._skipped += int(np.sum(~infos.applied))
        self._bar.set_description("training", refresh=False)
        shown = {"loss": f"{infos.loss[-1]:.2e}", "eps": f"{infos.epsilon[-1]:.3g}"}
        if self._skipped:
            shown["skipped"] = str(self._skipped)
        self._bar.set_postfix(shown, refresh=False)
        # The last info evaluates the outcome; it is not a step of its own.
        done = min(int(infos.step[-1]) + 1, self._bar.total)
        if self._bar.n == 0:
            # Compilation is over: the time left is reckoned from here.
            self._bar.initial = self._bar.n = self._bar.last_print_n = done
            self._bar.start_t = self._bar.last_print_t = time.time()
            self._bar.refresh()
        else:
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()


def progress_bar(total: int, verbose: int) -> tqdm:
    """A bar on stderr, where one is asked for."""
    return tqdm(
        total=total,
        disable=None if verbose else True,
        dynamic_ncols=True,
        bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {remaining} left",
    )
