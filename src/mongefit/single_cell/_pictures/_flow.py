"""How mass flows between labels over the times of a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_positive, check_share
from mongefit.plotting._figures import BLACK, GREY, check_axes, finish, new_axes, shorten
from mongefit.single_cell._average import CellMap, check_cell_map
from mongefit.single_cell._columns import obs_column
from mongefit.single_cell._labels import Labels, fitted_rows, label_colors
from mongefit.single_cell._probabilities import find_fates
from mongefit.single_cell._transitions import source_weight

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

Mass = NDArray[np.float64]

NOT_KNOWN = "not known"
# Width of a bar, where the distance of two times is 1, and the gap between labels.
_BAR, _GAP = 0.05, 0.012


class Flows(NamedTuple):
    """Mass between labels: a table [labels, labels] for each step of time."""

    labels: list[str]
    colors: dict[str, Any]
    steps: list[Mass]

    @property
    def totals(self) -> list[Mass]:
        """The mass of each label at each time: what comes in, or at the first what goes out."""
        return [self.steps[0].sum(axis=1), *(step.sum(axis=0) for step in self.steps)]


def plot_flow(
    model: CellMap,
    adata: AnnData,
    key: str,
    *,
    source: Any = None,
    target: Any = None,
    min_share: float = 0.01,
    alpha: float = 0.5,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how mass flows between labels, over all times of a model (a Sankey diagram).

    The height of a band is the mass that goes from a label to another; the first time has a mass of
    1, or what its cells grow to. Cells without a label are drawn as "not known".

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells of the fit; it is left alone.
    key
        Column of obs with labels. Their colours are those of ``uns["<key>_colors"]``.
    source, target
        First and last time; by default those of the model. The times of the model between them are
        drawn too.
    min_share
        Labels whose share is below this at every time are drawn together, as "other".
    alpha
        How opaque bands are.
    ax, title
        Axes to draw on, on a new Figure by default, and their title.
    """
    check_cell_map(model, adata)
    obs_column(adata, key, "key")
    min_share = check_share(min_share, "min_share")
    check_positive(alpha, "alpha")
    whole = model.between(source, target)
    times = model.times.values
    times = times[times.index(whole.times.source) : times.index(whole.times.target) + 1]
    flows = merge_small(find_flows(model, adata, key, times), min_share)
    shown = [[k for k in range(len(flows.labels)) if total[k] > 0] for total in flows.totals]
    most = max(map(len, shown))
    longest = max(len(shorten(name)) for name in flows.labels)
    width = 1.6 + 2.4 * len(flows.steps) + 0.15 * longest
    ax = new_axes((width, max(3.2, 0.6 + 0.2 * most))) if ax is None else check_axes(ax)
    _draw(ax, flows, times, whole.times.key, alpha)
    finish(ax, title, [])
    return ax


def find_flows(model: CellMap, adata: AnnData, key: str, times: Sequence[str]) -> Flows:
    """The mass between labels, with one more label for cells without any."""
    names = label_colors(adata, key)
    order = [*names, NOT_KNOWN]
    place = {name: k for k, name in enumerate(order)}
    steps = []
    for start, end in pairwise(times):
        way = model.between(start, end)
        rows = fitted_rows(way.maps[0], adata, target=False)
        found = find_fates(way, adata, rows, adata, key)
        weight = source_weight(way.maps[0])
        labels = Labels.of(adata, key, rows)
        # A column for those without a label, whose code is −1, on both sides.
        here = np.column_stack([labels.indicator, labels.codes < 0])
        raw = np.column_stack([found.raw, np.clip(1 - found.raw.sum(axis=1), 0, None)])
        step = np.zeros((len(order), len(order)))
        from_, to = (
            [place[name] for name in (*each, NOT_KNOWN)] for each in (labels.names, found.all_names)
        )
        step[np.ix_(from_, to)] = here.T @ (weight[:, None] * raw)
        # What is left of rounding is no flow.
        steps.append(np.where(step > 1e-9 * step.sum(), step, 0.0))
    used = sum(step.sum(axis=0) + step.sum(axis=1) for step in steps) > 0
    kept = [name for name, each in zip(order, used, strict=True) if each]
    colors = {name: names.get(name, GREY) for name in kept}
    return Flows(kept, colors, [step[np.ix_(used, used)] for step in steps])


def merge_small(flows: Flows, min_share: float) -> Flows:
    """Put labels that are small at every time into one, the last."""
    share = [step.sum(axis=axis) / step.sum() for step in flows.steps for axis in (0, 1)]
    small = np.max(share, axis=0) < min_share
    if small.sum() < 2:
        return flows
    kept = [name for name, each in zip(flows.labels, small, strict=True) if not each]
    other = f"other ({small.sum()} labels)"
    into = np.zeros((len(flows.labels), len(kept) + 1))
    into[np.flatnonzero(~small), np.arange(len(kept))] = 1
    into[small, -1] = 1
    colors = {name: flows.colors[name] for name in kept} | {other: GREY}
    return Flows([*kept, other], colors, [into.T @ step @ into for step in flows.steps])


