"""The pictures: what they hold, what they refuse, and that pyplot is left alone."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from scipy.stats import binomtest

from mongefit import Mahalanobis, MongeMap
from mongefit.datasets import t_shape
from mongefit.explain import explain_cost
from mongefit.plotting import (
    figure_size,
    plot_calibration,
    plot_convex,
    plot_curvature,
    plot_directions,
    plot_displacements,
    plot_history,
    plot_map,
    plot_selection,
    save_figure,
)
from mongefit.plotting._calibration import bins_of
from mongefit.plotting._figures import GREY, _oklab, legend_columns, palette, shorten

EXTENT = (-3.0, 3.0, -2.0, 2.0)


def legend(ax):
    return {text.get_text() for text in ax.get_legend().get_texts()}


def labelled(ax, label):
    (artist,) = [a for a in (*ax.collections, *ax.lines) if a.get_label() == label]
    return artist


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


def grid(function, rows=21, columns=31):
    z1, z2 = np.meshgrid(np.linspace(*EXTENT[:2], columns), np.linspace(*EXTENT[2:], rows))
    return function(z1, z2)


def history(n=20, **changes):
    step = np.arange(n)
    return {"step": step, "loss": np.exp(-step / 5.0), "epsilon": 0.1 * 0.9**step, **changes}


@pytest.mark.parametrize("count", [1, 7, 8, 30, 100])
def test_every_category_has_a_colour_of_its_own(count):
    found = palette(count)
    assert len(found) == len(set(found)) == count
    assert palette(count + 5)[:count] == found  # more categories do not change the first
    place = _oklab(np.array([to_rgb(colour) for colour in (*found, GREY, "white", "black")]))
    distance = np.linalg.norm(place[:, None] - place, axis=2) + np.eye(len(place))
    assert distance.min() > (0.1 if count <= 30 else 0.05)  # 0.02 is just noticeable


def test_the_distances_of_colours_are_those_of_oklab():
    white, red = _oklab(np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(white, [1, 0, 0], atol=1e-4)
    np.testing.assert_allclose(red, [0.62796, 0.22486, 0.12585], atol=1e-4)


class TestMap:
    def test_plane(self, tmp_path):
        x, y = t_shape(32)
        mapped = y + 0.1
        ax = plot_map(x, y[:20], mapped, truth=y, title="T-shape")
        assert ax.get_title() == "T-shape"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("component 1", "component 2")
        assert ax.get_aspect() == 1.0
        assert legend(ax) == {"source", "target", "map", "mapped", "truth", "error"}
        np.testing.assert_array_equal(labelled(ax, "source").get_offsets(), x)
        np.testing.assert_array_equal(labelled(ax, "target").get_offsets(), y[:20])
        np.testing.assert_array_equal(labelled(ax, "mapped").get_offsets(), mapped)
        np.testing.assert_array_equal(labelled(ax, "truth").get_offsets(), y)
        assert len(labelled(ax, "truth").get_facecolors()) == 0
        segments = labelled(ax, "error").get_segments()
        np.testing.assert_allclose(segments, np.stack([mapped, y], axis=1))
        (arrows,) = [a for a in ax.collections if isinstance(a, Quiver)]
        np.testing.assert_array_equal(arrows.XY, x)
        np.testing.assert_allclose(np.column_stack([arrows.U, arrows.V]), mapped - x)
        assert len(ax.collections) == 6
        save_figure(ax, tmp_path / "map.png")
        assert is_png(tmp_path / "map.png")

    def test_arrows_are_thinned_and_said_to_be(self):
        x, y = t_shape(128)
        ax = plot_map(x, y, y)
        (arrows,) = [a for a in ax.collections if isinstance(a, Quiver)]
        np.testing.assert_array_equal(arrows.XY, x[::3])
        assert legend(ax) == {"source", "target", "map (1 arrow in 3)", "mapped"}
        assert not any(isinstance(a, LineCollection) for a in ax.collections)

    def test_three_dimensions(self, tmp_path):
        x = np.random.default_rng(0).standard_normal((10, 3))
        ax = plot_map(x, x + 1, x + 2, truth=x + 2)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("component 1 (of 3)", "component 2 (of 3)")
        np.testing.assert_array_equal(labelled(ax, "mapped").get_offsets(), x[:, :2] + 2)
        save_figure(ax, tmp_path / "map.png")

    def test_one_dimension(self, tmp_path):
        x = np.linspace(-1, 1, 10)[:, None]
        ax = plot_map(x, x + 1, 2 * x, truth=3 * x)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("source $x$", "mapped $T(x)$")
        assert legend(ax) == {"target", "no change", "mapped", "truth", "error"}
        np.testing.assert_allclose(labelled(ax, "mapped").get_offsets(), np.hstack([x, 2 * x]))
        np.testing.assert_allclose(labelled(ax, "truth").get_offsets(), np.hstack([x, 3 * x]))
        np.testing.assert_allclose(labelled(ax, "target").get_ydata(), x[:, 0] + 1)
        save_figure(ax, tmp_path / "map.png")

    def test_one_dimension_far_from_zero(self):
        x = np.linspace(1e6, 1e6 + 1, 10)[:, None]
        ax = plot_map(x, x, x)
        assert ax.get_xlim()[0] > 1e6 - 1
        assert ax.get_ylim()[0] > 1e6 - 1

    def test_one_point(self, tmp_path):
        save_figure(plot_map([[1, 2]], [[3, 4]], [[3, 4]]), tmp_path / "map.png")

    def test_rows_without_a_value_are_skipped(self, tmp_path):
        x, y = t_shape(8)
        y[2] = np.nan
        save_figure(plot_map(x, x, y, truth=y), tmp_path / "map.png")

    def test_given_axes(self, tmp_path):
        x, y = t_shape(8)
        figure = Figure()
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for ax in axes:
            assert plot_map(x, y, y, ax=ax) is ax
        assert figure.axes == list(axes)
        save_figure(figure, tmp_path / "map.png")

    def test_inputs_are_left_alone(self):
        x, y = t_shape(8)
        x.flags.writeable = y.flags.writeable = False
        plot_map(x, y, y, truth=y)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"source": np.ones(8)}, "source must be a two-dimensional array"),
            ({"source": np.ones((0, 2))}, "with at least one row"),
            ({"target": np.ones((8, 3))}, "target has 3 columns, source has 2"),
            ({"mapped": np.ones((7, 2))}, "mapped has 7 rows, source has 8"),
            ({"truth": np.ones((7, 2))}, "truth has 7 rows, source has 8"),
        ],
    )
    def test_bad_arrays(self, change, said):
        arrays = {name: np.ones((8, 2)) for name in ("source", "target", "mapped")}
        with pytest.raises(ValueError, match=said):
            plot_map(**(arrays | change))


class TestDisplacements:
    x = np.random.default_rng(0).standard_normal((20, 3))
    mapped = x + np.random.default_rng(1).standard_normal((20, 3)) * [1.0, 3.0, 0.1]

    @staticmethod
    def names(ax):
        return [axis.get_label_text() for axis in (ax.xaxis, ax.yaxis, ax.zaxis)]

    def test_points_lines_and_directions(self, tmp_path):
        ax = plot_displacements(
            self.x, self.mapped, axes=np.eye(3), directions=[[0, 2, 0]], title="Motion"
        )
        assert ax.get_title() == "Motion"
        assert legend(ax) == {"source", "map", "mapped", "directions"}
        for label, points in (("source", self.x), ("mapped", self.mapped)):
            np.testing.assert_allclose(np.transpose(labelled(ax, label)._offsets3d), points)
        segments = labelled(ax, "map")._segments3d
        np.testing.assert_allclose(segments, np.stack([self.x, self.mapped], axis=1))
        tip, tail = labelled(ax, "directions")._segments3d[0]
        length = np.mean(np.linalg.norm(self.mapped - self.x, axis=1))
        np.testing.assert_allclose(tip - tail, [0, length, 0], atol=1e-12)
        np.testing.assert_allclose(tail, self.x.mean(axis=0))
        save_figure(ax, tmp_path / "motion.png")
        assert is_png(tmp_path / "motion.png")

    def test_axes_are_where_points_move_most_first(self):
        ax = plot_displacements(self.x, self.mapped)
        _, values, vectors = np.linalg.svd(self.mapped - self.x)
        shares = values**2 / np.sum(values**2)
        assert self.names(ax) == [
            f"axis {k} ({share:.1%})" for k, share in enumerate(shares, start=1)
        ]
        drawn = np.transpose(labelled(ax, "source")._offsets3d)
        np.testing.assert_allclose(np.abs(drawn), np.abs(self.x @ vectors.T))

    def test_lines_are_thinned_and_more_dimensions_are_left_out(self):
        x = np.random.default_rng(0).standard_normal((130, 5))
        ax = plot_displacements(x, x + np.array([3, 2, 1, 0.1, 0]))
        assert "map (1 line in 3)" in legend(ax)
        assert len(labelled(ax, "map (1 line in 3)")._segments3d) == 44
        assert ax.xaxis.get_label_text() == "axis 1 (100.0%)"

    def test_one_point_and_rows_without_a_value(self, tmp_path):
        save_figure(plot_displacements([[0, 0, 0]], [[1, 1, 1]]), tmp_path / "p.png")
        mapped = self.mapped.copy()
        mapped[2] = np.nan
        ax = plot_displacements(self.x, mapped, directions=np.eye(3))
        save_figure(ax, tmp_path / "p.png")
        assert "nan" not in ax.xaxis.get_label_text()

    def test_pictures_side_by_side_hold_their_own_motion(self, tmp_path):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        shown = [figure.add_subplot(1, 2, k, projection="3d") for k in (1, 2)]
        for ax, motion in zip(shown, ([1, 0, 0], [0, 3, 4]), strict=True):
            drawn = plot_displacements(
                self.x, self.x + motion, axes=np.eye(3), directions=[motion], ax=ax
            )
            assert drawn is ax
        shares = [[name.split()[2].strip("()") for name in self.names(ax)] for ax in shown]
        assert shares == [["100.0%", "0.0%", "0.0%"], ["0.0%", "36.0%", "64.0%"]]
        save_figure(figure, tmp_path / "p.png")
        for ax in shown:
            legend_top = ax.get_legend().get_window_extent().y1
            for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
                assert legend_top < axis.label.get_window_extent().y0

    def test_flat_axes_are_refused(self):
        with pytest.raises(ValueError, match="projection"):
            plot_displacements(self.x, self.mapped, ax=Figure().subplots())

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"source": np.ones((20, 2))}, "source has 2 columns.*Use plot_map"),
            ({"mapped": np.ones((7, 3))}, "mapped has 7 rows, source has 20"),
            ({"directions": np.ones((2, 2))}, "directions has 2 columns, source has 3"),
            ({"directions": np.zeros((2, 3))}, "row 0 of directions has no direction"),
            ({"axes": np.eye(3)[:2]}, "axes must be three vectors"),
            ({"axes": 2 * np.eye(3)}, "axes must be three vectors"),
        ],
    )
    def test_bad_arrays(self, change, said):
        with pytest.raises(ValueError, match=said):
            plot_displacements(**({"source": self.x, "mapped": self.mapped} | change))


class TestConvex:
    def test_levels_and_displacements(self, tmp_path):
        z = np.array([[1.0, 1.0], [-2.0, 0.5]])
        ax = plot_convex(
            grid(lambda a, b: a**2 + 4 * b**2), EXTENT, displacements=z, title="Learned"
        )
        assert ax.get_title() == "Learned"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("displacement $z_1$", "displacement $z_2$")
        assert (*ax.get_xlim(), *ax.get_ylim()) == EXTENT
        assert legend(ax) == {"levels of $h$", "displacements used"}
        np.testing.assert_array_equal(labelled(ax, "displacements used").get_offsets(), z)
        (lines,) = [a for a in ax.collections if isinstance(a, ContourSet)]
        ratios = lines.levels[1:] / lines.levels[:-1]
        np.testing.assert_allclose(ratios, ratios[0])
        assert lines.levels[0] < 0.02 * 25
        save_figure(ax, tmp_path / "h.png")
        assert is_png(tmp_path / "h.png")

    def test_rows_go_along_the_second_variable(self):
        ax = plot_convex(grid(lambda a, b: b**2 + 1), EXTENT)
        (lines,) = [a for a in ax.collections if isinstance(a, ContourSet)]
        for level, path in zip(lines.levels, lines.get_paths(), strict=True):
            np.testing.assert_allclose(path.vertices[:, 1] ** 2 + 1, level, rtol=0.02)

    def test_hidden_displacements_are_counted(self):
        h = grid(lambda a, b: a**2 + b**2)
        ax = plot_convex(h, EXTENT, displacements=[[0, 0], [5, 0], [0, np.nan]])
        assert "displacements used (2 outside)" in legend(ax)

    @pytest.mark.parametrize("value", [0.0, np.nan])
    def test_flat_function(self, tmp_path, value):
        ax = plot_convex(np.full((5, 5), value), EXTENT)
        assert not ax.collections
        save_figure(ax, tmp_path / "h.png")

    def test_infinite_values_are_left_out(self, tmp_path):
        h = grid(lambda a, b: np.where(a > 2, np.inf, a**2 + b**2))
        save_figure(plot_convex(h, EXTENT), tmp_path / "h.png")

    def test_given_axes(self):
        ax = Figure().subplots()
        assert plot_convex(grid(lambda a, b: a**2 + b**2), EXTENT, ax=ax) is ax

    @pytest.mark.parametrize(
        ("h", "extent"), [(np.ones((1, 5)), EXTENT), (np.ones((5, 5)), (1, -1, 0, 1))]
    )
    def test_bad_grid(self, h, extent):
        with pytest.raises(ValueError, match="at least 2 × 2 values"):
            plot_convex(h, extent)

    def test_bad_displacements(self):
        with pytest.raises(ValueError, match="displacements has 3 columns"):
            plot_convex(np.eye(3), EXTENT, displacements=np.ones((4, 3)))


class TestHistory:
    def test_loss_and_epsilon(self, tmp_path):
        values = history()
        ax = plot_history(values)
        twin = ax.figure.axes[1]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss")
        assert twin.get_ylabel() == "epsilon"
        assert ax.get_yscale() == twin.get_yscale() == "log"
        np.testing.assert_array_equal(labelled(ax, "loss").get_ydata(), values["loss"])
        np.testing.assert_array_equal(labelled(twin, "epsilon").get_ydata(), values["epsilon"])
        assert labelled(twin, "epsilon").get_linestyle() == "--"
        assert legend(ax) == {"loss", "epsilon"}
        save_figure(ax, tmp_path / "history.png")
        assert is_png(tmp_path / "history.png")

    def test_refused_steps_are_marked(self, tmp_path):
        values = history(applied=np.arange(20) % 7 != 0)
        values["loss"][7] = np.nan
        ax = plot_history(values)
        np.testing.assert_array_equal(labelled(ax, "not applied (3)").get_xdata(), [0, 7, 14])
        assert "not applied (3)" in legend(ax)
        save_figure(ax, tmp_path / "history.png")

    def test_all_applied(self):
        assert legend(plot_history(history(applied=[True] * 20))) == {"loss", "epsilon"}

    def test_negative_loss_is_shown(self):
        ax = plot_history(history(loss=np.linspace(1, -1, 20)))
        assert ax.get_yscale() == "linear"

    @pytest.mark.parametrize("n", [0, 1])
    def test_short(self, tmp_path, n):
        ax = plot_history(history(n))
        assert ("untrained" in ax.get_xlabel()) == (n == 0)
        save_figure(ax, tmp_path / "history.png")

    def test_given_axes(self):
        ax = Figure().subplots()
        assert plot_history(history(), ax=ax) is ax

    def test_missing_column(self):
        with pytest.raises(ValueError, match=r"history has no loss, epsilon\. It holds: step"):
            plot_history({"step": [1]})

    def test_unequal_columns(self):
        with pytest.raises(ValueError, match=r"step has the shape \(20,\), loss \(3,\)"):
            plot_history(history(loss=np.ones(3)))


@pytest.fixture(scope="module")
def explanation():
    """That of a cost which makes the second of two features dear."""
    model = MongeMap(Mahalanobis(np.diag([1.0, 4.0])), epsilon=0.1)
    return explain_cost(model.fit(*t_shape(8)))


class TestExplanation:
    def test_curvature(self, explanation, tmp_path):
        ax = plot_curvature(explanation, title="T-shape")
        assert legend(ax) == {"curvature", "squared Euclidean", "share of motion"}
        assert ax.get_title() == "T-shape"
        heights = [bar.get_height() for bar in ax.patches]
        np.testing.assert_allclose(heights, [1.6, 0.4], rtol=1e-12)
        (twin,) = [other for other in ax.figure.axes if other is not ax]
        np.testing.assert_array_equal(
            labelled(twin, "share of motion").get_ydata(), explanation.motion
        )
        save_figure(ax, tmp_path / "p.png")
        assert is_png(tmp_path / "p.png")

    def test_directions(self, explanation, tmp_path):
        ax = plot_directions(explanation)
        np.testing.assert_array_equal(ax.images[0].get_array(), explanation.directions)
        assert [text.get_text() for text in ax.get_yticklabels()] == ["1 (1.6)", "2 (0.4)"]
        assert [text.get_text() for text in ax.get_xticklabels()] == ["x1", "x2"]
        save_figure(ax, tmp_path / "p.png")
        assert is_png(tmp_path / "p.png")

    def test_given_axes(self, explanation):
        for draw in (plot_curvature, plot_directions):
            ax = Figure().subplots()
            assert draw(explanation, ax=ax) is ax


class TestCalibration:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.6, 0.6, 0.6], 400)
    truth = (rng.uniform(size=400)[:, None] > p.cumsum(axis=1)).sum(axis=1)

    def test_bins_hold_means_shares_and_intervals(self, tmp_path):
        ax = plot_calibration(self.p, self.truth, n_bins=8, title="held out")
        line, _, (bounds,) = ax.containers[-1]
        flat = self.p.ravel()
        hit = (self.truth[:, None] == np.arange(3)).ravel()
        order = np.array_split(np.argsort(flat), 8)
        x = [flat[each].mean() for each in order]
        y = [hit[each].mean() for each in order]
        np.testing.assert_allclose(line.get_xdata(), x)
        np.testing.assert_allclose(line.get_ydata(), y)
        for segment, each in zip(bounds.get_segments(), order, strict=True):
            wilson = binomtest(int(hit[each].sum()), len(each)).proportion_ci(method="wilson")
            np.testing.assert_allclose(segment[:, 1], wilson)
        said = ax.texts[0].get_text()
        error = np.mean(np.abs(np.subtract(x, y)))
        assert f"calibration error of all labels {error:.3f}\n150 predictions a point" in said
        assert error < 0.06
        counts = [bar.get_height() for bar in ax.patches]
        np.testing.assert_allclose(
            np.array(counts) / max(counts), (c := np.histogram(flat, 20, (0, 1))[0]) / c.max()
        )
        save_figure(ax, tmp_path / "p.png")
        assert is_png(tmp_path / "p.png")

    def test_a_curve_for_each_label_and_cells_that_are_not_known(self):
        truth = np.where(np.arange(400) < 300, self.truth, -1)
        ax = plot_calibration(self.p, truth, names=["a", "b", "c"], colors=["r", "g", "b"])
        assert legend(ax) == {"a", "b", "c"}
        line, _, _ = ax.containers[2]
        order = np.array_split(np.argsort(self.p[:300, 1]), 10)
        np.testing.assert_allclose(
            line.get_ydata(), [np.mean(truth[:300][each] == 1) for each in order]
        )
        assert to_rgb(line.get_color()) == to_rgb("g")

    def test_weights_and_equal_probabilities(self):
        p = np.repeat([0.2, 0.8], 30)
        hit = np.arange(60) % 3 == 0
        bins = bins_of(p, hit, np.repeat([1.0, 3.0], 30), 4, 0.95)
        np.testing.assert_allclose(bins.predicted, [0.2, 0.8])  # equal ones stay together
        np.testing.assert_array_equal(bins.size, [30, 30])
        assert bins.error == pytest.approx(0.25 * abs(0.2 - 1 / 3) + 0.75 * abs(0.8 - 1 / 3))
        twice = bins_of(np.repeat(p, 2), np.repeat(hit, 2), np.ones(120), 1, 0.95)
        weighted = bins_of(p, hit, np.full(60, 7.0), 1, 0.95)
        assert twice.observed == pytest.approx(weighted.observed)
        assert twice.high - twice.low < weighted.high - weighted.low  # weights are no cells
        few = bins_of(p[:25], hit[:25], np.ones(25), 10, 0.95)
        assert len(few.size) <= 2

    def test_one_cell_and_certainty(self, tmp_path):
        ax = plot_calibration([[1.0, 0.0]], [0])
        assert (
            "of all labels 0.000" in ax.texts[0].get_text()
        )  # one bin of both: 0.5 predicted and seen
        save_figure(ax, tmp_path / "p.png")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"probability": np.ones(3)}, r"must be \[cells, labels\]"),
            ({"truth": [0, 1]}, "number of a label for each of 3 cells"),
            ({"truth": [0.0, 1.0, 0.0]}, "got float64"),
            ({"truth": [0, 1, 2]}, "truth is 2 in row 2; there are 2 labels"),
            ({"truth": [-1, -1, -1]}, "no known label"),
            ({"probability": [[0.5, 0.5], [1.2, 0], [0, 1]]}, "1.2 in row 1, column 0"),
            ({"probability": [[0.5, 0.5], [np.nan, 0], [0, 1]]}, "nan in row 1, column 0"),
            ({"weight": [1, -1, 1]}, "weight must be"),
            ({"names": "ab"}, "one name for each of 2 labels"),
            ({"names": ["a", "b"], "colors": ["r"]}, "one colour for each of 2 labels"),
            ({"n_bins": 0}, "n_bins"),
            ({"level": 95}, "level"),
        ],
    )
    def test_mistakes(self, change, said):
        given = {"probability": np.full((3, 2), 0.5), "truth": [0, 1, 0]}
        with pytest.raises(ValueError, match=said):
            plot_calibration(**(given | change))


def test_legends_fit_and_long_names_are_shortened():
    assert legend_columns(["day 2", "day 4", "move"], 3.9) == 3
    assert legend_columns(["a" * 60, "b" * 60, "c"], 3.9) == 1
    assert legend_columns(["a", "b", "c", "d"], 3.9) == 2
    assert shorten("a" * 40) == "a" * 40
    assert shorten("first " * 10 + "last") == "first first first fi…st first first last"


class TestSave:
    def test_figure_and_resolution(self, tmp_path):
        figure = Figure(figsize=(4, 3))
        figure.subplots()
        widths = []
        for dpi in (50, 100):
            save_figure(figure, tmp_path / "p.PNG", dpi=dpi)
            content = (tmp_path / "p.PNG").read_bytes()
            widths.append(int.from_bytes(content[16:20], "big"))
        assert widths[1] == pytest.approx(2 * widths[0], abs=4)

    def test_subfigure(self, tmp_path):
        ax = Figure().subfigures(1, 2)[0].subplots()
        save_figure(ax, tmp_path / "p.png")

    def test_other_extension(self, tmp_path):
        with pytest.raises(ValueError, match=r"written as \.png, \.pdf or \.svg"):
            save_figure(Figure(), tmp_path / "p.jpg")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(("column", "width"), [("single", 89), ("double", 183)])
    def test_columns_of_a_journal(self, tmp_path, column, width):
        figure = Figure(figsize=figure_size(column), layout="constrained")
        figure.subplots().set_xlabel("component 1")
        save_figure(figure, tmp_path / "p.svg")
        save_figure(figure, tmp_path / "p.pdf")
        svg, pdf = ((tmp_path / f"p.{end}").read_bytes() for end in ("svg", "pdf"))
        (points,) = re.findall(rb'<svg [^>]*width="([\d.]+)pt"', svg)
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)
        for found in (points, box):
            assert width - 3 < float(found) / 72 * 25.4 < width + 0.1
        assert b">component 1</text>" in svg  # text, not curves
        assert b"/Subtype /Type3" not in pdf
        save_figure(figure, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == svg

    def test_sizes(self):
        np.testing.assert_allclose(figure_size(), (89 / 25.4, 66.75 / 25.4))
        np.testing.assert_allclose(figure_size("double", 60), (183 / 25.4, 60 / 25.4))
        assert figure_size(25.4, 50.8) == (1.0, 2.0)
        with pytest.raises(ValueError, match="one of single, double or millimetres"):
            figure_size("singel")
        with pytest.raises(ValueError, match="height"):
            figure_size("single", -1)

    def test_labels_are_not_clipped(self, tmp_path):
        """Nothing is drawn outside the canvas, legend included."""
        x, y = t_shape(32)
        ax = plot_map(x, y, y, truth=y, title="T-shape")
        save_figure(ax, tmp_path / "p.png")
        box = ax.get_tightbbox()
        assert box is not None
        canvas = ax.figure.bbox
        assert box.x0 >= canvas.x0 - 1 and box.y0 >= canvas.y0 - 1
        assert box.x1 <= canvas.x1 + 1 and box.y1 <= canvas.y1 + 1

    def test_legend_does_not_cover_the_data(self, tmp_path):
        x, y = t_shape(32)
        ax = plot_map(x, y, y, truth=y)
        save_figure(ax, tmp_path / "p.png")
        assert ax.get_legend().get_window_extent().y1 < ax.xaxis.label.get_window_extent().y0 + 1


def test_pyplot_is_left_alone(tmp_path):
    code = f"""
