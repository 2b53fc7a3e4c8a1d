"""Mass that grows and dies: growth of two kinds, outliers, and blood progenitors.

    python benchmarks/mass.py results.jsonl --parts growth outliers
    python benchmarks/mass.py results.jsonl --parts larry --larry larry_day2_day4.npz \
--growth larry_fates_growth.npz
    python benchmarks/mass.py results.jsonl --report

Every fit adds a line to the results, and what is there is not done again. ``--quick`` leaves out
the candidates that are trained in steps, and ``--report`` prints tables. All settings are chosen by
known pairs alone (`MongeMapCV`), and judged where the true map is known or on held-out clones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mongefit import MongeMapCV
from mongefit._fitting import conditional, corrections
from mongefit.metrics import rmse, sinkhorn_divergence
from mongefit.metrics._energy import energy_scores
from mongefit.model_selection._folds import Known, Thinned
from mongefit.model_selection._training import Trainer

SEVERAL = (1.0, 0.9, 0.7)
DISTANCES = (10, 15, 21, 60)
# Births a day at the least and at the greatest score: the range of the birth rates of moscot.
LEAST_RATE, MOST_RATE = 0.3, 1.7
LARRY = {
    "equal weights": {},
    "tau_a chosen": {"tau_a": SEVERAL},
    "prior growth": {"prior": True},
    "prior growth, tau_a chosen": {"prior": True, "tau_a": SEVERAL},
}


def turned(x: np.ndarray) -> np.ndarray:
    """The true map of both made-up problems: a turn by 29 degrees, and a shift."""
    c, s = np.cos(0.5), np.sin(0.5)
    return x @ np.array([[c, s], [-s, c]]) + [0.0, 3.0]


def growth(draw: int, name: str) -> dict[str, Any]:
    """200 points of two kinds, of which one halves and one doubles; 40 sources are known."""
    rng = np.random.default_rng(draw)
    kind = np.arange(200) % 2
    x = rng.normal(size=(200, 2)) + 6.0 * kind[:, None]
    copies = np.where(kind == 1, 2, 0)
    copies[rng.permutation(np.flatnonzero(kind == 0))[:50]] = 1
    source = np.repeat(np.arange(200), copies)
    y = turned(x[source]) + 0.05 * rng.normal(size=(len(source), 2))
    known = rng.permutation(np.unique(source))[:40]
    pairs = np.stack([source, np.arange(len(y))], axis=1)[np.isin(source, known)]
    new = np.random.default_rng(1000 + draw).normal(size=(500, 2))
    new = new + 6.0 * (np.arange(500) % 2)[:, None]
    model, found = timed({"tau_a": SEVERAL} if name == "chosen" else {}, x, y, pairs)
    means = {k: model.growth_[kind == k].mean() for k in (0, 1)}
    true = {k: (copies * len(x) / len(y))[kind == k].mean() for k in (0, 1)}
    return found | {
        "rmse": rmse(model.transform(new), turned(new)),
        "growth_off": max(abs(means[k] / true[k] - 1) for k in (0, 1)),
    }


def outliers(draw: int, distance: float, name: str) -> dict[str, Any]:
    """200 points, 40 pairs known, and 10 far points on both sides in opposite directions."""
    rng = np.random.default_rng(draw)
    x = rng.normal(size=(200, 2))
    y = turned(x) + 0.1 * rng.normal(size=x.shape)
    pairs = np.stack([rng.permutation(200)[:40]] * 2, axis=1)
    far = distance / np.sqrt(2) + rng.normal(size=(2, 10, 2))
    X, Y = (x, y) if distance == 0 else (np.r_[x, -far[0]], np.r_[y, far[1]])
    taus = {"tau_a": SEVERAL, "tau_b": SEVERAL} if name == "chosen" else {}
    model, found = timed(taus, X, Y, pairs)
    new = np.random.default_rng(1000 + draw).normal(size=(500, 2))
    return found | {
        "rmse": rmse(model.transform(new), turned(new)),
        "rmse_fitted": rmse(model.transform(x), turned(x)),
    }


def larry(known: Known, score: np.ndarray, fold: int, name: str, size: int) -> dict[str, Any]:
    """Blood progenitors, day 2 to day 4, judged on a fifth of the clones."""
    options = dict(LARRY[name])
    held_out = known.folds(5, 0) == fold
    rest = known.without(held_out)
    if options.pop("prior", False):
        low, high = np.quantile(score, [0.01, 0.99])
        share = np.clip((score - low) / (high - low), 0, 1)
        grown = np.exp(2 * (LEAST_RATE + (MOST_RATE - LEAST_RATE) * share))
        rest = rest._replace(a=grown / grown.sum())
    # Held-out clones are not among the points that are drawn because they are in pairs.
    part = Thinned.of(rest, size, fold)
    model, found = timed(
        options, part.x, part.y, part.pairs, pair_weight=rest.weight, clones=rest.clone,
        source_weight=part.a, target_weight=part.b,
    )  # fmt: skip
    rows, columns = known.pairs[held_out].T
    x, truth, weight = known.x[rows], known.y[columns], known.weight[held_out]
    mapped = model.transform(x)
    moved = corrections(model.map_, x)
    energy = energy_scores(conditional(model.map_, x), part.y, truth - moved)
    # What arrives, by the mass that each point sends.
    sent = part.a * model.growth_
    mapped_all = model.transform(part.x)
    return found | {
        "clone": known.clone[held_out].tolist(),
        "weight": weight.tolist(),
        "squares": np.sum((mapped - truth) ** 2, axis=1).tolist(),
        "energy": energy.tolist(),
        "divergence": float(
            sinkhorn_divergence(
                mapped_all, part.y, source_weight=sent / sent.sum(), target_weight=part.b
            )
        ),
    }


def timed(options: dict[str, Any], *data: Any, **told: Any) -> tuple[MongeMapCV, dict[str, Any]]:
    """A fit and what was chosen."""
    started = time.perf_counter()
    pairs = {"pairs": data[2]}
    model = MongeMapCV(**options).fit(*data[:2], **pairs, **told)
    best = model.best_params_
    return model, {
        "seconds": round(time.perf_counter() - started, 1),
        "tau_a": best.get("tau_a", 1.0),
        "tau_b": best.get("tau_b", 1.0),
        "choice": next(row["what"] for row in model.report_.rows if row["chosen"]),
        "died": model.died_,
        "unexplained": model.unexplained_,
    }


def tasks(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
    """What there is to do, as keys of the results, and what does it."""
    if "growth" in options.parts:
        for draw, name in itertools.product(options.draws, ("chosen", "balanced")):
            yield {"part": "growth", "draw": draw, "name": name}, growth
    if "outliers" in options.parts:
        for draw, distance, name in itertools.product(
            options.draws, options.distances, ("chosen", "balanced")
        ):
            key = {"part": "outliers", "draw": draw, "distance": distance, "name": name}
            yield key, outliers
    if "larry" in options.parts:
        from larry import read

        known, _ = read(options.larry, 10)
        with np.load(options.growth) as file:
            score = np.asarray(file["growth_x"], float)

        def one(fold: int, name: str) -> dict[str, Any]:
            return larry(known, score, fold, name, options.size)

        for fold, name in itertools.product(options.folds, LARRY):
            yield {"part": "larry", "fold": fold, "name": name}, one


def report(rows: list[dict[str, Any]]) -> None:
    """Tables of what was found."""

    def of(**key: Any) -> list[dict[str, Any]]:
        return [row for row in rows if all(row.get(name) == value for name, value in key.items())]

    def spread(values: Any) -> str:
        values = np.asarray(list(values), float)
        return f"{values.mean():.3g} [{values.min():.3g}, {values.max():.3g}]"

    if of(part="growth"):
        print("| two kinds | RMSE, new points | growth, off by | died | tau_a |")
        print("|---|---:|---:|---:|---|")
        for name in ("balanced", "chosen"):
            found = of(part="growth", name=name)
            off, died = (spread(row[key] for row in found) for key in ("growth_off", "died"))
            taus = ", ".join(f"{row['tau_a']:g}" for row in found)
            print(f"| {name} | {spread(row['rmse'] for row in found)} | {off} | {died} | {taus} |")
    if of(part="outliers"):
        print("\n| outliers at | fit | RMSE of the others | over that without | new points | tau |")
        print("|---|---|---:|---:|---:|---|")
        for distance, name in itertools.product((0, *DISTANCES), ("balanced", "chosen")):
            found = of(part="outliers", distance=distance, name=name)
            clean = {row["draw"]: row for row in of(part="outliers", distance=0, name=name)}
            if not found:
                continue
            ratios = [
                spread(row[key] / clean[row["draw"]][key] for row in found)
                for key in ("rmse_fitted", "rmse")
            ]
            taus = "; ".join(f"{row['tau_a']:g}, {row['tau_b']:g}" for row in found)
            mean = spread(row["rmse_fitted"] for row in found)
            print(f"| {distance or 'none'} | {name} | {mean} | {' | '.join(ratios)} | {taus} |")
    if of(part="larry"):
        print("\n| blood progenitors | RMSE | energy score | divergence | died | tau_a |")
        print("|---|---:|---:|---:|---:|---|")
        for name in LARRY:
            found = of(part="larry", name=name)
            if not found:
                continue
            first = of(part="larry", name="equal weights")[: len(found)]
            weight, clone = (
                np.concatenate([row[key] for row in found]) for key in ("weight", "clone")
            )
            cells = []
            for key, power in (("squares", 0.5), ("energy", 1.0)):
                mine, other = (
                    np.concatenate([row[key] for row in rows]) for rows in (found, first)
                )
                cells.append(f"{np.average(mine, weights=weight) ** power:.2f}")
                if found != first:
                    cells[-1] += f" ({difference(mine, other, weight, clone, power)})"
            taus = ", ".join(f"{row['tau_a']:g}" for row in found)
            others = (spread(row[key] for row in found) for key in ("divergence", "died"))
            print(f"| {name} | {' | '.join(cells)} | {' | '.join(others)} | {taus} |")


def difference(
    mine: np.ndarray, other: np.ndarray, weight: np.ndarray, clone: np.ndarray, power: float
) -> str:
    """A 95 % interval of mean(mine)^power − mean(other)^power, over resampled clones."""
    _, clone = np.unique(clone, return_inverse=True)
    total = np.bincount(clone, weight)
    drawn = np.random.default_rng(0).multinomial(
        len(total), np.full(len(total), 1 / len(total)), size=10_000
    )
    first, second = (
        (drawn @ np.bincount(clone, weight * each) / (drawn @ total)) ** power
        for each in (mine, other)
    )
    low, high = np.quantile(first - second, [0.025, 0.975])
    return f"{low:+.2f} to {high:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--parts", nargs="+", default=["growth", "outliers"])
    parser.add_argument("--larry", help="larry_day2_day4.npz")
    parser.add_argument("--growth", help="larry_fates_growth.npz")
    parser.add_argument("--size", type=int, default=1200, help="cells of each day")
    parser.add_argument("--distances", nargs="+", type=int, default=[0, *DISTANCES])
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--quick", action="store_true", help="leave out what is trained in steps")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.quick:
        Trainer.judge = lambda *_: []  # type: ignore[method-assign]
    warnings.simplefilter("ignore")
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    rows = [json.loads(line) for line in lines]
    if options.report:
        report(rows)
        return
    for key, work in tasks(options):
        if any(key.items() <= row.items() for row in rows):
            continue
        arguments = {name: value for name, value in key.items() if name != "part"}
        found = work(**arguments)
        with options.results.open("a") as file:
            file.write(json.dumps(key | found) + "\n")


if __name__ == "__main__":
    main()
