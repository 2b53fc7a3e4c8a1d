"""Some of 20 known pairs are wrong: the plain paired loss, and one that bends for large misses."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.losses import Paired
from mongefit.metrics import rmse
from mongefit.plotting import plot_map, save_figure

options = {"hidden_layer_sizes": (32, 32), "symmetric": False, "epsilon": (0.1, 0.01)}
losses = {"plain": Paired(), "robust": Paired(huber=1.5)}
held_out = np.arange(20, 64)
figure = Figure(figsize=(7, 5.4), layout="constrained")
axes = dict(zip(losses, figure.subplots(1, 2), strict=True))


def corrupted(wrong, seed):
    """Rows 0 to 19 with themselves, but the first ones with a target of another point."""
    pairs = np.stack([np.arange(20), np.arange(20)], axis=1)
    pairs[:wrong, 1] = np.random.default_rng(seed).choice(held_out, wrong, replace=False)
    return pairs


for wrong in (0, 2, 4):
    errors = {name: [] for name in losses}
    for seed in range(5):
        X, Y = datasets.make_ground_truth("icnn", 2, seed=seed).sample(64, 101)
        pairs = corrupted(wrong, seed)
        for name, loss in losses.items():
            model = MongeMap(losses=[loss], max_iter=200, **options).fit(X, Y, pairs=pairs)
            mapped = model.transform(X[held_out])
            errors[name].append(rmse(mapped, Y[held_out]))
            if wrong == 4 and seed == 0:
                plot_map(X[held_out], Y, mapped, truth=Y[held_out], ax=axes[name], title=name)
    print(f"{wrong} of 20 wrong:", {name: np.round(found, 2) for name, found in errors.items()})
save_figure(figure, Path(__file__).parent.parent / "pictures/wrong_pairs.png", dpi=80)
