"""Fates and origins: probabilities of labels, against sums over the plan."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import EnsembleMap, MongeMap, single_cell
from mongefit.errors import DataError, OptionError

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

SIZES = (30, 24)
KEYS = {"time_key": "day", "source": 2, "target": 4}
TYPES = ["stem", "left", "right", "unknown"]


def make_cells(seed=0):
    """Cells of two days on two branches; every cell of day 2 is a stem cell of one of two kinds."""
    rng = np.random.default_rng(seed)
    n, m = SIZES
    side = rng.choice([-1.0, 1.0], n + m)
    late = np.repeat([0.0, 1.0], SIZES)
    points = np.column_stack([side * (1 + late), late, np.zeros(n + m)])
    points += 0.3 * rng.normal(size=points.shape)
    types = np.where(late == 0, "stem", np.where(side < 0, "left", "right"))
    types[-3:] = ["stem", "unknown", "stem"]
    kind = np.where(side < 0, "a", "b")
    obs = pandas.DataFrame(
        {"day": np.repeat([2, 4], SIZES), "cell_type": types, "kind": kind},
        index=[f"c{i}" for i in range(n + m)],
    )
    obs["cell_type"] = pandas.Categorical(obs["cell_type"], categories=TYPES)
    adata = anndata.AnnData(np.zeros((n + m, 0)), obs=obs)
    adata.obsm["X_pca"] = points
    adata.uns["cell_type_colors"] = ["#111111", "#222222", "#333333", "#444444"]
    clone = np.full(n + m, -1)
    clone[:12], clone[n : n + 12] = np.arange(12), np.arange(12)
    adata.obs["clone"] = clone
    return adata


@pytest.fixture(scope="module")
def adata():
    return make_cells()


@pytest.fixture(scope="module")
def model(adata):
    return single_cell.fit(adata, **KEYS, model=MongeMap(cost="sqeuclidean", epsilon=0.1))


@pytest.fixture(scope="module")
def ensemble(adata):
    member = MongeMap(cost="matrix", epsilon=0.2, max_iter=2)
    return single_cell.fit(
        adata, **KEYS, pair_key="clone", model=EnsembleMap(member, n_members=4, max_points=20)
    )


def side(adata, day):
    return np.flatnonzero(adata.obs["day"] == day)


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
def test_fates_are_sums_of_the_plan(model, adata):
    found = single_cell.fates(model, adata, "cell_type", exclude="stem", copy=True)
    rows, columns = side(adata, 2), side(adata, 4)
    P = model.model.coupling_
    labels = adata.obs["cell_type"].to_numpy()[columns]
    shares = np.stack([P[:, labels == name].sum(1) / P.sum(1) for name in TYPES[:3]], axis=1)
    np.testing.assert_allclose(found.obsm["mongefit_fates_raw"][rows], shares, atol=1e-8)
    kept = shares[:, 1:].sum(1)
    np.testing.assert_allclose(found.obs["mongefit_fate_mass"].iloc[rows], kept, atol=1e-8)
    fates = shares[:, 1:] / kept[:, None]
    np.testing.assert_allclose(found.obsm["mongefit_fates"][rows], fates, atol=1e-8)
    assert np.isnan(found.obsm["mongefit_fates"][columns]).all()
    best = np.array(TYPES[1:3])[fates.argmax(1)]
    assert list(found.obs["mongefit_fate"].iloc[rows]) == list(best)
    assert found.obs["mongefit_fate"].iloc[columns].isna().all()
    entropy = -(fates * np.log(fates)).sum(1)
    np.testing.assert_allclose(found.obs["mongefit_fate_entropy"].iloc[rows], entropy, atol=1e-8)
    about = found.uns["mongefit_fates"]
    assert list(about["names"]) == ["left", "right"]
    assert list(about["names_raw"]) == ["stem", "left", "right"]
    assert list(found.uns["mongefit_fate_colors"]) == ["#222222", "#333333"]
    assert about["perplexity"] > 1
    assert "mongefit_fates" not in adata.obsm


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
def test_results_can_be_written(model, adata, tmp_path):
    found = single_cell.fates(model, adata, "cell_type", exclude=["stem"], copy=True)
    single_cell.origins(model, found, "kind")
    single_cell.push(model, found, found.obs["kind"] == "a")
    found.write_h5ad(tmp_path / "found.h5ad")
    again = anndata.read_h5ad(tmp_path / "found.h5ad")
    assert list(again.uns["mongefit_fates"]["names"]) == ["left", "right"]
    assert list(again.obs["mongefit_fate"].cat.categories) == ["left", "right"]
    np.testing.assert_array_equal(again.obsm["mongefit_fates"], found.obsm["mongefit_fates"])


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
def test_origins_are_fates_in_reverse(model, adata):
    found = single_cell.origins(model, adata, "kind", copy=True)
    rows, columns = side(adata, 2), side(adata, 4)
    P = model.model.coupling_
    is_a = (adata.obs["kind"].to_numpy()[rows] == "a").astype(float)
    np.testing.assert_allclose(
        found.obsm["mongefit_origins"][columns, 0], is_a @ P / P.sum(0), atol=1e-8
    )
    assert np.isnan(found.obsm["mongefit_origins"][rows]).all()
    assert set(found.obs["mongefit_origin"].iloc[columns]) == {"a", "b"}


def test_push_and_pull_are_rows_and_columns_of_the_plan(model, adata):
    rows, columns = side(adata, 2), side(adata, 4)
    P = model.model.coupling_
    chosen = rows[:5]
    found = single_cell.push(model, adata, adata.obs_names[chosen], copy=True)
    expected = P[:5].sum(0) / P[:5].sum()
    np.testing.assert_allclose(found.obs["mongefit_push"].iloc[columns], expected, atol=1e-8)
    assert found.obs["mongefit_push"].iloc[rows].isna().all()
    mask = np.zeros(adata.n_obs, bool)
    mask[columns[2:6]] = mask[rows] = True  # cells of the other time do not count
    found = single_cell.pull(model, adata, mask, key_added="back", copy=True)
    expected = P[:, 2:6].sum(1) / P[:, 2:6].sum()
    np.testing.assert_allclose(found.obs["back"].iloc[rows], expected, atol=1e-8)


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
def test_transition_table_is_the_plan_by_labels(model, adata):
    table = single_cell.transition_table(
        model, adata, "cell_type", source_key="kind", exclude="stem"
    )
    rows, columns = side(adata, 2), side(adata, 4)
    kinds, types = adata.obs["kind"].to_numpy()[rows], adata.obs["cell_type"].to_numpy()[columns]
    P = model.model.coupling_
    for kind in "ab":
        parts = [P[kinds == kind][:, types == name].sum() for name in ("left", "right")]
        np.testing.assert_allclose(table.loc[kind], np.array(parts) / sum(parts), atol=1e-8)
    assert table.loc["a", "left"] > 0.8  # the cells on the left go left


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
def test_other_cells_and_cells_in_another_order(model, adata):
    whole = single_cell.fates(model, adata, "cell_type", copy=True)
    shuffled = adata[np.random.default_rng(1).permutation(adata.n_obs)].copy()
    single_cell.fates(model, shuffled, "cell_type")
    np.testing.assert_allclose(
        shuffled[adata.obs_names].obsm["mongefit_fates"], whole.obsm["mongefit_fates"], atol=1e-10
    )
    some = adata[side(adata, 2)[:4]].copy()
    del some.obs["cell_type"]
    single_cell.fates(model, some, "cell_type", reference=adata)
    np.testing.assert_allclose(
        some.obsm["mongefit_fates"], whole.obsm["mongefit_fates"][:4], atol=1e-10
    )
    with pytest.raises(DataError, match=r"has no value 4"):
        single_cell.fates(model, adata[:4].copy(), "cell_type")
    with pytest.raises(DataError, match=r"4 of the 24 cells of day 4 .* as reference"):
        single_cell.fates(model, adata[:-4].copy(), "cell_type")


@pytest.mark.filterwarnings("ignore:obs.*taken for not known", "ignore:Only 12 clones")
def test_ensembles_give_means_and_intervals(ensemble, adata):
    found = single_cell.fates(ensemble, adata, "cell_type", exclude="stem", copy=True)
    rows = side(adata, 2)
    low, high = (found.obsm[f"mongefit_fates_{end}"][rows] for end in ("low", "high"))
    middle = found.obsm["mongefit_fates"][rows]
    assert np.all(low <= high) and np.mean((low <= middle) & (middle <= high)) > 0.95
    assert np.mean(high - low) > 1e-3
    weights = ensemble.model.conditional(adata.obsm["X_pca"][rows], drop=0)
    left = (adata.obs["cell_type"].to_numpy()[side(adata, 4)] == "left").astype(float)
    np.testing.assert_allclose(found.obsm["mongefit_fates_raw"][rows, 1], weights @ left, atol=1e-9)
    assert found.obs["mongefit_informed"].iloc[rows].any()
    three = single_cell.transition_table(
        ensemble, adata, "cell_type", source_key="kind", exclude="stem", level=0.5
    )
    assert np.all(three.low <= three.high)
    np.testing.assert_allclose(three.table.sum(axis=1), 1)


def test_blurred_plans_warn(adata):
    blurred = single_cell.fit(adata, **KEYS, model=MongeMap(cost="sqeuclidean", epsilon=50.0))
    with pytest.warns(UserWarning, match=r"nearly the same of every cell.*24 others"):
        single_cell.fates(blurred, adata, "kind", copy=True)


MISTAKES = [
    ({"key": "celltype"}, r"obs\['celltype'\] not found.*cell_type"),
    ({"key": ["cell_type"]}, r"name of one column"),
    ({"exclude": "stemm"}, r"exclude names 'stemm'.*Did you mean exclude='stem'"),
    ({"exclude": ["stem", "left", "right"]}, r"exclude leaves no label"),
    ({"level": 1.5}, r"level"),
    ({"key_added": "a/b"}, r"without '/'"),
    ({"source": 6}, r"goes from day 2 to day 4; it knows nothing of 6"),
    ({"reference": "cells.h5ad"}, r"must be an AnnData, got str.*read_h5ad"),
    ({"copy": "yes"}, r"copy"),
    ({"key": "clone_of_none"}, r"not found"),
]


@pytest.mark.filterwarnings("ignore:obs.*taken for not known")
@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes_are_told(model, adata, wrong, message):
    before = set(adata.obs) | set(adata.obsm) | set(adata.uns)
    with pytest.raises((DataError, OptionError), match=message):
        single_cell.fates(model, adata, **({"key": "cell_type"} | wrong))
    assert set(adata.obs) | set(adata.obsm) | set(adata.uns) == before


def test_mistakes_with_sets_and_tables(model, adata):
    with pytest.raises(DataError, match=r"1 of 1 names .*'c99'"):
        single_cell.push(model, adata, "c99")
    with pytest.raises(DataError, match=r"shape \(3,\); there are 54 cells"):
        single_cell.push(model, adata, [True, False, True])
    with pytest.raises(DataError, match="None of these cells is one of day 4"):
        single_cell.pull(model, adata, adata.obs["day"] == 2)
    with pytest.raises(OptionError, match="level needs an ensemble"):
        single_cell.transition_table(model, adata, "kind", level=0.9)
    empty = adata.copy()
    empty.obs["nothing"] = np.nan
    with pytest.raises(DataError, match="has no label for any of the 24 cells"):
        single_cell.fates(model, empty, "nothing")
