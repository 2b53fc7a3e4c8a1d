"""Fates and origins: which labels cells go to, or came from, and with what probability.

A plan says where a cell x goes as conditional weights s_j(x) of the target cells. The probability
of a label is the weight of its cells, Σ_j s_j(x) 1[label_j = l].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.outcomes import chain_of
from mongefit._validation import check_share, check_switch
from mongefit.errors import DataError, OptionError, did_you_mean, warn_user
from mongefit.single_cell._columns import among_all, check_adata, check_name, in_memory
from mongefit.single_cell._labels import Labels, fitted_rows, label_colors
from mongefit.single_cell._model import SingleCellMap, check_model

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._fitting.chains import Chain

Shares = NDArray[np.float64]

LEAST_MASS = 1e-9
"""Mass on the labels that are kept below which a cell has no fate among them."""
BLURRED = 0.02
"""Share of the entropy of the labels below which the plan says nothing of a cell."""
_SOME = 256
_NAMES = {False: ("fates", "fate"), True: ("origins", "origin")}


class Fates(NamedTuple):
    """Probabilities of labels, [N, labels], those of each member of an ensemble, and the mass.

    Rows of ``probability`` sum to 1 over the labels that are ``kept``. ``raw`` has all labels, and
    sums to the ``mass`` that goes to cells with a label. ``members`` are [members, N, labels].
    """

    names: tuple[str, ...]
    probability: Shares
    all_names: tuple[str, ...]
    raw: Shares
    mass: NDArray[np.float64]
    members: Shares

    @property
    def entropy(self) -> NDArray[np.float64]:
        """How open the fate of each cell is, in nats."""
        return np.asarray(entr(self.probability).sum(axis=1))

    def interval(self, level: float) -> tuple[Shares, Shares]:
        """Between which probabilities this share of the members lies."""
        tail = (1 - level) / 2
        low, high = np.quantile(self.members, [tail, 1 - tail], axis=0)
        return low, high

    @property
    def informative(self) -> float:
        """The mutual information of cell and label, over the entropy of the labels."""
        known = self.probability[np.all(np.isfinite(self.probability), axis=1)]
        whole = entr(known.mean(axis=0)).sum() if len(known) else 0.0
        return 1.0 if whole <= 0 else float(1 - entr(known).sum(axis=1).mean() / whole)


def fates(
    model: SingleCellMap,
    adata: AnnData,
    key: str,
    *,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    reference: AnnData | None = None,
    level: float = 0.9,
    key_added: str = "mongefit",
    copy: bool = False,
) -> AnnData | None:
    """Predict which labels the descendants of the cells of the source will have.

    Writes

    - ``obsm["<key_added>_fates"]``, the probability of each label, a column each; rows sum to 1,
      and are NaN for cells of other times. Names are in ``uns["<key_added>_fates"]["names"]``,
    - ``obs["<key_added>_fate"]``, the most probable label, with its colour in uns,
    - ``obs["<key_added>_fate_entropy"]``, how open the fate is: 0 for one certain label, log k
      for k equal ones,
    - ``obs["<key_added>_fate_mass"]``, the share of the descendants that have one of the labels
      that are kept, and ``obsm["<key_added>_fates_raw"]`` with all labels before that, if some are
      excluded,
    - ``obs["<key_added>_informed"]``, whether a known source is near the cell, of an ensemble,
    - of an ensemble also ``obsm["<key_added>_fates_low"]`` and ``…_fates_high"]``, between which a
      share ``level`` of its members lies. They were trained on clones drawn with replacement.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells; those of the fit or others, with the same time key and representation.
    key
        Column of obs with the labels of the target cells.
    source, target
        Two times of a model over several; by default the first and the last.
    exclude
        Labels that are no fate, such as "undifferentiated". Probabilities are then those of the
        other labels, given that it is one of them.
    reference
        The AnnData with the labelled target cells of the fit, where ``adata`` has other cells.
    level
        Share of the members of an ensemble that an interval holds.
    key_added
        Beginning of the names of what is written.
    copy
        Leave ``adata`` alone and return a copy.
    """
    return _write(
        model, adata, key, reverse=False, source=source, target=target, exclude=exclude,
        reference=reference, level=level, key_added=key_added, copy=copy,
    )  # fmt: skip


def origins(
    model: SingleCellMap,
    adata: AnnData,
    key: str,
    *,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    reference: AnnData | None = None,
    level: float = 0.9,
    key_added: str = "mongefit",
    copy: bool = False,
) -> AnnData | None:
    """Predict which labels the ancestors of the cells of the target had.

    It is `fates` in reverse: ``key`` labels the cells of the source, and what is written is named
    ``<key_added>_origins``, ``<key_added>_origin`` and so on.
    """
    return _write(
        model, adata, key, reverse=True, source=source, target=target, exclude=exclude,
        reference=reference, level=level, key_added=key_added, copy=copy,
    )  # fmt: skip


class Intervals(NamedTuple):
    """A table, and between which values a share of the members of an ensemble lies."""

    table: DataFrame
    low: DataFrame
    high: DataFrame


def transition_table(
    model: SingleCellMap,
    adata: AnnData,
    key: str,
    *,
    source_key: str | None = None,
    source: Any = None,
    target: Any = None,
    exclude: str | Iterable[str] = (),
    level: float | None = None,
) -> DataFrame | Intervals:
    """Tabulate which labels the cells of each label go to.

    Parameters
    ----------
    model, adata, key, source, target, exclude
        As for `fates`; ``adata`` holds the cells of the fit.
    source_key
        Column of obs with the labels of the source cells; by default ``key``.
    level
        Return also between which values this share of the members of an ensemble lies. They were
        trained on clones drawn with replacement, so this is a bootstrap interval over clones.

    Returns
    -------
    DataFrame or Intervals
        A row for each label of the source and a column for each of the target; rows sum to 1. Cells
        count by their mass: by weight and growth. With ``level`` three such tables, ``table``,
        ``low`` and ``high``.
    """
    import pandas as pd

    check_model(model, adata)
    way = model.between(source, target)
    if level is not None:
        level = _check_level(level)
        if not isinstance(way.model, EnsembleMap):
            raise OptionError(
                "level needs an ensemble, whose members were trained on clones drawn with "
                "replacement: fit(…, model=EnsembleMap())."
            )
    rows = fitted_rows(way, adata, target=False)
    labels = Labels.of(adata, key if source_key is None else source_key, rows, "source_key")
    points = way.coordinates(adata, rows)
    found = find_fates(way, points, adata, key, exclude=exclude)
    weight = labels.indicator * (source_weight(way) * found.mass)[:, None]
    total = weight.sum(axis=0)
    if np.any(total <= 0):
        lost = [name for name, mass in zip(labels.names, total, strict=True) if mass <= 0]
        raise DataError(f"No mass goes from {lost[0]!r} to any of {', '.join(found.names)}.")
    share = weight / total

    def table(probability: Shares) -> DataFrame:
        index = pd.Index(labels.names, name=f"{way.times.key} {way.times.source}")
        columns = pd.Index(found.names, name=f"{way.times.key} {way.times.target}")
        return pd.DataFrame(share.T @ np.nan_to_num(probability), index=index, columns=columns)

    if level is None:
        return table(found.probability)
    tail = (1 - level) / 2
    each = np.stack([table(member).to_numpy() for member in found.members])
    whole = table(found.probability)
    low, high = (
        pd.DataFrame(np.quantile(each, q, axis=0), index=whole.index, columns=whole.columns)
        for q in (tail, 1 - tail)
    )
    return Intervals(whole, low, high)


def push(
    model: SingleCellMap,
    adata: AnnData,
    cells: Any,
    *,
    source: Any = None,
    target: Any = None,
    key_added: str = "mongefit_push",
    copy: bool = False,
) -> AnnData | None:
    """Find the descendants of a set of cells of the source.

    Writes ``obs[key_added]``: how the mass of the set is spread over the cells of the target. It
    sums to 1, and is NaN for cells of other times.

    Parameters
    ----------
    model, adata, source, target, copy
        As for `fates`; ``adata`` holds the cells of the fit.
    cells
        The set: True and False for every cell of ``adata``, such as
        ``adata.obs["cell_type"] == "HSC"``, or names of cells. Only cells of the source count.
    key_added
        Name of the column.
    """
    return _carry(model, adata, cells, source, target, key_added, reverse=False, copy=copy)


def pull(
    model: SingleCellMap,
    adata: AnnData,
    cells: Any,
    *,
    source: Any = None,
    target: Any = None,
    key_added: str = "mongefit_pull",
    copy: bool = False,
) -> AnnData | None:
    """Find the ancestors of a set of cells of the target: `push` in reverse."""
    return _carry(model, adata, cells, source, target, key_added, reverse=True, copy=copy)


def find_fates(
    way: SingleCellMap,
    points: NDArray[np.float64],
    reference: AnnData,
    key: Any,
    *,
    reverse: bool = False,
    exclude: str | Iterable[str] = (),
) -> Fates:
    """Probabilities of the labels of a column for points of the source, or of the target."""
    from mongefit._fitting.chains import mean_over

    labels = Labels.of(reference, key, fitted_rows(way, reference, target=not reverse))
    kept = labels.kept(exclude)
    chain = chain_of(way.model)
    chains: list[Chain] = [chain]
    if isinstance(way.model, EnsembleMap):
        chains = [[[each]] for each in chain[0]]
    each = np.stack(
        [mean_over(one, labels.indicator, reverse=reverse, points=points) for one in chains]
    )
    raw = each.mean(axis=0)
    mass = raw[:, kept].sum(axis=1)
    names = tuple(np.asarray(labels.names, object)[kept])
    probability = _normalised(raw[:, kept])
    return Fates(names, probability, labels.names, raw, mass, _normalised(each[:, :, kept]))


def _normalised(mass: Shares) -> Shares:
    """Rows brought to sum 1; NaN where there is no mass."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.full_like(mass, np.nan), where=total > LEAST_MASS)


