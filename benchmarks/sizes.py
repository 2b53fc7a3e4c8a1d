"""Training steps between larger clouds: time and memory against the number of points.

Clouds of 10 features that look like cells, 109 known pairs, an ICNN (64, 64, 64), default epsilon.
Every size is one compiled program; a step is the mean over a call, the median of three such calls
after a first, cold one.

    python benchmarks/sizes.py --sizes 128 256 512 1024 --plot growth.png

Sizes are measured in ascending order, because only the peak of all memory so far can be asked for:
on an accelerator that of its own memory, else that of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from mongefit._convex import ICNN
from mongefit._costs import Cost
from mongefit._numerics import cast
from mongefit._runtime import double_precision
from mongefit._training import Batches, Model, Problem, Schedule, initial_state, run_interval
from mongefit._transport import Units
from mongefit.losses import Paired, Pairs
from mongefit.penalties import CostSize

DIM, KNOWN, LAYERS, EPSILON = 10, 109, (64, 64, 64), 0.01


def clouds(n: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two clouds of eight kinds each, along components of falling variance, and known pairs."""
    rng = np.random.default_rng(seed)
    spread = 0.8 ** np.arange(DIM)
    centres, moves = spread * rng.normal(size=(2, 8, DIM))
    noise = rng.normal(size=(3, n, DIM))
    kind, other = rng.integers(8, size=(2, n))
    X = centres[kind] + 0.4 * spread * noise[0]
    Y = centres[other] + moves[other] + 0.4 * spread * noise[1]
    k = min(KNOWN, n // 2)
    Y[:k] = X[:k] + moves[kind[:k]] + 0.05 * spread * noise[2, :k]
    return X, Y, np.stack([np.arange(k)] * 2, axis=1)


def problem(n: int, *, dtype: str, batch_size: int | None = None):
    """What `MongeMap` trains on, its state before the first step, and its batches."""
    X, Y, table = clouds(n)
    weight = np.full(n, 1 / n)
    units = Units.of(X, Y, weight, weight)
    made = Problem(
        units.into(X), units.into(Y), jnp.asarray(weight), jnp.asarray(weight),
        pairs=Pairs.of(table, jnp.ones(len(table))),
        subsets=None,
        weight=[1.0, 1e-7],
        n_losses=1,
        epsilon=Schedule(EPSILON, EPSILON),
        learning_rate=Schedule(0.05, 0.05),
        diffeo_learning_rate=Schedule(0.005, 0.005),
        max_iter=500,
        pair_dtype="float32" if dtype == "mixed" else None,
    )  # fmt: skip
    model = Model(Cost(ICNN(DIM, LAYERS, key=jr.key(0))), (Paired(), CostSize()))
    if dtype == "float32":
        made, model = cast((made, model), "float32")
    batches = None if batch_size is None else Batches.of(made, batch_size, seed=0)
    return made, initial_state(made, model, batches), batches


def peak_memory() -> int:
    """The most bytes used so far."""
    stats = jax.devices()[0].memory_stats()
    if stats is not None:
        return stats["peak_bytes_in_use"]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(n: int, *, dtype: str, steps: int, batch_size: int | None = None) -> dict:
    """One size: seconds per step, of compilation, and the peak of memory."""
    with double_precision():
        made, state, batches = problem(n, dtype=dtype, batch_size=batch_size)
        start = time.perf_counter()
        state, _ = jax.block_until_ready(run_interval(made, state, steps, batches))
        first = time.perf_counter() - start
        times = []
        for _ in range(3):
            start = time.perf_counter()
            _, infos = jax.block_until_ready(run_interval(made, state, steps, batches))
            times.append(time.perf_counter() - start)
    return {
        "n": n, "dtype": dtype, "batch_size": batch_size, "steps": steps,
        "seconds": float(np.median(times)) / steps,
        "first_call": first,
        "memory": peak_memory(),
        "dual_iterations": np.asarray(infos.dual_iterations).tolist(),
        "applied": int(np.sum(np.asarray(infos.applied))),
        "loss": float(infos.loss[-1]),
        "device": jax.devices()[0].device_kind,
    }  # fmt: skip


def growth(sizes: list[int], *, dtype: str, steps: int) -> Iterator[dict]:
    for n in sorted(sizes):
        yield measure(n, dtype=dtype, steps=steps if n < 10_000 else min(steps, 5))


def power_law(n: np.ndarray, value: np.ndarray, smallest: int = 2048) -> tuple[float, float]:
    """Exponent and factor of value = factor · n^exponent, from where constant costs do not show."""
    late = n >= min(smallest, np.sort(n)[-2])
    exponent, log_factor = np.polyfit(np.log(n[late]), np.log(value[late]), 1)
    return float(exponent), float(np.exp(log_factor))


def plot(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    n = np.array([row["n"] for row in rows])
    seconds, memory = (np.array([row[key] for row in rows]) for key in ("seconds", "memory"))
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    late = n[n >= min(2048, np.sort(n)[-2])]
    exponent, factor = power_law(n, seconds)
    lines = (
        (seconds, "seconds per step", factor * late**exponent, f"fit: n^{exponent:.2f}"),
        (memory / 1e9, "peak memory, GB", 5 * 8e-9 * late**2, "five n × n matrices"),
    )
    # Labels of sizes that are close to each other would overlap.
    apart = [0, *(k for k in range(1, len(n)) if n[k] > 1.5 * n[k - 1])]
    for axis, (value, label, line, name) in zip(axes, lines, strict=True):
        axis.loglog(n, value, "o", color="tab:blue", label="measured")
        axis.loglog(late, line, "--", color="0.4", label=name)
        axis.set(xlabel="n, points in each cloud", ylabel=label)
        axis.set_xticks(n[apart], [f"{size:,}" for size in n[apart]], rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(f"{rows[0]['device']}, {rows[0]['dtype']}", fontsize=10)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 256, 512, 1024])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=["float64", "mixed", "float32"], default="mixed")
    parser.add_argument("--out", help="a JSON file for the rows")
    parser.add_argument("--plot", help="a picture of the growth")
    parser.add_argument("--from-rows", help="draw rows that were written before")
    options = parser.parse_args()
    if options.from_rows:
        rows = json.loads(Path(options.from_rows).read_text())
    else:
        rows = []
        for row in growth(options.sizes, dtype=options.dtype, steps=options.steps):
            print(json.dumps(row), flush=True)
            rows.append(row)
            if options.out:
                Path(options.out).write_text(json.dumps(rows, indent=1))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
