"""Fit small problems of every shape on an accelerator: one line each, non-zero exit on a failure.

    python tools/gpu_check.py [--part K/N] [--steps S] [--every]

Every number of features from 1 to 20, 32 and 50 with every size from 50 to 2,000 points and every
precision; h symmetric or not, flows, batches, several starts and the other families take turns,
so that each meets every number of features. With ``--every`` they meet all else too. Tests have no
accelerator, and a program may fail in one dimension alone. A warning that a program was compiled
again without options counts as a failure. On a CPU the sweep runs too, to try the script.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from typing import Any

import numpy as np

import mongefit

DIMENSIONS = (*range(1, 21), 32, 50)
SIZES = (50, 177, 256, 600, 2000)
DTYPES = ("float64", "mixed", "float32")


FAMILIES: tuple[dict[str, Any], ...] = (
    {"cost": "matrix"}, {"diffeo": "affine"}, {"diffeo": "kernel"}, {"tau_a": 0.9}, {"legs": 2}
)  # fmt: skip


def cases(every: bool) -> list[dict[str, Any]]:
    """All combinations, or those in which the other settings take turns."""
    chosen = []
    for turn, d in enumerate(DIMENSIONS):
        for k, (n, dtype) in enumerate(itertools.product(SIZES, DTYPES)):
            # Flows are the same programs in every size: two sizes show that they run.
            flows: tuple[str | None, ...] = (None, "separate") if n in (177, 600) else (None,)
            ways = list(itertools.product((True, False), flows))
            for symmetric, diffeo in ways if every else [ways[(turn + k) % len(ways)]]:
                chosen.append(
                    {"d": d, "n": n, "dtype": dtype, "symmetric": symmetric, "diffeo": diffeo}
                )
        others = [{"batch_size": 128}, {"n_init": 3}]
        others += FAMILIES if every else [FAMILIES[turn % len(FAMILIES)]]
        for k, options in enumerate(others):
            for dtype in DTYPES if every else [DTYPES[(turn + k) % len(DTYPES)]]:
                chosen.append({"d": d, "n": 600, "dtype": dtype} | options)
    return chosen


def check(case: dict[str, Any], steps: int) -> str:
    """What went wrong, or nothing."""
    options = dict(case)
    d, n = options.pop("d"), options.pop("n")
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d)) + 1
    pairs = np.stack([np.arange(20)] * 2, axis=1)
    legs = options.pop("legs", 0)
    kind = mongefit.TemporalMap if legs else mongefit.MongeMap
    model: Any = kind(max_iter=steps, epsilon=0.1, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if legs:
                clouds = [X, Y, X[: n // 2]]
                model.fit(clouds, pairs={(0, 1): pairs, (0, 2): pairs[:5], (1, 2): pairs[:9]})
            else:
                model.fit(X, Y, pairs=pairs)
            mapped = model.transform(X[:8])
        except Exception as error:  # whatever the compiler throws
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    again = [str(each.message) for each in caught if "compiled again" in str(each.message)]
    if again:
        return again[0]
    return "" if np.all(np.isfinite(mapped)) else "the map is not finite"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="1/1", help="this part of so many, such as 2/3")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each fit")
    parser.add_argument("--every", action="store_true", help="all combinations")
    parser.add_argument("--most", type=int, help="stop after so many cases")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen = cases(arguments.every)[part - 1 :: parts][: arguments.most]
    failed = 0
    for number, case in enumerate(chosen, 1):
        started = time.perf_counter()
        wrong = check(case, arguments.steps)
        failed += bool(wrong)
        described = " ".join(f"{name}={value}" for name, value in case.items())
        seconds = time.perf_counter() - started
        print(f"{number}/{len(chosen)} {described} {seconds:.1f}s {wrong or 'ok'}", flush=True)
    print(f"{len(chosen)} fits, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
