"""Cells, and maps between them, for CellRank, moscot and Waddington-OT.

These tests need packages that the rest of the library does not: `make test-interop` runs them in an
environment of its own. Where none of the packages is installed, none of the tests is collected.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np
import pytest

from mongefit import MongeMap, single_cell

PACKAGES = ("cellrank", "moscot", "wot")
collect_ignore_glob = [] if any(map(importlib.util.find_spec, PACKAGES)) else ["test_*.py"]

N_SOURCE, N_TARGET = 60, 50
FATES = ("monocyte", "neutrophil")


def make_cells() -> Any:
    """Cells of two days in three components, of two types, some of them in one of twelve clones."""
    import anndata
    import pandas as pd

    rng = np.random.default_rng(0)
    n = N_SOURCE + N_TARGET
    days = np.repeat([2.0, 4.0], [N_SOURCE, N_TARGET])
    clone = np.arange(n) % 12
    ends = np.where(rng.random(n) < 0.85, clone % 2, 1 - clone % 2)
    points = rng.normal(size=(n, 3)) + np.outer(days == 4, [1.0, 0, 0])
    points[:, 1] += 1.5 * (2 * ends - 1) * (days - 1) / 3
    obs = pd.DataFrame(
        {
            "day": pd.Categorical(days),
            "cell_type": pd.Categorical(np.asarray(FATES)[ends]),
            "clone": [f"clone {k}" if row % 2 else None for row, k in enumerate(clone)],
            "weight": rng.uniform(0.5, 1.5, n),
        },
        index=[f"cell {row}" for row in range(n)],
    )
    adata = anndata.AnnData(rng.normal(size=(n, 5)).astype("f4"), obs=obs)
    # Mixed, so that no package may take the cells of a day for a run of rows.
    adata.obsm["X_pca"], adata.obsm["X_umap"] = points, points[:, :2].copy()
    return adata[rng.permutation(n)].copy()


@dataclasses.dataclass(frozen=True)
class Case:
    """Cells, a map between them, and its plan as the library itself computes it."""

    adata: Any
    model: Any
    P: np.ndarray
    even: bool

    @property
    def conditional(self) -> np.ndarray:
        """Where each source cell goes, rows with sum 1."""
        return self.P / self.P.sum(axis=1, keepdims=True)

    def of(self, day: float, column: str) -> np.ndarray:
        """A column of obs for the cells of one day."""
        return self.adata.obs[column][self.adata.obs["day"] == day].to_numpy()

    def is_fate(self, day: float = 4.0) -> np.ndarray:
        """Which cells of a day are of which type, [n, 2], as numbers."""
        return (self.of(day, "cell_type")[:, None] == np.asarray(FATES)).astype(float)


@pytest.fixture(
    scope="session",
    params=[
        {},
        {"tau_a": 0.8},
        {"weight_key": "weight"},
        {"weight_key": "weight", "tau_a": 0.8},
    ],
    ids=["even", "growth", "weights", "weights-growth"],
)
def case(request):
    """Maps whose plan keeps weights or not, from even weights or others."""
    adata = make_cells()
    given = dict(request.param)
    model = single_cell.fit(
        adata,
        time_key="day",
        source=2,
        target=4,
        pair_key="clone",
        weight_key=given.pop("weight_key", None),
        model=MongeMap(cost="matrix", max_iter=5, epsilon=0.1, **given),
    )
    return Case(adata, model, model.model.coupling_, "weight_key" not in request.param)
