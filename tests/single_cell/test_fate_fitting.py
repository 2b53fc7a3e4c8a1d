"""Maps that are averaged, chosen by fates, and judged by those of held-out clones."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap, MongeMapCV, load, single_cell
from mongefit.errors import DataError, ModelFileError, OptionError
from mongefit.metrics import label_scores
from mongefit.model_selection import _best
from mongefit.model_selection._judging import FAMILIES
from mongefit.single_cell import average, cross_validate_fates, fit_fates

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N, CLONES = 64, 60
KEYS = {"time_key": "day", "source": 2, "target": 4}
WHAT = KEYS | {"key": "cell_type", "exclude": "stem", "pair_key": "clone"}
VIEWS = {"n_components": (2,), "diffusion": 2}
pytestmark = pytest.mark.filterwarnings("ignore:On held-out pairs the best map has")


@pytest.fixture(scope="module", autouse=True)
def few_families_to_choose_from():
    """The kernel families take most of the time, and are judged as the others are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_best, "FAMILIES", FAMILIES[:3])
        yield


@pytest.fixture(scope="module")
def adata():
    """Two branches; which one a cell of day 2 will take shows in its second component."""
    rng = np.random.default_rng(0)
    side = rng.choice([-1.0, 1.0], N)
    early = np.column_stack([np.zeros(N), 0.5 * side, np.zeros(N)])
    late = np.column_stack([np.full(N, 2.0), 2 * side, np.zeros(N)])
    points = np.concatenate([early, late]) + 0.4 * rng.normal(size=(2 * N, 3))
    types = np.array(["stem"] * N + list(np.where(side < 0, "left", "right")))
    types[-2:] = "stem"
    clone = np.full(N, -1)
    clone[:CLONES] = np.arange(CLONES)
    obs = pandas.DataFrame(
        {"day": np.repeat([2, 4], N), "cell_type": types, "clone": np.tile(clone, 2)},
        index=[f"c{i}" for i in range(2 * N)],
    )
    found = anndata.AnnData(np.zeros((2 * N, 0)), obs=obs)
    found.obsm["X_pca"] = points
    return found


@pytest.fixture(scope="module")
def two(adata):
    """Maps in two and in three components."""
    estimator = MongeMap(cost="sqeuclidean", epsilon=0.2)
    return [single_cell.fit(adata, **KEYS, n_components=size, model=estimator) for size in (2, 3)]


@pytest.fixture(scope="module")
def fitted(adata):
    return fit_fates(adata, **WHAT, **VIEWS)


@pytest.fixture(scope="module")
def judged(adata):
    return cross_validate_fates(adata, **WHAT, **VIEWS, n_folds=3, max_cells=None)


def test_an_average_says_the_mean_of_what_its_maps_say(adata, two):
    both = average(two)
    found = single_cell.fates(both, adata, "cell_type", exclude="stem", copy=True)
    each = [single_cell.fates(one, adata, "cell_type", exclude="stem", copy=True) for one in two]
    for name in ("mongefit_fates", "mongefit_fates_raw"):
        mean = np.mean([one.obsm[name] for one in each], axis=0)
        np.testing.assert_allclose(found.obsm[name], mean, atol=1e-12)
    plans = [one.model.coupling_ for one in two]
    np.testing.assert_allclose(both.coupling_, np.mean(plans, axis=0))
    pushed = single_cell.push(both, adata, adata.obs_names[:3], copy=True).obs["mongefit_push"]
    parts = [plan[:3].sum(0) / plan[:3].sum() for plan in plans]
    np.testing.assert_allclose(pushed[N:], np.mean(parts, axis=0), atol=1e-9)
    table = single_cell.transition_table(both, adata, "cell_type", exclude="stem")
    fates, mass = found.obsm["mongefit_fates"][:N], found.obs["mongefit_fate_mass"][:N]
    np.testing.assert_allclose(table.loc["stem"], np.average(fates, axis=0, weights=mass))
    assert average([both, two[0]]).maps == (*two, two[0])


def test_an_average_is_one_file(adata, two, tmp_path):
    path = tmp_path / "both.mongefit"
    both = average(two)
    both.save(path)
    same = single_cell.load(path)
    np.testing.assert_array_equal(same.coupling_, both.coupling_)
    assert [one.representation.n_components for one in same.maps] == [2, 3]
    with pytest.raises(ModelFileError, match=r"mongefit\.single_cell\.load reads it"):
        load(path)
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError, match="checksum"):
        single_cell.load(path)


def test_what_cannot_be_averaged(adata, two):
    with pytest.raises(OptionError, match="two maps or more"):
        average([two[0]])
    with pytest.raises(OptionError, match="two maps or more"):
        average(two[0])
    with pytest.raises(OptionError, match="got MongeMap"):
        average([two[0], MongeMap()])
    back = single_cell.fit(
        adata, time_key="day", source=4, target=2, n_components=2,
        model=MongeMap(cost="sqeuclidean", epsilon=0.2),
    )  # fmt: skip
    with pytest.raises(DataError, match="from day 2 to day 4, another from day 4 to day 2"):
        average([two[0], back])
    with pytest.raises(OptionError, match=r"average\.maps\[0\]"):
        single_cell.transport(average(two), adata)