def _write(
    model: SingleCellMap,
    adata: AnnData,
    key: str,
    *,
    reverse: bool,
    source: Any,
    target: Any,
    exclude: str | Iterable[str],
    reference: AnnData | None,
    level: float,
    key_added: str,
    copy: bool,
) -> AnnData | None:
    import pandas as pd

    check_model(model, adata)
    check_switch(copy, "copy")
    check_name(key_added)
    level = _check_level(level)
    if reference is not None:
        check_adata(reference)
    labelled = adata if reference is None else reference
    way = model.between(source, target)
    rows = way.times.rows(adata, target=reverse)
    points = way.coordinates(adata, rows)
    found = find_fates(way, points, labelled, key, reverse=reverse, exclude=exclude)
    perplexity = _warn_of_what_is_wrong(found, way, points, reverse=reverse)
    if copy:
        adata = in_memory(adata)
    several, single = (f"{key_added}_{name}" for name in _NAMES[reverse])
    _put(adata.obsm, several, adata, rows, found.probability)
    if len(found.names) < len(found.all_names):
        _put(adata.obsm, f"{several}_raw", adata, rows, found.raw)
    if len(found.members) > 1:
        for end, bound in zip(("low", "high"), found.interval(level), strict=True):
            _put(adata.obsm, f"{several}_{end}", adata, rows, bound)
    _put(adata.obs, f"{single}_entropy", adata, rows, found.entropy)
    _put(adata.obs, f"{single}_mass", adata, rows, found.mass)
    best = np.full(adata.n_obs, -1)
    known = np.isfinite(found.probability).all(axis=1)
    best[rows[known]] = np.argmax(found.probability[known], axis=1)
    adata.obs[single] = pd.Categorical.from_codes(best, list(found.names))
    colors = label_colors(labelled, key)
    adata.uns[f"{single}_colors"] = [str(colors[name]) for name in found.names]
    if isinstance(way.model, EnsembleMap) and not reverse:
        adata.obs[f"{key_added}_informed"] = among_all(adata, rows, way.model.informed(points))
    adata.uns[several] = {
        "names": np.asarray(found.names, dtype=str),
        "names_raw": np.asarray(found.all_names, dtype=str),
        "key": key,
        "time_key": way.times.key,
        "source": way.times.source,
        "target": way.times.target,
        "perplexity": perplexity,
        "informative": found.informative,
        **({"level": level} if len(found.members) > 1 else {}),
    }
    return adata if copy else None


