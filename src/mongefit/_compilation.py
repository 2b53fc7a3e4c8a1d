"""How programs are compiled, and how before they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


class QuickJit:
    """`equinox.filter_jit`, on a GPU with matrix products by its vendor's library only.

    Else XLA writes several programs for each product and tries them out, which takes longer than
    all other compilation. They gain a tenth on small problems and a quarter on large ones. What
    is compiled so cannot be part of another program.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def _program(self) -> Any:
        # Asked when it is first called: only then JAX has a backend.
        on_gpu = jax.default_backend() == "gpu"
        options = {"xla_gpu_enable_triton_gemm": False} if on_gpu else None
        filter_jit: Any = eqx.filter_jit  # its annotations leave out what it passes on to jax.jit
        return filter_jit(self._function, compiler_options=options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._program(*arguments, **options)

    def lower(self, *arguments: Any, **options: Any) -> Any:
        """As `equinox.filter_jit` gives it."""
        return self._program.lower(*arguments, **options)


def compile_for(program: Any, *arguments: Any, **options: Any) -> None:
    """Compile a function that is jitted for such arguments, so that a call with them finds it."""
    program.lower(*arguments, **options).compile()
