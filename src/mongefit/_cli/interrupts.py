"""Ctrl-C and SIGTERM, also while compiled code keeps Python from noticing them."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any, NoReturn

import click

_WORDS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}
_NOTHING = "nothing was written"
# Signals on their way a second time, which are no new ones.
_delivered_again: list[int] = []


class Terminated(BaseException):
    """SIGTERM arrived."""


class Stopped(click.ClickException):
    """Ctrl-C or SIGTERM ended a command; the message says what is left of its work."""

    def __init__(self, raised: KeyboardInterrupt | Terminated, left: str = _NOTHING):
        number = signal.SIGTERM if isinstance(raised, Terminated) else signal.SIGINT
        super().__init__(f"{_WORDS[number]}; {left}.")
        self.exit_code = 128 + number  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message below the ^C of the terminal."""
        click.echo(f"\n{self.message}", err=True)


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def raise_on_termination() -> None:
    """Turn SIGTERM into an exception, as Python does with Ctrl-C, and let neither get lost."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    sys.unraisablehook = _raise_again


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Deliver a signal anew whose exception came up where Python drops all of them.

    Such as in JAX's callback of the garbage collector, which runs at any moment of training.
    """
    number = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}.get(dropped.exc_type)
    if number is None:
        sys.__unraisablehook__(dropped)
        return
    # A little later: here it would be dropped once more.
    timer = threading.Timer(0.02, _deliver, (number,))
    timer.daemon = True
    timer.start()


def _deliver(number: signal.Signals) -> None:
    _delivered_again.append(number)
    _thread.interrupt_main(number)


def ignore_signals() -> None:
    """Leave Ctrl-C and SIGTERM without effect, because the program is ending."""
    for number in _WORDS:
        signal.signal(number, signal.SIG_IGN)


def end_at_once_if_compiling(code: int) -> None:
    """End the process where Python would wait for a thread, which XLA may keep for long."""
    others = set(threading.enumerate()) - {threading.main_thread()}
    if any(not thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def interruptible(left: str = _NOTHING, *, grace: float = 1.0) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a computation, and say what is left of it.

    Python handles a signal when control is back in Python, which may take half a minute while XLA
    compiles. A thread that the C-level handler notifies of signals waits for ``grace`` seconds, or
    for a second signal, and then ends the process itself. What the computation writes meanwhile
    must be written completely or not at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told, teller = socket.socketpair()
    teller.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(told, grace, left), daemon=True)
    previous = signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    except (KeyboardInterrupt, Terminated) as raised:
        raise Stopped(raised, left) from None
    finally:
        signal.set_wakeup_fd(previous)
        teller.close()
        watcher.join()
        told.close()


def _watch(told: socket.socket, grace: float, left: str) -> None:
    first = _next_signal(told)
    if first is None:
        return
    told.settimeout(grace)
    # None: the computation is over, and the main thread goes on with what the signal means.
    with contextlib.suppress(TimeoutError):
        if _next_signal(told) is None:
            return
    os.write(2, f"\n{_WORDS[first]}; {left}.\n".encode())
    os._exit(128 + first)


def _next_signal(told: socket.socket) -> signal.Signals | None:
    """The next of the signals that end a process, or None when there will be none."""
    while received := told.recv(1):
        if received[0] in _delivered_again:
            _delivered_again.remove(received[0])
        elif received[0] in _WORDS:
            return signal.Signals(received[0])
    return None
