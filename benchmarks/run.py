"""What a training step costs, in multiples of one evaluation of h over all pairs.

Run with `make bench`. Ratios are measured in one run, since machines differ and are noisy; the
table is printed and stored in benchmarks/results with the machine and the versions.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mongefit import MongeMap, datasets
from mongefit.costs import pairwise_value_and_gradient

REPEATS = 7


def median_time(function, *arguments) -> float:
    """Median seconds of a call, after one that compiles.

    Arguments are passed in: what a compiled function closes over is folded into it as constants.
    """
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure() -> dict[str, float]:
    X, Y = datasets.t_shape(128, seed=0)
    pairs = np.stack([np.arange(128)] * 2, axis=1)
    settings = {"hidden_layer_sizes": (32, 32), "epsilon": (0.05, 0.002)}

    start = time.perf_counter()
    MongeMap(**settings, max_iter=9).fit(X, Y, pairs=pairs)
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    model = MongeMap(**settings, max_iter=199).fit(X, Y, pairs=pairs)
    step = (time.perf_counter() - start) / 200

    with jax.enable_x64(True):
        fitted = model.map_
        evaluation = median_time(
            eqx.filter_jit(pairwise_value_and_gradient), fitted.cost.h, fitted.x, fitted.y
        )
        square = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 1024)))
        matmul_rate = 2 * 1024**3 / median_time(jax.jit(jnp.matmul), square, square)
    # Both signs of z, one hidden-to-hidden and two passthrough layers, forward and backward.
    operations = 2 * 128**2 * 2 * 2 * (32 * 32 + 2 * 2 * 32 + 32)
    start = time.perf_counter()
    model.transform(X)
    transform = time.perf_counter() - start
    return {
        "first fit of 10 steps, with compilation (s)": compiling,
        "training step (ms)": 1e3 * step,
        "value and gradient of h over all pairs (ms)": 1e3 * evaluation,
        "training step / evaluation": step / evaluation,
        "evaluation's share of the matrix-product rate (%)": 100
        * operations / evaluation / matmul_rate,
        "transform of 128 points, with compilation (s)": transform,
    }  # fmt: skip


def main() -> None:
    rows = measure()
    width = max(map(len, rows))
    print("T-shape, 128 × 128 pairs in 2-d, ICNN (32, 32) symmetric, float64\n")
    for name, value in rows.items():
        print(f"{name:<{width}}  {value:10.3g}")
    record = {
        "rows": rows,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "device": str(jax.devices()[0]),
        },
        "versions": {n: importlib.metadata.version(n) for n in ("mongefit", "jax", "numpy")},
    }
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\nstored in {path}")


if __name__ == "__main__":
    main()
