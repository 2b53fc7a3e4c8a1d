"""The data of the suite: two clouds, some known pairs, and new pairs to be judged on.

Every problem is a function of a seed. New points are in neither cloud: of storms, whole storms; of
cells, whole clones. The real data lie in ``../shared/data``, or where ``MONGEFIT_DATA`` says;
without them those problems are left out.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit import datasets

Points = NDArray[np.float64]
DATA = Path(
    os.environ.get("MONGEFIT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


class Data(NamedTuple):
    """Clouds, known pairs with the clone of each, and new points with where they go."""

    x: Points
    y: Points
    pairs: NDArray[np.int64]
    clones: NDArray[np.int64]
    new_x: Points
    new_y: Points


def _one_to_one(x: Points, y: Points, known: NDArray[np.int64], new_x, new_y, clones=None) -> Data:
    """Data whose row i of x belongs to row i of y, for the rows that are known."""
    pairs = np.stack([known, known], axis=1)
    return Data(x, y, pairs, known if clones is None else clones, new_x, new_y)


def _toy(name: str, share: float) -> Callable[[int], Data]:
    def make(seed: int) -> Data:
        sample = getattr(datasets, name)
        x, y = sample(128, seed=seed)
        new_x, new_y = sample(256, seed=1000 + seed)
        count = round(share * len(x))
        known = np.sort(np.random.default_rng(seed).permutation(len(x))[:count])
        return _one_to_one(x, y, known, new_x, new_y)

    return make


def _limited(dim: int, n: int, m: int, count: int) -> Callable[[int], Data]:
    def make(seed: int) -> Data:
        problem = datasets.limited_pairs(n, m, count, dim, seed=seed)
        new_x, new_y = problem.sample(256, seed=1000 + seed)
        pairs = np.asarray(problem.pairs)
        return Data(problem.x, problem.y, pairs, np.arange(len(pairs)), new_x, new_y)

    return make


def _ground_truth(dim: int) -> Callable[[int], Data]:
    def make(seed: int) -> Data:
        problem = _drawn(dim, seed)
        x, y = problem.sample(256, 10)
        new_x, new_y = problem.sample(256, 11)
        return _one_to_one(x, y, np.arange(32), new_x, new_y)

    return make


@functools.cache
def _drawn(dim: int, seed: int):
    return datasets.draw_ground_truth("icnn", dim, seed=seed).problem


def _rotation(dim: int, noise: float) -> Callable[[int], Data]:
    """A random rotation of a skew cloud, with noise; a fifth of 300 pairs is known."""

    def make(seed: int) -> Data:
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        turn[:, 0] *= np.sign(np.linalg.det(turn))

        def sample(n: int) -> tuple[Points, Points]:
            x = rng.gamma(2.0, size=(n, dim)) * np.linspace(1.0, 2.0, dim)
            return x, x @ turn.T + noise * rng.normal(size=(n, dim))

        (x, y), (new_x, new_y) = sample(300), sample(300)
        return _one_to_one(x, y, np.arange(60), new_x, new_y)

    return make


def storms(seed: int, *, hours: int = 48) -> Data:
    """Where and how strong a storm is two days later; a fifth of the storms is known."""
    rng = np.random.default_rng(seed)
    now, later, storm = _storm_pairs(hours)
    names = rng.permutation(np.unique(storm))
    new, rest = names[: len(names) // 3], names[len(names) // 3 :]
    of_new = rng.permutation(np.flatnonzero(np.isin(storm, new)))[:600]
    of_rest = rng.permutation(np.flatnonzero(np.isin(storm, rest)))[:600]
    known = np.flatnonzero(np.isin(storm[of_rest], rest[: len(rest) // 5]))
    return _one_to_one(
        now[of_rest], later[of_rest], known, now[of_new], later[of_new], storm[of_rest][known]
    )


@functools.cache
def _storm_pairs(hours: int) -> tuple[Points, Points, NDArray[np.int64]]:
    with open(DATA / "storms.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("lat", "long", "wind", "pressure")
    values = np.array([[float(row[key]) for key in columns] for row in rows])
    values /= values.std(axis=0)
    when = np.array(
        [
            f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}T{int(row['hour']):02}"
            for row in rows
        ],
        dtype="datetime64[h]",
    )
    name = np.array([f"{row['name']} {row['year']}" for row in rows])
    place = {key: k for k, key in enumerate(zip(name, when, strict=True))}
    step = np.timedelta64(hours, "h")
    found = [(k, place[n, t + step]) for (n, t), k in place.items() if (n, t + step) in place]
    first, second = np.array(found).T
    storm = np.unique(name, return_inverse=True)[1]
    return values[first], values[second], storm[first]


def snare(seed: int, *, dim: int = 8) -> Data:
    """Accessibility of the cells from their expression; a fifth of the pairs is known."""
    file = np.load(DATA / "snare.npz")
    x, y = (_components(file[name], dim) for name in ("rna", "atac"))
    x, y = x / x.std(axis=0), y / y.std(axis=0)
    order = np.random.default_rng(seed).permutation(len(x))
    old, new = order[: 2 * len(x) // 3], order[2 * len(x) // 3 :]
    return _one_to_one(x[old], y[old], np.arange(len(old) // 5), x[new], y[new])


def _components(points: Points, dim: int) -> Points:
    centred = points - points.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    return u[:, :dim] * s[:dim]


def larry_2_4(seed: int, *, dim: int = 10) -> Data:
    """Blood progenitors from day 2 to day 4; four fifths of the given clones are known."""
    file = np.load(DATA / "larry_day2_day4.npz")
    x, y = (file[name][:, :dim].astype(float) for name in ("x", "y"))
    return _clones(x, y, file["clone_x"], file["clone_y"], 0.8, seed)


def larry_4_6(seed: int, *, dim: int = 10) -> Data:
    """Blood cells from day 4 to day 6; a fifth of the clones is known."""
    import anndata

    adata = anndata.read_h5ad(DATA / "larry_days_2_4_6.h5ad")
    day = adata.obs["time_info"].astype(str).to_numpy()
    barcodes = adata.obsm["X_clone"].tocsr()
    clone = np.full(adata.n_obs, np.nan)
    rows, columns = barcodes.nonzero()
    clone[rows] = columns
    points = np.asarray(adata.obsm["X_pca"], float)[:, :dim]
    a, b = day == "4", day == "6"
    return _clones(points[a], points[b], clone[a], clone[b], 0.2, seed)


def _clones(x: Points, y: Points, in_x, in_y, share: float, seed: int) -> Data:
    """Some clones known, and the cells of the others taken out of the clouds to be judged on."""
    both = np.intersect1d(in_x[~np.isnan(in_x)], in_y[~np.isnan(in_y)])
    order = np.random.default_rng(seed).permutation(both)
    count = round(share * len(both))
    known, new = order[:count], order[count:]
    old_x, old_y = ~np.isin(in_x, new), ~np.isin(in_y, new)
    cloud_x, cloud_y = in_x[old_x], in_y[old_y]
    pairs = np.concatenate([_all_pairs(cloud_x, cloud_y, each) for each in known])
    judged = np.concatenate([_all_pairs(in_x, in_y, each) for each in new])
    return Data(
        x[old_x], y[old_y], pairs, cloud_x[pairs[:, 0]].astype(int),
        x[judged[:, 0]], y[judged[:, 1]],
    )  # fmt: skip


def _all_pairs(in_x, in_y, clone) -> NDArray[np.int64]:
    rows, columns = np.flatnonzero(in_x == clone), np.flatnonzero(in_y == clone)
    return np.stack([np.repeat(rows, len(columns)), np.tile(columns, len(rows))], axis=1)


PROBLEMS: dict[str, Callable[[int], Data]] = {
    "storms": storms,
    "snare": snare,
    "larry 2-4": larry_2_4,
    "larry 4-6": larry_4_6,
    **{f"{name}, all pairs": _toy(name, 1.0) for name in ("t_shape", "moon", "spiral")},
    **{f"{name}, a tenth": _toy(name, 0.1) for name in ("t_shape", "moon", "spiral")},
    "limited 2-d": _limited(2, 32, 40, 8),
    "limited 4-d": _limited(4, 128, 160, 32),
    "limited 6-d": _limited(6, 256, 320, 64),
    **{f"ground truth {dim}-d": _ground_truth(dim) for dim in (2, 5, 10)},
    "rotation 5-d": _rotation(5, 0.1),
    "rotation 10-d": _rotation(10, 0.3),
}


def available() -> dict[str, Callable[[int], Data]]:
    """The problems whose data are here."""
    real = {"storms", "snare", "larry 2-4", "larry 4-6"}
    return {name: make for name, make in PROBLEMS.items() if DATA.is_dir() or name not in real}
