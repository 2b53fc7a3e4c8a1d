"""One kind of points dies, another divides: maps that keep weights, and that do not."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, MongeMapCV
from mongefit.metrics import rmse
from mongefit.plotting import plot_map, save_figure

rng = np.random.default_rng(0)
kind = np.arange(80) % 2
X = rng.normal(size=(80, 2)) + 6.0 * kind[:, None]
# Of the first kind every other point dies; each of the second becomes three.
copies = np.where(kind == 1, 3, np.arange(80) % 4 == 0)
source = np.repeat(np.arange(80), copies)
truth = X + np.array([0.0, 3.0])
Y = truth[source] + 0.05 * rng.normal(size=(len(source), 2))
true_growth = copies * len(X) / len(Y)
pairs = np.stack([source, np.arange(len(Y))], axis=1)[source % 8 < 2]

kept = MongeMap(cost="sqeuclidean", epsilon=0.02).fit(X, Y)
grown = MongeMap(cost="sqeuclidean", epsilon=0.02, tau_a=0.9).fit(X, Y)
chosen = MongeMapCV(tau_a=[1, 0.9]).fit(X, Y, pairs=pairs)
print(chosen.report_)

figure = Figure(figsize=(10, 3.8), layout="constrained")
maps = {"weights kept": kept, "tau_a=0.9": grown, "tau_a chosen by pairs": chosen}
for ax, (name, model) in zip(figure.subplots(1, 3), maps.items(), strict=True):
    error = rmse(model.transform(X), truth)
    found = [model.growth_[kind == each].mean() for each in (0, 1)]
    print(f"{name}: RMSE to the truth {error:.2f}, mean growth {np.round(found, 2)}")
    plot_map(X, Y, model.transform(X), truth=truth, ax=ax, title=f"{name}, RMSE {error:.2f}")
print("true growth", [true_growth[kind == each].mean().round(2) for each in (0, 1)])
save_figure(figure, Path(__file__).parent.parent / "pictures/growth.png", dpi=80)
