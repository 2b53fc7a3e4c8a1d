"""Learn what moving costs and where things move: optimal transport maps with a learned cost.

What users import is listed once, in the stub ``__init__.pyi``. Everything is imported on first use,
so that the command line answers before JAX is loaded.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
