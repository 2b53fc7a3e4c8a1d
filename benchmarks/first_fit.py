"""The run that `make bench` measures, and what its compilation takes.

By itself it prints the seconds that a first fit takes longer than a second one, in a process that
has imported no more than a user's would have.
"""

from __future__ import annotations

import gc
import time

import numpy as np

from mongefit import MongeMap, datasets

N = 128
LAYERS = (32, 32)
EPSILON = (0.05, 0.002)


def t_shape() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, Y = datasets.t_shape(N, seed=0)
    return X, Y, np.stack([np.arange(N)] * 2, axis=1)


def model(**options) -> MongeMap:
    fixed = {"hidden_layer_sizes": LAYERS, "epsilon": EPSILON, "validation_fraction": 0.0}
    return MongeMap(**fixed | options)


def main() -> None:
    X, Y, pairs = t_shape()
    gc.freeze()  # as the command line does
    seconds = []
    for seed in range(2):
        start = time.perf_counter()
        model(max_iter=9, random_state=seed).fit(X, Y, pairs=pairs)
        seconds.append(time.perf_counter() - start)
    print(seconds[0] - seconds[1])


if __name__ == "__main__":
    main()
