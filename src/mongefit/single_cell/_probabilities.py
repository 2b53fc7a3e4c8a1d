"""Probabilities of labels where cells go, or came from.

A plan says where a cell x goes as conditional weights s_j(x) of the target cells. The probability
of a label is the weight of its cells, Σ_j s_j(x) 1[label_j = l].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from mongefit._estimators.ensemble import EnsembleMap
from mongefit._estimators.outcomes import chain_of
from mongefit._validation import check_share
from mongefit.errors import OptionError
from mongefit.single_cell._average import CellMap
from mongefit.single_cell._labels import Labels, fitted_rows

if TYPE_CHECKING:
    from anndata import AnnData

    from mongefit._fitting.chains import Chain

Shares = NDArray[np.float64]

LEAST_MASS = 1e-9
"""Mass on the labels that are kept below which a cell has no fate among them."""


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

    @classmethod
    def join(cls, parts: Sequence[Fates]) -> Fates:
        """The fates of several sets of cells, one after the other."""
        first, *rest = parts
        if not rest:
            return first
        return cls(
            first.names,
            np.concatenate([each.probability for each in parts]),
            first.all_names,
            np.concatenate([each.raw for each in parts]),
            np.concatenate([each.mass for each in parts]),
            np.concatenate([each.members for each in parts], axis=1),
        )

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


def find_fates(
    way: CellMap,
    adata: AnnData,
    rows: NDArray[np.int64],
    reference: AnnData,
    key: Any,
    *,
    reverse: bool = False,
    exclude: str | Iterable[str] = (),
    among: Sequence[str] = (),
) -> Fates:
    """Probabilities of the labels of a column for some cells of the source, or of the target.

    Of an average the mean of what its maps say; its members are the means of theirs, in turn.
    Labels are those of the cells that the map leads to, and those ``among`` them.
    """
    from mongefit._fitting.chains import mean_over

    views = []
    for view in way.maps:
        ends = fitted_rows(view, reference, target=not reverse)
        labels = Labels.of(reference, key, ends, among=among)
        points = view.coordinates(adata, rows)
        chain = chain_of(view.model)
        chains: list[Chain] = [chain]
        if isinstance(view.model, EnsembleMap):
            chains = [[[each]] for each in chain[0]]
        views.append(
            [mean_over(one, labels.indicator, reverse=reverse, points=points) for one in chains]
        )
    kept = labels.kept(exclude)
    count = max(map(len, views))
    members = [mean_shares([view[k % len(view)] for view in views], kept) for k in range(count)]
    each = [np.mean(view, axis=0) for view in views]
    raw = np.mean(each, axis=0)
    return Fates(
        tuple(np.asarray(labels.names, object)[kept]), mean_shares(each, kept), labels.names, raw,
        raw[:, kept].sum(axis=1), np.stack(members),
    )  # fmt: skip


def mean_shares(masses: Sequence[Shares], kept: NDArray[np.bool_]) -> Shares:
    """The mean over maps of the shares of the labels that are kept, of those maps that have any."""
    shares = np.stack([_normalised(mass[:, kept]) for mass in masses])
    known = np.isfinite(shares)
    total, count = np.where(known, shares, 0.0).sum(axis=0), known.sum(axis=0)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _normalised(mass: Shares) -> Shares:
    """Rows brought to sum 1; NaN where there is no mass."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.full_like(mass, np.nan), where=total > LEAST_MASS)


def check_level(level: Any) -> float:
    found = check_share(level, "level")
    if not 0 < found < 1:
        raise OptionError(f"level must be between 0 and 1, got {level!r}.")
    return found
