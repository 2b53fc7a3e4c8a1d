"""Which classes a model file may name.

Every cost function, flow, loss, penalty and solver of this package registers itself when it is
defined. A file can name nothing else: own classes are passed to `mongefit.load`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
from paramax import NonTrainable as NonTrainable

_OURS: dict[str, type[eqx.Module]] = {}


class Registered(eqx.Module):
    """Base of all classes that can be part of a model file."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_ours(cls):
            _OURS[cls.__name__] = cls


def is_ours(cls: type) -> bool:
    """Whether a class is defined in this package."""
    return cls.__module__.partition(".")[0] == "mongefit"


def registered_classes() -> dict[str, type[eqx.Module]]:
    """The classes of this package, by name."""
    return dict(_OURS)
