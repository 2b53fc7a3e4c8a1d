"""Learn what moving costs and where things move: optimal transport maps with a learned cost.

Everything public is imported on first use, so that the command line answers before JAX is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mongefit import baselines as baselines
    from mongefit import datasets as datasets
    from mongefit import explain as explain
    from mongefit import losses as losses
    from mongefit import metrics as metrics
    from mongefit import model_selection as model_selection
    from mongefit import penalties as penalties
    from mongefit import plotting as plotting
    from mongefit import single_cell as single_cell
    from mongefit.conjugate import ConjugateICNN as ConjugateICNN
    from mongefit.conjugate import LBFGSInverse as LBFGSInverse
    from mongefit.conjugate import NewtonInverse as NewtonInverse
    from mongefit.conjugate import inverse_gradient as inverse_gradient
    from mongefit.convex import ICNN as ICNN
    from mongefit.convex import Mahalanobis as Mahalanobis
    from mongefit.convex import PowerNorm as PowerNorm
    from mongefit.convex import SquaredEuclidean as SquaredEuclidean
    from mongefit.costs import Cost as Cost
    from mongefit.diffeos import AutoregressiveFlow as AutoregressiveFlow
    from mongefit.duals import NewtonDual as NewtonDual
    from mongefit.duals import SinkhornDual as SinkhornDual
    from mongefit.duals import solve_dual as solve_dual
    from mongefit.ensembles import EnsembleMap as EnsembleMap
    from mongefit.estimator import MongeMap as MongeMap
    from mongefit.maps import EntropicMap as EntropicMap
    from mongefit.maps import build_map as build_map
    from mongefit.storage import load as load

_HOMES = {
    "baselines": None,
    "datasets": None,
    "explain": None,
    "losses": None,
    "metrics": None,
    "model_selection": None,
    "penalties": None,
    "plotting": None,
    "single_cell": None,
    "ConjugateICNN": "conjugate",
    "LBFGSInverse": "conjugate",
    "NewtonInverse": "conjugate",
    "inverse_gradient": "conjugate",
    "ICNN": "convex",
    "Mahalanobis": "convex",
    "PowerNorm": "convex",
    "SquaredEuclidean": "convex",
    "Cost": "costs",
    "AutoregressiveFlow": "diffeos",
    "NewtonDual": "duals",
    "SinkhornDual": "duals",
    "solve_dual": "duals",
    "EnsembleMap": "ensembles",
    "MongeMap": "estimator",
    "EntropicMap": "maps",
    "build_map": "maps",
    "load": "storage",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mongefit' has no attribute {name!r}")
    home = _HOMES[name]
    if home is None:
        return importlib.import_module(f"mongefit.{name}")
    return getattr(importlib.import_module(f"mongefit.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
