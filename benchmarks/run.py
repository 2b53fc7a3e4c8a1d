"""What training and mapping cost, beside the limit of the machine and beside plain alternatives.

Run with `make bench`. All ratios are of times measured in one run, since machines differ and are
noisy; the table is printed and stored in benchmarks/results with the machine and the versions.
`taskset -c 0 make bench` holds it to one core.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import reference
import sizes
from first_fit import EPSILON, LAYERS, N, model, t_shape
from ott.geometry import costs, pointcloud
from ott.math import legendre
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

from mongefit import build_map
from mongefit._convex import ICNN
from mongefit._costs import Cost, pairwise_value
from mongefit._runtime import double_precision, usable_cores
from mongefit._transport import Units

REPEATS = 7
Row = tuple[str, str, float, str]


def median_time(function, *arguments, repeats: int = REPEATS) -> float:
    """Median seconds of a call, after one that compiles.

    Arguments are passed in: what a compiled function closes over is folded into it as constants.
    """
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


@contextlib.contextmanager
def _all_cores() -> Iterator[None]:
    """Begin processes on all cores, where this one is held to some."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    held = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, held)


def compilation() -> Iterator[Row]:
    """In processes of their own: with an empty cache, and with what the first one left in it.

    They have all cores, as a user's would, also where the rest is held to one.
    """
    with tempfile.TemporaryDirectory() as folder:
        # As the command line sets it.
        settings = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
        }
        for name in ("a first fit less a second, empty cache", "the same, from the cache"):
            with _all_cores():
                ran = subprocess.run(
                    [sys.executable, Path(__file__).with_name("first_fit.py")],
                    env={**os.environ, **settings},
                    check=True,
                    capture_output=True,
                    text=True,
                )
            yield name, "float64", float(ran.stdout.split()[-1]), "s"


