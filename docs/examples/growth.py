"""One kind of points dies, another divides: maps that keep weights, and that do not."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap
from mongefit.metrics import rmse
from mongefit.plotting import plot_map, save_figure

rng = np.random.default_rng(0)
kind = np.arange(80) % 2
X = rng.normal(size=(80, 2)) + 6.0 * kind[:, None]
# Of the first kind every other point dies; each of the second becomes three.
copies = np.where(kind == 1, 3, np.arange(80) % 4 == 0)
move = np.array([0.0, 3.0])
Y = np.repeat(X, copies, axis=0) + move
Y = Y + 0.05 * rng.normal(size=Y.shape)
truth = X + move
true_growth = copies * len(X) / len(Y)

kept = MongeMap(cost="sqeuclidean", epsilon=0.02).fit(X, Y)
grown = MongeMap(cost="sqeuclidean", epsilon=0.02, tau_a=0.9).fit(X, Y)
print(f"mass that died: {grown.died_:.2f}")
for each in (0, 1):
    true, found = (part[kind == each].mean() for part in (true_growth, grown.growth_))
    print(f"kind {each}: true growth {true:.2f}, found {found:.2f}")

figure = Figure(figsize=(8, 4.2), layout="constrained")
maps = {"weights kept": kept, "tau_a=0.9": grown}
for ax, (name, model) in zip(figure.subplots(1, 2), maps.items(), strict=True):
    mapped = model.transform(X)
    error = rmse(mapped, truth)
    print(f"{name}: RMSE to the truth {error:.2f}")
    plot_map(X, Y, mapped, truth=truth, ax=ax, title=f"{name}, RMSE {error:.2f}")
save_figure(figure, Path(__file__).parent.parent / "pictures/growth.png", dpi=80)
