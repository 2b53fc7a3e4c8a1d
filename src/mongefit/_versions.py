"""Releases of the packages that a result depends on."""

from __future__ import annotations

import importlib.metadata

_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "flowjax", "numpy")


def recorded_versions() -> dict[str, str]:
    """What is recorded in everything that is written."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}