def test_fates_choose_a_map_for_each_representation(adata, fitted):
    assert [one.model.n_features_in_ for one in fitted.maps] == [2, 2]
    assert fitted.maps[0].representation.n_components == 2
    assert len(fitted.maps[1].representation.diffusion.values) == 2
    rows = {row["name"]: row for row in fitted.report.rows}
    assert rows["2 components: class shares"]["log_loss"] > 0.6
    chosen = [row for row in fitted.report.rows if row["chosen"]]
    assert [row["name"].split(":")[0] for row in chosen] == [
        "2 components", "2 diffusion components",
    ]  # fmt: skip
    for part in ("2 components", "2 diffusion components"):
        same = [row for row in fitted.report.rows if row["name"].startswith(f"{part}: ")]
        least = min(row["log_loss"] for row in same if row["kind"] == "candidate")
        assert next(row for row in same if row["chosen"])["log_loss"] == least
    found = single_cell.fates(fitted, adata, "cell_type", exclude="stem", copy=True)
    known = found.obs["mongefit_informed"][:N]
    assert known.dtype == bool and known[:CLONES].mean() > 0.8
    p = found.obsm["mongefit_fates"][: N - 2]
    truth = (adata.obs["cell_type"].iloc[N : 2 * N - 2] == "right").to_numpy().astype(int)
    assert label_scores(p, truth).mean_auroc > 0.95


def test_held_out_fates_are_judged(judged):
    assert judged.names == ("left", "right")
    assert next(iter(judged.probability)) == "fates"
    assert {"class shares", "logistic regression", "nearest pairs"} <= set(judged.probability)
    both = [judged.probability[f"2 {name}"] for name in ("components", "diffusion components")]
    np.testing.assert_allclose(judged.probability["fates"], np.mean(both, axis=0))
    assert len(judged.truth) == CLONES and len(np.unique(judged.clones)) == CLONES
    scores = judged.scores()
    assert scores.mean_auroc > 0.9
    assert scores.log_loss < judged.scores("class shares").log_loss
    assert "log-loss" in str(judged) and f"{CLONES} pairs in {CLONES} clones" in str(judged)
    assert judged.best_euclidean().startswith("squared Euclidean, epsilon")


def test_differences_are_resampled_over_clones(judged):
    found = judged.difference("class shares", n_resamples=200)
    exact = judged.scores().log_loss - judged.scores("class shares").log_loss
    assert found.mean == pytest.approx(exact) and found.low < found.mean < found.high < 0
    assert found.better == 1
    area = judged.difference("class shares", score="auroc", n_resamples=200)
    assert area.low > 0 and area.better == 1
    nothing = judged.difference("fates", score="brier", n_resamples=50)
    assert nothing.low == nothing.high == 0
    with pytest.raises(OptionError, match=r"no 'ridge' here, only: fates"):
        judged.difference("ridge")
    with pytest.raises(OptionError, match="score must be one of log_loss, brier, auroc"):
        judged.difference("class shares", score="loss")


def test_labels_in_the_report_of_any_fit(adata):
    candidates = {"sharp": MongeMap(cost="sqeuclidean", epsilon=0.1, max_iter=0)}
    model = single_cell.fit(
        adata, **KEYS, pair_key="clone", n_components=2, fate_key="cell_type", exclude="stem",
        model=MongeMapCV(candidates),
    )  # fmt: skip
    rows = {row["name"]: row for row in model.model.report_.rows}
    assert rows["sharp"]["auroc"] > 0.8
    with pytest.raises(OptionError, match="fate_key judges the candidates of a MongeMapCV"):
        single_cell.fit(adata, **KEYS, pair_key="clone", fate_key="cell_type", model=MongeMap())


MISTAKES = [
    ({"key": "celltype"}, r"obs\['celltype'\] not found.*cell_type"),
    ({"exclude": "stm"}, r"Did you mean exclude='stem'"),
    ({"exclude": ["stem", "left"]}, r"one label that is a fate, 'right'"),
    ({"pair_key": None}, r"learned from clones: give pair_key"),
    ({"n_components": (), "diffusion": None}, r"nothing to fit"),
    ({"n_components": (0,)}, r"n_components must be a whole number >= 1"),
    ({"diffusion": 200}, r"200 diffusion components of 128 cells"),
    ({"use_rep": "X_scvi"}, r"obsm\['X_scvi'\] not found"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes_are_told(adata, wrong, message):
    for function in (fit_fates, cross_validate_fates):
        with pytest.raises((DataError, OptionError), match=message):
            function(adata, **WHAT | VIEWS | wrong)
