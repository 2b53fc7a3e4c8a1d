"""The options of a fit, listed once for the estimators and for what they call."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from optax import GradientTransformation

    from mongefit._convex import ConvexFunction
    from mongefit._duals import DualSolver
    from mongefit._flows import Diffeo


@dataclasses.dataclass(eq=False, repr=False)
class FitOptions:
    """Options of a fit, unchecked; `MongeMap` documents them."""

    cost: str | ConvexFunction = "icnn"
    diffeo: str | Diffeo | tuple[Diffeo | None, Diffeo | None] | None = None
    _: dataclasses.KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    symmetric: bool = True
    alpha: float = 0.01
    epsilon: float | tuple[float, float] = (0.1, 0.01)
    debias: bool = False
    tau_a: float = 1.0
    tau_b: float = 1.0
    max_iter: int = 500
    validation_fraction: float = 0.2
    batch_size: int | None = None
    learning_rate: float | tuple[float, float] = 0.05
    diffeo_learning_rate: float | tuple[float, float] = 0.005
    optimizer: GradientTransformation | None = None
    losses: list[Any] | None = None
    penalties: list[Any] | None = None
    dual: str | DualSolver = "newton"
    differentiate: str = "implicit"
    many_to_many: bool = False
    n_init: int = 1
    normalize_weight: bool = False
    random_state: int | np.random.RandomState | None = 0
    dtype: str = "float64"
    strict: bool = False
    verbose: int = 0


def takes_several(losses: Any) -> bool:
    """Whether a source may have several targets, as far as the losses that need pairs go."""
    listed = losses if isinstance(losses, list | tuple) else [losses]
    terms = [getattr(each, "term", each) for each in listed]
    asked = [term for term in terms if getattr(term, "requires", None) == "pairs"]
    return bool(asked) and all(getattr(term, "takes_several", False) for term in asked)
