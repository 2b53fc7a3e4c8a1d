"""How points move, without pairs: in a plane, or in two directions, in three dimensions.

For every kind and seed, `MongeMap` with `LowRank(2)` or `Directional(2)`, and `TargetFit`, is
trained on `datasets.displaced` and measured on new points of the same problem, beside the map of
the squared Euclidean cost. A run that misses a bar is named below the table; none is left out.

    python benchmarks/displacements.py --out results.json

One run takes about a minute on one core; seconds are those of the CPU, compilation included.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np

from mongefit import MongeMap, datasets
from mongefit.losses import Directional, LowRank, TargetFit
from mongefit.metrics import sinkhorn_divergence

KINDS = ("low_rank", "directional")
# What a learned map should reach: third share, share within 15°, ratio of divergences.
THIRD, WITHIN, RATIO = 0.02, 0.95, 1.5


def measure(mapped, source, target, directions) -> dict[str, float | None]:
    """Shares of the squared displacements, their cosines, and the distance from the target."""
    moves = mapped - source
    energy = np.linalg.svd(moves, compute_uv=False) ** 2
    found = {
        "third": energy[2] / energy.sum(),
        "within": None,
        "cosine": None,
        "divergence": float(sinkhorn_divergence(mapped, target)),
    }
    if directions is not None:
        length = np.linalg.norm(moves, axis=1)
        cosine = np.max(moves @ directions.T, axis=1) / length
        close = cosine >= np.cos(np.deg2rad(15))
        found["within"] = np.sum(length[close] ** 2) / np.sum(length**2)
        found["cosine"] = np.mean(cosine)
    return {key: None if value is None else float(value) for key, value in found.items()}


def run(kind: str, seed: int, options: argparse.Namespace) -> dict:
    """One problem: the learned map and that of the squared Euclidean cost."""
    X, Y = datasets.displaced(options.n, kind, seed=seed)
    new_X, new_Y = datasets.displaced(options.n, kind, seed=1000 + seed)
    motion = LowRank(2) if kind == "low_rank" else Directional(2)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned = MongeMap(
            hidden_layer_sizes=(64, 64),
            alpha=0.01,
            losses=[motion, TargetFit()],
            max_iter=options.steps,
            random_state=seed,
        ).fit(X, Y)
        seconds = time.process_time() - started
        euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)
    directions = None
    if kind == "directional":
        directions = np.asarray(learned.losses_[0].unit_directions)
    row = {
        "kind": kind,
        "seed": seed,
        "learned": measure(learned.transform(new_X), new_X, new_Y, directions),
        "euclidean": measure(euclidean.transform(new_X), new_X, new_Y, directions),
        "skipped": int(learned.diagnostics_["skipped_steps"]),
        "cpu_seconds": round(seconds, 1),
    }
    row["missed"] = missed(row)
    return row


def missed(row: dict) -> list[str]:
    """The bars that a run does not reach."""
    found, other = row["learned"], row["euclidean"]
    reached = {
        f"third share ≤ {THIRD:.0%}": found["third"] <= THIRD,
        f"within 15° ≥ {WITHIN:.0%}": found["within"] is None or found["within"] >= WITHIN,
        f"divergence ≤ {RATIO} × squared Euclidean's": found["divergence"]
        <= RATIO * other["divergence"],
    }
    return [bar for bar, well in reached.items() if not well]


def to_markdown(rows: list[dict]) -> str:
    """Means over the seeds, and below them the runs that miss a bar."""
    lines = [
        "| motion | map | third share | within 15° | mean cosine | divergence | skipped | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        those = [row for row in rows if row["kind"] == kind]
        for name in ("euclidean", "learned"):
            mean = {
                key: None if value is None else np.mean([row[name][key] for row in those])
                for key, value in those[0][name].items()
            }
            cells = [
                f"{mean['third']:.2%}",
                "–" if mean["within"] is None else f"{mean['within']:.1%}",
                "–" if mean["cosine"] is None else f"{mean['cosine']:.3f}",
                f"{mean['divergence']:.3f}",
                str(sum(row["skipped"] for row in those)) if name == "learned" else "–",
                f"{np.mean([row['cpu_seconds'] for row in those]):.0f}"
                if name == "learned"
                else "–",
            ]
            title = "learned" if name == "learned" else "squared Euclidean"
            lines.append(f"| {kind} | {title} | " + " | ".join(cells) + " |")
    late = [f"{r['kind']} seed {r['seed']}: {', '.join(r['missed'])}" for r in rows if r["missed"]]
    return "\n".join([*lines, "", "Missed: " + ("; ".join(late) if late else "none") + "."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", default="displacements.json")
    options = parser.parse_args()
    rows: list[dict] = []
    for seed in options.seeds:
        for kind in options.kinds:
            rows.append(run(kind, seed, options))
            print(json.dumps(rows[-1]), flush=True)
            Path(options.out).write_text(json.dumps(rows, indent=1))
    print(to_markdown(rows))


if __name__ == "__main__":
    main()
