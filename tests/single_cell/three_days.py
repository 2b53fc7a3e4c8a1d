"""Cells of three days for tests: twelve of each, that move to the right by one a day."""

from __future__ import annotations

import numpy as np

from mongefit import MongeMap, TemporalMap

N = 12
DAYS = np.repeat([2, 4, 6], N)
EUCLIDEAN = MongeMap(cost="sqeuclidean", epsilon=0.05)
SMALL = TemporalMap(cost="matrix", epsilon=0.1, max_iter=2, validation_fraction=0.0)


def cells(*, days=DAYS, **columns):
    """Cell i of each day is of clone i."""
    import anndata
    import pandas

    rng = np.random.default_rng(0)
    early = rng.normal(size=(N, 2))
    obs = pandas.DataFrame({"day": days, "clone": np.tile(np.arange(N), 3).astype(str), **columns})
    obs.index = [f"c{i}" for i in range(3 * N)]
    X = rng.gamma(1.0, size=(3 * N, 5))
    adata = anndata.AnnData(X, obs=obs)
    adata.var_names = [f"g{i}" for i in range(5)]
    adata.obsm["X_pca"] = np.concatenate([early + np.array([2.0 * k, 0.0]) for k in range(3)])
    adata.varm["PCs"] = rng.normal(size=(5, 2))
    return adata
