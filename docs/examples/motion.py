"""Only the way things move is known: in a plane, or in two directions, in three dimensions."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.losses import Directional, LowRank, TargetFit
from mongefit.metrics import sinkhorn_divergence
from mongefit.plotting import plot_displacements, save_figure

options = {"hidden_layer_sizes": (32, 32), "max_iter": 150}
planar = MongeMap(losses=[LowRank(2), TargetFit()], **options)
planar.fit(*datasets.displaced(64, "low_rank", seed=0))  # no rows belong together

straight = MongeMap(losses=[Directional(2), TargetFit()], **options)
straight.fit(*datasets.displaced(64, "directional", seed=0))
directions = np.asarray(straight.losses_[0].unit_directions)

AXES = np.array([[2, 1, -2], [-2, 2, -1], [1, 2, 2]]) / 3  # nothing moves along the last one
print("directions along these axes:", np.round(directions @ AXES.T, 2).tolist())
figure = Figure(figsize=(7.5, 8.4), layout="constrained")
for row, (kind, learned) in enumerate([("low_rank", planar), ("directional", straight)]):
    euclidean = MongeMap(cost="sqeuclidean").fit(*datasets.displaced(64, kind, seed=0))
    new_X, new_Y = datasets.displaced(64, kind, seed=1000)
    for column, model in enumerate([euclidean, learned]):
        name = f"{kind}: {('squared Euclidean', 'learned')[column]}"
        mapped = model.transform(new_X)
        energy = np.linalg.svd(mapped - new_X, compute_uv=False) ** 2
        distance = sinkhorn_divergence(mapped, new_Y)
        print(f"{name}: third share {energy[2] / energy.sum():.1%}, divergence {distance:.2f}")
        ax = figure.add_subplot(2, 2, 2 * row + column + 1, projection="3d")
        shown = directions if model is straight else None
        plot_displacements(new_X, mapped, axes=AXES, directions=shown, ax=ax, title=name)
save_figure(figure, Path(__file__).parent.parent / "pictures/motion.png", dpi=75)
