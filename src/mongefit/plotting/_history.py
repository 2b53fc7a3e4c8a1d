"""Pictures of training, and of how settings were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit.errors import DataError
from mongefit.plotting._figures import BLACK, BLUE, GREY, VERMILLION, finish, new_axes, palette

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from mongefit._estimators.chosen import MongeMapCV
    from mongefit.metrics import Table
    from mongefit.model_selection import Selection

_REFERENCES = {"squared Euclidean": "--", "ridge on pairs": "-.", "target mean": ":"}


def plot_history(history: Mapping[str, ArrayLike], *, ax: Axes | None = None) -> Axes:
    """Draw the loss and epsilon against the training step.

    Parameters
    ----------
    history
        Arrays of equal length under ``step``, ``loss`` and ``epsilon``, and optionally ``applied``
        (False where a step was refused, marked at the foot of the picture).
    ax
        Axes to draw the loss on, which get a twin for epsilon; a new Figure by default.
    """
    step, loss, epsilon, applied = _history_columns(history)
    ax = new_axes((4.5, 3.4)) if ax is None else ax
    twin = ax.twinx()
    lines: list[Artist] = [
        *ax.plot(step, loss, color=BLUE, linewidth=1.2, label="loss"),
        *twin.plot(step, epsilon, color=VERMILLION, linewidth=1.2, linestyle="--", label="epsilon"),
    ]
    _set_log_scale(ax, loss)
    _set_log_scale(twin, epsilon)
    if not applied.all():
        refused = step[~applied]
        # At the foot of the Axes rather than on the curve: the loss of a refused step may be NaN.
        foot, edge = np.full(len(refused), 0.03), ax.get_xaxis_transform()
        label = f"not applied ({len(refused)})"
        lines += ax.plot(refused, foot, "x", color=BLACK, markersize=5, transform=edge, label=label)
    ax.set_xlabel("step" if len(step) else "step (untrained)")
    ax.set_ylabel("loss", color=BLUE)
    twin.set_ylabel("epsilon", color=VERMILLION)
    finish(ax, handles=lines)
    return ax


def plot_selection(
    selection: Selection, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the error on held-out pairs after every training step, and what it should be below.

    Parameters
    ----------
    selection
        What `mongefit.model_selection.select` gave.
    ax, title
        As for `plot_map`.
    """
    ax = new_axes((5.0, 3.6)) if ax is None else ax
    colours = palette(len(selection.paths))
    for colour, (name, path) in zip(colours, selection.paths.items(), strict=True):
        ax.plot(np.arange(len(path)), path, color=colour, label=name)
    for name, style in _REFERENCES.items():
        # Squared Euclidean at its best epsilon.
        errors = [row["rmse"] for row in selection.table.rows if row["name"].startswith(name)]
        ax.axhline(min(errors), color=GREY, linestyle=style, label=name, zorder=0)
    choice = selection.choice
    ax.plot(
        choice.steps, choice.rmse, color=VERMILLION, marker="o", markeredgecolor=BLACK,
        linestyle="none", label="chosen", zorder=3,
    )  # fmt: skip
    ax.set(xlabel="training steps", ylabel="RMSE, held-out pairs")
    finish(ax, title)
    return ax


def plot_choice(
    model: MongeMapCV | Table, *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw the error on held-out pairs of every family of candidates, and of simple predictors.

    Parameters
    ----------
    model
        A fitted `MongeMapCV` that had pairs to choose by, or its ``report_``.
    ax, title
        As for `plot_map`.
    """
    from mongefit.metrics import Table  # which imports JAX

    report = model if isinstance(model, Table) else getattr(model, "report_", None)
    if report is None:
        raise DataError("This model was not chosen by held-out pairs: there is nothing to draw.")
    rows = report.rows[::-1]
    ax = new_axes((6.4, 0.6 + 0.27 * len(rows))) if ax is None else ax
    kinds = (
        ("simple predictor", GREY, "s", lambda row: row["kind"] == "simple"),
        ("map", BLUE, "o", lambda row: row["kind"] == "candidate" and not row["chosen"]),
        ("chosen", VERMILLION, "D", lambda row: row["chosen"]),
    )
    for label, colour, marker, belongs in kinds:
        found = [(row["rmse"], at) for at, row in enumerate(rows) if belongs(row)]
        if found:
            ax.plot(*zip(*found, strict=True), marker, color=colour, label=label, linestyle="none")
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize="small")
    ax.set_xlabel("RMSE, held-out pairs")
    ax.grid(axis="y", linewidth=0.4, color="0.9")
    ax.set_axisbelow(True)
    errors = np.array([row["rmse"] for row in rows])
    if errors.min() > 0 and errors.max() > 20 * errors.min():
        ax.set_xscale("log")
    finish(ax, title)
    return ax


def _history_columns(history: Mapping[str, ArrayLike]) -> tuple[NDArray[Any], ...]:
    missing = [key for key in ("step", "loss", "epsilon") if key not in history]
    if missing:
        raise DataError(
            f"history has no {', '.join(missing)}. It holds: {', '.join(history) or 'nothing'}."
        )
    step, loss, epsilon = (np.asarray(history[key]) for key in ("step", "loss", "epsilon"))
    applied = np.asarray(history.get("applied", np.ones(step.shape)), dtype=bool)
    shapes = {step.shape, loss.shape, epsilon.shape, applied.shape}
    if len(shapes) > 1 or step.ndim != 1:
        raise DataError(
            "the columns of history must be one-dimensional and of equal length; "
            f"step has the shape {step.shape}, loss {loss.shape}, epsilon {epsilon.shape}, "
            f"applied {applied.shape}."
        )
    return step, loss, epsilon, applied


def _set_log_scale(ax: Axes, values: NDArray[Any]) -> None:
    finite = values[np.isfinite(values)]
    # A loss of one's own may be negative or zero, which a logarithmic axis would hide.
    if finite.size and finite.min() > 0:
        ax.set_yscale("log")