def _warn_of_what_is_wrong(
    found: Fates, way: SingleCellMap, points: NDArray[np.float64], *, reverse: bool
) -> float:
    """The number of cells that a cell goes to, in the median; warns of fates that say nothing."""
    some = np.unique(np.linspace(0, len(points) - 1, _SOME).astype(int))
    perplexity = float(np.median(np.exp(way.model.entropy(points[some], reverse=reverse))))
    if lost := int(np.sum(found.mass <= LEAST_MASS)):
        warn_user(
            f"{lost} of {len(points)} cells have no mass on {', '.join(found.names)}: their "
            "probabilities are NaN."
        )
    if len(found.names) > 1 and len(points) > 1 and found.informative < BLURRED:
        warn_user(
            "The plan says nearly the same of every cell: which cell it is tells "
            f"{found.informative:.1%} of what is open about the label. A cell is spread over "
            f"{perplexity:.0f} others (the median). Fit with a smaller epsilon, or with other "
            "components."
        )
    return perplexity


def _carry(
    model: SingleCellMap,
    adata: AnnData,
    cells: Any,
    source: Any,
    target: Any,
    key_added: str,
    *,
    reverse: bool,
    copy: bool,
) -> AnnData | None:
    check_model(model, adata)
    check_switch(copy, "copy")
    check_name(key_added)
    found = carry_mass(model.between(source, target), adata, cells, reverse=reverse)
    if copy:
        adata = in_memory(adata)
    adata.obs[key_added] = among_all(adata, found.reached, found.mass)
    return adata if copy else None


