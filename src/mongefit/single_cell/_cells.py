"""Two clouds and what is known of them, out of an AnnData."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mongefit.errors import Option, OptionError, noted_warnings
from mongefit.model_selection import default_candidates
from mongefit.model_selection._folds import FEW_CLONES
from mongefit.single_cell._columns import check_adata, obs_weights
from mongefit.single_cell._knowledge import KnownPairs, clone_pairs, named_pairs, shared_groups
from mongefit.single_cell._representation import Fingerprint, Representation, choose_representation
from mongefit.single_cell._times import Times

if TYPE_CHECKING:
    from anndata import AnnData

_BATCH = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """What `fit` takes from an AnnData: two clouds, what is known of them, where they come from.

    ``known`` are pairs by rows of ``x`` and ``y``, and ``groups`` the labels of these rows, None
    for cells of no known group. ``warnings`` is what the user was warned of on the way.
    """

    times: Times
    representation: Representation
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    a: NDArray[np.float64] | None
    b: NDArray[np.float64] | None
    known: KnownPairs | None
    groups: tuple[NDArray[np.object_], NDArray[np.object_]] | None
    warnings: list[str]

    @property
    def has_clones(self) -> bool:
        """Whether pairs come from clones, where a source has several targets."""
        return self.known is not None and self.known.clone is not None

    def known_pairs(self) -> dict[str, Any]:
        """Known pairs and weights, as `mongefit.model_selection` and ensembles take them."""
        pairs, weight, clones = (None, None, None) if self.known is None else self.known
        return {
            "pairs": pairs, "pair_weight": weight, "clones": clones,
            "source_weight": self.a, "target_weight": self.b,
        }  # fmt: skip

    @property
    def can_stop_early(self) -> bool:
        """Whether there are enough clones, and nothing but clones, to choose by."""
        return (
            self.known is not None
            and self.groups is None
            and self.known.clone is not None
            and self.known.clone.max() + 1 >= FEW_CLONES
        )

    def suited_options(self) -> dict[str, Any]:
        """Options of `MongeMap` that suit cells, where the user has not chosen any.

        Cells are noisy, which asks for a larger epsilon, and many, which asks for batches: these
        hold all cells that something is known of, and others. A cost learns clones by heart unless
        it is small and training short.
        """
        known = [set() if self.known is None else set(self.known.pairs[:, k]) for k in (0, 1)]
        for side, labels in zip(known, self.groups or (), strict=False):
            side.update(row for row, label in enumerate(labels) if label is not None)
        size = {"batch_size": max(_BATCH, max(map(len, known)) + _BATCH // 2)}
        if not self.has_clones:
            return {"epsilon": 0.05} | size
        candidate = next(iter(default_candidates().values())).get_params(deep=False)
        names = ("hidden_layer_sizes", "symmetric", "epsilon", "learning_rate", "dtype")
        return {name: candidate[name] for name in names} | {"max_iter": 40} | size


def take_cells(
    adata: AnnData,
    *,
    time_key: Any,
    source: Any,
    target: Any,
    use_rep: str | None = None,
    pca: int | None = None,
    n_components: int | None = None,
    pair_key: str | None = None,
    pairs: Any = None,
    groups_key: str | None = None,
    weight_key: str | None = None,
    many_to_many: bool = False,
) -> Cells:
    """Take both clouds and what is known of them; see `fit` for the options."""
    times = Times.of(time_key, source, target)
    check_adata(adata)
    names = {name: Option(name) for name in ("pair_key", "pairs", "groups_key")}
    if pair_key is not None and pairs is not None:
        raise OptionError("{pair_key} and {pairs} both tell of pairs. Give one of them.", **names)
    if pair_key is not None and pair_key == groups_key:
        raise OptionError(
            "{pair_key} and {groups_key} are both {key!r}. Give one of them.",
            key=pair_key, **names,
        )  # fmt: skip
    sides = times.rows(adata, target=False), times.rows(adata, target=True)
    known = None
    with noted_warnings() as notes:
        if pair_key is not None:
            known = clone_pairs(adata, pair_key, sides)
        elif pairs is not None:
            known = named_pairs(adata, pairs, sides, many_to_many=many_to_many)
        groups = None if groups_key is None else shared_groups(adata, groups_key, sides)
    a, b = (obs_weights(adata, weight_key, rows) for rows in sides)
    rows = np.concatenate(sides)
    representation = choose_representation(
        adata, np.sort(rows), use_rep=use_rep, pca=pca, n_components=n_components
    )
    x, y = (representation.of(adata, side) for side in sides)
    if representation.name != "X":
        kept = Fingerprint.of(adata, representation.name, rows, np.concatenate([x, y]))
        representation = dataclasses.replace(representation, fingerprint=kept)
    return Cells(times, representation, x, y, a, b, known, groups, notes)
