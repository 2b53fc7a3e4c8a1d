"""Days 2, 4 and 6 of blood progenitors: fates, the genes that go with them, and flows.

    python examples/larry_days.py larry_days_2_4_6.h5ad -o days

The data are 781 cells of Weinreb et al. (Science 2020, GSE140802) with 2,481 genes and their clones
as a matrix of cells and clones: the test file of CoSpar. docs/fates-days.md explains every step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import anndata
import numpy as np
from matplotlib.figure import Figure

from mongefit import TemporalMap, plotting, single_cell


def main(path: str, folder: Path, **options: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    adata = anndata.read_h5ad(path)
    adata.X = np.log1p(adata.X)  # the file has counts of 10,000 in each cell

    # Fates of the cells of day 4: which state their descendants have on day 6.
    what = {"time_key": "time_info", "source": 4, "target": 6, "pair_key": "X_clone"}
    labels = {"key": "state_info", "exclude": "undiff"}
    model = single_cell.fit_fates(adata, **what, **labels, **options, verbose=1)
    single_cell.fates(model, adata, **labels)
    model.save(folder / "days.mongefit", overwrite=True)

    # Genes that go with a fate among the cells that are not decided yet.
    young = (adata.obs["state_info"] == "undiff") & (adata.obs["time_info"] == "4")
    drivers = single_cell.fate_drivers(model, adata, "Neutrophil", restrict=young.to_numpy())
    print(drivers.head(10)[["correlation", "q_value"]])

    # One cost for all three days, and how labels flow over them.
    estimator = TemporalMap(cost="matrix", epsilon=0.1, max_iter=60, many_to_many=True)
    days = single_cell.fit(
        adata, time_key="time_info", times=[2, 4, 6], pair_key="X_clone", n_components=10,
        model=estimator,
    )  # fmt: skip
    between = single_cell.interpolate(days, adata, at=5)
    print(f"{between.n_obs} cells predicted for day 5.")

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    axes = figure.subplots(2, 2)
    single_cell.plot_fates(adata, basis="umap", ax=axes[0, 0], title="fates of day 4")
    single_cell.plot_drivers(drivers, ax=axes[0, 1], title="genes of the fate Neutrophil")
    table = single_cell.transition_table(model, adata, **labels)
    single_cell.plot_transitions(table, ax=axes[1, 0], title="day 4 to day 6")
    single_cell.plot_flow(days, adata, "state_info", min_share=0.03, ax=axes[1, 1])
    plotting.save_figure(figure, folder / "days.png")
    adata.write_h5ad(folder / "days.h5ad")
    print(f"In {folder}: days.mongefit, days.h5ad, days.png.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="larry_days_2_4_6.h5ad")
    parser.add_argument("-o", "--output", type=Path, default=Path("days"))
    given = parser.parse_args()
    main(given.data, given.output)
