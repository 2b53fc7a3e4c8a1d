"""Twelve of 64 pairs are known: learn the cost from them, and measure on pairs held out."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.metrics import evaluate, rmse
from mongefit.plotting import plot_map, save_figure

problem = datasets.make_ground_truth("icnn", 2, seed=0)
X, Y = problem.sample(64, 101)  # row i of X belongs to row i of Y
pairs = np.stack([np.arange(12), np.arange(12)], axis=1)  # known: rows of X and of Y

learned = MongeMap(hidden_layer_sizes=(32, 32), symmetric=False, epsilon=(0.1, 0.01), max_iter=300)
learned.fit(X, Y, pairs=pairs)
euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)

print(f"RMSE on the pairs trained on: {rmse(learned.transform(X)[:12], Y[:12]):.2f}")
held_out_X, held_out_Y = X[12:], Y[12:]
maps = {"squared Euclidean": euclidean, "learned": learned}
print(evaluate(maps, held_out_X, held_out_Y, pairs="rows", train=(X, Y, pairs)))
new_X, new_Y = problem.sample(64, 102)
for name, model in maps.items():
    print(f"RMSE on points of neither cloud, {name}: {-model.score(new_X, new_Y):.2f}")

figure = Figure(figsize=(7, 5.4), layout="constrained")
for ax, (name, model) in zip(figure.subplots(1, 2), maps.items(), strict=True):
    mapped = model.transform(held_out_X)
    plot_map(held_out_X, Y, mapped, truth=held_out_Y, ax=ax, title=name)
save_figure(figure, Path(__file__).parent.parent / "pictures/pairs.png", dpi=80)
