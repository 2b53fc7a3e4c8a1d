"""The command ``mongefit``: fit, select, fates, transform, info, demo, reproduce.

Only click is imported here. JAX and the rest of the library are imported by a command once it
runs, so that help, version and usage errors come at once.
"""

from __future__ import annotations

from typing import Any

import click

import mongefit
from mongefit._cli.demo import demo
from mongefit._cli.fates import fates
from mongefit._cli.fit import fit
from mongefit._cli.info import info
from mongefit._cli.interrupts import (
    Stopped,
    Terminated,
    end_at_once_if_compiling,
    ignore_signals,
    raise_on_termination,
)
from mongefit._cli.reproduce import reproduce
from mongefit._cli.select import select
from mongefit._cli.transform import transform


class _Commands(click.Group):
    """Commands that a signal ends with its exit code, also before the first line of theirs."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Terminated) as raised:
            raise Stopped(raised) from None


@click.group(
    cls=_Commands,
    commands=[demo, fit, select, fates, transform, info, reproduce],
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(mongefit.__version__, prog_name="mongefit")
def cli() -> None:
    """Learn what moving costs and where things move.

    Two clouds of points and some known pairs give a cost, and the optimal transport map of that
    cost. Start with: mongefit demo
    """


def main() -> None:
    """Run the command line of this process."""
    raise_on_termination()
    try:
        cli(prog_name="mongefit")
    except SystemExit as ended:
        ignore_signals()
        end_at_once_if_compiling(ended.code if isinstance(ended.code, int) else 0)
        raise
    finally:
        # What is left is Python's own clean-up, which a second Ctrl-C would fill with tracebacks.
        ignore_signals()
