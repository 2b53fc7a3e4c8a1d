"""Genes that go with the probability of a fate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mongefit._validation import check_choice, check_count
from mongefit.errors import (
    DataError,
    OptionError,
    Suggestion,
    did_you_mean,
    warn_user,
    wrong_option,
)
from mongefit.single_cell._association import associate, basis, false_discovery
from mongefit.single_cell._average import CellMap, check_cell_map
from mongefit.single_cell._columns import check_name, distinct, listed, obs_column
from mongefit.single_cell._probabilities import check_level
from mongefit.single_cell._representation import gene_expression
from mongefit.single_cell._sets import as_mask

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

Array = NDArray[np.float64]

LEAST_PROBABILITY = 1e-3
"""Probabilities nearer to 0 or 1 count as this near where log-odds are taken."""
LARGEST_LOGARITHM = 50.0
"""Logarithms of expression lie below this: larger values are none."""


def fate_drivers(
    model: CellMap,
    adata: AnnData,
    fate: str,
    *,
    source: Any = None,
    target: Any = None,
    layer: str | None = None,
    covariates: str | Iterable[str] = (),
    restrict: Any = None,
    by: Literal["correlation", "effect"] = "correlation",
    level: float = 0.95,
    n_top: int | None = None,
    key_added: str = "mongefit",
) -> DataFrame:
    """Find genes that go with the probability of a fate among the cells of the source.

    `fates` writes the probabilities; run it first. Two questions are asked of every gene. The
    correlation r of its expression with the probability is tested with Student's t. Its effect is
    the coefficient in a linear regression of the log-odds of the fate on the gene and the
    covariates,

        log(p/(1 − p)) = α + β · expression + γ · covariates + noise,

    tested with Student's t and the larger of two standard errors of β, that of equal variances and
    the robust HC3. The first alone is too small where cells that express the gene are noisier, the
    second where they are few.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells, with what `fates` wrote. They need not be those of the fit.
    fate
        One of the labels in ``uns["<key_added>_fates"]["names"]``.
    source, target
        Two times of a model over several, the same as for `fates`.
    layer
        Layer with the expression of genes; by default X. It must be normalised, with logarithms
        taken; raw counts are refused. It may be sparse.
    covariates
        Columns of obs that the regression holds fixed, such as a batch or the number of counts.
        Columns of numbers enter as they are, all others with an indicator for each value. Make
        a column of codes categorical first.
    restrict
        Use these cells of the source only, such as those of one type: True and False for every
        cell of ``adata``, or names of cells.
    by
        Put genes with the largest correlation first, or those with the largest effect. Genes
        against the fate come last.
    level
        Confidence level of the intervals of correlations.
    n_top
        Keep the first so many genes. Multiplicity is corrected over all.
    key_added
        Beginning of the names of what `fates` wrote.

    Returns
    -------
    DataFrame
        A row for each gene. Genes that do not vary among these cells are left out.

        - ``correlation``, between expression and probability,
        - ``p_value``, that a correlation as far from 0 comes by chance,
        - ``q_value``, the same corrected for many genes (Benjamini and Hochberg),
        - ``ci_low``, ``ci_high``, the confidence interval of the correlation (Fisher),
        - ``effect``, β times the standard deviation of the gene: by how much the log-odds change,
        - ``effect_p_value``, ``effect_q_value``, for effects.

        A gene has the effect 0 with p-value 1 where covariates say all that is known of it, or
        where it varies in a single cell.

    Notes
    -----
    P-values rank genes. They are no proof. They are computed as if cells were independent, and they
    are not: where coordinates come from expression, a fate is a smooth function of expression, and
    cells of one clone are alike. Nor does a gene that goes with a fate have to drive it.

    The p-value of a correlation is too small for a gene that few cells express, where few cells
    have the fate. That of the effect is not.

    Log-odds are taken of probabilities between 0.001 and 0.999; those beyond are brought there.
    Every cell counts the same, whatever its weight or growth. Cells without a fate are left out,
    with a warning.
    """
    import pandas as pd

    check_cell_map(model, adata)
    check_name(key_added)
    check_choice(by, "by", ("correlation", "effect"))
    level = check_level(level)
    rows, probability = _fate_of_cells(model.between(source, target), adata, fate, key_added)
    if restrict is not None:
        kept = as_mask(adata, restrict, "restrict")[rows]
        rows, probability = rows[kept], probability[kept]
        if not len(rows):
            raise DataError("None of the cells of restrict is a cell of the source with a fate.")
    if np.ptp(probability) <= 1e-12:
        raise DataError(
            f"The probability of {fate!r} is {probability[0]:.3g} in all of these {len(rows)} "
            "cells, so no gene goes with it. Keep more labels in fates, or use other cells."
        )
    fixed = _design(adata, covariates, rows)
    if len(rows) < max(4, fixed.shape[1] + 2):
        raise DataError(
            f"{len(rows)} cells are too few to test genes with {fixed.shape[1] - 1} columns of "
            f"covariates: at least {max(4, fixed.shape[1] + 2)} are needed."
        )
    X = gene_expression(adata, rows, layer)
    _warn_of_what_is_odd(adata, X, layer)
    clipped = np.clip(probability, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    if np.ptp(clipped) == 0:
        warn_user(
            f"The probability of {fate!r} is {probability.min():.2g} to {probability.max():.2g}, "
            "too near to 0 or 1 in all cells to take log-odds: all effects are 0."
        )
    found = associate(X, probability, np.log(clipped / (1 - clipped)), fixed, level=level)
    if not len(found.gene):
        raise DataError(f"None of {adata.n_vars} genes varies among these {len(rows)} cells.")
    names = pd.Index(np.asarray(adata.var_names.astype(str))[found.gene], name="gene")
    columns = {
        "correlation": found.correlation,
        "p_value": found.p_value,
        "q_value": false_discovery(found.p_value),
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "effect": found.effect,
        "effect_p_value": found.effect_p_value,
        "effect_q_value": false_discovery(found.effect_p_value),
    }
    order = np.argsort(-columns[by], kind="stable")
    if n_top is not None:
        order = order[: check_count(n_top, "n_top", minimum=1)]
    return pd.DataFrame(columns, index=names).iloc[order]


def _fate_of_cells(
    way: CellMap, adata: AnnData, fate: Any, key_added: str
) -> tuple[NDArray[np.int64], Array]:
    """The cells of the source that have a fate, and the probability of one of them."""
    key = f"{key_added}_fates"
    if key not in adata.obsm or key not in adata.uns:
        lost = "obsm" if key not in adata.obsm else "uns"
        others = [name[: -len("_fates")] for name in adata.obsm if name.endswith("_fates")]
        raise DataError(
            "{lost}[{key!r}] not found. Run mongefit.single_cell.fates(model, adata, …) on these "
            "cells first; it writes the probabilities that genes are compared with.{hint}",
            lost=lost, key=key, hint=Suggestion.of("key_added", key_added, others),
        )  # fmt: skip
    about = adata.uns[key]
    names = [str(name) for name in about["names"]]
    if fate not in names:
        raise OptionError(
            f"fate must be one of {listed(names)}, got {fate!r}." + did_you_mean(str(fate), names)
        )
    try:
        way.between(about["source"], about["target"])
    except OptionError as error:
        raise DataError(
            f"obsm[{key!r}] holds fates from {about['time_key']} {about['source']} to "
            f"{about['target']}, not from {way.times.key} {way.times.source} to "
            f"{way.times.target}. Run fates for these times, with a key_added of its own to keep "
            "both."
        ) from error
    rows = way.times.rows(adata, target=False)
    found = np.asarray(adata.obsm[key], np.float64)[rows, names.index(fate)]
    known = np.isfinite(found)
    if not known.any():
        raise DataError(
            f"obsm[{key!r}] is NaN for all {len(rows)} cells of {way.times.key} "
            f"{way.times.source}. Run fates on these cells."
        )
    if not known.all():
        warn_user(
            f"{np.sum(~known)} of the {len(rows)} cells of {way.times.key} {way.times.source} have "
            "no fate (NaN) and are left out."
        )
    return rows[known], found[known]


def _design(adata: AnnData, covariates: str | Iterable[str], rows: NDArray[np.int64]) -> Array:
    """An orthonormal basis of the covariates of some cells and a constant, [n, k]."""
    if not isinstance(covariates, Iterable):
        raise wrong_option("covariates", "a column of obs or a list of some", covariates)
    names = [covariates] if isinstance(covariates, str) else list(covariates)
    parts = [part for name in names for part in _covariate(adata, name, rows)]
    return basis(np.column_stack([np.ones(len(rows)), *parts]))


def _covariate(adata: AnnData, name: Any, rows: NDArray[np.int64]) -> list[Array]:
    """Columns of one covariate; none, with a warning, where it is the same in all cells."""
    import pandas as pd

    column = obs_column(adata, name, "covariates").iloc[rows]
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~np.isfinite(values)
        parts = [values]
    else:
        codes, found = distinct(column)
        missing = codes < 0
        if len(found) > max(2, len(rows) // 2):
            raise DataError(
                f"obs[{name!r}] has {len(found)} values in {len(rows)} cells, and would leave "
                "nothing to test. A covariate has few values, or is a column of numbers."
            )
        parts = [np.asarray(codes == k, np.float64) for k in range(1, len(found))]
    if np.any(missing):
        first = adata.obs_names[rows[int(np.argmax(missing))]]
        raise DataError(
            f"obs[{name!r}] is missing or infinite in {missing.sum()} of the {len(rows)} cells "
            f"(first: {first!r}). Fill it in, or leave these cells out with restrict."
        )
    if all(np.ptp(part) == 0 for part in parts):
        warn_user(f"obs[{name!r}] is the same in all {len(rows)} cells: no covariate, left out.")
        return []
    return parts


def _warn_of_what_is_odd(adata: AnnData, X: Any, layer: str | None) -> None:
    """Warn of expression without logarithms, and of genes that cannot be told apart."""
    largest = X.max() if X.shape[1] else 0.0
    if largest > LARGEST_LOGARITHM:
        where = "X" if layer is None else f"layers[{layer!r}]"
        warn_user(
            f"{where} holds values up to {largest:.0f}, so logarithms were probably not taken: a "
            "few cells with high values decide. Take them first (scanpy.pp.log1p)."
        )
    if not adata.var_names.is_unique:
        twice = adata.var_names[adata.var_names.duplicated()].unique()
        warn_user(
            f"{len(twice)} names of genes occur more than once (first: {twice[0]!r}), and so do "
            "their rows here. Make them unique with adata.var_names_make_unique()."
        )
