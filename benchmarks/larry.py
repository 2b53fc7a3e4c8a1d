"""Lineage-traced blood progenitors: how good learned maps are on clones that were held out.

The data are day 2 and day 4 of Weinreb et al. (Science 2020, GSE140802) in principal components,
with clones seen on both days: an npz file with x, y, clone_x, clone_y and annotation_y.

    python benchmarks/larry.py larry_day2_day4.npz --parts default --dims 10
    python benchmarks/larry.py larry_day2_day4.npz --parts nested --dims 10
    python benchmarks/larry.py larry_day2_day4.npz --parts coverage losses
    python benchmarks/larry.py larry_day2_day4.npz --report results.jsonl --figure curve.png

Every part prints JSON lines, of which ``--report`` makes tables and a figure. ``default`` and
``nested`` choose settings within each of five folds and judge on the clones of the fold:
`MongeMapCV` without options, and the networks of `select`. ``coverage`` counts how many of these
clones lie within the radii of an ensemble; ``losses`` compares ways to use clones.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from mongefit import EnsembleMap, MongeMap, MongeMapCV
from mongefit.baselines import EuclideanMap, IdentityMap, NearestPair, PairedRidge, TargetMean
from mongefit.losses import Groups, Paired
from mongefit.metrics import Table, evaluate
from mongefit.model_selection import CrossValidation, default_candidates
from mongefit.model_selection._folds import Known, Thinned
from mongefit.model_selection._selecting import best_choice, held_out_path, stopped
from mongefit.plotting import save_figure

EPSILONS = (0.4, 0.2, 0.1, 0.05, 0.02)
N_MAPPED = 1500


def read(path: str, dim: int) -> tuple[Known, np.ndarray]:
    """Both days in the first components, their clones, and the cell types of day 4."""
    with np.load(path) as file:
        x, y = file["x"][:, :dim].astype(float), file["y"][:, :dim].astype(float)
        clone_x, clone_y, types = file["clone_x"], file["clone_y"], file["annotation_y"]
    both = np.intersect1d(clone_x[np.isfinite(clone_x)], clone_y[np.isfinite(clone_y)])
    rows = [
        (i, j, k)
        for k, clone in enumerate(both)
        for i in np.flatnonzero(clone_x == clone)
        for j in np.flatnonzero(clone_y == clone)
    ]
    pairs, clone = np.array(rows)[:, :2], np.array(rows)[:, 2]
    return Known.of(x, y, pairs, 1 / np.bincount(clone)[clone], clone), types


def divergences(fitted: dict, known: Known) -> dict[str, float]:
    """Of mapped cells from the target: cost ‖x − y‖², eps 0.1 of the variance of the target.

    That is twice the divergence of half the cost at half the eps.
    """
    some = np.random.default_rng(0).permutation(len(known.x))[:N_MAPPED]
    table = evaluate(fitted, known.x[some], known.y, epsilon=0.05)
    return {row["name"]: 2 * row["sinkhorn_divergence"] for row in table.rows}


def default(known: Known, types: np.ndarray, dim: int, fold: int) -> dict:
    """Fit without a fold and without options, on all points, and judge on the fold."""
    started = time.perf_counter()
    held_out = known.folds(5, 0) == fold
    rest = known.without(held_out)
    model = MongeMapCV()
    model.fit(rest.x, rest.y, pairs=rest.pairs, pair_weight=rest.weight, clones=rest.clone)
    seconds = time.perf_counter() - started
    return {
        "part": "default", "dim": dim, "fold": fold, "seconds": seconds,
        "choice": {name: str(value) for name, value in model.best_params_.items()},
    } | judge({"learned": model}, known, types, held_out)  # fmt: skip


def nested(known: Known, types: np.ndarray, dim: int, fold: int, max_points: int) -> dict:
    """Choose without a fold, fit without it on all points, and judge on it at every epsilon."""
    started = time.perf_counter()
    folds = known.folds(5, 0)
    held_out = folds == fold
    inner = np.full(len(folds), -1)
    inner[~held_out] = known.without(held_out).folds(None, 1)
    candidates = default_candidates()
    paths = {
        name: held_out_path(model, known, inner, max_points, 0)
        for name, model in candidates.items()
    }
    choice = best_choice(paths)
    weight = np.where(held_out, 0.0, known.weight)
    model = stopped(candidates[choice.name], choice.steps, batch_size=max_points)
    model.fit(known.x, known.y, pairs=known.pairs, pair_weight=weight)
    maps: dict[str, Any] = {"learned": model}
    for epsilon in EPSILONS:
        again = EuclideanMap(model.map_.cost.h, epsilon=epsilon)
        maps[f"learned at {epsilon:g}"] = again.fit(known.x, known.y)
    found = judge(maps, known, types, held_out)
    return {
        "part": "nested", "dim": dim, "fold": fold, "choice": vars(choice),
        "paths": {name: path[::5].tolist() for name, path in paths.items()},
        "seconds": time.perf_counter() - started,
    } | found  # fmt: skip


def judge(maps: dict[str, Any], known: Known, types: np.ndarray, held_out: np.ndarray) -> dict:
    """What fitted maps say of held-out pairs, beside squared Euclidean and trivial predictors."""
    rest = {"pairs": known.pairs[~held_out], "pair_weight": known.weight[~held_out]}
    others: dict[str, Any] = {
        f"squared Euclidean at {epsilon:g}": EuclideanMap(epsilon=epsilon) for epsilon in EPSILONS
    }
    trivial = (PairedRidge, NearestPair, TargetMean, IdentityMap)
    others |= {kind.__name__: kind(many_to_many=True) for kind in trivial}
    maps = maps | {name: each.fit(known.x, known.y, **rest) for name, each in others.items()}
    classify = KNeighborsClassifier(20).fit(known.y, types)
    truth = known.truth[held_out]
    distances = divergences(maps, known)
    found = {}
    for name, fitted in maps.items():
        there = fitted.transform(known.x[known.pairs[held_out, 0]])
        found[name] = {
            "squares": np.sum((there - truth) ** 2, axis=1).tolist(),
            "divergence": distances[name],
            "type": (classify.predict(there) == types[known.pairs[held_out, 1]]).tolist(),
        }
    best = (classify.predict(truth) == types[known.pairs[held_out, 1]]).tolist()
    rows = np.flatnonzero(held_out).tolist()
    return {"rows": rows, "found": found, "type_of_truth": best}


def coverage(known: Known, dim: int, fold: int, max_points: int) -> dict:
    """An ensemble that was not told of a fold: do its radii hold the clones of the fold?"""
    started = time.perf_counter()
    held_out = known.folds(5, 0) == fold
    rest = known.without(held_out)
    ensemble = EnsembleMap(n_members=10, max_points=max_points)
    ensemble.fit(rest.x, rest.y, pairs=rest.pairs, pair_weight=rest.weight, clones=rest.clone)
    sources = known.x[known.pairs[held_out, 0]]
    each = np.stack([member.transform(sources) for member in ensemble.members_])
    distance = np.linalg.norm(ensemble.transform(sources) - known.truth[held_out], axis=1)
    clone = known.clone[held_out]
    return {
        "part": "coverage", "dim": dim, "fold": fold, "radius": ensemble.radius(0.8),
        "distances": [float(distance[clone == one].max()) for one in np.unique(clone)],
        "squares": (distance**2).tolist(),
        "member_squares": np.sum((each - known.truth[held_out]) ** 2, axis=2).tolist(),
        "spread": ensemble.spread(sources).tolist(),
        "informed": ensemble.informed(sources).tolist(),
        "informed_share": float(np.mean(ensemble.informed(known.x))),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def losses(known: Known, dim: int, kind: str, max_points: int) -> dict:
    """One way to use clones: the error on held-out pairs after every training step."""
    started = time.perf_counter()
    folds = known.folds(5, 0)
    model = next(iter(default_candidates().values()))
    if kind == "pairs":
        path = held_out_path(
            model, known._replace(weight=np.ones(len(folds))), folds, max_points, 0
        )
    elif kind == "soft pairs":
        path = held_out_path(model, known, folds, max_points, 0)
    elif kind == "robust pairs":
        model.set_params(losses=[Paired(huber=1.5)])
        path = held_out_path(model, known, folds, max_points, 0)
    else:
        weighted = [Groups()] if kind == "groups" else [Paired(), 1.0 * Groups()]
        path = _grouped_path(model.set_params(losses=weighted), known, folds, max_points)
    choice = best_choice({kind: path})
    return {
        "part": "losses", "dim": dim, "kind": kind, "choice": vars(choice),
        "path": path[::5].tolist(), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _grouped_path(model: MongeMap, known: Known, folds: np.ndarray, max_points: int) -> np.ndarray:
    """As `held_out_path`, with the clones that are not held out as groups."""
    squares = np.zeros(model.max_iter + 1)
    for fold in range(5):
        held_out = folds == fold
        part = Thinned.of(known, max_points, fold)
        labels = [np.full(len(cloud), None, dtype=object) for cloud in (part.x, part.y)]
        for (i, j), clone in zip(part.pairs[~held_out], known.clone[~held_out], strict=True):
            labels[0][i], labels[1][j] = int(clone), int(clone)
        model.fit(
            part.x, part.y, pairs=part.pairs, pair_weight=np.where(held_out, 0.0, known.weight),
            groups=tuple(labels), validation_pairs=part.pairs[held_out],
            source_weight=part.a, target_weight=part.b,
        )  # fmt: skip
        squares += held_out.sum() * model.history_["validation_rmse"] ** 2
    return np.sqrt(squares / len(folds))


def report(known: Known, rows: list[dict], figure: str | None) -> None:
    """Tables of what was found, and the curve of RMSE against divergence."""
    judged = sorted({(row["part"], row["dim"]) for row in rows if "found" in row})
    for part, dim in judged:
        those = [row for row in rows if (row["part"], row["dim"]) == (part, dim)]
        tabulate(known, those, f"{part}, {dim} components")
        if part == "nested" and dim == 10 and figure is not None:
            draw(known, those, figure)
    covered = [row for row in rows if row["part"] == "coverage"]
    if covered:
        inside = [d <= row["radius"] for row in covered for d in row["distances"]]
        print(f"\nWithin the 80 % radius: {sum(inside)} of {len(inside)} held-out clones.")
        for name, key in (("mean of the ensemble", "squares"), ("its members", "member_squares")):
            squares = np.concatenate([np.ravel(row[key]) for row in covered])
            print(f"RMSE, {name}: {np.sqrt(squares.mean()):.2f}")
    for row in rows:
        if row["part"] == "losses":
            print(
                f"{row['kind']}: {row['choice']['rmse']:.2f} after {row['choice']['steps']} steps"
            )


def tabulate(known: Known, rows: list[dict], title: str) -> None:
    """RMSE, divergence and cell types of every map, with a paired bootstrap over clones."""
    held_out = np.concatenate([row["rows"] for row in rows]).astype(int)
    squares = {
        name: np.concatenate([row["found"][name]["squares"] for row in rows])
        for name in rows[0]["found"]
    }
    outcome = CrossValidation(
        Table((), {}), squares, (), known.clone[held_out], np.zeros(len(held_out), int)
    )
    print(f"\n{title}, {len(held_out)} pairs in {len(rows)} folds:\n")
    print("| | RMSE | divergence | cell type | RMSE of the learned map minus this |")
    print("|---|---|---|---|---|")
    for name in squares:
        of_map = [row["found"][name] for row in rows]
        type_found = np.mean(np.concatenate([each["type"] for each in of_map]))
        apart = outcome.difference(name)
        interval = f"{apart.mean:.2f} [{apart.low:.2f}, {apart.high:.2f}]"
        print(
            f"| {name} | {outcome.rmse(name):.2f} | "
            f"{np.mean([each['divergence'] for each in of_map]):.1f} | {type_found:.0%} | "
            f"{'–' if name == 'learned' else interval} |"
        )
    truth = np.mean(np.concatenate([row["type_of_truth"] for row in rows]))
    print(f"\nCell type of the true cell by the same classifier: {truth:.0%}.")


def draw(known: Known, rows: list[dict], path: str) -> None:
    """RMSE against divergence, over epsilon."""
    from mongefit.plotting._figures import BLACK, BLUE, GREY, VERMILLION, new_axes

    def both(name: str) -> tuple[float, float]:
        of_map = [row["found"][name] for row in rows]
        squares = np.concatenate([each["squares"] for each in of_map])
        return float(np.mean([each["divergence"] for each in of_map])), float(
            np.sqrt(squares.mean())
        )

    ax = new_axes((5.0, 3.8))
    for kind, colour, marker in (
        ("learned", BLUE, "o"),
        ("squared Euclidean", VERMILLION, "s"),
    ):
        points = np.array([both(f"{kind} at {epsilon:g}") for epsilon in EPSILONS])
        ax.plot(*points.T, color=colour, marker=marker, label=kind)
        for epsilon, point in zip(EPSILONS, points, strict=True):
            ax.annotate(f"{epsilon:g}", point, (4, 5), textcoords="offset points", fontsize=7)
    for kind, label, marker in (
        ("PairedRidge", "ridge on pairs", "^"),
        ("TargetMean", "target mean", "x"),
    ):
        ax.plot(
            *both(kind), color=BLACK if kind == "PairedRidge" else GREY, marker=marker,
            linestyle="none", label=label,
        )  # fmt: skip
    ax.set_xscale("log")
    ticks = (2, 5, 10, 20, 50)
    ax.set_xticks(ticks, labels=list(map(str, ticks)))
    ax.minorticks_off()
    ax.set_xlabel("divergence from the target")
    ax.set_ylabel("RMSE, held-out clones")
    ax.legend(frameon=False, fontsize="small")
    save_figure(ax, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--parts", nargs="+", default=["default", "nested", "coverage", "losses"])
    parser.add_argument("--dims", nargs="+", type=int, default=[10])
    parser.add_argument("--folds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    kinds = ["pairs", "soft pairs", "robust pairs", "groups", "both"]
    parser.add_argument("--kinds", nargs="+", default=kinds)
    parser.add_argument("--max-points", type=int, default=512)
    parser.add_argument("--report", help="JSON lines to make tables of")
    parser.add_argument("--figure", help="PNG to draw with --report")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.report is not None:
        with open(options.report, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.startswith("{")]
        report(read(options.data, 10)[0], rows, options.figure)
        return
    for dim in options.dims:
        known, types = read(options.data, dim)
        size = options.max_points
        for fold in options.folds:
            if "default" in options.parts:
                print(json.dumps(default(known, types, dim, fold)), flush=True)
            if "nested" in options.parts:
                print(json.dumps(nested(known, types, dim, fold, size)), flush=True)
            if "coverage" in options.parts:
                print(json.dumps(coverage(known, dim, fold, size)), flush=True)
        if "losses" in options.parts:
            for kind in options.kinds:
                print(json.dumps(losses(known, dim, kind, size)), flush=True)


if __name__ == "__main__":
    main()
