"""Mistakes that are easily made with cells: each message says what, where, and how to mend it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mongefit import MongeMap, MongeMapCV, single_cell
from mongefit.errors import MongefitError

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 20
KEYS = {"time_key": "day", "source": 2, "target": 4}
EUCLIDEAN = MongeMap(cost="sqeuclidean", epsilon=0.1)


def make_cells():
    """Two days of cells on two branches; cell i of each day is of clone i."""
    rng = np.random.default_rng(0)
    day, side = np.repeat([2, 4], N), np.tile([-1.0, 1.0], N)
    points = np.column_stack([2.0 * day, side * day, np.zeros(2 * N)])
    points += 0.3 * rng.normal(size=points.shape)
    obs = pandas.DataFrame(
        {
            "day": day,
            "cell_type": np.where(day == 2, "stem", np.where(side < 0, "left", "right")),
            "clone": np.tile(np.arange(N), 2).astype(str),
            "batch": np.tile(["a", "b"], N),
            "state": np.where(day == 2, "early", "late"),
            "score": rng.normal(size=2 * N),
        },
        index=[f"c{i}" for i in range(2 * N)],
    )
    adata = anndata.AnnData(np.log1p(rng.gamma(1.0, size=(2 * N, 6))), obs=obs)
    adata.var_names = [f"g{i}" for i in range(6)]
    adata.obsm["X_pca"], adata.obsm["X_umap"] = points, points[:, :2]
    adata.varm["PCs"] = rng.normal(size=(6, 3))
    return adata


class Given:
    """What the cases are about: cells, the same with fates, and maps of them; none is trained."""

    def __init__(self):
        self.cells = make_cells()
        self.model = single_cell.fit(self.cells, **KEYS, model=EUCLIDEAN)
        other = single_cell.fit(self.cells, **KEYS, n_components=2, model=EUCLIDEAN)
        self.average = single_cell.average([self.model, other])
        self.batches = single_cell.fit(self.cells, **KEYS, batch_key="batch", model=EUCLIDEAN)
        self.fated = single_cell.fates(self.model, self.cells, "cell_type", copy=True)
        self.early = self.cells.obs["day"] == 2

    def changed(self, change=None, **columns):
        """The cells with other columns, or changed by a function."""
        found = self.cells.copy()
        for name, values in columns.items():
            found.obs[name] = values
        if change is not None:
            change(found)
        return found

    def counts(self):
        found = self.fated.copy()
        found.X = np.arange(found.X.size, dtype=float).reshape(found.shape)
        return found

    def fit(self, adata=None, **options):
        adata = self.cells if adata is None else adata
        return single_cell.fit(adata, **(KEYS | {"model": EUCLIDEAN} | options))

    def text_times(self):
        return self.fit(time_key="state", source="early", target="late")

    def fit_fates(self, adata=None, **options):
        adata = self.cells if adata is None else adata
        options = KEYS | {"key": "cell_type", "pair_key": "clone"} | options
        return single_cell.fit_fates(adata, **options)

    def validate(self, **options):
        options = KEYS | {"key": "cell_type", "pair_key": "clone"} | options
        return single_cell.cross_validate_fates(self.cells, **options)


@pytest.fixture(scope="module")
def given():
    return Given()


def flip(adata):
    adata.obsm["X_pca"] = -adata.obsm["X_pca"]


def rename(adata):
    adata.obs = adata.obs.rename(columns={"day": "time"})


def same_names(adata):
    adata.obs_names = ["a"] * adata.n_obs


# What is done, and what the message says: what is wrong | where | how to mend it.
sc = single_cell
REFUSED = {
    # Data
    "a path for cells": (
        lambda g: g.fit("cells.h5ad"), "must be an AnnData|adata|got str. Read the file with",
    ),
    "obs for cells": (lambda g: g.fit(g.cells.obs), "must be an AnnData|adata|got DataFrame"),
    "a path for a reference": (
        lambda g: sc.fates(g.model, g.cells, "cell_type", reference="x.h5ad"),
        "must be an AnnData|reference|Read the file",
    ),
    "a path for a model": (
        lambda g: sc.fates("m", g.cells, "cell_type"), "model must be|str|single_cell.load",
    ),
    "model and cells swapped": (
        lambda g: sc.push(g.cells, g.model, ["c1"]), "model must be|AnnData|model comes first",
    ),
    "an estimator without cells": (
        lambda g: sc.fates(EUCLIDEAN, g.cells, "cell_type"), "must be|MongeMap|single_cell.fit(",
    ),
    "load what is no path": (lambda g: sc.load(g.cells), "path must be|AnnData|name of a model"),
    "load a missing file": (lambda g: sc.load("no.mongefit"), "not found|no.mongefit|Check the"),
    # Representations
    "obsm misspelt": (
        lambda g: g.fit(use_rep="pca"), "not found|obsm['pca']|Did you mean use_rep='X_pca'",
    ),
    "several obsm": (lambda g: g.fit(use_rep=["X_pca"]), "must be|use_rep|the name of one array"),
    "too many columns": (
        lambda g: g.fit(n_components=50), "needs as many|obsm['X_pca'] has 3|n_components=50",
    ),
    "columns as text": (lambda g: g.fit(n_components="2"), "got '2'|n_components|whole number"),
    "more diffusion components than cells": (
        lambda g: g.fit(diffusion=99), "cannot be computed|of 40 cells|ask for fewer",
    ),
    "NaN in a component": (
        lambda g: g.fit(g.changed(lambda a: a.obsm["X_pca"].__setitem__((3, 1), np.nan))),
        "NaN or infinite|first: 'c3'|Remove these cells",
    ),
    "raw counts": (lambda g: g.fit(g.counts(), pca=2), "raw counts|X|scanpy.pp.log1p"),
    "components flipped since the fit": (
        lambda g: sc.fates(g.model, g.changed(flip), "cell_type"),
        "not that of the fit|cell 'c0'|fit again",
    ),
    # Times
    "time column misspelt": (
        lambda g: g.fit(time_key="days"), "not found|obs['days']|Did you mean time_key='day'",
    ),
    "time column renamed since the fit": (
        lambda g: sc.origins(g.model, g.changed(rename), "batch"),
        "not found|obs['day']|Did you mean time_key='time'",
    ),
    "several time columns": (lambda g: g.fit(time_key=["day"]), "must be|time_key|the name of one"),
    "a time that no cell has": (
        lambda g: g.fit(target=6), "no value 6|obs['day']|Values: 2, 4",
    ),
    "no target": (lambda g: g.fit(target=None), "not said|source and target|times for several"),
    "the same time twice": (lambda g: g.fit(target="2.0"), "both 2|obs['day']|Name two values"),
    "times in one text": (
        lambda g: g.fit(source=None, target=None, times="2,4"), "'2,4'|times must|a list of values",
    ),
    "back in time": (
        lambda g: sc.fates(g.model, g.cells, "batch", source=4, target=2),
        "does not come after|day 2|the way back",
    ),
    "a time that the model lacks": (
        lambda g: sc.to_anndata_map(g.model, g.cells, source=3), "nothing of 3|goes from day 2|to",
    ),
    "beyond the last time": (
        lambda g: sc.interpolate(g.model, g.cells, 5), "got 5|at must be|from 2 to 4",
    ),
    "a time as text": (
        lambda g: sc.interpolate(g.model, g.cells, "3"), "got '3'|at must be|from 2 to 4",
    ),
    "between times without numbers": (
        lambda g: sc.interpolate(g.text_times(), g.cells, 3),
        "times that are numbers|state early|Write numbers into obs['state']",
    ),
    # Clones and pairs
    "clone column misspelt": (
        lambda g: g.fit(pair_key="clones"), "found neither|'clones'|Did you mean pair_key='clone'",
    ),
    "several clone columns": (lambda g: g.fit(pair_key=["clone"]), "must be|pair_key|name of one"),
    "clones of one day each": (
        lambda g: g.fit(g.changed(clone=[f"k{i}" for i in range(2 * N)]), pair_key="clone"),
        "occurs in both|obs['clone']|k0, k1",
    ),
    "an embedding for clones": (
        lambda g: g.fit(pair_key="X_umap"), "negative|obsm['X_umap']|It must be 1, or a count",
    ),
    "a path for pairs": (
        lambda g: g.fit(pairs="pairs.csv"), "got 'pairs.csv'|pairs must|pandas.read_csv",
    ),
    "a number for pairs": (lambda g: g.fit(pairs=5), "got 5|pairs must be|a list of (source,"),
    "one pair without its list": (
        lambda g: g.fit(pairs=["c0", "c20"]), "two names|'c0'|is a list of one",
    ),
    "pairs the wrong way round": (
        lambda g: g.fit(pairs=[["c21", "c1"]]), "not in the source|'c21'|a cell of another time",
    ),
    "a name that no cell has": (
        lambda g: g.fit(pairs=[["c0", "c21x"]]), "not in the target|'c21x'|Did you mean c21",
    ),
    "fates without clones": (
        lambda g: g.fit_fates(pair_key=None), "learned from clones|pair_key|give pair_key or pairs",
    ),
    "validation without clones": (
        lambda g: g.validate(pair_key=None), "learned from clones|pair_key|give pair_key or pairs",
    ),
    "more folds than clones": (
        lambda g: g.validate(n_components=[2], diffusion=None, n_folds=99), "20 clones|n_folds|only"
    ),
    # Batches, weights, growth
    "batch column misspelt": (
        lambda g: g.fit(batch_key="batches"), "not found|obs['batches']|Did you mean batch_key=",
    ),
    "batches of one day each": (
        lambda g: g.fit(batch_key="state"), "No value|obs['state']|batches of which each has all",
    ),
    "cells without a batch": (
        lambda g: g.fit(g.changed(batch=[None] + ["a"] * (2 * N - 1)), batch_key="batch"),
        "missing in 1 of 40|first: 'c0'|Fill it in",
    ),
    "which batch": (
        lambda g: sc.push(g.batches, g.cells, ["c1"]), "map for each batch|obs['batch']: a, b|Name",
    ),
    "growth as text": (
        lambda g: g.fit(growth_key="batch"), "could not convert|obs['batch']|must hold growth rates"
    ),
    "growth that is not known": (
        lambda g: g.fit(g.changed(score=np.nan), growth_key="score"),
        "is nan in 20|obs['score']|fill in 0",
    ),
    "negative weights": (lambda g: g.fit(weight_key="score"), "negative|obs['score']|are ≥ 0"),
    # Labels and fates
    "label column misspelt": (
        lambda g: g.fit_fates(key="celltype"), "not found|obs['celltype']|mean key='cell_type'",
    ),
    "label column misspelt in validation": (
        lambda g: g.validate(key="celltype"), "not found|obs['celltype']|mean key='cell_type'",
    ),
    "label column misspelt in a table": (
        lambda g: sc.transition_table(g.model, g.cells, "celltype"),
        "not found|obs['celltype']|mean key='cell_type'",
    ),
    "source labels misspelt": (
        lambda g: sc.transition_table(g.model, g.cells, "cell_type", source_key="bach"),
        "not found|obs['bach']|mean source_key='batch'",
    ),
    "several label columns": (
        lambda g: sc.fates(g.model, g.cells, ["cell_type"]), "must be|key|name of one column",
    ),
    "clones for labels": (
        lambda g: g.fit_fates(key="clone"), "both 'clone'|key and pair_key|labels of the target",
    ),
    "a score for labels": (
        lambda g: sc.fates(g.model, g.cells, "score"), "fractions|obs['score']|Name another column",
    ),
    "labels of the source only": (
        lambda g: g.fit_fates(
            g.changed(cell_type=np.where(g.early, "stem", None)), diffusion=None
        ),
        "no label for any|first: 'c20'|Name a column by key",
    ),
    "one label only": (
        lambda g: g.fit_fates(key="state"), "nothing to tell apart|obs['state']|Name another column"
    ),
    "an excluded label misspelt": (
        lambda g: g.fit_fates(exclude="lef"), "no such label|'lef'|Did you mean exclude='left'",
    ),
    "all labels excluded": (
        lambda g: sc.fates(g.model, g.cells, "cell_type", exclude=["left", "right"]),
        "leaves no label|left, right|Keep one",
    ),
    "nothing for exclude": (
        lambda g: g.fit_fates(exclude=None), "got None|exclude must be|a list of labels",
    ),
    "exclude without labels": (
        lambda g: g.fit(exclude="stem"), "not said|of the target cells|Give fate_key",
    ),
    "by fates without labels": (
        lambda g: g.fit(model=MongeMapCV(scoring="fate"), pair_key="clone"),
        "not said|of the target cells|Give fate_key",
    ),
    "numbers of components as text": (
        lambda g: g.fit_fates(n_components="10,20"), "got '10,20'|n_components|such as [10, 20]",
    ),
    "half a component": (lambda g: g.fit_fates(n_components=[2.5]), "2.5|n_components|whole"),
    "no representation": (
        lambda g: g.fit_fates(n_components=[], diffusion=None), "nothing to fit|diffusion|Give one",
    ),
    "cells to choose on as text": (
        lambda g: g.fit_fates(max_cells="512"), "got '512'|max_cells|whole number",
    ),
    "cells that are not those of the fit": (
        lambda g: sc.fates(g.model, g.cells[:30].copy(), "cell_type"),
        "10 of the 20 cells|day 4|give it as reference",
    ),
    "copy as text": (
        lambda g: sc.transport(g.model, g.cells, copy="yes"), "got 'yes'|copy|True or False",
    ),
    "a name with a slash": (
        lambda g: sc.fates(g.model, g.cells, "batch", key_added="a/b"), "'a/b'|key_added|without",
    ),
    "a level in per cent": (
        lambda g: sc.fates(g.model, g.cells, "batch", level=90), "got 90|level|below 1",
    ),
    "intervals without an ensemble": (
        lambda g: sc.transition_table(g.model, g.cells, "batch", level=0.9),
        "needs an ensemble|level|model=EnsembleMap()",
    ),
    # Sets of cells
    "a label for a set": (
        lambda g: sc.push(g.model, g.cells, "stem"), "not among|'stem'|adata.obs['cell_type'] ==",
    ),
    "numbers for a set": (
        lambda g: sc.push(g.model, g.cells, [0, 1]), "not among|'0'|by name, obs_names[numbers]",
    ),
    "an empty set": (lambda g: sc.push(g.model, g.cells, []), "empty|cells|Give names of cells"),
    "nothing for a set": (lambda g: sc.pull(g.model, g.cells, None), "None|cells must|names of"),
    "a set of another length": (
        lambda g: sc.push(g.model, g.cells, g.early.to_numpy()[:9]), "(9,)|40 cells|or their names",
    ),
    "a column of other cells": (
        lambda g: sc.push(g.model, g.cells, g.early.rename("x{}".format)),
        "other cells|'xc0' first|Take it from adata.obs",
    ),
    "a set of the other day": (
        lambda g: sc.push(g.model, g.cells, ~g.early), "None of these|day 2|are for pull",
    ),
    # Genes
    "genes before fates": (
        lambda g: sc.fate_drivers(g.model, g.cells, "left"), "not found|obsm['mongefit_fates']|Run",
    ),
    "a fate misspelt": (
        lambda g: sc.fate_drivers(g.model, g.fated, "leftt"), "'leftt'|fate|Did you mean left",
    ),
    "genes of counts": (
        lambda g: sc.fate_drivers(g.model, g.counts(), "left"), "raw counts|X|scanpy.pp.log1p",
    ),
    "a missing layer": (
        lambda g: sc.fate_drivers(g.model, g.fated, "left", layer="log"), "not found|'log'|Keys:",
    ),
    "a covariate misspelt": (
        lambda g: sc.fate_drivers(g.model, g.fated, "left", covariates="batc"),
        "not found|obs['batc']|Did you mean covariates='batch'",
    ),
    "a covariate that is none": (
        lambda g: sc.fate_drivers(g.model, g.fated, "left", covariates=3), "got 3|covariates|obs",
    ),
    "genes of moves without loadings": (
        lambda g: sc.move_genes(g.model, g.changed(lambda a: a.varm.clear())),
        "not found|varm['PCs']|scanpy.pp.pca writes",
    ),
    "genes of moves by a missing column": (
        lambda g: sc.move_genes(g.model, g.cells, by="celltype"), "not found|obs|by='cell_type'",
    ),
    "genes of NaN": (
        lambda g: sc.pull_back_genes(g.model, g.cells, [np.nan] * 3), "NaN|1 of 1|take the rows of",
    ),
    # Averages and other packages
    "an average of one": (
        lambda g: sc.average([g.model]), "two maps or more|a list of 1|average([one, other])",
    ),
    "an average of a map": (
        lambda g: sc.average(g.model), "two maps or more|a SingleCellMap|average([one, other])",
    ),
    "an average of files": (lambda g: sc.average(["a", "b"]), "got str|average|single_cell.load"),
    "an average over other times": (
        lambda g: sc.average([g.model, g.text_times()]), "different|state early|the same times",
    ),
    "an average over other cells": (
        lambda g: sc.average([g.model, g.fit(g.cells[::2].copy())]),
        "different cells|from day 2|Fit both to the same",
    ),
    "one place from an average": (
        lambda g: sc.interpolate(g.average, g.cells, 3), "AveragedMap|model|average.maps[0]",
    ),
    "couplings of other cells": (
        lambda g: sc.to_cellrank(g.model, g.cells[3:].copy()), "17 cells|day 2|AnnData of the fit",
    ),
    "couplings in another order": (
        lambda g: sc.to_cellrank(g.model, g.cells[::-1].copy()),
        "not where|first: 'c|in the same order",
    ),
    "couplings of an average": (
        lambda g: sc.to_cellrank(g.average, g.cells), "AveragedMap|model|average.maps[0]",
    ),
    "names that occur twice": (
        lambda g: sc.to_cellrank(g.model, g.changed(same_names)),
        "more than once|'a'|obs_names_make_unique",
    ),
    # Pictures
    "pictures before fates": (
        lambda g: sc.plot_fates(g.cells), "not found|obsm['mongefit_fates']|computed first, with",
    ),
    "pictures of origins before them": (
        lambda g: sc.plot_fates(g.fated, inverse=True),
        "not found|obsm['mongefit_origins']|single_cell.origins",
    ),
    "a missing basis": (
        lambda g: sc.plot_path(g.model, g.cells, g.early, basis="umpa"),
        "not found|obsm['umpa']|Did you mean basis='X_umap'",
    ),
    "a fate to draw misspelt": (
        lambda g: sc.plot_fates(g.fated, fate="lefft"), "no fate 'lefft'|Fates: left|mean left",
    ),
    "colours misspelt": (
        lambda g: sc.plot_fates(g.fated, fate="left", cmap="virridis"),
        "'virridis'|cmap|Did you mean viridis",
    ),
    "the array of several axes": (
        lambda g: sc.plot_fates(g.fated, ax=np.array([None, None])), "got 'ndarray'|ax|axes[0]",
    ),
    "a table that is none": (
        lambda g: sc.plot_transitions(g.model), "got 'SingleCellMap'|table|transition_table",
    ),
    "a table of text": (
        lambda g: sc.plot_transitions(g.cells.obs), "no numbers|'cell_type'|transition_table",
    ),
    "flow between missing labels": (
        lambda g: sc.plot_flow(g.model, g.cells, "celltype"), "not found|obs|key='cell_type'",
    ),
    "drivers that are none": (
        lambda g: sc.plot_drivers(g.cells.obs), "no column|'correlation'|Columns: day",
    ),
    "moves in missing colours": (
        lambda g: sc.plot_transport(g.model, g.cells, color="celltype"),
        "not found|obs['celltype']|color='cell_type'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(given, case):
    act, words = REFUSED[case]
    before = set(given.cells.obs) | set(given.cells.obsm) | set(given.cells.uns)
    with pytest.raises(MongefitError) as caught:
        act(given)
    message = str(caught.value)
    for part in words.split("|"):
        assert re.search(re.escape(part), message), f"{part!r} is not in: {message}"
    assert len(message) < 500
    assert set(given.cells.obs) | set(given.cells.obsm) | set(given.cells.uns) == before


WARNED = {
    "all cells in one clone": (
        lambda g: g.fit(g.changed(clone="k"), pair_key="clone"),
        r"in one clone, 'k'.*says little about which goes where",
    ),
    "clones that mean others in each batch": (
        lambda g: g.fit(
            g.changed(clone=np.tile(["k", "k", "l", "m"], N // 2)),
            pair_key="clone", batch_key="batch",
        ),
        r"clones of obs\['clone'\] are in several batches.*one clone in each batch",
    ),
    "words for missing labels": (
        lambda g: sc.fates(
            g.model,
            g.changed(cell_type=np.where(np.arange(2 * N) > 36, "unknown", g.cells.obs["batch"])),
            "cell_type",
        ),
        r"obs\['cell_type'\] is 'unknown' in 3 cells: taken for not known",
    ),
    "a plan that says nothing": (
        lambda g: sc.fates(
            g.fit(model=MongeMap("sqeuclidean", epsilon=50.0)), g.cells, "cell_type", copy=True
        ),
        "nearly the same of every cell.*Fit with a smaller epsilon",
    ),
    "times out of order": (
        lambda g: g.fit(source=None, target=None, times=[4, 2]),
        "times is not in order: taken as 2, 4",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Pairs, groups and losses are not used")
@pytest.mark.parametrize("case", WARNED)
def test_warned(given, case):
    act, words = WARNED[case]
    with pytest.warns(UserWarning, match=words):
        act(given)


def test_a_set_in_another_order_is_found_by_name(given):
    expected = single_cell.push(given.model, given.cells, given.early, copy=True)
    found = single_cell.push(given.model, given.cells, given.early.iloc[::-1], copy=True)
    pandas.testing.assert_frame_equal(found.obs, expected.obs)


def test_two_clones_are_enough_to_choose_by(given, few_families):
    """Without one there is a single clone: nearest pairs have nobody to choose their number by."""
    clone = np.tile(["u"] + ["v"] * (N - 1), 2)
    with pytest.warns(UserWarning, match="Only 2 clones are known"):
        model = given.fit_fates(given.changed(clone=clone), n_components=[2], diffusion=None)
    assert np.isfinite([row["log_loss"] for row in model.report.rows if row["chosen"]]).all()
