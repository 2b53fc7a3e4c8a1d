"""Nothing is known but both clouds: the map fits the target better, and is no truer for it."""

from pathlib import Path

from matplotlib.figure import Figure

from mongefit import MongeMap, datasets
from mongefit.losses import TargetFit
from mongefit.metrics import rmse, sinkhorn_divergence
from mongefit.plotting import plot_map, save_figure

X, Y = datasets.t_shape(64, seed=0)
options = {"hidden_layer_sizes": (32, 32), "epsilon": (0.05, 0.005), "max_iter": 300}
learned = MongeMap(losses=[TargetFit()], **options).fit(X, Y)
again = MongeMap(losses=[TargetFit()], random_state=1, **options).fit(X, Y)
euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)

new_X, truth = datasets.t_shape(64, seed=1000)
print(f"the truth itself: divergence {sinkhorn_divergence(truth, Y):.4f}")
difference = rmse(learned.transform(new_X), again.transform(new_X))
print(f"between the maps of two seeds: RMSE {difference:.2f}")
figure = Figure(figsize=(8, 4.2), layout="constrained")
maps = {"squared Euclidean": euclidean, "learned from the target": learned}
for ax, (name, model) in zip(figure.subplots(1, 2), maps.items(), strict=True):
    mapped = model.transform(new_X)
    distance = sinkhorn_divergence(mapped, Y)
    print(f"{name}: divergence {distance:.4f}, RMSE to the truth {rmse(mapped, truth):.1f}")
    plot_map(new_X, Y, mapped, truth=truth, ax=ax, title=name)
save_figure(figure, Path(__file__).parent.parent / "pictures/target.png", dpi=80)
