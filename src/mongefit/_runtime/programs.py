"""JIT options and ahead-of-time compilation."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax

from mongefit._runtime.devices import current_device
from mongefit._runtime.precision import double_precision
from mongefit.errors import warn_user

filter_jit: Any = eqx.filter_jit
"""`equinox.filter_jit`, whose annotations leave out the options that it passes to `jax.jit`."""

_WHOLE = {"xla_gpu_enable_dynamic_slice_fusion": False}
"""Copy a part of an array before it is multiplied. XLA would pass its place in the whole, which
need not be aligned as cuBLAS wants it: with 8 and 32 features that failed."""

QUICK = _WHOLE | {"xla_gpu_enable_triton_gemm": False}
"""Matrix products by the vendor's library alone. XLA would otherwise write several programs for
each and time them, which takes longer than all other compilation. They would be 10 % faster for
small problems, and 25 % for large ones."""

TUNED = _WHOLE | {"xla_gpu_dot_merger_threshold_mb": 0}
"""Do not merge matrix products that share a factor: XLA would write the other factors side by side
to memory for that."""


class Program:
    """A compiled function, with options for XLA on a GPU.

    If a program fails on the GPU, it is compiled again without options, with one warning. A program
    cannot be part of another one there.

    Parameters
    ----------
    function
        The function to compile.
    options
        Options of XLA that are used on a GPU.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any] | None = None):
        self._plain = filter_jit(function)
        self._tuned = filter_jit(function, compiler_options=QUICK if options is None else options)
        self._worked: set[Any] = set()
        self._failed = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        program = self._chosen()
        if program is self._plain:
            return program(*arguments, **options)
        kind = _kind((arguments, options))
        if kind in self._worked:
            return program(*arguments, **options)
        try:
            # Waits for the outcome: JAX would otherwise report a failure where it is next used.
            result = jax.block_until_ready(program(*arguments, **options))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            self._failed = True
            _warn_of_failure(str(error).partition("\n")[0])
            return self._plain(*arguments, **options)
        self._worked.add(kind)
        return result

    def lower(self, *arguments: Any, **options: Any) -> Any:
        """The program for such arguments, not compiled yet."""
        return self._chosen().lower(*arguments, **options)

    def _chosen(self) -> Any:
        # Asked at every call: the default device may change.
        on_gpu = current_device().platform == "gpu"
        return self._tuned if on_gpu and not self._failed else self._plain


def _kind(arguments: Any) -> Any:
    """What a program is compiled for: shapes and types of arrays, and everything else as it is."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(
        (leaf.shape, str(leaf.dtype)) if hasattr(leaf, "shape") else leaf for leaf in leaves
    )


@functools.cache
def _warn_of_failure(reason: str) -> None:
    """Warn, once for each reason."""
    warn_user(
        "A program failed on this accelerator with the compiler options that mongefit prefers. It "
        f"is compiled again without them, which takes longer. ({reason})"
    )


def compile_ahead(program: Any, *arguments: Any, **options: Any) -> None:
    """Compile a jitted function for such arguments, so that a later call finds it compiled."""
    program.lower(*arguments, **options).compile()


MOST_MAPS = 0.6
"""Share of the memory maps of a process from which on compiled programs are dropped."""


def drop_programs_if_crowded() -> None:
    """Drop all compiled programs where the process is about to run out of memory maps.

    On a CPU a program takes a hundred maps and more. Linux allows a process 65,530, and LLVM ends a
    process that gets no more: a loop of fits to clouds of many sizes would come to that. Programs
    that are needed again are compiled again.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            used = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            most = int(file.read())
    except (OSError, ValueError):
        return  # another system, with other limits
    if used > MOST_MAPS * most:
        eqx.clear_caches()
        jax.clear_caches()


SPARE_CORES = 4
"""With fewer cores nothing is compiled in the background: the training program needs them."""


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def compile_meanwhile(tasks: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Run tasks, which compile programs, in a thread while the block runs, if cores are free.

    The block ends when both are done. If it fails or is interrupted, only the task under way is
    finished, and that only when Python ends.
    """
    if usable_cores() < SPARE_CORES:
        yield
        return
    stopped = threading.Event()
    # Settings of a block hold for its own thread only.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def work() -> None:
        # A program that cannot be compiled fails again, with its message, when it is called.
        with jax.default_device(device), double_precision(), contextlib.suppress(Exception):
            for task in tasks:
                if stopped.is_set():
                    return
                task()

    thread = threading.Thread(target=work, name="mongefit-compile")
    try:
        thread.start()
        yield
        thread.join()
    finally:
        stopped.set()
