"""Where will each progenitor go? Fates of blood cells from the clones that are known.

    python examples/larry.py larry_day2_day4.npz -o larry

The data are day 2 and day 4 of Weinreb et al. (Science 2020, GSE140802), 4,702 cells each, as
published with aligned_diffusion_bridges: an npz file with the principal components x and y, the
clones clone_x and clone_y, and annotation_x and annotation_y. docs/fates.md explains every step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mongefit import plotting, single_cell

WHAT = {
    "time_key": "day",
    "source": 2,
    "target": 4,
    "pair_key": "clone",
    "key": "cell_type",
    "exclude": "undifferentiated",
}


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
    obs["cell_type"] = obs["cell_type"].astype("category")
    adata = anndata.AnnData(np.zeros((len(obs), 0)), obs=obs)
    adata.obsm["X_pca"] = states
    return adata


def main(path: str, folder: Path, *, validate: bool = False, **options: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    adata = read(path)

    # The map: settings are those that predict the fates of held-out clones best.
    model = single_cell.fit_fates(adata, **WHAT, **options, verbose=1)
    print(model.report)
    model.save(folder / "larry.mongefit", overwrite=True)

    # Where each cell of day 2 goes, with what probability.
    single_cell.fates(model, adata, "cell_type", exclude="undifferentiated")
    early = adata[adata.obs["day"] == 2]
    names = adata.uns["mongefit_fates"]["names"]
    table = pd.DataFrame(early.obsm["mongefit_fates"], index=early.obs_names, columns=names)
    table.to_csv(folder / "fates.csv")
    adata.write_h5ad(folder / "larry.h5ad")
    print(table.mean().sort_values(ascending=False).round(3).to_string())

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    single_cell.plot_fates(adata, basis="pca", ax=left, size=4, title="the most probable fate")
    single_cell.plot_fates(adata, basis="pca", fate=str(table.mean().idxmax()), size=4, ax=right)
    plotting.save_figure(figure, folder / "fates.png")
    print(f"In {folder}: larry.mongefit, larry.h5ad, fates.csv, fates.png.")
    print(f"{time.monotonic() - started:.0f} s.")

    # How good that is, on clones that neither the maps nor their settings have seen.
    if validate:
        found = single_cell.cross_validate_fates(adata, **WHAT, **options, verbose=1)
        print(found)
        for other in (found.best_euclidean(), "class shares", "logistic regression"):
            print(other, found.difference(other), found.difference(other, score="auroc"))
        ax = plotting.plot_calibration(
            found.probability["fates"], found.truth, weight=found.weight, names=found.names
        )
        plotting.save_figure(ax, folder / "calibration.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="larry_day2_day4.npz")
    parser.add_argument("-o", "--output", type=Path, default=Path("larry"))
    parser.add_argument("--validate", action="store_true", help="cross-validate too (minutes)")
    given = parser.parse_args()
    main(given.data, given.output, validate=given.validate)
