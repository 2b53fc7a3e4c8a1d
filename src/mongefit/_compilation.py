"""How programs are compiled, and how before they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

filter_jit: Any = eqx.filter_jit
"""`equinox.filter_jit`, whose annotations leave out what it passes on to `jax.jit`."""

QUICK = {"xla_gpu_enable_triton_gemm": False}
"""Matrix products by the vendor's library only. Else XLA writes several programs for each and tries
them out, which takes longer than all other compilation: they gain a tenth on small problems, more
where the library has no good program, and a quarter on large ones."""

UNMERGED = {"xla_gpu_dot_merger_threshold_mb": 0}
"""Matrix products that share a factor are not made one. XLA would write their other factors side by
side to memory for that."""


class GpuJit:
    """`equinox.filter_jit` with options for XLA on a GPU.

    What is compiled so cannot be part of another program there.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options

    @functools.cached_property
    def _program(self) -> Any:
        # Asked when it is first called: only then JAX has a backend.
        options = self._options if jax.default_backend() == "gpu" else None
        return filter_jit(self._function, compiler_options=options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._program(*arguments, **options)

    def lower(self, *arguments: Any, **options: Any) -> Any:
        """As `equinox.filter_jit` gives it."""
        return self._program.lower(*arguments, **options)


def compile_for(program: Any, *arguments: Any, **options: Any) -> None:
    """Compile a function that is jitted for such arguments, so that a call with them finds it."""
    program.lower(*arguments, **options).compile()
