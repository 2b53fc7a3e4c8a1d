"""Stem cells on two branches: where they go, in the pictures of mongefit.single_cell."""

from pathlib import Path

import anndata
import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mongefit import MongeMap, plotting, single_cell

rng = np.random.default_rng(0)
day = np.repeat([2, 4], 300)
branch = rng.choice([-1.0, 1.0], 600)
along = day + rng.uniform(-1.8, 1.8, 600)  # how far a cell is, on day 2 from 0.2 to 3.8
points = np.column_stack([2 * along, 2 * branch * np.clip(along - 1.5, 0, None)])
points += 0.5 * rng.normal(size=points.shape)
names = np.where(along < 2.7, "stem", np.where(branch < 0, "neutrophil", "monocyte"))
cells = [f"cell{i}" for i in range(600)]
adata = anndata.AnnData(obs=pd.DataFrame({"day": day, "cell_type": names}, index=cells))
adata.obsm["X_pca"] = points

estimator = MongeMap(cost="sqeuclidean", epsilon=0.05)
model = single_cell.fit(adata, time_key="day", source=2, target=4, model=estimator)
single_cell.fates(model, adata, "cell_type", exclude="stem")
table = single_cell.transition_table(model, adata, "cell_type")
print(table.round(2))
with matplotlib.rc_context({"font.size": 7}):
    figure = Figure(figsize=plotting.figure_size("double", 115), layout="constrained")
    a, b, c, d, e, f = (each.subplots() for each in figure.subfigures(2, 3).flat)
    single_cell.plot_transport(model, adata, color="cell_type", ax=a, title="plot_transport")
    single_cell.plot_fates(adata, basis="pca", ax=b, title="plot_fates")
    single_cell.plot_fates(adata, basis="pca", fate="neutrophil", ax=c, title="of one fate")
    first = (day == 2) & (branch < 0) & (along > 2.7)
    single_cell.plot_path(model, adata, first, ax=d, title="plot_path")
    single_cell.plot_transitions(table, ax=e, title="plot_transitions")
    single_cell.plot_flow(model, adata, "cell_type", ax=f, title="plot_flow")
    plotting.save_figure(figure, Path(__file__).parent.parent / "pictures/pictures.png", dpi=120)
