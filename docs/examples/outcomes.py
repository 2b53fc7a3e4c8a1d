"""Clones with two fates: soft pairs, groups and the likelihood, and what each says of one clone."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.losses import Likelihood
from mongefit.metrics import energy_score
from mongefit.plotting import save_figure

X, Y = datasets.t_shape(64, seed=0)
new_X, new_Y = datasets.t_shape(64, seed=1000)
clones = np.random.default_rng(0).permutation(np.repeat(np.arange(16), 4))
pairs = np.argwhere(clones[:, None] == clones)  # every source of a clone, every target of it

options = {"hidden_layer_sizes": (32, 32), "max_iter": 300, "epsilon": (0.05, 0.005)}
by_pairs = MongeMap(many_to_many=True, **options).fit(X, Y, pairs=pairs)
by_groups = MongeMap(**options).fit(X, Y, groups=(clones, clones))
options["epsilon"] = (0.3, 0.005)
by_likelihood = MongeMap(losses=[Likelihood()], **options).fit(X, Y, pairs=pairs)
models = {"soft pairs": by_pairs, "groups": by_groups, "likelihood": by_likelihood}
right = Y[:, 0] > 5  # one of the two fates
clone = np.flatnonzero(clones == 6)  # two of its sources go right, two go down
figure = Figure(figsize=(10.5, 3.8), layout="constrained")
for ax, (name, model) in zip(figure.subplots(1, 3, sharey=True), models.items(), strict=True):
    score = energy_score(model, new_X, new_Y)
    draws = model.sample(X[clone], 20, random_state=0)  # [4, 20, 2]
    fate = model.pull(right, mean=True)  # the probability to go right, of each source
    print(f"{name}: energy score {score:.2f}, the clone goes right by {fate[clone].round(2)}")
    print(f"  effective number of targets: {np.exp(model.entropy(new_X)).mean():.1f}")
    ax.scatter(*Y.T, color="lightgrey", label="target")
    for k, source in enumerate(X[clone]):
        lines = np.stack([np.broadcast_to(source, (20, 2)), draws[k]])
        ax.plot(*np.moveaxis(lines, 2, 0), "s-", markevery=[0], color=f"C{k}", alpha=0.3)
    ax.scatter(*Y[clone].T, marker="x", color="black", label="targets of the clone", zorder=3)
    ax.set_title(f"{name}, energy score {score:.2f}")
figure.axes[2].legend(loc=(0.43, 0.35), fontsize="small")
save_figure(figure, Path(__file__).parent.parent / "pictures/outcomes.png", dpi=80)
