"""Blood progenitors traced by their clones: from the data file to a map, its error and a figure.

    python examples/larry_cost.py larry_day2_day4.npz -o larry-cost

The data are day 2 and day 4 of Weinreb et al. (Science 2020, GSE140802), 4,702 cells each, as
published with aligned_diffusion_bridges: an npz file with the principal components x and y, the
clones clone_x and clone_y, and annotation_x and annotation_y. docs/tutorial.md explains every step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mongefit import EnsembleMap, plotting, single_cell
from mongefit.explain import explain_cost
from mongefit.model_selection import default_candidates


def read(path: str) -> anndata.AnnData:
    """Both days in one AnnData."""
    with np.load(path) as file:
        days = [{key: file[f"{key}{side}"] for key in ("clone_", "annotation_")} for side in "xy"]
        states = np.concatenate([file["x"], file["y"]]).astype(float)
    obs = pd.concat(
        [
            pd.DataFrame({"day": day, "clone": of["clone_"], "cell_type": of["annotation_"]})
            for day, of in zip((2, 4), days, strict=True)
        ],
        ignore_index=True,
    )
    obs.index = [f"cell{i}" for i in range(len(obs))]
    adata = anndata.AnnData(np.zeros((len(obs), 0)), obs=obs)
    adata.obsm["X_pca"] = states
    return adata


def main(path: str, folder: Path, n_components: int = 10, **size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    adata = read(path)
    what = {
        "time_key": "day",
        "source": 2,
        "target": 4,
        "pair_key": "clone",
        "n_components": n_components,
    }

    # Settings, by clones that are held out; then the map of all of them.
    candidates = dict(list(default_candidates().items())[:2])  # the small networks, for speed
    model, selection = single_cell.select(adata, **what, **size, candidates=candidates, verbose=1)
    print(selection, f"\n{time.monotonic() - started:.0f} s so far")
    model.save(folder / "larry.mongefit", overwrite=True)

    # How sure it is: ten maps of resampled clones, with the same settings.
    ensemble = single_cell.fit(adata, **what, model=EnsembleMap(model.model, verbose=1))
    single_cell.transport(ensemble, adata)
    early = adata.obs["day"] == 2
    radius = adata.uns["mongefit"]["radius_80"]
    informed = adata.obs["mongefit_informed"][early].mean()
    print(f"Within {radius:.1f} of the prediction: the cells of 80 % of new clones.")
    print(f"A known clone is near {informed:.0%} of the cells.")
    adata.write_h5ad(folder / "larry.h5ad")

    # What the cost has learned.
    explanation = explain_cost(model.model)
    print(explanation)

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    plotting.plot_selection(selection, ax=axes[0], title="which settings, and when to stop")
    single_cell.plot_transport(model, adata, ax=axes[1], title="where cells of day 2 go")
    plotting.plot_curvature(explanation, ax=axes[2], title="which moves are dear")
    plotting.save_figure(figure, folder / "larry.png")
    print(
        f"In {folder}: larry.mongefit, larry.h5ad, larry.png. {time.monotonic() - started:.0f} s."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="larry_day2_day4.npz")
    parser.add_argument("-o", "--output", type=Path, default=Path("larry"))
    options = parser.parse_args()
    main(options.data, options.output)
