"""Batches: clones that are told apart, a map for each, and one cost."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap, MongeMapCV, TemporalMap
from mongefit._estimators.ways import Way
from mongefit.errors import DataError, OptionError
from mongefit.single_cell import Times, fit, interpolate, load, transport
from mongefit.single_cell._legs import take_legs
from tests.single_cell.three_days import DAYS, EUCLIDEAN, SMALL, N, cells

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

KEYS = {"time_key": "day", "source": 2, "target": 4, "batch_key": "well"}
WELL = np.tile(np.repeat(["a", "b"], [8, 4]), 3)
STATES = cells().obsm["X_pca"]
A, B = (np.flatnonzero((name == WELL) & (DAYS == 2)) for name in "ab")


@pytest.fixture(scope="module")
def model():
    """Both wells from day 2 to day 4, with one cost out of the clones of both."""
    adata = cells(well=WELL)
    return fit(adata, **KEYS, pair_key="clone", model=SMALL)


def test_every_batch_has_a_map_to_its_own_cells(model):
    assert model.batches == ("a", "b")
    assert list(model.model.legs_) == ["a", "b"]
    expected = TemporalMap(**SMALL.get_params()).set_params(many_to_many=True).fit(
        legs={"a": (STATES[A], STATES[A + N]), "b": (STATES[B], STATES[B + N])},
        pairs={"a": [[i, i] for i in range(8)], "b": [[i, i] for i in range(4)]},
        clones={"a": np.arange(8), "b": np.arange(8, 12)},
    )  # fmt: skip
    adata = cells(well=WELL)
    result = transport(model, adata, copy=True).obsm["X_mongefit"]
    for name, rows in (("a", A), ("b", B)):
        moved = expected.legs_[name].transform(STATES[rows])
        np.testing.assert_allclose(result[rows], moved, atol=1e-8)
    assert np.isnan(result[N:]).all()
    back = transport(model, adata, inverse=True, copy=True)
    assert np.isfinite(back.obsm["X_mongefit"][N : 2 * N]).all()
    assert back.uns["mongefit"]["batches"].tolist() == ["a", "b"]


def test_between_is_of_one_batch(model):
    found = model.between(batch="b")
    assert isinstance(found.model, MongeMap)
    adata = cells(well=WELL)
    np.testing.assert_array_equal(found.times.rows(adata, target=False), B)
    np.testing.assert_array_equal(found.times.rows(adata, target=True), B + N)
    assert found.between(2, 4, batch="b").times == found.times
    with pytest.raises(OptionError, match=r"each batch of obs\['well'\]: a, b. Name one, as in"):
        model.between()
    with pytest.raises(OptionError, match="knows nothing of the batch 'c', only of: a, b"):
        model.between(batch="c")
    with pytest.raises(OptionError, match="has the batch 'b' only; it knows nothing of 'a'"):
        found.between(batch="a")


def test_files(model, tmp_path):
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert (again.batch_key, again.batches) == ("well", ("a", "b"))
    adata = cells(well=WELL)
    expected, found = (transport(each, adata, copy=True) for each in (model, again))
    np.testing.assert_array_equal(found.obsm["X_mongefit"], expected.obsm["X_mongefit"])
    found.write_h5ad(tmp_path / "out.h5ad")
    model.between(batch="a").save(tmp_path / "a")
    assert load(tmp_path / "a").times == Times("day", "2", "4", batch=("well", "a"))


def test_cells_of_one_batch_only_and_of_none(model):
    adata = cells(well=WELL)
    result = transport(model, adata[WELL == "b"], copy=True)
    assert np.isfinite(result.obsm["X_mongefit"]).all(axis=1).sum() == len(B)
    adata.obs.loc[adata.obs_names[A], "well"] = "c"
    with pytest.warns(UserWarning, match=r"8 cells of day 2 are in no batch of the model \(a, b\)"):
        result = transport(model, adata, copy=True).obsm["X_mongefit"]
    assert np.isfinite(result).all(axis=1).sum() == len(B)
    adata.obs["well"] = "c"
    with pytest.raises(DataError, match=r"No cell of day 2 has 'b' in obs\['well'\]"):
        transport(model, adata)
    del adata.obs["well"]
    with pytest.raises(DataError, match=r"obs\['well'\] not found"):
        transport(model, adata)


def test_interpolation_of_each_batch(model):
    found = interpolate(model, cells(well=WELL), 3)
    assert found.obs["well"].tolist() == ["a"] * 8 + ["b"] * 4
    expected = (STATES[B] + model.between(batch="b").model.transform(STATES[B])) / 2
    np.testing.assert_allclose(found.obsm["X_pca"][8:], expected)


def test_a_clone_of_two_batches_is_two_clones():
    adata = cells(well=WELL)
    adata.obs["clone"] = ["s", "t", *"uvwxyz", "s", "t", "p", "q"] * 3
    with pytest.warns(UserWarning) as caught:
        given = take_legs(
            adata, Times("day", "2", "4"), batch_key="well", pair_key="clone"
        ).given  # fmt: skip
    assert [str(each.message) for each in caught] == [
        "2 of the 10 clones of obs['clone'] are in several batches of obs['well'] (s, t): each "
        "counts as one clone in each batch."
    ]
    # Only with cells of the same batch, and with a number of its own.
    assert given["pairs"]["b"].tolist() == [[i, i] for i in range(4)]
    assert not set(given["clones"]["a"]) & set(given["clones"]["b"])


def test_numbers_and_categories_are_batches():
    adata = cells(well=pandas.Categorical(np.where(WELL == "a", 10, 9)))
    assert fit(adata, **KEYS, model=EUCLIDEAN).batches == ("9", "10")
    model = fit(cells(well=np.where(WELL == "a", 1.0, 2.0)), **KEYS, model=EUCLIDEAN)
    whole = transport(model, cells(well=np.where(WELL == "a", 1, 2)), copy=True)
    assert np.isfinite(whole.obsm["X_mongefit"][:N]).all()
    assert model.between(batch=2).times.batch == ("well", "2.0")


def test_batches_of_several_times():
    adata = cells(well=WELL)
    keys = {"time_key": "day", "times": "all", "batch_key": "well", "pair_key": "clone"}
    with pytest.warns(UserWarning, match="12 pairs are between times that do not follow one anot"):
        model = fit(adata, **keys, model=EUCLIDEAN)
    found = model.between(2, 6, batch="a")
    assert isinstance(found.model, Way)
    legs = [model.model.legs_[f"a: {name}"] for name in ("2 to 4", "4 to 6")]
    expected = legs[1].transform(legs[0].transform(STATES[A]))
    np.testing.assert_array_equal(found.model.transform(STATES[A]), expected)
    assert model.between(4, 6, batch="b").model is model.model.legs_["b: 4 to 6"]
    assert interpolate(model, adata, 5).n_obs == N
    result = transport(model, adata, copy=True)
    np.testing.assert_array_equal(result.obsm["X_mongefit"][A], expected)


def test_weights_are_those_of_each_batch():
    rate = np.linspace(-0.2, 0.2, 3 * N)
    model = fit(cells(well=WELL, rate=rate), **KEYS, growth_key="rate", model=EUCLIDEAN)
    expected = np.exp(2 * rate[B])
    np.testing.assert_allclose(model.model.legs_["b"].map_.a, expected / expected.sum())


def test_settings_are_chosen_on_the_batch_with_most_clones(monkeypatch):
    def choose(self, X, Y, *, pairs, **known):
        self.report_, self.best_params_ = None, {"cost": "sqeuclidean", "epsilon": len(pairs) / 10}
        np.testing.assert_array_equal(X, STATES[A])
        np.testing.assert_array_equal(Y, STATES[A + N])
        return self

    monkeypatch.setattr(MongeMapCV, "fit", choose)
    model = fit(cells(well=WELL), **KEYS, pair_key="clone", model=MongeMapCV(cv=2))
    assert isinstance(model.model, TemporalMap) and model.model.epsilon == 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_key": "wlel"}, "Did you mean batch_key='well'"),
        ({"batch_key": ["well"]}, "batch_key must be the name of one column of obs"),
        ({"pair_key": "well"}, "batch_key and pair_key are both 'well'"),
        ({"batch_key": "day"}, "batch_key and time_key are both 'day'"),
        ({"groups_key": "well"}, "batch_key and groups_key are both 'well'"),
        ({"batch_key": "gaps"}, r"obs\['gaps'\] is missing in 1 of 24 cells \(first: 'c0'\)"),
        ({"batch_key": "apart"}, r"No value of obs\['apart'\] has cells at all times: 2, 4"),
        ({"pair_key": "one_well"}, "occurs at two of the times 2, 4 in one batch"),
        ({"pairs": [("c0", f"c{N + 9}")]}, "from an earlier to a later time, in one batch"),
    ],
)
def test_refused(change, words):
    gaps = np.where(np.arange(3 * N) > 0, WELL, None)
    one_well = [f"{day} {well}" for day, well in zip(DAYS, WELL, strict=True)]
    adata = cells(well=WELL, gaps=gaps, apart=DAYS, one_well=one_well)
    with pytest.raises((DataError, OptionError), match=words):
        fit(adata, **(KEYS | {"model": EUCLIDEAN} | change))


def test_a_batch_that_a_time_lacks_is_left_out():
    well = np.where((WELL == "b") & (DAYS == 2), "a", WELL)
    with pytest.warns(UserWarning, match=r"b has no cells of day 2; its 4 cells are left out"):
        model = fit(cells(well=well), **KEYS, model=EUCLIDEAN)
    assert model.batches == ("a",)
    # Of one batch it need not be said which.
    assert model.between().times.batch == ("well", "a")
