"""A cost learned from the coupling instead of the map."""

from __future__ import annotations

from mongefit._costs import Cost
from mongefit._estimators.monge_map import CostLearner
from mongefit._validation import Knowledge
from mongefit.losses import CorrectMass, Term, WrongMass


def coupling_losses(known: Knowledge) -> list[Term]:
    """The losses on the plan that known pairs and known groups call for."""
    chosen: list[Term] = [] if known.pairs is None else [CorrectMass()]
    return chosen if known.groups is None else [*chosen, WrongMass()]


class CouplingFit(CostLearner):
    """Learn h(Φμ(x) − Φν(y)) so that the plan puts its mass where it should; map afterwards.

    The family of costs, the training, the options and the attributes are those of `MongeMap`. The
    losses look at the plan P alone: −Σ_k w_k P_{i_k j_k} over known pairs with weights w_k, and
    Σ P_ij² over entries that join different groups (Liu et al. 2020). The map is the entropic map
    of the cost that was learned; nothing made it agree with the pairs.

    Examples
    --------
    >>> from mongefit import datasets
    >>> from mongefit.baselines import CouplingFit
    >>> X, Y = datasets.moon(16, seed=0)
    >>> model = CouplingFit(hidden_layer_sizes=(4,), epsilon=0.1, max_iter=10)
    >>> model.fit(X, Y, pairs=[[0, 0], [9, 9]]).transform(X).shape
    (16, 2)
    """

    def _choose_losses(self, known: Knowledge, cost: Cost) -> list[Term]:
        return coupling_losses(known)
