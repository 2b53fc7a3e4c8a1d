"""Three times and one cost: pairs of the first two times tell where points go after them."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import TemporalMap, plotting

# Moving along the second axis is 12 times as expensive as along the first.
scale = np.diag(np.sqrt([1.0, 12.0]))
turns = [np.array([[1.2, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.6], [-0.6, 0.9]])]


def sample(n, seed):
    clouds = [np.random.default_rng(seed).normal(size=(n, 2))]
    for turn in turns:
        clouds.append(clouds[-1] @ (np.linalg.inv(scale) @ turn @ scale).T)
    return clouds


clouds, new = sample(200, seed=0), sample(15, seed=3)
pairs = {(2, 4): [[i, i] for i in range(40)]}
learned = TemporalMap(cost="matrix", epsilon=0.03, max_iter=150)
learned.fit(clouds, [2, 4, 6], pairs=pairs)
euclidean = TemporalMap(cost="sqeuclidean", epsilon=0.03).fit(clouds, [2, 4, 6])
halfway = learned.interpolate(new[0], 2, 6, at=5)

figure = Figure(figsize=(9, 3.6), layout="constrained")
for ax, model in zip(figure.subplots(1, 2, sharey=True), (euclidean, learned), strict=True):
    paths = np.stack([new[0], model.transform(new[0], 2, 4), model.transform(new[0], 2, 6)])
    errors = [-leg.score(*new[k : k + 2]) for k, leg in enumerate(model.legs_.values())]
    ax.set_title("{}: RMSE {:.2f} from 2 to 4, {:.2f} from 4 to 6".format(model.cost, *errors))
    print(ax.get_title())
    for k, time in enumerate(model.times_):  # the times side by side
        ax.scatter(*(clouds[k] + [9 * k, 0]).T, s=6, alpha=0.4, label=f"time {time}")
    for at, style in ((np.stack(new), "k:"), (paths, "C3-")):
        ax.plot(at[..., 0] + 9 * np.arange(3)[:, None], at[..., 1], style, lw=1)
    ax.legend(loc="lower right")
plotting.save_figure(figure, Path(__file__).parent.parent / "pictures/times.png", dpi=80)
