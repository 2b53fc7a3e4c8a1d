"""Learned costs against known truths: L2-UVP of every method on problems whose true map is known.

Problems come from `mongefit.datasets.draw_ground_truth`: squared Euclidean has at least twice the
true cost's error on them. A method is fitted on n paired points, of which all or a few pairs are
known, at every epsilon of a grid; the epsilon is chosen on validation pairs and the error measured
on new points. Nothing is dropped: a fit that fails counts, and is shown as "failed".

    python benchmarks/ground_truth.py --dims 2 5 10 --out results.json

The full table takes a GPU, or hours; `--dtype mixed` helps a CPU, and `--quick` is a small version
for any machine.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit import MongeMap, build_map, datasets
from mongefit.baselines import (
    CouplingFit,
    ElasticMap,
    EuclideanMap,
    IdentityMap,
    InverseOT,
    MongeGapMap,
    NearestPair,
    PairedRidge,
    TargetMean,
)
from mongefit.metrics import l2_uvp
from mongefit.penalties import CostSize, DirichletEnergy

EPSILONS = (0.1, 0.03, 0.01, 0.003, 0.001)
# How learned costs are trained, without flows and with them. Validation chooses the setting too.
SETTINGS: dict[bool, dict[str, dict[str, Any]]] = {
    False: {"short": {}},
    True: {
        "short": {"learning_rate": 0.02},
        "long": {
            "learning_rate": (0.02, 0.001),
            "diffeo_learning_rate": (0.01, 0.0005),
            "penalties": [1e-7 * CostSize(), 1e-3 * DirichletEnergy()],
        },
    },
}


class TrueCostMap:
    """The entropic map of the true cost, in the units of the data."""

    def __init__(self, cost: Any, epsilon: float):
        self.cost, self.epsilon = cost, epsilon

    def fit(self, X, Y, **_):
        with jax.enable_x64(True):
            self.map_, dual = eqx.filter_jit(build_map)(
                self.cost, jnp.asarray(X), jnp.asarray(Y), epsilon=jnp.asarray(self.epsilon)
            )
        if not dual.converged:
            raise RuntimeError(f"dual not solved at epsilon {self.epsilon}")
        return self

    def transform(self, X):
        with jax.enable_x64(True):
            return np.asarray(eqx.filter_jit(self.map_.forward)(jnp.asarray(X)))


def methods(
    problem, dim: int, flows: bool, options: argparse.Namespace
) -> dict[str, list[Callable[[], Any]]]:
    """Every method with its candidates, of which validation chooses."""
    shared = {"symmetric": False, "dtype": options.dtype}
    if flows:
        shared["diffeo"] = "separate"
    learned = [
        {**shared, **SETTINGS[flows][name], "epsilon": (0.1, e), "max_iter": options.steps[name]}
        for name in options.settings
        if name in SETTINGS[flows]
        for e in options.learned_epsilons
    ]
    return {
        "true cost": [lambda e=e: TrueCostMap(problem.cost, e) for e in EPSILONS],
        "squared Euclidean": [lambda e=e: EuclideanMap(epsilon=e) for e in EPSILONS],
        "learned (MongeMap)": [lambda o=o: MongeMap(**o) for o in learned],
        "CouplingFit": [lambda o=o: CouplingFit(**o) for o in learned],
        "MongeGapMap": [
            lambda: MongeGapMap(epsilon=0.03, max_iter=options.steps["short"], learning_rate=0.01)
        ],
        "InverseOT, powers": [lambda e=e: InverseOT("powers", epsilon=e) for e in (0.1, 0.03)],
        "InverseOT, quadratic": [
            lambda e=e: InverseOT("quadratic", epsilon=e) for e in (0.1, 0.03)
        ],
        "ElasticMap": [
            lambda e=e: ElasticMap(max(1, dim // 2), epsilon=e, max_iter=100) for e in (0.03, 0.01)
        ],
        "identity": [IdentityMap],
        "target mean": [TargetMean],
        "ridge on pairs": [PairedRidge],
        "nearest pair": [NearestPair],
    }


def run_cell(family: str, dim: int, flows: bool, options: argparse.Namespace) -> list[dict]:
    """All methods on one problem, with all and with few pairs known."""
    drawn = datasets.draw_ground_truth(family, dim, seed=options.seed, flows=flows, n=options.n)
    problem = drawn.problem
    X, Y = problem.sample(options.n, 101)
    order = np.random.default_rng(0).permutation(options.n)
    shuffled = Y[order]
    pairs = np.stack([order, np.arange(options.n)], axis=1)
    X_val, Y_val = problem.sample(max(options.n // 2, 32), 102)
    X_new, Y_new = problem.sample(options.n, 103)
    rows = []
    for known in options.known or (options.n, options.few):
        some = pairs[np.random.default_rng(1).permutation(options.n)[:known]]
        for name, candidates in methods(problem, dim, flows, options).items():
            if options.only and name not in options.only:
                continue
            started = time.perf_counter()
            tried = []
            for build in candidates:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        model = build().fit(X, shuffled, pairs=some)
                        error = l2_uvp(model.transform(X_val), Y_val, Y_val)
                except (RuntimeError, ValueError) as problem_met:
                    tried.append((np.inf, None, str(problem_met)[:200]))
                else:
                    tried.append((error, model, ""))
            best = min(tried, key=lambda entry: entry[0])
            model = best[1]
            row = {
                "family": family, "dim": dim, "flows": flows, "problem_seed": problem.seed,
                "known": known, "method": name,
                "uvp": None if model is None else l2_uvp(model.transform(X_new), Y_new, Y_new),
                "validation_uvp": [round(float(entry[0]), 4) for entry in tried],
                "epsilon": None if model is None else getattr(model, "epsilon", None),
                "skipped": getattr(model, "diagnostics_", {}).get("skipped_steps", 0),
                "failed": [entry[2] for entry in tried if entry[2]],
                "seconds": round(time.perf_counter() - started, 1),
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", default=["power", "mahalanobis", "icnn"])
    parser.add_argument("--dims", nargs="+", type=int, default=[2, 5, 10])
    parser.add_argument("--flows", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--only", nargs="+", help="methods by name")
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--few", type=int, default=32)
    parser.add_argument("--known", nargs="+", type=int, help="numbers of known pairs")
    parser.add_argument("--dtype", default="float64", help="precision of the learned costs")
    parser.add_argument(
        "--learned-epsilons", nargs="+", type=float, default=[0.1, 0.03, 0.01],
        help="where training may end; validation chooses",
    )  # fmt: skip
    parser.add_argument(
        "--settings", nargs="+", choices=["short", "long"], default=["short", "long"]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="64 points in 2-d, 100 steps")
    parser.add_argument("--out", default="ground-truth.json")
    options = parser.parse_args()
    options.steps = {"short": 300, "long": 1000}
    if options.quick:
        options.dims, options.n, options.few, options.flows = [2], 64, 16, "no"
        options.steps = {"short": 100, "long": 300}
    arrangements = {"no": [False], "yes": [True], "both": [False, True]}[options.flows]
    rows: list[dict] = []
    for flows in arrangements:
        for dim in options.dims:
            for family in options.families:
                rows += run_cell(family, dim, flows, options)
                Path(options.out).write_text(json.dumps(rows, indent=1))
    print(to_markdown(rows))


def to_markdown(rows: list[dict]) -> str:
    """One line per method, one column per cell."""
    cells = list(dict.fromkeys((r["family"], r["dim"], r["flows"], r["known"]) for r in rows))
    found = {(r["method"], (r["family"], r["dim"], r["flows"], r["known"])): r["uvp"] for r in rows}
    names = [
        f"{family} d={dim}{' flows' if flows else ''}, {known} pairs"
        for family, dim, flows, known in cells
    ]
    lines = ["| method | " + " | ".join(names) + " |", "|---" * (len(cells) + 1) + "|"]
    for method in dict.fromkeys(r["method"] for r in rows):
        values = [found.get((method, cell)) for cell in cells]
        shown = ["failed" if value is None else f"{value:.3g}" for value in values]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
