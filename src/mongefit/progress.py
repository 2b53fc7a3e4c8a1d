"""The progress bar of a training run."""

from __future__ import annotations

import sys
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
        self._bar = tqdm(
            total=total,
            desc="compiling",
            unit="step",
            file=sys.stderr,
            # None would hide the bar where stderr is no terminal; False leaves TQDM_DISABLE alone.
            disable=None if enabled else True,
            dynamic_ncols=True,
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
        self._bar.update(min(int(infos.step[-1]) + 1, self._bar.total) - self._bar.n)

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
