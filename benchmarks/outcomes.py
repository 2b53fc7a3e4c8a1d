"""Clones with two fates: soft pairs, groups and the likelihood, by the energy score on new points.

    python benchmarks/outcomes.py --seeds 10 20

The fits are those of docs/examples/outcomes.py. Each of the three starts from the epsilon that
suited it on seeds 0 to 9, so other seeds are the fair ones.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from mongefit import MongeMap, datasets
from mongefit.losses import Likelihood
from mongefit.metrics import energy_score

SHARP, BLURRED = (0.05, 0.005), (0.3, 0.005)


def scores(seed: int) -> dict[str, float]:
    """The energy score of each fit on 64 new points."""
    X, Y = datasets.t_shape(64, seed=seed)
    new = datasets.t_shape(64, seed=1000 + seed)
    clones = np.random.default_rng(seed).permutation(np.repeat(np.arange(16), 4))
    pairs = np.argwhere(clones[:, None] == clones)
    options = {"hidden_layer_sizes": (32, 32), "max_iter": 300}
    fits = {
        "soft pairs": MongeMap(many_to_many=True, epsilon=SHARP, **options).fit(X, Y, pairs=pairs),
        "groups": MongeMap(epsilon=SHARP, **options).fit(X, Y, groups=(clones, clones)),
        "likelihood": MongeMap(losses=[Likelihood()], epsilon=BLURRED, **options).fit(
            X, Y, pairs=pairs
        ),
    }
    return {name: energy_score(model, *new) for name, model in fits.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs=2, type=int, default=[10, 20], help="first, and one after")
    warnings.simplefilter("ignore")
    found = []
    for number in range(*parser.parse_args().seeds):
        found.append(scores(number))
        print(number, {name: round(score, 3) for name, score in found[-1].items()}, flush=True)
    print("| fit | median | lowest | highest |\n|---|---:|---:|---:|")
    for fit in found[0]:
        column = [row[fit] for row in found]
        print(f"| {fit} | {np.median(column):.3f} | {min(column):.3f} | {max(column):.3f} |")
