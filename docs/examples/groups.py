"""Half of the points of both clouds carry a label; each label should land on its own."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.plotting import plot_map, save_figure

X, Y = datasets.t_shape(64, seed=0)  # the left bar goes right, the top bar goes down
bars = np.repeat(["left", "top"], 32).astype(object)
rng = np.random.default_rng(0)
labels_X, labels_Y = (np.where(rng.uniform(size=64) < 0.5, None, bars) for _ in range(2))
known = [sum(label is not None for label in labels) for labels in (labels_X, labels_Y)]
print(f"labelled: {known[0]} of 64 sources and {known[1]} of 64 targets")

learned = MongeMap(hidden_layer_sizes=(32, 32), epsilon=(0.05, 0.005), max_iter=300)
learned.fit(X, Y, groups=(labels_X, labels_Y))  # None where the group is not known
euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)

new_X, new_Y = datasets.t_shape(64, seed=1000)
figure = Figure(figsize=(8, 4.2), layout="constrained")
maps = {"squared Euclidean": euclidean, "learned": learned}
for ax, (name, model) in zip(figure.subplots(1, 2), maps.items(), strict=True):
    mapped = model.transform(new_X)
    nearest = np.argmin(np.linalg.norm(mapped[:, None] - Y, axis=2), axis=1)
    share = np.mean(bars[nearest] == bars)
    error = -model.score(new_X, new_Y)
    print(f"{name}: {share:.0%} of new points land in their group, RMSE {error:.2f}")
    plot_map(new_X, Y, mapped, truth=new_Y, ax=ax, title=name)
save_figure(figure, Path(__file__).parent.parent / "pictures/groups.png", dpi=80)
