"""Waddington-OT reads our transport maps, and its trajectories and fates are ours."""

from __future__ import annotations

import anndata
import numpy as np
import pytest

from mongefit.single_cell import to_anndata_map
from tests.interop.conftest import FATES

wot = pytest.importorskip("wot")


@pytest.fixture
def transport(case, tmp_path, monkeypatch):
    """Waddington-OT's model of a folder with our map."""
    # wot 1.0.8 reads files by a function that anndata has renamed since.
    monkeypatch.setattr(anndata, "read", anndata.read_h5ad, raising=False)
    to_anndata_map(case.model, case.adata).write_h5ad(tmp_path / "tmaps_2.0_4.0.h5ad")
    return wot.tmap.TransportMapModel.from_directory(str(tmp_path / "tmaps"))


@pytest.fixture
def populations(case, transport):
    """The target cells of each type."""
    names = case.of(4.0, "cell_type")
    late = case.adata.obs_names[case.adata.obs["day"] == 4]
    sets = {fate: late[names == fate].tolist() for fate in FATES}
    return transport.population_from_cell_sets(sets, at_time=4.0)


def rows_of(case, found, day):
    """Rows of a result for the cells of one day, in our order."""
    names = case.adata.obs_names[case.adata.obs["day"] == day]
    return np.asarray(found[names].X)


def test_the_map_is_the_plan(case, transport):
    found = transport.get_coupling(2.0, 4.0)
    n = len(found)
    np.testing.assert_allclose(found.X.toarray(), case.P * n, atol=1e-6)
    growth = np.asarray(found.X.sum(axis=1)).ravel()
    # Waddington-OT's columns are per day.
    np.testing.assert_allclose(found.obs["g1"] ** 2, growth)
    assert growth.mean() == pytest.approx(case.P.sum())


def test_fates(case, transport, populations):
    found = rows_of(case, transport.fates(populations), 2.0)
    np.testing.assert_allclose(found, case.conditional @ case.is_fate(), atol=1e-6)


def test_trajectories_back(case, transport, populations):
    found = rows_of(case, transport.trajectories(populations), 2.0)
    ours = case.P @ case.is_fate()
    np.testing.assert_allclose(found, ours / ours.sum(axis=0), atol=1e-6)


def test_push_forward(case, transport):
    early = case.adata.obs_names[case.adata.obs["day"] == 2]
    chosen = case.is_fate(2.0)[:, 0]
    (population,) = transport.population_from_ids(early[chosen == 1].tolist(), at_time=2.0)
    ours = case.P.T @ chosen
    found = transport.push_forward(population)
    np.testing.assert_allclose(found.p, ours / ours.sum(), atol=1e-6)


def test_transition_table(case, transport, populations):
    early = case.adata.obs_names[case.adata.obs["day"] == 2]
    types = case.of(2.0, "cell_type")
    sets = {fate: early[types == fate].tolist() for fate in FATES}
    starts = transport.population_from_cell_sets(sets, at_time=2.0)
    found = transport.transition_table(starts, populations).X
    ours = case.is_fate(2.0).T @ case.P @ case.is_fate()
    np.testing.assert_allclose(found, ours / ours.sum(), atol=1e-6)


def test_wots_command_line_lists_the_map(transport, tmp_path):
    (listed,) = wot.io.list_transport_maps(str(tmp_path))
    assert (listed["t1"], listed["t2"]) == (2.0, 4.0)
