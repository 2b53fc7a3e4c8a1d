"""The pictures that commands leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mongefit._cli.console import Console
from mongefit._estimators.chosen import MongeMapCV
from mongefit._estimators.monge_map import MongeMap
from mongefit._runtime import double_precision
from mongefit.errors import DataError, OptionError
from mongefit.metrics import Table
from mongefit.plotting import plot_choice, plot_convex, plot_history, plot_map, save_figure

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

    from mongefit.single_cell import FateValidation
    from mongefit.single_cell._average import CellMap

Points = NDArray[np.float64]

_GRID = 161


def draw(
    console: Console,
    paths: Mapping[str, str],
    models: Mapping[str, MongeMap | MongeMapCV],
    source: Points,
    target: Points,
    truth: Points | None,
) -> None:
    """Draw the maps of titled models, then the cost of the last one and what it was chosen from."""
    draw_maps(console, paths["map.png"], models, source, target, truth)
    *_, model = models.values()
    draw_cost(console, paths, model, source, getattr(model, "report_", None))


def draw_maps(
    console: Console,
    path: str,
    models: Mapping[str, MongeMap | MongeMapCV],
    source: Points,
    target: Points,
    truth: Points | None,
) -> None:
    """Draw the maps of titled models, a panel each, side by side, with the same axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(models), 4.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False, sharex=True, sharey=True)[0]
    for ax, (title, model) in zip(panels, models.items(), strict=True):
        plot_map(source, target, model.transform(source), truth=truth, ax=ax, title=title)
        ax.label_outer()
    save_figure(figure, path)
    console.written.append(path)


def draw_cost(
    console: Console,
    paths: Mapping[str, str],
    model: MongeMap | MongeMapCV,
    source: Points,
    report: Table | None,
) -> None:
    """Draw the cost of a model, what it was chosen from, and its training."""
    save_cost(paths["cost.png"], model, source)
    console.written.append(paths["cost.png"])
    if "choice.png" in paths and report is not None:
        save_figure(plot_choice(report), paths["choice.png"])
        console.written.append(paths["choice.png"])
    if "history.png" in paths and model.n_iter_:
        save_figure(plot_history(model.history_), paths["history.png"])
        console.written.append(paths["history.png"])


def save_cost(path: str, model: MongeMap | MongeMapCV, source: Points) -> None:
    """Draw h, and the displacements that the map of the model uses at some source points.

    With more than two features it is drawn over the first two components, the others zero.
    """
    z = _displacements(model, source)
    dim = z.shape[1]
    reach = 1.15 * float(np.abs(z[:, :2]).max()) or 1.0
    line = np.linspace(-reach, reach, _GRID)
    if dim == 1:
        ax = _plot_line(line, _evaluate(model, line[:, None]), z[:, 0])
    else:
        grid = np.zeros((_GRID**2, dim))
        grid[:, :2] = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
        cost = model.map_.cost
        latent = "" if cost.phi_mu is None and cost.phi_nu is None else "latent "
        others = "" if dim == 2 else f"\n(components 1 and 2 of {dim}, the others zero)"
        ax = plot_convex(
            _evaluate(model, grid).reshape(_GRID, _GRID),
            (-reach, reach, -reach, reach),
            displacements=z[:, :2],
            title=f"cost of a {latent}displacement, common units{others}",
        )
    save_figure(ax, path)


def _displacements(model: MongeMap | MongeMapCV, source: Points) -> Points:
    """z = Φμ(x) − Φν(T(x)), in common units."""
    mapped = model.transform(source)
    cost, units = model.map_.cost, model.map_.units
    with double_precision():
        x, y = (units.into(points).astype(model.map_.x.dtype) for points in (source, mapped))
        return np.asarray(cost.latent_source(x) - cost.latent_target(y), dtype=np.float64)


def _evaluate(model: MongeMap | MongeMapCV, z: Points) -> Points:
    with double_precision():
        values = model.map_.cost.h.value(jnp.asarray(z, model.map_.x.dtype))
        return np.asarray(values, dtype=np.float64)


def _plot_line(z: Points, h: Points, used: Points) -> Axes:
    from matplotlib.figure import Figure

    ax = Figure(figsize=(4.5, 3.4), layout="constrained").subplots()
    ax.plot(z, h, color="#0072B2", label="$h$")
    ax.plot(used, np.interp(used, z, h), "o", color="#D55E00", ms=4, label="displacements used")
    ax.set_xlabel("displacement $z$")
    ax.set_ylabel("cost $h(z)$")
    ax.legend(frameon=False)
    return ax


def draw_fates(
    console: Console,
    paths: Mapping[str, str],
    model: CellMap,
    adata: AnnData,
    reference: AnnData | None,
    options: dict[str, Any],
    key_added: str,
    found: FateValidation | None,
) -> None:
    """Draw fates, transitions between labels, and how well fates are calibrated, if that is known.

    ``options`` are those of `transition_table`; the cells of the fit are in ``reference`` where it
    is given. What cannot be drawn is told.
    """
    from mongefit import single_cell
    from mongefit.plotting import plot_calibration

    def fates() -> Axes:
        shown, basis = _plane_of(model, adata)
        return single_cell.plot_fates(shown, basis=basis, key_added=key_added)

    def transitions() -> Axes:
        labelled = adata if reference is None else reference
        return single_cell.plot_transitions(
            single_cell.transition_table(model, labelled, **options)
        )

    pictures: dict[str, Callable[[], Axes]] = {"fates.png": fates, "transitions.png": transitions}
    if found is not None:
        p, truth, weight = found.probability["fates"], found.truth, found.weight
        pictures["calibration.png"] = lambda: plot_calibration(p, truth, weight=weight)
    for name, draw_one in pictures.items():
        try:
            save_figure(draw_one(), paths[name])
        except (DataError, OptionError) as error:
            console.warn(f"{name} was not drawn: {error}")
        else:
            console.written.append(paths[name])


def _plane_of(model: CellMap, adata: AnnData) -> tuple[AnnData, str]:
    """What to draw cells in: a UMAP if there is one, else what the map works in."""
    if "X_umap" in adata.obsm:
        return adata, "X_umap"
    first = model.maps[0]
    name = first.representation.name
    if name != "X":
        return adata, name
    import anndata

    obsm = {key: adata.obsm[key] for key in adata.obsm}
    shown = anndata.AnnData(obs=adata.obs, obsm=obsm, uns=dict(adata.uns))
    rows = [first.times.rows(adata, target=False), first.times.rows(adata, target=True)]
    some = np.concatenate(rows)
    shown.obsm[name] = np.full((adata.n_obs, 2), np.nan)
    shown.obsm[name][some] = first.representation.of(adata, some)[:, :2]
    return shown, name
