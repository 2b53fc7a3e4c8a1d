"""Fit small problems of every shape on an accelerator: one line each, non-zero exit on a failure.

    python tools/gpu_check.py [--part K/N] [--steps S]

Every number of features from 1 to 20, 32 and 50, sizes from 50 to 2,000 points, all precisions, h
symmetric or not, with flows or without; then batches and several starts. Tests have no
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


def cases() -> list[dict[str, Any]]:
    """All combinations, those that differ in sizes and precision alone next to each other."""
    plain = [
        {"d": d, "n": n, "dtype": dtype, "symmetric": symmetric, "diffeo": diffeo}
        for d, symmetric, diffeo, n, dtype in itertools.product(
            DIMENSIONS, (True, False), (None, "separate"), SIZES, DTYPES
        )
        # Flows are the same programs in every size: two sizes show that they run.
        if diffeo is None or n in (177, 600)
    ]
    more = [
        {"d": d, "n": 600, "dtype": dtype, "symmetric": True, "diffeo": None} | options
        for d, dtype, options in itertools.product(
            DIMENSIONS, DTYPES, ({"batch_size": 128}, {"n_init": 3})
        )
    ]
    return plain + more


def check(case: dict[str, Any], steps: int) -> str:
    """What went wrong, or nothing."""
    options = dict(case)
    d, n = options.pop("d"), options.pop("n")
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d)) + 1
    pairs = np.stack([np.arange(20)] * 2, axis=1)
    model = mongefit.MongeMap(max_iter=steps, epsilon=0.1, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mapped = model.fit(X, Y, pairs=pairs).transform(X[:8])
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
    parser.add_argument("--most", type=int, help="stop after so many cases")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen = cases()[part - 1 :: parts][: arguments.most]
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
