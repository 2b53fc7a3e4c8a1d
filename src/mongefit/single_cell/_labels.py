"""Labels of the cells of a fit, and the colours of labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._estimators.outcomes import chain_of
from mongefit.errors import DataError, Option, OptionError, Suggestion, wrong_option
from mongefit.plotting._figures import palette
from mongefit.single_cell._columns import distinct, listed, obs_labels
from mongefit.single_cell._model import SingleCellMap

if TYPE_CHECKING:
    from anndata import AnnData


def fitted_rows(model: SingleCellMap, adata: AnnData, *, target: bool) -> NDArray[np.int64]:
    """The rows of ``adata`` that hold the cells of the fit, in the order of the fit, one side.

    Cells are told by their coordinates, so ``adata`` may be sorted in another way or hold more.
    """
    from scipy.spatial import KDTree

    from mongefit._fitting.chains import end_of
    from mongefit._fitting.outcomes import fitted_points

    points = fitted_points(end_of(chain_of(model.model), source=not target), source=not target)
    rows = _rows_of_time(model, adata, target=target)
    found = model.coordinates(adata, rows)
    near = 1e-4 * max(np.abs(points).max(), 1e-300)  # the rounding of a file, or of float32
    if found.shape == points.shape and np.abs(found - points).max() <= near:
        return rows
    distance, nearest = KDTree(found).query(points)
    if np.any(missing := distance > near):
        time = model.times.target if target else model.times.source
        raise DataError(
            "{missing} of the {count} cells of {key} {time} that were fitted are not among the "
            "{here} here. Give the AnnData of the fit; for other cells give it as {reference}.",
            missing=missing.sum(), count=len(points), key=model.times.key, time=time,
            here=len(rows), reference=Option("reference"),
        )  # fmt: skip
    return np.asarray(rows[nearest], np.int64)


def _rows_of_time(model: SingleCellMap, adata: AnnData, *, target: bool) -> NDArray[np.int64]:
    """The rows of one time; where there are none the error says what they are needed for."""
    try:
        return model.times.rows(adata, target=target)
    except DataError as error:
        if model.times.key not in adata.obs:
            raise
        raise DataError(
            "{error} The cells of the fit are needed. Give the AnnData of the fit; for other cells "
            "give it as {reference}.",
            error=error, reference=Option("reference"),
        ) from error  # fmt: skip


class Labels(NamedTuple):
    """Labels of some cells: the number of each, −1 where it is not known, and their names.

    ``column`` are all labels of the column that they are of.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]
    column: tuple[str, ...]

    @classmethod
    def of(
        cls,
        adata: AnnData,
        key: Any,
        rows: NDArray[np.int64],
        option: str = "key",
        among: Iterable[str] = (),
    ) -> Labels:
        """Labels of a column of obs, in the order of its categories; at least one.

        Names are those of these cells and those ``among`` them.
        """
        labels = obs_labels(adata, key, option, rows)
        _refuse_fractions(adata, key, option)
        present = {label for label in labels if label is not None}
        if not present:
            raise DataError(
                "obs[{key!r}] has no label for any of the {count} cells that it is needed for "
                "(first: {first!r}). Name a column by {option} that has. Columns: {columns}.",
                key=key, count=len(rows), first=str(adata.obs_names[rows[0]]),
                option=Option(option), columns=listed(adata.obs),
            )  # fmt: skip
        present.update(among)
        column = tuple(label_order(adata, key))
        names = [name for name in column if name in present]
        number = {name: k for k, name in enumerate(names)}
        codes = np.array([number.get(label, -1) for label in labels], np.int64)
        return cls(codes, tuple(names), column)

    @property
    def indicator(self) -> NDArray[np.float64]:
        """1 where a cell has a label, [cells, labels]."""
        return np.asarray(self.codes[:, None] == np.arange(len(self.names)), np.float64)

    def kept(self, exclude: str | Iterable[str]) -> NDArray[np.bool_]:
        """Which labels are left without some."""
        if not isinstance(exclude, Iterable):
            raise wrong_option("exclude", "a label or a list of labels", exclude)
        wanted = [exclude] if isinstance(exclude, str) else [str(each) for each in exclude]
        for name in wanted:
            if name not in self.column:
                raise OptionError(
                    "{exclude} names {name!r}, and there is no such label. Labels: "
                    "{labels}.{hint}",
                    exclude=Option("exclude"), name=name, labels=listed(self.column),
                    hint=Suggestion.of("exclude", name, self.column),
                )  # fmt: skip
        kept = ~np.isin(self.names, wanted)
        if not kept.any():
            raise OptionError(
                "{exclude} leaves no label: there are {labels}. Keep one at least.",
                exclude=Option("exclude"), labels=listed(self.names),
            )  # fmt: skip
        return kept


def _refuse_fractions(adata: AnnData, key: str, option: str) -> None:
    """Refuse a column of measurements, each of which would be a label."""
    column = adata.obs[key]
    if getattr(column.dtype, "kind", "O") != "f":
        return
    values = column.to_numpy(np.float64)
    values = values[np.isfinite(values)]
    if np.any(bad := values != np.rint(values)):
        raise DataError(
            "obs[{key!r}] holds fractions (first: {first:g}), and labels are needed, such as cell "
            "types. Name another column by {option}, or make this one categorical.",
            key=key, first=values[bad][0], option=Option(option),
        )  # fmt: skip


def label_order(adata: AnnData, key: str) -> list[str]:
    """The labels of a column as text, in the order of its categories where it has any."""
    column = adata.obs[key]
    if hasattr(column, "cat"):
        return [str(each) for each in column.cat.categories]
    return sorted({str(each) for each in distinct(column)[1]})


def label_colors(adata: AnnData, key: str) -> dict[str, Any]:
    """The colour of every label, in the order of the categories where there are any."""
    names = label_order(adata, key)
    chosen = list(adata.uns.get(f"{key}_colors", ()))
    # Colours belong to categories by their place; a list that is too short fits none of them.
    if not hasattr(adata.obs[key], "cat") or len(chosen) < len(names):
        chosen = list(palette(len(names)))
    return dict(zip(names, chosen, strict=False))
