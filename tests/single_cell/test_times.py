"""Several times of one AnnData: which, what is known of each leg, maps between any two, files."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from mongefit import EnsembleMap, KernelMap, MongeMap, MongeMapCV, TemporalMap
from mongefit._estimators.ways import Way
from mongefit._storage import models as storage
from mongefit.errors import DataError, ModelFileError, OptionError
from mongefit.single_cell import Times, _several, fit, interpolate, load, transport
from mongefit.single_cell._legs import take_legs
from mongefit.single_cell._times import choose_times
from tests.command_line import run
from tests.single_cell.three_days import DAYS, EUCLIDEAN, SMALL, N, cells

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

REAL = Path(__file__).parents[3] / "shared/data/larry_days_2_4_6.h5ad"
KEYS = {"time_key": "day", "times": [2, 4, 6]}
STATES = cells().obsm["X_pca"]
CLOUDS = np.split(STATES, 3)


@pytest.fixture(scope="module")
def learned():
    """A matrix that was trained on the clones of all pairs of days."""
    return fit(cells(), **KEYS, pair_key="clone", model=SMALL)


@pytest.fixture(scope="module")
def euclidean():
    """Squared Euclidean between all days."""
    return fit(cells(), **KEYS, model=EUCLIDEAN)


class TestWhichTimes:
    @pytest.mark.parametrize("times", [[2, 4, 6], ("2", 4.0, "6.0"), np.array([2, 4, 6]), "all"])
    @pytest.mark.parametrize("convert", [np.asarray, lambda days: days.astype(str)])
    def test_numbers(self, times, convert):
        found = choose_times(cells(days=convert(DAYS)), "day", None, None, times)
        assert found.labels == (2, 4, 6)
        assert (found.source, found.target) == (found.values[0], found.values[-1])

    def test_numbers_are_put_in_order(self):
        with pytest.warns(UserWarning, match="times is not in order: taken as 2, 4, 6"):
            found = choose_times(cells(), "day", None, None, [6, 2, 4])
        assert found == Times("day", "2", "4", "6")

    def test_text_keeps_the_order_of_the_list(self):
        days = np.array(["late", "mid", "early"], object)[(DAYS - 2) // 2]
        found = choose_times(cells(days=days), "day", None, None, ["mid", "early", "late"])
        assert found.labels == ("mid", "early", "late")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"times": [2, 4], "source": 2}, "leave out source and target"),
            ({}, "give source and target, or times for several"),
            ({"source": 2}, "give source and target"),
            ({"times": [2]}, "Two times at least are needed, got 2"),
            ({"times": [2, 4, "2.0"]}, "times has 2.0 twice"),
            ({"times": [2, "late"]}, r"numbers and text \('late'\)"),
            ({"times": 2}, "times must be a list of values of the time column, or 'all', got 2"),
            ({"times": "2,4"}, "times must be a list"),
            ({"times": [2, 4, 6], "time_key": ["day"]}, "time_key must be the name of one column"),
            ({"times": "all", "time_key": ["day"]}, "time_key must be the name of one column"),
            ({"times": "all", "time_key": "clone_name"}, r"holds text.*times=\['early', 'late'\]"),
        ],
    )
    def test_refused(self, options, words):
        adata = cells(clone_name=["early", "late"] * 18)
        with pytest.raises(OptionError, match=words):
            fit(adata, **({"time_key": "day"} | options), model=EUCLIDEAN)

    def test_unknown_times_are_named(self):
        with pytest.raises(DataError, match=r"no value 5. Values: 2, 4, 6."):
            fit(cells(), time_key="day", times=[2, 4, 5], model=EUCLIDEAN)
        with pytest.raises(DataError, match="Did you mean time_key='day'"):
            fit(cells(), time_key="days", times=[2, 4, 6], model=EUCLIDEAN)

    def test_two_times_of_a_list_are_source_and_target(self, tmp_path):
        found = fit(cells(), time_key="day", times=[2, 6], model=EUCLIDEAN)
        assert isinstance(found.model, MongeMap)
        assert found.times == Times("day", "2", "6")

    def test_a_time_with_one_cell_is_warned_of(self):
        with pytest.warns(UserWarning, match="day 2 has one cell"):
            found = fit(cells()[N - 1 :], **KEYS, model=EUCLIDEAN)
        assert len(found.model.legs_[2, 4].map_.x) == 1
        with pytest.warns(UserWarning, match="day 2 has one cell"):
            fit(cells()[N - 1 :], time_key="day", source=2, target=4, model=EUCLIDEAN)


class TestWhatIsKnown:
    def test_clones_of_every_two_days(self):
        adata = cells()
        adata.obs["clone"] = ["a", "a", *["-1"] * 10, *"abb", *["NA"] * 9, *"bc", *[""] * 10]
        with pytest.warns(UserWarning, match="taken for not known"):
            legs = take_legs(adata, Times("day", "2", "4", "6"), pair_key="clone")
        given = legs.given
        assert {name: table.tolist() for name, table in given["pairs"].items()} == {
            (2, 4): [[0, 0], [1, 0]], (4, 6): [[1, 0], [2, 0]],
        }  # fmt: skip
        assert given["pair_weight"][4, 6].tolist() == [0.5, 0.5]
        # One number for a clone in all legs.
        assert [given["clones"][name].tolist() for name in given["pairs"]] == [[0, 0], [1, 1]]
        assert [leg.name for leg in legs.legs] == [(2, 4), (4, 6)]

    def test_is_what_a_temporal_map_is_given(self, learned):
        pairs = [[i, i] for i in range(N)]
        names = [(2, 4), (2, 6), (4, 6)]
        expected = SMALL.set_params(many_to_many=True).fit(
            CLOUDS, [2, 4, 6], pairs=dict.fromkeys(names, pairs),
            clones=dict.fromkeys(names, np.arange(N)),
        )  # fmt: skip
        assert isinstance(learned.model, TemporalMap) and learned.model.n_iter_ == 2
        np.testing.assert_allclose(
            learned.model.transform(STATES, 2, 6), expected.transform(STATES, 2, 6), atol=1e-8
        )

    def test_pairs_by_name(self):
        named = [("c0", f"c{N}"), (f"c{N}", f"c{2 * N + 1}"), ("c3", f"c{2 * N + 3}")]
        times = Times("day", "2", "4", "6")
        given = take_legs(cells(), times, pairs=named).given
        assert {name: table.tolist() for name, table in given["pairs"].items()} == {
            (2, 4): [[0, 0]], (4, 6): [[0, 1]], (2, 6): [[3, 3]],
        }  # fmt: skip
        assert not given["clones"]
        for pairs, words in (
            ([(f"c{N}", "c0")], "do not go from an earlier to a later time.*'c12' to 'c0'"),
            ([("c0", "c99")], r"1 of the 2 names in pairs are no cells of the fit \(first: 'c99'"),
            ([("c0", f"c{N}"), ("c0", f"c{N + 1}")], "paired with several targets"),
        ):
            with pytest.raises(DataError, match=words):
                take_legs(cells(), times, pairs=pairs)

    def test_groups_of_each_leg(self):
        kind = np.tile(["a", "b"], 18).astype(object)
        kind[:N] = "a"
        times = Times("day", "2", "4", "6")
        with pytest.warns(UserWarning, match="b in day 2 or in day 4 only; the 6 cells"):
            groups = take_legs(cells(kind=kind), times, groups_key="kind").given["groups"]
        assert set(groups[2, 4][1]) == {"a", None}
        assert set(groups[4, 6][1]) == {"a", "b"}
        with pytest.raises(DataError, match=r"at two times that follow one another\. Values: 2, 4"):
            take_legs(cells(kind=DAYS), times, groups_key="kind")

    def test_weights_and_growth_of_each_leg(self):
        rate, weight = np.linspace(-0.2, 0.2, 3 * N), np.linspace(1, 2, 3 * N)
        rate[-1] = np.nan  # the last time grows no more
        adata = cells(days=np.repeat([2, 4, 7], N), rate=rate, weight=weight)
        found = fit(
            adata, time_key="day", times=[2, 4, 7], growth_key="rate", weight_key="weight",
            model=EUCLIDEAN,
        )  # fmt: skip
        for name, first, span in (((2, 4), 0, 2), ((4, 7), N, 3)):
            rows = slice(first, first + N)
            expected = weight[rows] * np.exp(rate[rows] * span)
            a, b = found.model.legs_[name].map_.a, found.model.legs_[name].map_.b
            np.testing.assert_allclose(a, expected / expected.sum())
            after = weight[first + N : first + 2 * N]
            np.testing.assert_allclose(b, after / after.sum())
        assert (found.weight_key, found.growth_key) == ("weight", "rate")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"growth_key": "rat"}, r"Did you mean growth_key='rate'"),
            ({"growth_key": "rate"}, r"is nan in 1 of 12 cells of day 4 \(first: 'c12'\)"),
            ({"pair_key": "late"}, r"No value of obs\['late'\] occurs at two of the times 2, 4, 6"),
            ({"pair_key": ["clone"]}, "pair_key must be the name of one column of obs or array of"),
            ({"pair_key": "X_clones"}, r"neither in obs nor in obsm.*Did you mean pair_key='X_cl"),
            ({"pair_key": "clone", "groups_key": "clone"}, "are both 'clone'"),
            ({"pair_key": "clone", "model": EnsembleMap()}, "is of two times and no batches"),
        ],
    )
    def test_refused(self, options, words):
        adata = cells(rate=0.1, late=np.where(DAYS == 6, "a", None))
        adata.obs.iloc[N, adata.obs.columns.get_loc("rate")] = np.nan
        adata.obsm["X_clone"] = np.eye(3 * N)
        with pytest.raises((DataError, OptionError), match=words):
            fit(adata, **(KEYS | {"model": EUCLIDEAN} | options))


class TestBetween:
    def test_a_time_and_the_next(self, learned):
        found = learned.between(4, 6)
        assert found.model is learned.model.legs_[4, 6]
        assert found.times == Times("day", "4", "6")
        np.testing.assert_array_equal(found.times.rows(cells(), target=False), N + np.arange(N))

    def test_over_several_legs(self, learned):
        found = learned.between()
        assert isinstance(found.model, Way) and found.times == Times("day", "2", "6")
        expected = learned.model.transform(STATES[:N], 2, 6)
        np.testing.assert_array_equal(found.model.transform(STATES[:N]), expected)
        assert found.model.conditional(STATES[:N]).shape == (N, N)
        assert found.model.diagnostics_["converged"]
        assert found.between().model is found.model
        with pytest.raises(OptionError, match="Save the model of all times"):
            found.save("never written")

    @pytest.mark.parametrize("ends", [(2, 4), (2, 6)])
    def test_has_every_query_of_a_map_of_two_times(self, learned, ends):
        found, adata = learned.between(*ends), cells()
        model = found.model
        points = found.coordinates(adata, found.times.rows(adata, target=False))
        mass = np.full(N, 1 / N)
        assert (model.n_features_in_, model.transform(points).shape) == (2, (N, 2))
        assert model.inverse_transform(points).shape == (N, 2)
        assert model.sample(points, 3, random_state=0).shape == (N, 3, 2)
        assert np.all(model.entropy(points) >= 0)
        for moved in (model.push(mass), model.pull(mass), model.coupling_.ravel()):
            assert moved.sum() == pytest.approx(1)
        np.testing.assert_array_equal(model.growth(points), np.ones(N))
        assert len(model.history_["loss"]) == 3 and model.diagnostics_["epsilon"] == 0.1
        assert isinstance(model.data_sha256_, str)

    @pytest.mark.parametrize(
        ("ends", "words"),
        [
            ((6, 2), "day 2 does not come after day 6.*from day 2 to day 4 to day 6; the way back"),
            ((4, 4), "day 4 does not come after day 4"),
            ((2, 5), "knows nothing of 5"),
            ((2, 6, "a"), "has no batches; it knows nothing of 'a'"),
        ],
    )
    def test_refused(self, learned, ends, words):
        first, last, *batch = ends
        with pytest.raises(OptionError, match=words):
            learned.between(first, last, batch=batch[0] if batch else None)


class TestTransport:
    @pytest.mark.parametrize("inverse", [False, True])
    def test_between_any_two_times(self, learned, inverse, tmp_path):
        for source, target in ((2, 4), (2, 6)):
            adata = cells()
            transport(learned, adata, source=source, target=target, inverse=inverse)
            start = target if inverse else source
            rows = adata.obs["day"] == start
            back = learned.model.inverse_transform if inverse else learned.model.transform
            np.testing.assert_array_equal(
                adata.obsm["X_mongefit"][rows], back(STATES[rows], source, target)
            )
            assert np.isnan(adata.obsm["X_mongefit"][~rows]).all()
            assert adata.uns["mongefit"]["source"] == str(source)
        adata.write_h5ad(tmp_path / "out.h5ad")
        again = anndata.read_h5ad(tmp_path / "out.h5ad").uns["mongefit"]
        assert again["target"] == "6" and len(again["history"]["loss"]) == 3


class TestFile:
    def test_comes_back(self, learned, tmp_path):
        learned.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert again.times == learned.times
        np.testing.assert_array_equal(
            again.between().model.transform(STATES), learned.between().model.transform(STATES)
        )
        # One leg alone is a model of two times.
        learned.between(4, 6).save(tmp_path / "leg")
        assert load(tmp_path / "leg").times == Times("day", "4", "6")

    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header.update(times=["2", "4", "7"]),
            lambda header: header.update(times=[2, 4, 6]),
            lambda header: header.pop("times"),
            lambda header: header.update(batches=["a"]),
            lambda header: header.update(batch_key="well", batches=["a"]),
            lambda header: header.update(batch=["well"]),
            lambda header: header.update(layer=3),
            lambda header: header.update(report={"rows": []}),
        ],
    )
    def test_forged(self, learned, tmp_path, change):
        learned.save(tmp_path / "m")
        model, section = storage.load_with_cells(tmp_path / "m")
        change(section.header)
        storage.save(model, tmp_path / "m", overwrite=True, single_cell=section)
        with pytest.raises(ModelFileError, match="what it says of cells"):
            load(tmp_path / "m")


class TestInterpolate:
    def test_on_the_way_of_one_leg(self, euclidean):
        two = fit(cells(), time_key="day", source=2, target=4, model=EUCLIDEAN)
        for model in (two, euclidean):
            found = interpolate(model, cells(), 3)
            moved = two.model.transform(STATES[:N])
            np.testing.assert_allclose(found.obsm["X_pca"], (STATES[:N] + moved) / 2, atol=1e-9)
            assert found.obs["day"].tolist() == [3.0] * N
            assert found.obs["mongefit_from"].tolist() == [f"c{i}" for i in range(N)]
            assert found.obs_names[0] == "c0 at 3"
            assert "mongefit_weight" not in found.obs

    def test_any_two_times_and_back(self, euclidean):
        way = euclidean.model
        found = interpolate(euclidean, cells(), 5, source=2)
        np.testing.assert_allclose(found.obsm["X_pca"], way.interpolate(STATES[:N], 2, 6, at=5))
        found = interpolate(euclidean, cells(), 5, inverse=True)
        later = STATES[2 * N :]
        np.testing.assert_allclose(found.obsm["X_pca"], way.interpolate(later, 6, 4, at=5))
        assert found.obs["mongefit_from"].iloc[0] == f"c{2 * N}"

    @pytest.mark.parametrize(("at", "inverse"), [(2, False), (4, False), (4, True), (6, True)])
    def test_at_a_time_of_the_fit(self, euclidean, at, inverse):
        found = interpolate(euclidean, cells(), at, inverse=inverse).obsm["X_pca"]
        expected = {
            (2, False): STATES[:N],
            (6, True): STATES[2 * N :],
            (4, False): euclidean.model.transform(STATES[:N], 2, 4),
            (4, True): euclidean.model.inverse_transform(STATES[2 * N :], 4, 6),
        }
        np.testing.assert_allclose(found, expected[at, inverse])

    def test_an_ensemble_is_the_mean_of_its_members(self):
        members = EnsembleMap(MongeMap(cost="matrix", epsilon=0.2, max_iter=1), n_members=2)
        keys = {"time_key": "day", "source": 2, "target": 4, "pair_key": "clone"}
        model = fit(cells(), **keys, model=members)
        found = interpolate(model, cells(), 3).obsm["X_pca"]
        expected = (STATES[:N] + model.model.transform(STATES[:N])) / 2
        np.testing.assert_allclose(found, expected)

    def test_genes(self, euclidean):
        adata = cells()
        found = interpolate(euclidean, adata, 3)
        assert list(found.var_names) == list(adata.var_names)
        np.testing.assert_allclose(found.X, found.obsm["X_pca"] @ adata.varm["PCs"].T)
        assert found.uns["mongefit"]["centred"]
        # They are cells that the model takes.
        found.obs["day"] = 2
        assert np.isfinite(transport(euclidean, found, copy=True).obsm["X_mongefit"]).all()
        del adata.varm["PCs"]
        assert interpolate(euclidean, adata, 3).n_vars == 0

    def test_genes_of_components_that_fit_computed(self, tmp_path):
        model = fit(cells(), time_key="day", source=2, target=4, pca=2, model=EUCLIDEAN)
        found = interpolate(model, cells(), 2)
        pca = model.representation.pca
        points = model.coordinates(cells(), np.arange(N))
        np.testing.assert_allclose(found.X, pca.mean + points @ pca.loadings.T, atol=1e-6)
        np.testing.assert_allclose(found.obsm["X_pca"], points, atol=1e-6)
        assert not found.uns["mongefit"]["centred"]
        found.write_h5ad(tmp_path / "at.h5ad")
        assert anndata.read_h5ad(tmp_path / "at.h5ad").uns["mongefit"]["at"] == 2

    def test_genes_themselves(self):
        model = fit(cells(), time_key="day", source=2, target=4, use_rep="X", model=EUCLIDEAN)
        found = interpolate(model, cells(), 2)
        np.testing.assert_allclose(found.X, cells().X[:N])
        assert not found.obsm

    def test_weights(self):
        rate = np.linspace(-0.3, 0.3, 3 * N)
        adata = cells(rate=rate)
        model = fit(adata, **KEYS, growth_key="rate", model=EUCLIDEAN)
        weight = interpolate(model, adata, 3).obs["mongefit_weight"].to_numpy()
        np.testing.assert_allclose(weight, np.exp(rate[:N]) / np.exp(rate[:N]).sum())
        with pytest.warns(UserWarning, match=r"obs\['rate'\] not found, the growth_key of the fit"):
            assert "mongefit_weight" not in interpolate(model, cells(), 3).obs
        relaxed = MongeMap(cost="sqeuclidean", epsilon=0.2, tau_a=0.5)
        model = fit(cells(), time_key="day", source=2, target=4, model=relaxed)
        weight = interpolate(model, cells(), 3).obs["mongefit_weight"].to_numpy()
        grown = np.sqrt(model.model.growth(STATES[:N]))
        np.testing.assert_allclose(weight, grown / grown.sum())

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"at": 1}, "at must be a time from 2 to 6, got 1"),
            ({"at": 7}, "at must be a time from 2 to 6, got 7"),
            ({"at": "3"}, "at must be a time from 2 to 6, got '3'"),
            ({"at": 3, "source": 4}, "at must be a time from 4 to 6|does not come after"),
            ({"at": 3, "source": 3}, "knows nothing of 3"),
        ],
    )
    def test_refused(self, euclidean, options, words):
        with pytest.raises(OptionError, match=words):
            interpolate(euclidean, cells(), **options)

    def test_times_must_be_numbers(self):
        adata = cells(days=np.array(["a", "b", "c"])[(DAYS - 2) // 2])
        model = fit(adata, time_key="day", times=["a", "b", "c"], model=EUCLIDEAN)
        with pytest.raises(OptionError, match="numbers can be interpolated; this model goes from"):
            interpolate(model, adata, 3)


@pytest.mark.usefixtures("few_families")
def test_without_a_model_settings_are_chosen_on_the_leg_with_most_clones(tmp_path):
    adata = cells()
    adata.obs.iloc[: N // 2, adata.obs.columns.get_loc("clone")] = None
    found = fit(adata, **KEYS, pair_key="clone", model=MongeMapCV(cv=2))
    assert isinstance(found.model, TemporalMap)
    assert f"{N} pairs in {N} clones" in str(found.report)
    found.save(tmp_path / "m")
    assert str(load(tmp_path / "m").report) == str(found.report)
    expected = MongeMapCV(cv=2).fit(
        *CLOUDS[1:], pairs=[[i, i] for i in range(N)], pair_weight=np.ones(N),
        clones=(np.arange(N) + N // 2) % N,  # in the order in which they are met
    )  # fmt: skip
    for name in ("cost", "diffeo", "epsilon", "debias", "max_iter"):
        chosen = expected.best_estimator_.get_params()[name]
        assert found.model.get_params()[name] == chosen


def test_a_kernel_map_has_its_anchors_among_the_sources_of_all_legs(monkeypatch):
    """In the units of all legs, whichever leg it was chosen on."""
    chosen = MongeMap(cost="sqeuclidean", epsilon=0.5, max_iter=0)

    def choose(self, X, Y, **known):
        phi = KernelMap(np.full((1, 2), 100.0), 1.0)
        self.report_ = None
        self.best_params_ = chosen.set_params(diffeo=(phi, None)).get_params(deep=False)
        return self

    monkeypatch.setattr(MongeMapCV, "fit", choose)
    found = fit(cells(), **KEYS, pair_key="clone")
    units, (phi, _) = found.model.units_, found.model.diffeo
    sources = np.asarray(units.into(STATES[: 2 * N]))
    np.testing.assert_allclose(phi.anchors, np.unique(sources, axis=0), atol=1e-9)


def test_where_nothing_can_be_chosen_settings_are_fixed(monkeypatch):
    monkeypatch.setattr(_several, "FIXED", _several.FIXED | {"max_iter": 1})
    with pytest.warns(UserWarning, match="Nothing is known of who became whom"):
        found = fit(cells(), **KEYS)
    assert (found.model.cost, found.model.debias) == ("sqeuclidean", True)
    ends = np.where(DAYS == 4, None, cells().obs["clone"])
    with pytest.warns(UserWarning, match="do not follow one another only.*a matrix is trained"):
        found = fit(cells(ends=ends), **KEYS, pair_key="ends", model=MongeMapCV())
    assert (found.model.cost, found.model.n_iter_) == ("matrix", 1)


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
class TestRealFile:
    """Days 2, 4 and 6 of an experiment with expressed barcodes; nobody here wrote the file."""

    @pytest.fixture(scope="class")
    @classmethod
    def adata(cls):
        return anndata.read_h5ad(REAL)

    def test_all_of_it(self, adata, tmp_path):
        adata = adata.copy()
        options = {"time_key": "time_info", "times": "all", "n_components": 5}
        model = fit(
            adata, **options, pair_key="X_clone",
            model=TemporalMap(cost="matrix", epsilon=0.2, max_iter=0),
        )  # fmt: skip
        assert model.times.labels == (2, 4, 6)
        known = take_legs(adata, model.times, pair_key="X_clone", n_components=5).given
        counts = {name: len(set(clone)) for name, clone in known["clones"].items()}
        assert counts == {(2, 4): 17, (2, 6): 12, (4, 6): 113}
        assert len(known["pairs"][4, 6]) == 450
        model.save(tmp_path / "m")
        transport(load(tmp_path / "m"), adata, source="2", target="6")
        assert np.isfinite(adata.obsm["X_mongefit"]).all(axis=1).sum() == 34
        assert interpolate(model, adata, 5).shape == (316, 0)
        np.testing.assert_allclose(
            model.between(2, 6)
            .model.conditional(model.coordinates(adata, model.times.rows(adata, target=False)))
            .sum(axis=1),
            1,
        )
        assert re.match("from time_info 2 to", model.times.text)


def page_blocks(language):
    text = (Path(__file__).parents[2] / "docs/single-cell-times.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.usefixtures("few_families")
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adata = cells(well=np.tile(["a", "b"], 18))
    adata.obsm["X_pca"] = np.random.default_rng(1).normal(size=(3 * N, 10))
    adata.obsm["X_clone"] = scipy.sparse.csr_matrix(np.tile(np.eye(N), (3, 1)))
    adata.varm["PCs"] = np.ones((5, 10))
    adata.write_h5ad("cells.h5ad")
    text = "".join(page_blocks("python")).replace('cost="matrix"', 'cost="sqeuclidean"')
    Path("page.py").write_text(text, encoding="utf-8")
    names = runpy.run_path("page.py", run_name="__main__")
    assert names["weights"].shape == (N, N)
    assert names["of_one"].times.batch == ("well", "a")
    assert {"X_mongefit", "X_back", "X_in_well"} <= set(names["adata"].obsm)
    for line in page_blocks("console")[0].splitlines():
        fixed = ["--cost", "sqeuclidean"] if " fit " in line else []
        run(*line.split()[1:], *fixed)
    assert {"day_5.h5ad", "there.h5ad"} <= {path.name for path in tmp_path.iterdir()}
