"""The problems of `suite.py`: two clouds, some known pairs, and new pairs to be judged on.

Every problem is a function of the draw, a whole number: it changes which pairs are known and, for
synthetic data, the data. The rows of Y are shuffled where those of X have partners, so that the
order of rows tells nothing.

Known are a fifth of the pairs of real data (whole clones, whole storms), all pairs or a tenth of
them on T-shape, moon and spiral, a quarter with limited pairs, and 32 on the other synthetic data.
Where new points lie follows from what the problem stands for:

- Storms and SNARE: new storms and new cells, which neither cloud holds.
- Blood cells: the clouds hold all cells that were sequenced. New pairs are the cells of clones that
  are not known, as when only some cells carry a readable barcode.
- Synthetic data: new points, which neither cloud holds, and where the true map takes them.

Real data lie in `../shared/data`, or where the variable MONGEFIT_DATA says.

    python benchmarks/suite_problems.py

prints the size of every problem.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit import datasets

Points = NDArray[np.float64]
Rows = NDArray[np.int64]

Family = Literal["power", "mahalanobis", "icnn"]
FAMILIES: tuple[Family, ...] = ("power", "mahalanobis", "icnn")

DRAWS = 5
DATA = Path(
    os.environ.get("MONGEFIT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


class Draw(NamedTuple):
    """What a fit is given, and what its map is judged on.

    Attributes
    ----------
    X, Y
        Source and target points, [n, d] and [m, d].
    pairs, clones, pair_weight
        Known pairs, rows of X and of Y [k, 2]; the clone of each, None where every pair stands for
        itself; and how much each counts.
    new_X, new_Y, new_weight
        New points, where each of them went, and how much each counts. No fit sees that.
    """

    X: Points
    Y: Points
    pairs: Rows
    clones: Rows | None
    pair_weight: Points
    new_X: Points
    new_Y: Points
    new_weight: Points


def _one_to_one(
    x: Points,
    y: Points,
    known: Rows,
    new: tuple[Points, Points],
    rng: np.random.Generator,
    clones: Rows | None = None,
) -> Draw:
    """Row i of x belongs to row i of y, and this is known of some rows; y is then shuffled."""
    order = rng.permutation(len(y))
    pairs = np.stack([known, np.argsort(order)[known]], axis=1)
    return Draw(x, y[order], pairs, clones, np.ones(len(known)), *new, np.ones(len(new[0])))


# Real data


def storms(draw: int) -> Draw:
    """Where and how strong is a storm 48 hours later?

    Of all storms a third are new. The clouds are 600 observations of the others; of these a fifth
    of the storms is known. Storms are the clones.
    """
    rng = np.random.default_rng(draw)
    now, later, storm = _storm_pairs(48)
    names = rng.permutation(np.unique(storm))
    new, rest = np.split(names, [len(names) // 3])
    of_new = rng.permutation(np.flatnonzero(np.isin(storm, new)))[:600]
    of_rest = rng.permutation(np.flatnonzero(np.isin(storm, rest)))[:600]
    known = np.flatnonzero(np.isin(storm[of_rest], rest[: len(rest) // 5]))
    return _one_to_one(
        now[of_rest], later[of_rest], known, (now[of_new], later[of_new]), rng,
        storm[of_rest][known],
    )  # fmt: skip


@functools.cache
def _storm_pairs(hours: int) -> tuple[Points, Points, Rows]:
    """All observations of which there is another so many hours later, and the storm of each."""
    with open(DATA / "storms.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = ("lat", "long", "wind", "pressure")
    values = np.array([[float(row[key]) for key in columns] for row in rows])
    values /= values.std(axis=0)
    day = [f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}" for row in rows]
    hour = np.array([float(row["hour"]) for row in rows])
    when = np.array(day, "datetime64[h]") + hour.astype("timedelta64[h]")
    # Names come again after some years; storms of one name in one year are one.
    name = [f"{row['name']} {row['year']}" for row in rows]
    place = {key: k for k, key in enumerate(zip(name, when, strict=True))}
    step = np.timedelta64(hours, "h")
    found = [(k, place[n, t + step]) for (n, t), k in place.items() if (n, t + step) in place]
    first, second = np.array(found).T
    storm = np.unique(name, return_inverse=True)[1]
    return values[first], values[second], storm[first]


def snare(draw: int) -> Draw:
    """How accessible is the DNA of a cell, given its expression? Eight components of either.

    Accessibility is taken in logarithms: it is positive and its columns differ tenfold in spread.
    Of all cells a third are new; the clouds are the others, of which a fifth of the pairs is known.
    """
    rng = np.random.default_rng(draw)
    with np.load(DATA / "snare.npz") as file:
        x, y = _components(file["rna"], 8), _components(np.log(file["atac"]), 8)
    new, rest = np.split(rng.permutation(len(x)), [len(x) // 3])
    return _one_to_one(x[rest], y[rest], np.arange(len(rest) // 5), (x[new], y[new]), rng)


def _components(points: Points, dim: int) -> Points:
    """Principal components in units of their common standard deviation.

    The sign of each is such that its largest entry is positive: that of LAPACK may differ from
    machine to machine.
    """
    u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    u, s = u[:, :dim], s[:dim]
    largest = u[np.argmax(np.abs(u), axis=0), np.arange(dim)]
    components: Points = u * np.sign(largest) * s * np.sqrt(u.size / np.sum(s**2))
    return components


def blood_2_4(draw: int) -> Draw:
    """Blood progenitors, day 2 to day 4, 10 components; a fifth of the given clones is known."""
    with np.load(DATA / "larry_day2_day4.npz") as file:
        x, y = (file[name][:, :10].astype(float) for name in ("x", "y"))
        return _clones(x, y, file["clone_x"], file["clone_y"], draw)


def blood_4_6(draw: int) -> Draw:
    """Blood cells from day 4 to day 6, 10 components; a fifth of the clones is known."""
    import anndata

    cells = anndata.read_h5ad(DATA / "larry_days_2_4_6.h5ad")
    day = cells.obs["time_info"].astype(str).to_numpy()
    clone = np.full(cells.n_obs, np.nan)
    rows, columns = cells.obsm["X_clone"].nonzero()  # at most one clone per cell
    clone[rows] = columns
    points = np.asarray(cells.obsm["X_pca"], float)[:, :10]
    before, after = day == "4", day == "6"
    return _clones(points[before], points[after], clone[before], clone[after], draw)


def _clones(x: Points, y: Points, clone_x: Points, clone_y: Points, draw: int) -> Draw:
    """A fifth of the clones known; every clone counts the same, with however many cells."""
    both = np.intersect1d(clone_x[np.isfinite(clone_x)], clone_y[np.isfinite(clone_y)])
    order = np.random.default_rng(draw).permutation(both)
    found = []
    for some in np.split(order, [round(len(both) / 5)]):
        rows = [
            (i, j, clone)
            for clone in some
            for i in np.flatnonzero(clone_x == clone)
            for j in np.flatnonzero(clone_y == clone)
        ]
        pairs, label = np.array(rows)[:, :2].astype(int), np.array(rows)[:, 2].astype(int)
        found.append((pairs, label, 1 / np.bincount(label)[label]))
    (pairs, clones, weight), (new, _, new_weight) = found
    return Draw(x, y, pairs, clones, weight, x[new[:, 0]], y[new[:, 1]], new_weight)


# Synthetic data


def _toy(name: str, count: int) -> Callable[[int], Draw]:
    """128 points of figure 1, of which so many pairs are known."""

    def make(draw: int) -> Draw:
        sample = getattr(datasets, name)
        x, y = sample(128, seed=draw)
        rng = np.random.default_rng(draw)
        known = np.sort(rng.permutation(len(x))[:count])
        return _one_to_one(x, y, known, sample(256, seed=1000 + draw), rng)

    return make


def _limited(dim: int, n: int, m: int) -> Callable[[int], Draw]:
    """The clouds of `mongefit reproduce limited-pairs`, with a quarter of the sources paired."""

    def make(draw: int) -> Draw:
        problem = datasets.limited_pairs(n, m, n // 4, dim, seed=draw)
        new_x, new_y = problem.sample(256, seed=1000 + draw)
        # Points in pairs come first in both clouds; no one is to see that either.
        order = np.random.default_rng(draw).permutation(m)
        pairs = np.stack([problem.pairs[:, 0], np.argsort(order)[problem.pairs[:, 1]]], axis=1)
        return Draw(
            problem.x, problem.y[order], pairs, None, np.ones(len(pairs)),
            new_x, new_y, np.ones(len(new_x)),
        )  # fmt: skip

    return make


def _true_cost(family: Family, dim: int) -> Callable[[int], Draw]:
    """A true map for a true cost; as elsewhere, one on which squared Euclidean errs twice as much
    as the true cost does."""

    def make(draw: int) -> Draw:
        problem = _drawn(family, dim, draw)
        # The seeds 0 to 2 are those by which the problem was chosen.
        x, y = problem.sample(256, 10)
        rng = np.random.default_rng(draw)
        return _one_to_one(x, y, np.arange(32), problem.sample(256, 11), rng)

    return make


@functools.cache
def _drawn(family: Family, dim: int, draw: int) -> datasets.GroundTruth:
    return datasets.draw_ground_truth(family, dim, seed=draw).problem


def _rotation(dim: int, *, exact: bool = False) -> Callable[[int], Draw]:
    """A random rotation of a skew cloud, with noise of a tenth of its spread on the targets.

    New targets have the same noise, as those of real data do; where ``exact`` they have none.
    """

    def make(draw: int) -> Draw:
        rng = np.random.default_rng(draw)
        turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        turn[:, 0] *= np.sign(np.linalg.det(turn))
        x, new_x = rng.gamma(2.0, size=(2, 256, dim)) * np.linspace(1.0, 2.0, dim)
        noise, other = 0.1 * x.std(axis=0).mean() * rng.normal(size=(2, *x.shape))
        new_y = new_x @ turn.T + (0 if exact else other)
        return _one_to_one(x, x @ turn.T + noise, np.arange(32), (new_x, new_y), rng)

    return make


def two_rings(draw: int) -> Draw:
    """Two rings that move apart, r to r². Squared Euclidean is the right cost here."""
    rng = np.random.default_rng(draw)

    def sample(n: int) -> tuple[Points, Points]:
        angle = 2 * np.pi * rng.uniform(size=n)
        radius = rng.integers(1, 3, size=n) + 0.05 * rng.normal(size=n)
        x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return x, radius[:, None] * x

    x, y = sample(256)
    return _one_to_one(x, y, np.arange(32), sample(256), rng)


PROBLEMS: dict[str, Callable[[int], Draw]] = {
    "storms": storms,
    "SNARE": snare,
    "blood 2 -> 4": blood_2_4,
    "blood 4 -> 6": blood_4_6,
    "t-shape": _toy("t_shape", 128),
    "moon": _toy("moon", 128),
    "spiral": _toy("spiral", 128),
    "t-shape, 13 pairs": _toy("t_shape", 13),
    "moon, 13 pairs": _toy("moon", 13),
    "spiral, 13 pairs": _toy("spiral", 13),
    "limited pairs 2-d": _limited(2, 32, 40),
    "limited pairs 4-d": _limited(4, 128, 160),
    "limited pairs 6-d": _limited(6, 256, 320),
    **{
        f"true cost {family} {dim}-d": _true_cost(family, dim)
        for family in FAMILIES
        for dim in (2, 5, 10)
    },
    "rotation 2-d": _rotation(2),
    "rotation 5-d": _rotation(5),
    "rotation 2-d, exact new points": _rotation(2, exact=True),
    "rotation 5-d, exact new points": _rotation(5, exact=True),
    "two rings": two_rings,
}
"""Every problem by its name: a function of the draw."""


def main() -> None:
    columns = ("n", "m", "d", "pairs", "clones", "new")
    print(f"{'problem':<28}" + "".join(f"{name:>8}" for name in columns))
    for name, problem in PROBLEMS.items():
        draw = problem(0)
        clones = len(draw.pairs if draw.clones is None else np.unique(draw.clones))
        sizes = (len(draw.X), *draw.Y.shape, len(draw.pairs), clones, len(draw.new_X))
        print(f"{name:<28}" + "".join(f"{size:>8}" for size in sizes), flush=True)


if __name__ == "__main__":
    main()
