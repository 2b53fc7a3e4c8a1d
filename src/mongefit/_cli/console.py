"""What every command shares: where text goes, how warnings look, and what exit codes mean."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from mongefit._cli.interrupts import Stopped, Terminated
from mongefit.errors import (
    ConvergenceError,
    DataError,
    InPython,
    Message,
    MissingPackageError,
    Option,
    OptionError,
    TrainingError,
)

# What the command line calls differently.
_SPELLINGS = {"overwrite": "force"}


class Failed(click.ClickException):
    """The work could not be done: a file cannot be written, training broke off, …"""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class Console:
    """Results on stdout, everything else on stderr."""

    def __init__(self, *, quiet: bool, verbose: bool, as_json: bool):
        self._quiet = quiet
        self._verbose = verbose
        self._as_json = as_json
        self._warned: set[str] = set()
        self.shows_progress = not quiet and not os.environ.get("TQDM_DISABLE")
        self.written: list[str] = []

    def say(self, text: str = "") -> None:
        """A result for people."""
        if not self._as_json:
            _print(text)

    def paragraph(self, text: str) -> None:
        """A result for people in sentences, broken into lines."""
        self.say(click.wrap_text(text, shutil.get_terminal_size().columns))

    def item(self, name: str, text: str, *, room: int = 15) -> None:
        """A result for people with its name, which has some room, as an entry of a list."""
        width = shutil.get_terminal_size().columns
        self.say(click.wrap_text(text, width, f"  {name:<{room}} ", " " * (room + 3)))

    def result(self, /, **values: Any) -> None:
        """The result for programs."""
        if self._as_json:
            _print(json.dumps(_plain(values), indent=2, allow_nan=False))

    def note(self, text: str) -> None:
        """Something worth knowing that is neither a result nor a warning."""
        if not self._quiet:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """Something for those who asked for details."""
        if self._verbose:
            click.echo(text, err=True)

    def warn(self, warning: Warning | str) -> None:
        """One warning in one line, once."""
        text = _in_words(warning)
        # The check of all pairs and that of the training pairs differ in numbers only.
        gist = re.sub(r"\d+", "#", text)
        if gist not in self._warned:
            self._warned.add(gist)
            click.echo(f"warning: {text}", err=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show warnings as lines, and end every failure with a message and an exit code."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            # Some are both, such as those of pyparsing about what matplotlib calls.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.showwarning = lambda message, *_, **__: self.warn(message)
            try:
                yield
            except (click.ClickException, click.exceptions.Exit):
                raise
            except (KeyboardInterrupt, Terminated) as raised:
                if self.written:
                    raise Stopped(raised, f"already written: {', '.join(self.written)}") from None
                raise Stopped(raised) from None
            except Exception as error:
                if os.environ.get("MONGEFIT_DEBUG"):
                    raise
                raise _explain(error) from error


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command --json, -q and -v, and call it with the Console that they describe."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @click.option("-v", "--verbose", is_flag=True, help="More details, on stderr.")
    @functools.wraps(function)
    def run(as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        _set_up_cache()
        console = Console(quiet=quiet, verbose=verbose, as_json=as_json)
        with console.running():
            function(console, **options)

    return run


def start_jax(console: Console) -> None:
    """Import JAX and what computes with it, and make sure that it has a device."""
    import jax

    from mongefit._runtime import device_summary

    try:
        devices = device_summary()
    except (RuntimeError, AssertionError) as error:  # JAX 0.10 asserts that CUDA is there
        wanted = os.environ.get("JAX_PLATFORMS")
        if not wanted:
            raise
        raise Failed(
            f"JAX_PLATFORMS={wanted}, but JAX finds no such device here. Unset JAX_PLATFORMS to "
            "use what there is, or install JAX for that device."
        ) from error
    import mongefit._fitting  # noqa: F401

    _freeze()
    console.detail(f"JAX {jax.__version__} on {devices}")
    console.detail(f"compilation cache: {os.environ.get('JAX_COMPILATION_CACHE_DIR') or 'none'}")


# Looks for no garbage in what is loaded by now: that takes a tenth of the time until the first step
# of a fit whose programs were compiled before. Done once: what is garbage by a second call would be
# kept for good.
_freeze = functools.cache(gc.freeze)


def _set_up_cache() -> None:
    """Let JAX, before it is imported, keep compiled code for the next run."""
    chosen = os.environ.get("MONGEFIT_NO_CACHE") or "JAX_COMPILATION_CACHE_DIR" in os.environ
    if chosen or "jax" in sys.modules:
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(home, "mongefit", "jax")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")


def count(number: int, noun: str) -> str:
    """'1 point', '2 points'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _explain(error: Exception) -> click.ClickException:
    if isinstance(error, OptionError):
        return click.UsageError(_in_words(error))
    if isinstance(error, DataError):
        return Failed(_in_words(error), exit_code=3)
    if isinstance(error, ConvergenceError):
        return Failed(_in_words(error), exit_code=4)
    if isinstance(error, TrainingError | MissingPackageError | OSError):
        return Failed(_in_words(error))
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return Failed("Not enough memory. Fewer points or smaller hidden layers need less.")
    first_line = str(error).partition("\n")[0]
    return Failed(
        f"{type(error).__name__}: {first_line} (unexpected; MONGEFIT_DEBUG=1 shows where)"
    )


def _in_words(message: Exception | str) -> str:
    """A message of the library with its options spelt as the command line has them."""
    kept = getattr(message, "message", None)
    return kept.render(_spell) if isinstance(kept, Message) else str(message)


def _spell(part: Option | InPython) -> str:
    if isinstance(part, InPython):
        return ""
    ctx = click.get_current_context(silent=True)
    name = _SPELLINGS.get(part.name, part.name)
    known = {param.name: param for param in ctx.command.params} if ctx is not None else {}
    if name not in known:
        return str(part)
    option = max(known[name].opts, key=len)
    if part.value is None or part.value is True:
        return option
    if isinstance(part.value, list):
        return f"{option} {','.join(map(str, part.value))}"
    return f"{option} {part.value}"


def _print(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        # Whoever read the output has gone, as in `mongefit fit … | head -1`. The work goes on, and
        # Python must not complain at exit about what could not be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers that it has not become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
