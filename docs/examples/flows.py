"""A turn by more than half a circle: h(x − y) does not explain it, a cost with flows does."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.metrics import rmse
from mongefit.plotting import plot_map, save_figure

X, Y = datasets.moon(64, seed=0)  # row i of X belongs to row i of Y
order = np.random.default_rng(0).permutation(64)
known, held_out = order[:8], order[8:]
pairs = np.stack([known, known], axis=1)

options = {"hidden_layer_sizes": (32, 32), "max_iter": 200}
maps = {
    "h(x − y)": MongeMap(**options).fit(X, Y, pairs=pairs),
    "with flows": MongeMap(diffeo="separate", **options).fit(X, Y, pairs=pairs),
}
figure = Figure(figsize=(8, 4.2), layout="constrained")
for ax, (name, model) in zip(figure.subplots(1, 2), maps.items(), strict=True):
    mapped = model.transform(X)
    errors = [rmse(mapped[rows], Y[rows]) for rows in (known, held_out)]
    print(f"{name}: RMSE {errors[0]:.2f} on known pairs, {errors[1]:.2f} on the others")
    plot_map(X[held_out], Y, mapped[held_out], truth=Y[held_out], ax=ax, title=name)
save_figure(figure, Path(__file__).parent.parent / "pictures/flows.png", dpi=80)
