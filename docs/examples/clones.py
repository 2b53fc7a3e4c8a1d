"""Sixteen clones, each a set of sources and a set of targets: as groups, and as soft pairs."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.plotting import plot_map, save_figure

X, Y = datasets.t_shape(64, seed=0)
new_X, new_Y = datasets.t_shape(64, seed=1000)
tight = np.repeat(np.arange(16), 4)  # four neighbours
mixed = np.random.default_rng(0).permutation(tight)  # four points anywhere, two fates


def soft_pairs(clones_X, clones_Y):
    """Every source of a clone with every target of it; every clone counts the same."""
    pairs = np.argwhere(clones_X[:, None] == clones_Y)
    clone = clones_X[pairs[:, 0]]
    return pairs, 1 / np.bincount(clone)[clone]  # 1 / (sources · targets)


options = {"hidden_layer_sizes": (32, 32), "epsilon": (0.05, 0.005), "max_iter": 300}
figure = Figure(figsize=(8, 7.6), layout="constrained")
for row, (kind, clones) in enumerate([("tight", tight), ("mixed", mixed)]):
    by_groups = MongeMap(**options).fit(X, Y, groups=(clones, clones))

    pairs, weight = soft_pairs(clones, clones)
    by_pairs = MongeMap(many_to_many=True, **options).fit(X, Y, pairs=pairs, pair_weight=weight)

    for column, (name, model) in enumerate([("groups", by_groups), ("soft pairs", by_pairs)]):
        print(f"{kind} clones as {name}: RMSE {-model.score(new_X, new_Y):.2f}")
        ax = figure.add_subplot(2, 2, 2 * row + column + 1)
        mapped = model.transform(new_X)
        plot_map(new_X, Y, mapped, truth=new_Y, ax=ax, title=f"{kind} clones as {name}")
save_figure(figure, Path(__file__).parent.parent / "pictures/clones.png", dpi=80)
