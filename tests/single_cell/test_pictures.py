"""Pictures of cells: what is drawn is what was computed, and what cannot be drawn is told."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.quiver import Quiver

from mongefit import MongeMap, single_cell
from mongefit.errors import DataError, OptionError
from mongefit.plotting import save_figure
from mongefit.single_cell._pictures._arrows import Moves, draw_grid, draw_stream, smooth_moves
from mongefit.single_cell._pictures._fates import UNCERTAIN
from mongefit.single_cell._pictures._flow import find_flows, merge_small, spread

anndata = pytest.importorskip("anndata")
pandas = pytest.importorskip("pandas")

N = 24
DAYS = ("1", "2", "3")
COLORS = ["#112233", "#445566", "#778899", "#AABBCC"]
pytestmark = pytest.mark.filterwarnings("ignore:obs.*taken for not known")


def make_cells():
    """Cells of three days that move to the right on two branches, some without a label."""
    rng = np.random.default_rng(0)
    side = np.tile([-1.0, 1.0], 3 * N // 2)
    day = np.repeat([1, 2, 3], N)
    points = np.column_stack([2.0 * day, side * day, np.zeros(3 * N)])
    points += 0.3 * rng.normal(size=points.shape)
    label = np.where(day == 1, "stem", np.where(side < 0, "left", "right"))
    label[[N, 2 * N]], label[-1] = "rare", "unknown"
    obs = pandas.DataFrame({"day": day}, index=[f"c{i}" for i in range(3 * N)])
    obs["type"] = pandas.Categorical(label, categories=["stem", "left", "right", "rare", "unknown"])
    adata = anndata.AnnData(np.zeros((3 * N, 0)), obs=obs)
    adata.obsm["X_pca"] = points
    adata.obsm["X_umap"] = points[:, :2] @ np.array([[0.8, 0.6], [-0.6, 0.8]])
    adata.uns["type_colors"] = [*COLORS, "#DDEEFF"]
    return adata


@pytest.fixture(scope="module")
def several():
    estimator = MongeMap(cost="sqeuclidean", epsilon=0.1)
    return single_cell.fit(make_cells(), time_key="day", times="all", model=estimator)


@pytest.fixture(scope="module")
def model(several):
    return several.between(1, 2)


@pytest.fixture(scope="module")
def adata(model):
    found = make_cells()
    single_cell.fates(model, found, "type", exclude="rare")
    single_cell.origins(model, found, "type")
    return found


def rows(day):
    return np.arange(N) + N * (day - 1)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def by_place(collection):
    """Colours of dots, by where they are."""
    faces = np.broadcast_to(collection.get_facecolor(), (len(collection.get_offsets()), 4))
    return {tuple(xy): color[:3] for xy, color in zip(collection.get_offsets(), faces, strict=True)}


def saved(ax, tmp_path):
    save_figure(ax, tmp_path / "p.png", dpi=40)
    assert (tmp_path / "p.png").stat().st_size > 1000


class TestFates:
    def test_colours_say_which_fate_and_how_sure(self, adata, tmp_path):
        ax = single_cell.plot_fates(adata, title="fates")
        others, _, dots = ax.collections
        p = adata.obsm["mongefit_fates"][rows(1)]
        share = 2 * p.max(axis=1)[:, None] - 1
        pure = np.array([to_rgb(color) for color in COLORS[1:3]])[p.argmax(axis=1)]
        expected = share * pure + (1 - share) * np.array(to_rgb(UNCERTAIN))
        drawn = by_place(dots)
        for row, color in zip(rows(1), expected, strict=True):
            np.testing.assert_allclose(drawn[tuple(adata.obsm["X_umap"][row])], color, atol=1e-12)
        np.testing.assert_array_equal(others.get_offsets(), adata.obsm["X_umap"][N:])
        assert legend(ax) == ["left", "right", "uncertain", "other cells"]
        assert (ax.get_title(), ax.get_xlabel()) == ("fates", "umap 1")
        saved(ax, tmp_path)

    def test_the_probability_of_one(self, adata, tmp_path):
        ax = single_cell.plot_fates(adata, basis="X_umap", fate="left")
        dots = ax.collections[2]
        drawn = dict(zip(map(tuple, dots.get_offsets()), dots.get_array(), strict=True))
        for row, p in zip(rows(1), adata.obsm["mongefit_fates"][rows(1), 0], strict=True):
            assert drawn[tuple(adata.obsm["X_umap"][row])] == p
        assert dots.get_clim() == (0, 1)
        assert ax.figure.axes[1].get_ylabel() == "probability of left"
        saved(ax, tmp_path)

    def test_origins_and_cells_without_a_fate(self, adata):
        ax = single_cell.plot_fates(adata, inverse=True)
        assert len(ax.collections[2].get_offsets()) == N
        assert legend(ax) == ["stem", "other cells"]
        lost = adata.copy()
        lost.obsm["mongefit_fates"][3] = np.nan
        ax = single_cell.plot_fates(lost)
        np.testing.assert_array_equal(ax.collections[1].get_offsets(), [lost.obsm["X_umap"][3]])
        assert legend(ax)[-1] == "day 1, no fate"

    def test_files_read_again_are_drawn(self, adata, tmp_path):
        adata.write_h5ad(tmp_path / "a.h5ad")
        ax = Figure().subplots()
        again = anndata.read_h5ad(tmp_path / "a.h5ad")
        assert single_cell.plot_fates(again, ax=ax) is ax

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"key_added": "mongfit"}, r"single_cell\.fates\(model.*Did you mean key_added='mon"),
            ({"fate": "lef"}, r"no fate 'lef'\. Fates: left, right\. Did you mean left"),
            ({"basis": "umpa"}, r"Keys: X_pca.*Did you mean basis='X_umap'"),
            ({"basis": 3}, "name of an array"),
            ({"alpha": 2}, "alpha"),
            ({"size": -1}, "size"),
            ({"inverse": "yes"}, "inverse"),
        ],
    )
    def test_mistakes(self, adata, wrong, message):
        with pytest.raises((DataError, OptionError), match=message):
            single_cell.plot_fates(adata, **wrong)

    def test_before_fates_and_without_cells(self):
        with pytest.raises(DataError, match=r"computed first, with mongefit\.single_cell\.fates"):
            single_cell.plot_fates(make_cells())
        with pytest.raises(DataError, match=r"with mongefit\.single_cell\.origins"):
            single_cell.plot_fates(make_cells(), inverse=True)
        with pytest.raises(OptionError, match="must be an AnnData"):
            single_cell.plot_fates("cells.h5ad")


@pytest.fixture(scope="module")
def table(several, adata):
    return single_cell.transition_table(several.between(2, 3), adata, "type")


class TestTransitions:
    def test_numbers_are_those_of_the_table(self, table, tmp_path):
        ax = single_cell.plot_transitions(table, title="day 2 to 3")
        np.testing.assert_array_equal(ax.images[0].get_array(), table)
        texts = np.array([text.get_text() for text in ax.texts]).reshape(table.shape)
        np.testing.assert_allclose(texts.astype(float), table, atol=0.0051)
        assert [text.get_text() for text in ax.get_xticklabels()] == list(table.columns)
        assert [text.get_text() for text in ax.get_yticklabels()] == list(table.index)
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("day 2", "day 3")
        for text, share in zip(ax.texts, table.to_numpy().ravel(), strict=True):
            assert text.get_color() == "white" or share < 0.7
            assert text.get_color() != "white" or share > 0.4
        saved(ax, tmp_path)

    def test_intervals(self, table):
        low, high = (table - 0.1).clip(0), (table + 0.1).clip(0, 1)
        ax = single_cell.plot_transitions(single_cell.Intervals(table, low, high))
        texts = [text.get_text() for text in ax.texts]
        assert texts[0] == f"{table.iloc[0, 0]:.2f}"
        assert texts[1] == f"{low.iloc[0, 0]:.2f}–{high.iloc[0, 0]:.2f}"

    def test_no_numbers_without_room(self, table):
        wide = pandas.DataFrame(np.full((2, 60), 1 / 60))
        assert not single_cell.plot_transitions(wide).texts
        assert not single_cell.plot_transitions(table, numbers=False).texts
        small = Figure(figsize=(0.4, 0.4)).subplots()
        assert not single_cell.plot_transitions(table, ax=small).texts
        assert len(single_cell.plot_transitions(table, numbers=True, ax=small).texts) == table.size

    def test_mistakes(self, table):
        with pytest.raises(OptionError, match="transition_table gives"):
            single_cell.plot_transitions(table.to_numpy())
        with pytest.raises(DataError, match=r"empty: it has the shape \(0, 3\)"):
            single_cell.plot_transitions(table.iloc[:0])
        with pytest.raises(OptionError, match="numbers"):
            single_cell.plot_transitions(table, numbers="yes")


def bars(ax, x):
    """Heights of the bars of a time, by label."""
    found = [each for each in ax.patches if isinstance(each, Rectangle)]
    return {
        bar.get_label(): bar.get_height() for bar in found
        if abs(bar.get_x() + bar.get_width() / 2 - x) < 0.01
    }  # fmt: skip


class TestFlow:
    def test_widths_are_the_mass(self, several, adata, tmp_path):
        ax = single_cell.plot_flow(several, adata, "type", title="flow")
        for x, names in ((1, {"left", "right", "rare"}), (2, {"left", "right", "rare"})):
            heights = bars(ax, x)
            assert set(heights) == (names | {"not known"} if x == 2 else names)
            assert sum(heights.values()) == pytest.approx(1, abs=1e-6)
        assert bars(ax, 0) == pytest.approx({"stem": 1.0})
        P = several.between(1, 2).model.coupling_
        left = (adata.obs["type"] == "left").to_numpy()[rows(2)]
        flows = find_flows(several, adata, "type", DAYS)
        names = flows.labels
        assert flows.steps[0][names.index("stem"), names.index("left")] == pytest.approx(
            P[:, left].sum(), abs=1e-6
        )
        Q = several.between(2, 3).model.coupling_
        unknown = flows.steps[1][names.index("left"), names.index("not known")]
        assert unknown == pytest.approx(Q[left, -1].sum(), abs=1e-8)
        assert [text.get_text() for text in ax.get_xticklabels()] == ["day 1", "day 2", "day 3"]
        saved(ax, tmp_path)

    def test_bands_are_as_wide_as_their_flow_in_the_colour_of_the_label(self, model, adata):
        ax = single_cell.plot_flow(model, adata, "type")
        bands = [each for each in ax.patches if isinstance(each, PathPatch)]
        flows = find_flows(model, adata, "type", DAYS[:2])
        assert len(bands) == np.sum(flows.steps[0] > 0)
        for band in bands:
            i, j = map(int, band.get_gid().split("-"))
            corners = band.get_path().vertices
            for top, bottom in ((0, 7), (3, 4)):
                width = corners[top, 1] - corners[bottom, 1]
                assert width == pytest.approx(flows.steps[0][i, j], abs=1e-12)
            assert to_hex(band.get_facecolor()) == COLORS[0].lower()

    def test_small_labels_are_drawn_together(self, model, adata):
        flows = find_flows(model, adata, "type", DAYS[:2])
        assert merge_small(flows, 0.1) is flows  # one small label stays itself
        merged = merge_small(flows, 0.6)
        assert merged.labels == ["stem", "other (3 labels)"]
        assert merged.steps[0].sum() == pytest.approx(flows.steps[0].sum())
        ax = single_cell.plot_flow(model, adata, "type", min_share=0.6)
        assert bars(ax, 1) == pytest.approx({"other (3 labels)": 1.0}, abs=1e-6)

    def test_names_do_not_overlap(self):
        wanted = np.array([0.0, 0.01, 0.02, 0.5, 0.99, 1.0])
        found = spread(wanted, 0.1, 0.0, 1.0)
        assert np.all(np.diff(found) >= 0.1 - 1e-12)
        assert found[3] == 0.5 and np.all((found >= 0) & (found <= 1 + 1e-12))
        np.testing.assert_allclose(spread(wanted[3:5], 0.1, 0, 1), wanted[3:5])

    def test_mistakes(self, model, adata):
        with pytest.raises(DataError, match=r"Did you mean key='type'"):
            single_cell.plot_flow(model, adata, "typ")
        with pytest.raises(OptionError, match="min_share"):
            single_cell.plot_flow(model, adata, "type", min_share=1)
        with pytest.raises(OptionError, match="model must be what"):
            single_cell.plot_flow(model.model, adata, "type")


class TestPath:
    def test_mass_and_mean_path_in_the_representation(self, model, adata, tmp_path):
        chosen = adata.obs_names[rows(1)[:6]]
        ax = single_cell.plot_path(model, adata, chosen, title="path")
        _, mass, start, ends = ax.collections
        points = adata.obsm["X_pca"][:, :2]
        np.testing.assert_array_equal(start.get_offsets(), points[:6])
        found = single_cell.push(model, adata, chosen, copy=True).obs["mongefit_push"]
        weight = found.iloc[rows(2)].to_numpy()
        order = [np.argmin(np.abs(points[rows(2)] - xy).sum(1)) for xy in mass.get_offsets()]
        assert np.all(np.diff(weight[order]) >= 0)  # those with most mass are on top
        assert np.all(np.diff(mass.get_sizes()) >= 0)
        assert np.all(np.diff(mass.get_facecolor()[:, 3]) >= 0)
        line = ax.lines[0].get_xydata()
        np.testing.assert_allclose(line[0], points[:6].mean(0), atol=1e-6)
        np.testing.assert_allclose(line[-1], weight @ points[rows(2)], atol=1e-6)
        np.testing.assert_allclose(np.diff(line, 2, axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(ends.get_offsets()[0], line[0])
        assert legend(ax)[0] == "day 1, the set (6 cells)"
        saved(ax, tmp_path)

    def test_several_times_in_another_basis(self, several, adata, tmp_path):
        left = (adata.obsm["X_pca"][:, 1] < 0) & (adata.obs["day"] == 1)
        ax = single_cell.plot_path(several, adata, left, basis="umap", n_neighbors=4)
        line = ax.lines[0].get_xydata()
        assert len(line) == 50
        umap = adata.obsm["X_umap"]
        for day, at in ((1, 0), (2, 25), (3, -1)):
            middle = umap[(adata.obsm["X_pca"][:, 1] < 0) & (adata.obs["day"] == day)].mean(0)
            assert np.linalg.norm(line[at] - middle) < 0.8
        assert legend(ax)[:3] == [
            "day 1, the set (12 cells)", "day 2, where its mass goes", "day 3, where its mass goes",
        ]  # fmt: skip
        saved(ax, tmp_path)

    def test_mistakes(self, model, adata):
        with pytest.raises(DataError, match="None of these cells is one of day 1"):
            single_cell.plot_path(model, adata, np.zeros(adata.n_obs, bool))
        with pytest.raises(DataError, match=r"not among the cells \(first: 'c99'\)"):
            single_cell.plot_path(model, adata, ["c99"])
        with pytest.raises(DataError, match="Did you mean basis='X_umap'"):
            single_cell.plot_path(model, adata, ["c1"], basis="umpa")


class TestArrows:
    def test_the_grid_holds_weighted_means_of_moves(self):
        rng = np.random.default_rng(0)
        moves = Moves(rng.normal(size=(60, 2)), rng.normal(size=(60, 2)))
        grid = smooth_moves(moves, 9)
        shown = np.argwhere(np.isfinite(grid.steps).all(axis=-1))
        assert 10 < len(shown) < 81
        width = 0.04 * np.array([np.ptp(grid.x), np.ptp(grid.y)])
        for row, column in shown:
            z = (moves.tails - [grid.x[column], grid.y[row]]) / width
            weight = np.exp(-0.5 * (z**2).sum(axis=1))
            mean = weight @ moves.steps / weight.sum()
            np.testing.assert_allclose(grid.steps[row, column], mean, rtol=1e-9)

    def test_arrows_point_where_cells_go_and_the_legend_tells_their_length(self, model, adata):
        ax = single_cell.plot_transport(model, adata)
        (quiver,) = [each for each in ax.collections if isinstance(each, Quiver)]
        assert np.all(quiver.U > 0)  # all cells move to the right
        tails = adata.obsm["X_pca"][rows(1)]
        moves = Moves(tails[:, :2], (model.model.transform(tails) - tails)[:, :2])
        grid = smooth_moves(moves, 18)
        steps = grid.steps[np.isfinite(grid.steps).all(axis=-1)]
        factor = quiver.U / steps[:, 0]
        np.testing.assert_allclose(factor, factor[0])
        np.testing.assert_allclose(quiver.V, factor[0] * steps[:, 1], atol=1e-12)
        assert legend(ax) == ["day 1", "day 2", f"mean move × {factor[0]:.2g}"]

    @pytest.mark.parametrize("arrows", ["stream", "cells"])
    def test_other_arrows(self, model, adata, arrows, tmp_path):
        ax = single_cell.plot_transport(model, adata, basis="umap", arrows=arrows, size=4, alpha=1)
        assert ax.collections[0].get_sizes() == [4]
        assert legend(ax) == ["day 1", "day 2"]
        saved(ax, tmp_path)

    def test_cells_that_do_not_move_and_a_line_of_cells(self, tmp_path):
        still = Moves(np.column_stack([np.arange(5.0), np.zeros(5)]), np.zeros((5, 2)))
        grid = smooth_moves(still, 6)
        assert np.nanmax(np.abs(grid.steps)) == 0
        axes = Figure().subplots(2)
        assert draw_grid(axes[0], still, 1.0)[1] == "mean move"
        draw_stream(axes[1], still, 1.0)
        saved(axes[0], tmp_path)

    def test_cells_without_a_place(self, model, adata):
        some = adata.copy()
        some.obsm["X_umap"][:3] = np.nan
        single_cell.plot_transport(model, some, basis="umap")
        some.obsm["X_umap"][:] = np.nan
        with pytest.raises(DataError, match="No cell has a place in X_umap"):
            single_cell.plot_transport(model, some, basis="umap")

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"arrows": "streams"}, "Did you mean stream"),
            ({"density": 0}, "density"),
            ({"alpha": 0}, "alpha"),
            ({"inverse": 1}, "inverse"),
            ({"source": 7}, "knows nothing of 7"),
        ],
    )
    def test_mistakes(self, model, adata, wrong, message):
        with pytest.raises(OptionError, match=message):
            single_cell.plot_transport(model, adata, **wrong)


def make_drivers():
    correlation = np.array([0.1, 0.9, -0.8, 0.5, np.nan, -0.2])
    frame = pandas.DataFrame(
        {"correlation": correlation, "p_value": 0.01, "q_value": [0.5, 0.01, 0.01, 0.04, 1, 0.2]},
        index=[f"gene{i}" for i in range(6)],
    )
    return frame.assign(ci_low=correlation - 0.1, ci_high=correlation + 0.1)


class TestDrivers:
    def test_the_strongest_of_each_sign(self, tmp_path):
        ax = single_cell.plot_drivers(make_drivers(), n_top=2, title="left")
        genes = [text.get_text() for text in ax.get_yticklabels()]
        assert genes == ["gene1", "gene3", "gene5", "gene2"]
        up, down = [each for each in ax.collections if len(each.get_offsets()) == 2]
        np.testing.assert_array_equal(up.get_offsets()[:, 0], [0.9, 0.5])
        np.testing.assert_array_equal(down.get_offsets()[:, 0], [-0.2, -0.8])
        white = [to_hex(color) == "#ffffff" for color in down.get_facecolor()]
        assert white == [True, False]
        segments = [s for each in ax.collections[:2] for s in each.get_segments()]
        np.testing.assert_allclose(np.array(segments)[2:, :, 0], [[0.8, 1.0], [0.4, 0.6]])
        assert legend(ax) == ["q ≤ 0.05", "not significant"]
        saved(ax, tmp_path)

    def test_mistakes(self):
        frame = make_drivers()
        with pytest.raises(OptionError, match="fate_drivers gives"):
            single_cell.plot_drivers(frame.to_numpy())
        with pytest.raises(DataError, match=r"no column 'q_value'.*Did you mean qvalue"):
            single_cell.plot_drivers(frame.rename(columns={"q_value": "qvalue"}))
        with pytest.raises(DataError, match="No gene has a correlation"):
            single_cell.plot_drivers(frame.assign(correlation=np.nan))
        with pytest.raises(DataError, match="'gene0' is in the table more than once"):
            single_cell.plot_drivers(pandas.concat([frame, frame]))
        with pytest.raises(OptionError, match="n_top"):
            single_cell.plot_drivers(frame, n_top=0)


def test_many_labels_with_strange_names_are_drawn(model, tmp_path):
    adata = make_cells()
    names = ["_hidden", "$x_1", "a" * 80, *(f"type {i} & <b>" for i in range(N - 3))]
    adata.obs["name"] = names * 3
    single_cell.fates(model, adata, "name")
    for ax in (
        single_cell.plot_fates(adata),
        single_cell.plot_transport(model, adata, color="name"),
        single_cell.plot_transitions(single_cell.transition_table(model, adata, "name")),
        single_cell.plot_flow(model, adata, "name", min_share=0.0),
    ):
        saved(ax, tmp_path)
    assert legend(single_cell.plot_transport(model, adata, color="name"))[:3] == [
        "$x_1", "_hidden", "a" * 20 + "…" + "a" * 19,
    ]  # fmt: skip


def test_pictures_leave_the_cells_alone(model, adata):
    before = adata.copy()
    single_cell.plot_fates(adata)
    single_cell.plot_flow(model, adata, "type")
    single_cell.plot_path(model, adata, ["c1"])
    assert set(adata.obs) == set(before.obs) and set(adata.uns) == set(before.uns)
    assert list(adata.uns["type_colors"]) == [*COLORS, "#DDEEFF"]
