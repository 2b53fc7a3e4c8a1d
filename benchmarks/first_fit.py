"""What compilation takes: seconds that a first fit takes longer than a second one.

In a process of its own, by `make bench`, that has imported no more than a user's would have.
"""

from __future__ import annotations

import gc
import time

import numpy as np

from mongefit import MongeMap, datasets


def main() -> None:
    X, Y = datasets.t_shape(128, seed=0)
    pairs = np.stack([np.arange(128)] * 2, axis=1)
    gc.freeze()  # as the command line does
    seconds = []
    for seed in range(2):
        model = MongeMap(
            hidden_layer_sizes=(32, 32), epsilon=(0.05, 0.002), max_iter=9, random_state=seed
        )
        start = time.perf_counter()
        model.fit(X, Y, pairs=pairs)
        seconds.append(time.perf_counter() - start)
    print(seconds[0] - seconds[1])


if __name__ == "__main__":
    main()