def training(steps: int, reference_steps: int) -> Iterator[Row]:
    """Steps of a whole run, in multiples of one forward evaluation and of the reference's."""
    X, Y, pairs = t_shape()
    weight = np.full(N, 1 / N)
    with jax.enable_x64(True):
        units = Units.of(X, Y, weight, weight)
        x, y = units.into(X), units.into(Y)
        h = ICNN(2, LAYERS, key=jr.key(0))
        forward = median_time(eqx.filter_jit(pairwise_value), h, x, y, repeats=50)
        square = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 1024)))
        rate = 2 * 1024**3 / median_time(jax.jit(jnp.matmul), square, square)
    # Both signs of z; two layers from z, one between them and the output.
    operations = 2 * N**2 * 2 * (2 * 2 * 32 + 32 * 32 + 32)
    yield "forward evaluation of the cost matrix", "float64", 1e3 * forward, "ms"
    yield (
        "its rate over that of a matrix product", "float64", 100 * operations / forward / rate, "%",
    )  # fmt: skip

    losses = {}
    seconds = {}
    for dtype in ("float64", "mixed"):
        model(max_iter=9, dtype=dtype).fit(X, Y, pairs=pairs)
        start = time.perf_counter()
        fitted = model(max_iter=steps, dtype=dtype).fit(X, Y, pairs=pairs)
        seconds[dtype] = time.perf_counter() - start
        losses[dtype] = fitted.history_["loss"]
        yield f"{steps} training steps after compilation", dtype, seconds[dtype], "s"
        yield "one step", dtype, 1e3 * seconds[dtype] / steps, "ms"
        yield "one step / forward evaluation", dtype, seconds[dtype] / steps / forward, "×"

    # A whole run of ten takes long on a CPU; beyond some steps rounding alone leads elsewhere.
    for length in [steps // 10] if jax.default_backend() == "cpu" else [steps // 10, steps]:
        for dtype in ("float64", "mixed"):
            yield from _ten_starts(dtype, length)

    if reference_steps:
        times = [0.0]
        with jax.enable_x64(True):
            _, slow = reference.train(
                h, x, y, epsilons=EPSILON, steps=reference_steps, rate=0.05,
                on_step=lambda: times.append(time.perf_counter()),
            )  # fmt: skip
        plain = float(np.mean(np.diff(times)[3:]))
        yield f"one step of the plain reference, mean of {reference_steps}", "float64", plain, "s"
        for dtype in ("float64", "mixed"):
            ratio = plain / (seconds[dtype] / steps)
            yield "the reference's step / ours", f"float64 / {dtype}", ratio, "×"
        if reference_steps == steps:
            yield "final loss, the reference", "float64", float(slow[-1]), ""
            for dtype, loss in losses.items():
                yield "final loss, ours", dtype, float(loss[-1]), ""


def _ten_starts(dtype: str, steps: int) -> Iterator[Row]:
    """Ten starts together beside each of them alone, in time and in loss."""
    X, Y, pairs = t_shape()

    def fit(n_init: int, seed: int = 0):
        start = time.perf_counter()
        fitted = model(max_iter=steps, dtype=dtype, n_init=n_init, random_state=seed)
        fitted.fit(X, Y, pairs=pairs)
        return time.perf_counter() - start, fitted

    fit(1), fit(10)  # compiled
    # Half of those alone before and half after: machines drift.
    before = [fit(1, seed) for seed in range(5)]
    together, best = fit(10)
    after = [fit(1, seed) for seed in range(5, 10)]
    alone, fits = zip(*before, *after, strict=True)
    yield f"{steps} steps of 10 starts / of one", dtype, together / np.mean(alone), "×"
    losses = np.concatenate([each.scores_ for each in fits])
    away = np.max(np.abs(best.scores_ / losses - 1))
    yield "farthest that one of the ten is from alone", dtype, 100 * away, "%"


class PlainCost(costs.TICost):
    """h as a user of OTT-JAX would give it, with OTT's numerical Legendre transform."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def h(self, z):
        return reference.convex(self.weights, z)

    def h_legendre(self, z):
        return legendre(self.h)(z)

    def tree_flatten(self):
        return (self.weights,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


jax.tree_util.register_pytree_node_class(PlainCost)


def mapping(points: int, others: int = 512, dim: int = 10) -> Iterator[Row]:
    """`transform` of new points beside OTT's entropic map of the same cost.

    OTT's inner search ends where a gradient is below 1e-4, which float32 does not reach where costs
    are large: an h with a gain of 100 stands for those.
    """
    rng = np.random.default_rng(0)
    clouds = [rng.normal(size=(size, dim)) for size in (others, others, points)]
    for dtype, gain in (("float64", 0.1), ("float32", 0.1), ("float32", 100.0)):
        ours = {}
        with jax.enable_x64(True):
            x, y, new = (jnp.asarray(cloud, dtype) for cloud in clouds)
            y = y + 0.5
            h = jax.tree.map(
                lambda leaf, dtype=dtype: leaf.astype(dtype),
                ICNN(dim, (64, 64, 64), key=jr.key(0), gain=gain),
            )
            for epsilon in (0.01, 0.05):
                fitted, dual = eqx.filter_jit(build_map)(
                    Cost(h), x, y, epsilon=jnp.asarray(epsilon, dtype)
                )
                if dual.converged:
                    ours[epsilon] = median_time(
                        eqx.filter_jit(type(fitted).forward), fitted, new, repeats=3
                    )
        with jax.enable_x64(dtype == "float64"):
            x, y, new = (jnp.asarray(np.asarray(cloud)) for cloud in (x, y, new))
            h = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), h)
            geometry = pointcloud.PointCloud(x, y, cost_fn=PlainCost(h), epsilon=float(fitted.eps))
            problem = linear_problem.LinearProblem(geometry)
            potentials = jax.jit(sinkhorn.Sinkhorn())(problem).to_dual_potentials()
            theirs = median_time(jax.jit(potentials.transport), new, repeats=1)
        steep = ", steep h" if gain > 1 else ""
        yield f"OTT-JAX, numerical Legendre transform{steep}", dtype, theirs, "s"
        for epsilon, seconds in ours.items():
            name = f"transform of {points}, m = {others}, epsilon {epsilon}{steep}"
            yield name, dtype, seconds, "s"
            yield f"OTT-JAX / ours, epsilon {epsilon}{steep}", dtype, theirs / seconds, "×"


def parameterisations(steps: int = 20, points: int = 1000) -> Iterator[Row]:
    """h against its conjugate h*: what a training step costs, and mapping new points."""
    X, Y, pairs = t_shape()
    new = np.random.default_rng(0).normal(size=(points, 2))
    found = {}
    for cost in ("icnn", "conjugate_icnn"):
        model(max_iter=9, cost=cost).fit(X, Y, pairs=pairs)
        start = time.perf_counter()
        fitted = model(max_iter=steps, cost=cost).fit(X, Y, pairs=pairs)
        training = (time.perf_counter() - start) / steps
        fitted.transform(new)
        start = time.perf_counter()
        fitted.transform(new)
        found[cost] = training, time.perf_counter() - start
    for name, k in (("a training step", 0), (f"transform of {points} points", 1)):
        for cost, symbol in (("icnn", "h"), ("conjugate_icnn", "h*")):
            yield f"{name}, {symbol} learned", "float64", 1e3 * found[cost][k], "ms"
        ratio = found["conjugate_icnn"][k] / found["icnn"][k]
        yield f"{name}, h* over h", "float64", ratio, "×"


def larger_clouds() -> Iterator[Row]:
    """Steps between larger clouds, and their growth; the largest only on an accelerator."""
    on_cpu = jax.default_backend() == "cpu"
    batched = sizes.measure(4702, dtype="mixed", steps=5, batch_size=512)
    yield "a step, n = m = 4,702, batch_size = 512", "mixed", batched["seconds"], "s"
    grid = [128, 256, 512] if on_cpu else [128, 256, 512, 1024, 2048, 4096, 4702, 8192, 20_000]
    rows = list(sizes.growth(grid, dtype="mixed", steps=3 if on_cpu else 10))
    for row in rows:
        yield f"a step, n = m = {row['n']:,}", "mixed", 1e3 * row["seconds"], "ms"
        yield f"peak memory up to n = m = {row['n']:,}", "mixed", row["memory"] / 1e9, "GB"
    if not on_cpu:
        row = sizes.measure(4702, dtype="float32", steps=10)
        yield "a step, n = m = 4,702", "float32", 1e3 * row["seconds"], "ms"
    n, seconds = (np.array([row[key] for row in rows]) for key in ("n", "seconds"))
    yield "exponent of time over n", "mixed", sizes.power_law(n, seconds)[0], ""


def forward_rates(n: int = 4096) -> Iterator[Row]:
    """The forward evaluation of a large cost matrix over a large matrix product; accelerators."""
    if jax.default_backend() == "cpu":
        return
    for dtype in ("float64", "float32"):
        with double_precision():
            cast = functools.partial(jnp.asarray, dtype=dtype)
            h = jax.tree.map(cast, ICNN(sizes.DIM, sizes.LAYERS, key=jr.key(0)))
            u, v = jr.normal(jr.key(1), (2, n, sizes.DIM), dtype)
            seconds = median_time(eqx.filter_jit(pairwise_value), h, u, v)
            square = cast(np.random.default_rng(0).normal(size=(8192, 8192)))
            rate = 2 * 8192**3 / median_time(jax.jit(jnp.matmul), square, square)
        operations = 2 * n**2 * 2 * (3 * sizes.DIM * 64 + 2 * 64 * 64 + 64)
        yield f"forward evaluation, n = m = {n:,}, 10-d", dtype, 1e3 * seconds, "ms"
        percent = 100 * operations / seconds / rate
        yield "its rate over that of a matrix product", dtype, percent, "%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--reference-steps", type=int, default=500, help="0 leaves the reference out"
    )
    parser.add_argument("--points", type=int, default=1000, help="new points to transform")
    options = parser.parse_args()
    print(f"T-shape, {N} × {N} pairs in 2-d, ICNN {LAYERS} symmetric, epsilon {EPSILON}\n")
    rows = []
    for part in (
        compilation(),
        training(options.steps, options.reference_steps),
        mapping(options.points),
        parameterisations(),
        larger_clouds(),
        forward_rates(),
    ):
        for row in part:
            name, dtype, value, unit = row
            print(f"{name:<52} {dtype:<17} {value:9.3g} {unit}", flush=True)
            rows.append(row)
    record = {
        "rows": rows,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": usable_cores(),
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
