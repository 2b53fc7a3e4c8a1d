"""Several times with one cost: made-up problems, blood progenitors on three days, and step times.

    python benchmarks/legs.py --parts one ends
    python benchmarks/legs.py --parts larry settings left-out --larry larry_days_2_4_6.h5ad
    python benchmarks/legs.py --parts steps

Made-up problems are judged on new points whose true images are known, blood progenitors on clones
and on a day that were held out. No setting was chosen by what is printed here.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mongefit import MongeMapCV, TemporalMap
from mongefit._estimators.temporal import journey_of
from mongefit._fitting import FitData, Journey, prepare, prepare_legs
from mongefit._options import FitOptions
from mongefit._runtime import double_precision
from mongefit._training import initial_state, run_interval
from mongefit.metrics import rmse
from mongefit.metrics._energy import distances, energy_scores
from mongefit.model_selection import cross_validate, leave_time_out
from mongefit.model_selection._folds import folds_of
from mongefit.model_selection._legs import LegsKnown

SCALE = np.diag(np.sqrt([1.0, 12.0]))
TURNS = [np.array([[1.2, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.6], [-0.6, 0.9]])]
KNOWN = 40


def sample(n: int, seed: int) -> list[np.ndarray]:
    """The same points at three times; the second axis is 12 times as expensive as the first."""
    clouds = [np.random.default_rng(seed).normal(size=(n, 2))]
    for turn in TURNS:
        clouds.append(clouds[-1] @ (np.linalg.inv(SCALE) @ turn @ SCALE).T)
    return clouds


def made_up(leg: tuple[int, int], known: dict[str, Any]) -> None:
    """Errors on one leg or composed map, by what is known; mean and spread over draws."""
    rows = [[i, i] for i in range(KNOWN)]
    errors: dict[str, list[float]] = {}
    for draw in range(5):
        clouds, new = sample(400, draw), sample(400, 100 + draw)
        for name, legs in known.items():
            cost = "matrix" if legs else "sqeuclidean"
            model = TemporalMap(cost=cost, epsilon=(0.05, 0.005), max_iter=150)
            model.fit(clouds, pairs=dict.fromkeys(legs, rows) if legs else None)
            moved = model.transform(new[leg[0]], *leg)
            errors.setdefault(name, []).append(rmse(moved, new[leg[1]]))
    for name, values in errors.items():
        print(f"| {name} | {np.mean(values):.3f} | {np.std(values):.3f} |")


def one_leg(_: Any) -> None:
    """Is the second leg learned from pairs of the first?"""
    print("| pairs known | error from 1 to 2 | sd |\n|---|---|---|")
    made_up((1, 2), {"none, squared Euclidean": (), "0 to 1": [(0, 1)], "1 to 2": [(1, 2)]})


def ends(_: Any) -> None:
    """Is the composed map learned from pairs of its ends?"""
    print("| pairs known | error from 0 to 2 | sd |\n|---|---|---|")
    made_up((0, 2), {"none, squared Euclidean": (), "0 to 2": [(0, 2)]})


def read_larry(path: str, components: int) -> tuple[list[np.ndarray], dict[str, dict[Any, Any]]]:
    """The cells of days 2, 4 and 6, and pairs of cells of one clone by leg."""
    import anndata

    cells = anndata.read_h5ad(path)
    day = cells.obs["time_info"].astype(float).to_numpy()
    clone = np.full(len(day), -1)
    row, label = cells.obsm["X_clone"].nonzero()
    clone[row] = label
    points = np.asarray(cells.obsm["X_pca"])[:, :components]
    days = [2, 4, 6]
    pairs: dict[Any, Any] = {}
    clones: dict[Any, Any] = {}
    for i, j in ((2, 4), (4, 6), (2, 6)):
        here, there = clone[day == i], clone[day == j]
        table = np.argwhere((here[:, None] == there) & (here >= 0)[:, None])
        pairs[i, j], clones[i, j] = table, here[table[:, 0]]
    return [points[day == each] for each in days], {"pairs": pairs, "clones": clones}


def larry(arguments: Any) -> None:
    """Held-out clones of all legs, fitted together and each leg alone."""
    clouds, known = read_larry(arguments.larry, arguments.components)
    for fold_seed in range(3):
        model = TemporalMap(cost="matrix", epsilon=0.1, max_iter=60)
        found = cross_validate(model, clouds, [2, 4, 6], **known, random_state=fold_seed)
        print(found.table.to_markdown())
        print(found.difference("each leg alone"), flush=True)


def settings(arguments: Any) -> None:
    """Options that are chosen on the leg with most clones, without those held out, or fixed.

    Every clone of a leg counts the same, as for `mongefit.single_cell.fit`.
    """
    clouds, known = read_larry(arguments.larry, arguments.components)
    days = [2, 4, 6]
    sizes = {key: np.bincount(clone)[clone] for key, clone in known["clones"].items()}
    known["pair_weight"] = {key: 1 / size for key, size in sizes.items()}
    keys, composed, journey, _ = journey_of(clouds, days, None, known)
    every = LegsKnown.of([*keys, *composed], journey)
    clones = every.split(every.clone)
    fixed = {"matrix, epsilon 0.1, 60 steps": {"cost": "matrix", "epsilon": 0.1, "max_iter": 60}}
    fixed["squared Euclidean, epsilon 0.2"] = {"cost": "sqeuclidean", "epsilon": 0.2}
    for fold_seed in range(2):
        folds = every.split(folds_of(every.clone, None, fold_seed))
        found: dict[Any, list[Any]] = {}
        for fold in range(5):
            told: dict[str, dict[Any, Any]] = {"pairs": {}, "pair_weight": {}, "clones": {}}
            for part, own, clone in zip(every.parts, folds, clones, strict=True):
                weight = np.where(own == fold, 0.0, part.weight)
                for name, value in zip(told, (part.pairs, weight, clone), strict=True):
                    told[name][part.key] = value
            for title, options in (fixed | {"chosen on day 4 to 6": None}).items():
                if options is None:
                    kept = told["pair_weight"][4, 6] > 0
                    one = {name: by_leg[4, 6][kept] for name, by_leg in told.items()}
                    options = MongeMapCV().fit(*clouds[1:], **one).best_params_
                learns = options["cost"] != "sqeuclidean" or options.get("diffeo") is not None
                model = TemporalMap(**(options | {"many_to_many": True}))
                model.fit(clouds, days, **(told if learns else {}))
                for part, own in zip(every.parts, folds, strict=True):
                    way, pairs = model.between(*part.key), part.pairs[own == fold]
                    if not len(pairs):
                        continue
                    source, truth = part.source[pairs[:, 0]], part.target[pairs[:, 1]]
                    squares = np.sum((way.transform(source) - truth) ** 2, axis=1)
                    weights = way.conditional(source).toarray()
                    between = distances(part.target, part.target)
                    scores = energy_scores(weights, part.target, truth, between)
                    row = (squares, scores, part.weight[own == fold])
                    found.setdefault((title, part.key), []).append(row)
        for (title, key), rows in found.items():
            squares, scores, weight = map(np.concatenate, zip(*rows, strict=True))
            error = np.sqrt(np.average(squares, weights=weight))
            energy = np.average(scores, weights=weight)
            print(f"| {fold_seed} | {title} | {key} | {error:.2f} | {energy:.2f} |", flush=True)


def left_out(arguments: Any) -> None:
    """Day 4 left out: interpolated from days 2 and 6 and clones of both."""
    clouds, known = read_larry(arguments.larry, arguments.components)
    many = {"many_to_many": True, "max_iter": 60}
    for epsilon in (0.1, 0.05, 0.02):
        for cost in ("matrix", "icnn"):
            model = TemporalMap(cost=cost, epsilon=epsilon, **many)
            table = leave_time_out(model, clouds, [2, 4, 6], time=4, **known)
            print(cost, epsilon)
            print(table.to_markdown(), flush=True)


def steps(_: Any) -> None:
    """Time of a training step on one leg, and on several of the same size."""
    rng = np.random.default_rng(0)
    for cost, n in (("icnn", 128), ("icnn", 256), ("matrix", 256)):
        options = FitOptions(cost=cost, epsilon=0.05, max_iter=10_000, validation_fraction=0.0)
        rows = [[i, i] for i in range(50)]
        for count in (2, 4):
            data = [
                FitData(rng.normal(size=(n, 5)), rng.normal(size=(n, 5)), pairs=rows)
                for _ in range(count)
            ]
            ends = [(2 * k, 2 * k + 1) for k in range(count)]
            many = Journey(data, ends, [(0, 1)] * count, names=["leg"] * count)
            tasks = [prepare(options, data[0]), prepare_legs(options, many)]
            print(cost, n, count, f"{ratio(tasks) / count:.3f} of {count} single steps", flush=True)


@double_precision()
def ratio(tasks: list[Any]) -> float:
    """The time of a step of the second task over that of the first, in turns."""
    states = [initial_state(task.problem, task.models[0]) for task in tasks]
    times: list[list[float]] = [[], []]
    for turn in range(12):
        for k, task in enumerate(tasks):
            start = time.perf_counter()
            states[k], info = run_interval(task.problem, states[k], 10)
            info.loss.block_until_ready()
            if turn > 1:  # compiled, and warm
                times[k].append(time.perf_counter() - start)
    return float(np.min(times[1]) / np.min(times[0]))


PARTS: dict[str, Callable[[Any], None]] = {
    "one": one_leg, "ends": ends, "larry": larry, "settings": settings, "left-out": left_out,
    "steps": steps,
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["one", "ends", "steps"])
    parser.add_argument("--larry", help="larry_days_2_4_6.h5ad")
    parser.add_argument("--components", type=int, default=10)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in chosen.parts:
        print(f"\n## {part}")
        PARTS[part](chosen)