def _draw(ax: Axes, flows: Flows, times: Sequence[str], key: str, alpha: float) -> None:
    from matplotlib.patches import Rectangle

    # What comes into a label and what leaves it can differ, as mass grows and labels get lost.
    before = [flows.steps[0].sum(axis=1), *(step.sum(axis=0) for step in flows.steps)]
    after = [*(step.sum(axis=1) for step in flows.steps), flows.steps[-1].sum(axis=0)]
    height = [np.maximum(first, second) for first, second in zip(before, after, strict=True)]
    gap = _GAP * max(each.sum() for each in height)
    tops = [_stack(each, gap) for each in height]
    for k, step in enumerate(flows.steps):
        _draw_bands(ax, step, (k + _BAR / 2, k + 1 - _BAR / 2), tops[k : k + 2], flows, alpha)
    for k, (top, size) in enumerate(zip(tops, height, strict=True)):
        for name, y, each in zip(flows.labels, top, size, strict=True):
            if each > 0:
                colour = flows.colors[name]
                bar = Rectangle((k - _BAR / 2, y - each), _BAR, each, color=colour, linewidth=0)
                ax.add_patch(bar).set_label(name)
    ax.set_xlim(-_BAR, len(times) - 1 + _BAR)
    lowest = min(float((top - size).min()) for top, size in zip(tops, height, strict=True))
    ax.set_ylim(lowest - gap, gap)
    ax.set_xticks(range(len(times)), [f"{key} {time}" for time in times], parse_math=False)
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    for k, right in ((0, False), (len(times) - 1, True)):
        _write_labels(ax, flows.labels, tops[k], height[k], k, right=right)
    ends = (height[0] > 0) | (height[-1] > 0)
    for k in range(1, len(times) - 1):
        for each in np.flatnonzero((height[k] > 0) & ~ends):
            _write_between(ax, flows.labels[each], k, tops[k][each] - height[k][each] / 2)


def _stack(height: Mass, gap: float) -> Mass:
    """The upper end of each bar, one below the other, the whole centred on nothing."""
    step = np.where(height > 0, height + gap, 0.0)
    return np.asarray(-(np.cumsum(step) - step))


def _draw_bands(
    ax: Axes, step: Mass, x: tuple[float, float], tops: Sequence[Mass], flows: Flows, alpha: float
) -> None:
    """A band for each flow, in the colour of where it comes from."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = (top.copy() for top in tops)
    middle = (x[0] + x[1]) / 2
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    for i, j in np.argwhere(step > 0):
        mass = step[i, j]
        a, b = left[i], right[j]
        left[i], right[j] = a - mass, b - mass
        corners = [
            (x[0], a), (middle, a), (middle, b), (x[1], b),
            (x[1], b - mass), (middle, b - mass), (middle, a - mass), (x[0], a - mass), (x[0], a),
        ]  # fmt: skip
        color = flows.colors[flows.labels[i]]
        band = PathPatch(Path(corners, codes), facecolor=color, alpha=alpha, linewidth=0)
        band.set_gid(f"{i}-{j}")
        ax.add_patch(band)


def _write_labels(
    ax: Axes, labels: list[str], tops: Mass, height: Mass, x: int, *, right: bool
) -> None:
    """Names and shares beside the bars, moved apart where they would overlap."""
    from matplotlib.font_manager import FontProperties

    shown = np.flatnonzero(height > 0)
    inches = ax.bbox.height / ax.figure.dpi
    bottom, top = ax.get_ylim()
    room = (top - bottom) / len(shown)
    points = min(FontProperties(size="small").get_size_in_points(), 0.85 * 72 * inches / len(shown))
    apart = min(1.2 * points / 72 / inches * (top - bottom), room)
    wanted = (tops - height / 2)[shown]
    places = spread(-wanted, apart, -top, -bottom)
    sign = 1 if right else -1
    edge, text = x + sign * _BAR / 2, x + sign * 2.4 * _BAR
    for k, place, middle in zip(shown, -places, wanted, strict=True):
        share = height[k] / height.sum()
        said = f"{share:.0%}" if share >= 0.01 else "<1%"
        ax.text(
            text + sign * 0.2 * _BAR, place, f"{shorten(labels[k])} {said}", fontsize=points,
            va="center", ha="left" if right else "right", parse_math=False,
        )  # fmt: skip
        ax.plot(
            [edge, edge + sign * 0.8 * _BAR, text], [middle, middle, place], color=BLACK,
            linewidth=0.4, alpha=0.5, clip_on=False,
        )  # fmt: skip


def _write_between(ax: Axes, label: str, x: int, y: float) -> None:
    """The name of a label that neither the first nor the last time has, beside its bar."""
    from matplotlib.patheffects import Normal, Stroke

    ax.text(
        x + 0.8 * _BAR, y, shorten(label), fontsize="small", va="center", parse_math=False,
        path_effects=[Stroke(linewidth=2, foreground="white"), Normal()], zorder=5,
    )  # fmt: skip


def spread(wanted: Mass, apart: float, low: float, high: float) -> Mass:
    """Places in the order of those wanted, at least so far apart, and as near to them as can be.

    It is the least-squares fit: with k · apart taken off, places must not fall (pooled neighbours).
    """
    from sklearn.isotonic import isotonic_regression

    offset = apart * np.arange(len(wanted))
    rest = isotonic_regression(wanted - offset)
    last = high - apart * (len(wanted) - 1)
    return np.asarray(np.clip(rest, low, max(low, last)) + offset)
