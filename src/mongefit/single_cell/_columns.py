"""Columns of obs: looked up by name, and as labels with missing values marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_weights
from mongefit.errors import (
    DataError,
    MissingPackageError,
    OptionError,
    Suggestion,
    warn_user,
    wrong_option,
)

if TYPE_CHECKING:
    from anndata import AnnData

# Words that stand for a missing label once a table has been through a text file.
_MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "unassigned"})


def import_anndata() -> Any:
    """The package anndata, imported when it is needed."""
    try:
        import anndata
    except ImportError as error:
        raise MissingPackageError(
            "AnnData is not installed. Install it with: pip install mongefit[anndata]"
        ) from error
    return anndata


def check_adata(adata: Any) -> None:
    """Refuse what is no AnnData."""
    if not isinstance(adata, import_anndata().AnnData):
        hint = " Read the file with anndata.read_h5ad." if isinstance(adata, str) else ""
        raise OptionError(f"adata must be an AnnData, got {type(adata).__name__}.{hint}")


def listed(names: Iterable[Any], limit: int = 20) -> str:
    """Names in one line, the first of them where there are many."""
    names = list(names)
    if not names:
        return "none"
    more = f", … ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more


def obs_column(
    adata: AnnData, key: Any, option: str, *, otherwise: Suggestion | None = None
) -> Any:
    """A column of obs, as pandas has it.

    If it is missing, the error names the columns that are there, and the near matches or what
    ``otherwise`` suggests.
    """
    if not isinstance(key, str):
        raise wrong_option(option, "the name of one column of obs", key)
    if key in adata.obs:
        return adata.obs[key]
    near = Suggestion.of(option, key, adata.obs)
    raise DataError(
        "obs[{key!r}] not found. Columns: {columns}.{hint}",
        key=key, columns=listed(adata.obs),
        hint=near if near.options or otherwise is None else otherwise,
    )  # fmt: skip


def distinct(column: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """The number of each cell's value, −1 where it is missing, and the values."""
    import pandas as pd

    codes, values = pd.factorize(column)
    # As NumPy's numbers, which know their precision: a float32 10.1 then reads as 10.1.
    array = np.asarray(values)
    return np.asarray(codes, np.int64), list(array if array.dtype.kind == "f" else values)


def obs_labels(
    adata: AnnData, key: str, option: str, rows: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Labels of some cells as text, None where there is none.

    Missing are what pandas takes for missing, −1, and words such as "unknown". A warning lists
    these words.
    """
    codes, values = distinct(obs_column(adata, key, option).iloc[rows])
    labels = [str(value) for value in values]
    words = [label for label in labels if label.strip().lower() in _MISSING]
    if words:
        marked = np.isin(codes, np.flatnonzero(np.isin(labels, words))).sum()
        shown = ", ".join(map(repr, words))
        warn_user(f"obs[{key!r}] is {shown} in {marked} cells: taken for not known there.")
    kept = [None if label in (*words, "-1", "-1.0") else label for label in labels]
    # The code −1 of a missing value finds the None at the end.
    return np.asarray([*kept, None], dtype=object)[codes]


def obs_weights(
    adata: AnnData, key: str | None, rows: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Weights of some cells, with sum 1; None without a key."""
    if key is None:
        return None
    column = obs_column(adata, key, "weight_key").iloc[rows]
    try:
        weight = column.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"obs[{key!r}] must hold numbers to weigh cells by: {error}.") from error
    return check_weights(weight, len(rows), f"obs[{key!r}]", normalize=True)
