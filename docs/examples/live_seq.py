"""From counts to a figure: nine cells were sequenced twice, each is predicted from the others."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mongefit import MongeMap, datasets
from mongefit.baselines import NearestPair, PairedRidge, TargetMean
from mongefit.metrics import rmse
from mongefit.plotting import plot_map, save_figure

samples = datasets.find_live_seq_samples()  # in the cache, or downloaded
with TemporaryDirectory() as folder:
    counts = Path(folder) / "counts.csv.gz"
    datasets.simulate_live_seq(samples, counts)  # no cell was measured
    data = datasets.read_live_seq(counts, samples)
X, Y, pairs = data.source, data.target, data.pairs
truth = Y[pairs[:, 1]]

methods = {
    "learned": MongeMap(hidden_layer_sizes=(32, 32), epsilon=0.05, max_iter=150),
    "squared Euclidean": MongeMap("sqeuclidean", epsilon=0.05),
    "ridge on pairs": PairedRidge(),
    "nearest pair": NearestPair(),
    "target mean": TargetMean(),
}
for name, method in methods.items():
    predicted = np.empty_like(truth)
    for k, (row, _) in enumerate(pairs):
        others = None if name == "squared Euclidean" else np.delete(pairs, k, axis=0)
        predicted[k] = method.fit(X, Y, pairs=others).transform(X[[row]])[0]
    print(f"RMSE of cells left out, {name}: {rmse(predicted, truth):.1f}")
    if name == "learned":
        picture = plot_map(X[pairs[:, 0]], Y, predicted, truth=truth, title="each cell left out")

model = methods["learned"].fit(X, Y, pairs=pairs)  # on all of them
change = (model.transform(X) - X).mean(axis=0) @ data.loadings
print("change most:", [data.genes[k] for k in np.argsort(-np.abs(change))[:5]])
save_figure(picture, Path(__file__).parent.parent / "pictures/live_seq.png", dpi=80)