class Carried(NamedTuple):
    """Rows of a set of cells, those of all cells of the other time, and the mass these receive."""

    cells: NDArray[np.int64]
    reached: NDArray[np.int64]
    mass: NDArray[np.float64]


def carry_mass(way: SingleCellMap, adata: AnnData, cells: Any, *, reverse: bool = False) -> Carried:
    """Where the mass of a set of cells goes, or came from; it sums to 1."""
    here, there = (fitted_rows(way, adata, target=side) for side in (reverse, not reverse))
    time = way.times.target if reverse else way.times.source
    mask = _as_mask(adata, cells)[here]
    if not mask.any():
        raise DataError(f"None of these cells is one of {way.times.key} {time}.")
    found = (way.model.pull if reverse else way.model.push)(mask)
    total = found.sum()
    if not total > 0:
        raise DataError(f"No mass is left of these cells of {way.times.key} {time}.")
    return Carried(here[mask], there, found / total)


def _as_mask(adata: AnnData, cells: Any) -> NDArray[np.bool_]:
    """A set of cells as True and False for every cell."""
    given = np.asarray(cells)
    if given.dtype == bool:
        if given.shape != (adata.n_obs,):
            raise DataError(
                f"cells has the shape {given.shape}; there are {adata.n_obs} cells. Give True or "
                "False for each, or their names."
            )
        return given
    names = [str(name) for name in np.atleast_1d(given).ravel()]
    found = adata.obs_names.isin(names)
    if missing := [name for name in names if name not in adata.obs_names]:
        raise DataError(
            f"{len(missing)} of {len(names)} names are not among the cells (first: "
            f"{missing[0]!r})." + did_you_mean(missing[0], adata.obs_names[:10_000])
        )
    return np.asarray(found, bool)


def source_weight(way: SingleCellMap) -> NDArray[np.float64]:
    """The mass that each source cell of the fit sends."""
    from mongefit._fitting.chains import end_of, growth_over
    from mongefit._fitting.outcomes import fitted_points

    chain = chain_of(way.model)
    start = end_of(chain, source=True)
    weight = np.asarray(start.a, np.float64)
    return weight * growth_over(chain, fitted_points(start, source=True))


def _check_level(level: Any) -> float:
    found = check_share(level, "level")
    if not 0 < found < 1:
        raise OptionError(f"level must be between 0 and 1, got {level!r}.")
    return found


def _put(where: Any, name: str, adata: AnnData, rows: NDArray[np.int64], values: Any) -> None:
    where[name] = among_all(adata, rows, values)