import sys
import mongefit.plotting
assert "matplotlib" not in sys.modules, "matplotlib must be imported only when used"
import matplotlib
# Asking for the backend by itself would import pyplot.
settings = lambda: {{k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != "backend"}}
before = settings()
from mongefit.plotting import plot_convex, plot_displacements, plot_history, plot_map, save_figure
save_figure(plot_map([[0, 0]], [[1, 1]], [[1, 1]]), {str(tmp_path / "p.png")!r})
save_figure(plot_displacements([[0, 0, 0]], [[1, 1, 1]]), {str(tmp_path / "p.png")!r})
plot_convex([[0, 1], [1, 2]], (0, 1, 0, 1))
plot_history({{"step": [0], "loss": [1], "epsilon": [1]}})
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_selection_shows_paths_and_what_they_should_be_below():
    from mongefit.metrics import Table
    from mongefit.model_selection import Choice, Selection

    names = ["squared Euclidean, epsilon 0.1", "squared Euclidean, epsilon 0.2", "ridge on pairs"]
    rows = [{"name": name, "rmse": k + 1.0} for k, name in enumerate([*names, "target mean"])]
    selection = Selection(
        model=None,
        choice=Choice("a", 2, 0.5),
        table=Table(tuple(rows), {"name": "", "rmse": "RMSE"}),
        paths={"a": np.array([2.0, 1.0, 0.5]), "b": np.array([2.0, 1.5])},
        folds=np.zeros(3, int),
    )
    ax = plot_selection(selection)
    drawn = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(drawn["a"].get_ydata(), selection.paths["a"])
    assert drawn["squared Euclidean"].get_ydata()[0] == 1.0
    assert drawn["target mean"].get_ydata()[0] == 4.0
    assert (drawn["chosen"].get_xdata()[0], drawn["chosen"].get_ydata()[0]) == (2, 0.5)
