"""Layers slide in a plane: does the cost that was learned from this know the third axis?"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.explain import explain_cost
from mongefit.losses import LowRank, TargetFit
from mongefit.plotting import plot_curvature, plot_directions, save_figure

X, Y = datasets.displaced(64, "low_rank", seed=0)  # nothing moves along (1, 2, 2)/3
model = MongeMap(
    losses=[LowRank(2), TargetFit()], hidden_layer_sizes=(32, 32), symmetric=False, max_iter=150
)
model.fit(X, Y)

found = explain_cost(model)
print(found)

cosine = abs(found.directions[0] @ np.array([1, 2, 2]) / 3)
print(f"angle between the dearest direction and (1, 2, 2): {np.degrees(np.arccos(cosine)):.1f}°")
figure = Figure(figsize=(8, 3.4), layout="constrained")
left, right = figure.subplots(1, 2)
plot_curvature(found, ax=left)
plot_directions(found, ax=right)
save_figure(figure, Path(__file__).parent.parent / "pictures/explain.png", dpi=80)
