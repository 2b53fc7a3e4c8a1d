"""Diffusion components: eigenvectors of a random walk, and how a model keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from mongefit import MongeMap, single_cell
from mongefit.errors import DataError, OptionError
from mongefit.single_cell._diffusion import N_NEIGHBORS, DiffusionMap

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 60


def spiral(count, seed=0):
    """Points along a spiral with a little noise, and how far along each is."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(1, 3 * np.pi, count))
    return np.column_stack([t * np.cos(t), t * np.sin(t)]) + 0.05 * rng.normal(size=(count, 2)), t


def dense_walk(points):
    """The transition matrix, written out."""
    n = len(points)
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    order = np.argsort(distance, axis=1)
    W = np.zeros((n, n))
    for i in range(n):
        width = distance[i, order[i, 5]]
        for j in order[i, : N_NEIGHBORS + 1]:
            W[i, j] = np.exp(-((distance[i, j] / width) ** 2))
    W = W + W.T
    q = W.sum(axis=1)
    W = W / np.outer(q, q)
    return W / W.sum(axis=1, keepdims=True)


def test_components_are_eigenvectors_of_the_walk():
    points, _ = spiral(80)
    found = DiffusionMap.of(points, 4)
    P = dense_walk(points)
    values = np.sort(np.linalg.eigvals(P).real)[::-1]
    np.testing.assert_allclose(values[0], 1, atol=1e-10)
    np.testing.assert_allclose(found.values, values[1:5], atol=1e-8)
    np.testing.assert_allclose(
        P @ found.coordinates, found.coordinates * found.values, atol=1e-7 * found.coordinates.max()
    )
    # Of the stationary distribution each ψ has mean 0 and mean square 1.
    pi = np.linalg.matrix_power(P, 20_000)[0]
    psi = found.coordinates / (found.values / (1 - found.values))
    np.testing.assert_allclose(pi @ psi, 0, atol=1e-6)
    np.testing.assert_allclose(pi @ psi**2, 1, atol=1e-6)


def test_they_go_along_the_cells():
    points, t = spiral(300)
    first = DiffusionMap.of(points, 2).coordinates[:, 0]
    assert abs(spearmanr(first, t).statistic) > 0.99
    assert abs(spearmanr(points[:, 0], t).statistic) < 0.6


def test_other_cells_are_placed_among_their_neighbours():
    points, t = spiral(300)
    found = DiffusionMap.of(points, 3)
    np.testing.assert_array_equal(found.project(points[10:20]), found.coordinates[10:20])
    new, there = spiral(50, seed=1)
    near = np.abs(there[:, None] - t).argmin(axis=1)
    away = np.linalg.norm(found.project(new) - found.coordinates[near], axis=1)
    spread = np.linalg.norm(found.coordinates - found.coordinates.mean(axis=0), axis=1).mean()
    assert np.median(away) < 0.1 * spread


def test_parts_without_a_way_between_them_warn():
    points, _ = spiral(60)
    with pytest.warns(UserWarning, match="fall into 2 parts"):
        DiffusionMap.of(np.concatenate([points, points + 1000]), 3)
    with pytest.raises(DataError, match="59 diffusion components of 60 cells"):
        DiffusionMap.of(points, 59)


def test_cells_that_are_the_same_have_finite_components():
    points, _ = spiral(60)
    found = DiffusionMap.of(np.concatenate([points, points[:20], points[:20]]), 3)
    assert np.all(np.isfinite(found.coordinates))


@pytest.fixture(scope="module")
def adata():
    points = np.concatenate([spiral(N)[0], spiral(N, seed=2)[0]])
    obs = pandas.DataFrame({"day": np.repeat([2, 4], N)}, index=[f"c{i}" for i in range(2 * N)])
    found = anndata.AnnData(np.zeros((2 * N, 0)), obs=obs)
    found.obsm["X_pca"] = points
    found.varm["PCs"] = np.zeros((0, 2))
    return found


@pytest.fixture(scope="module")
def model(adata):
    return single_cell.fit(
        adata, time_key="day", source=2, target=4, diffusion=3,
        model=MongeMap(cost="sqeuclidean", epsilon=0.05),
    )  # fmt: skip


def test_a_model_keeps_its_components(model, adata, tmp_path):
    rows = np.arange(2 * N)
    expected = DiffusionMap.of(adata.obsm["X_pca"], 3).coordinates
    np.testing.assert_allclose(model.coordinates(adata, rows), expected)
    assert model.model.n_features_in_ == 3
    model.save(tmp_path / "m.mongefit")
    same = single_cell.load(tmp_path / "m.mongefit")
    np.testing.assert_array_equal(same.coordinates(adata, rows), model.coordinates(adata, rows))
    moved = single_cell.transport(same, adata, copy=True)
    assert moved.obsm["X_mongefit"].shape == (2 * N, 3)
    assert np.isfinite(moved.obsm["X_mongefit"][:N]).all()


def test_what_a_model_in_diffusion_components_refuses(model, adata):
    turned = adata.copy()
    turned.obsm["X_pca"] = adata.obsm["X_pca"] * [-1, 1]
    with pytest.raises(DataError, match="is not that of the fit"):
        single_cell.transport(model, turned)
    with pytest.raises(DataError, match="no loadings from these to genes"):
        single_cell.pull_back_genes(model, adata, np.ones(3))
    with pytest.raises(OptionError, match="diffusion must be a whole number >= 1"):
        single_cell.fit(adata, time_key="day", source=2, target=4, diffusion=0)
