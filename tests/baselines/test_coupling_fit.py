"""CouplingFit: mass goes where the losses want it, measured on the coupling itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from mongefit.errors import DataError
from mongefit.losses import CorrectMass, WrongMass
from mongefit.metrics import incorrect_mass
from tests.baselines.families import BASELINES, PAIRS, M, N, X

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("sinkhorn")]

# Partners, and groups, agree in the first feature; the second is noise.
RNG = np.random.default_rng(3)
TARGET = np.empty((M, 2))
TARGET[PAIRS[:, 1], 0] = X[PAIRS[:, 0], 0] + 0.1 * RNG.normal(size=M)
TARGET[:, 1] = RNG.normal(size=M)
GROUPS = tuple(points[:, 0] > np.median(points[:, 0]) for points in (X, TARGET))
OTHER_GROUP = GROUPS[0][:, None] != GROUPS[1][None]


def coupling(max_iter=10, losses=None, **known):
    known = {"pairs": PAIRS, "groups": GROUPS} | known
    model = clone(BASELINES["coupling"]()).set_params(max_iter=max_iter, losses=losses)
    return model.fit(X, TARGET, **known).coupling_


@pytest.fixture(scope="module")
def untrained():
    return coupling(max_iter=0)


def on_pairs(P):
    return P[PAIRS[:, 0], PAIRS[:, 1]]


def test_pairs_get_more_mass(untrained):
    P = coupling(losses=[CorrectMass(), 0.0 * WrongMass()])
    assert on_pairs(P).sum() > 1.3 * on_pairs(untrained).sum()
    assert incorrect_mass(P, PAIRS) < incorrect_mass(untrained, PAIRS) - 0.05


def test_a_pair_of_more_weight_gets_more_mass():
    losses = [CorrectMass(), 0.0 * WrongMass()]
    weights = 1.0 + 50 * np.eye(M)[[0, 7]]
    first, second = (on_pairs(coupling(losses=losses, pair_weight=w))[[0, 7]] for w in weights)
    assert first[0] > second[0] and first[1] < second[1]


def test_other_groups_get_less_mass(untrained):
    P = coupling(max_iter=40, losses=[0.0 * CorrectMass(), WrongMass()])
    assert P[OTHER_GROUP].sum() < 0.8 * untrained[OTHER_GROUP].sum()
    assert np.sum(P[OTHER_GROUP] ** 2) < 0.8 * np.sum(untrained[OTHER_GROUP] ** 2)


def test_losses_are_those_that_what_is_known_calls_for():
    model = clone(BASELINES["coupling"]()).set_params(max_iter=0)

    def kinds(**known):
        return [type(loss) for loss in model.fit(X, TARGET, **known).losses_]

    assert kinds(pairs=PAIRS) == [CorrectMass]
    assert kinds(groups=GROUPS) == [WrongMass]
    assert kinds(pairs=PAIRS, groups=GROUPS) == [CorrectMass, WrongMass]
    with pytest.raises(DataError, match=r"WrongMass\(\) needs groups"):
        model.set_params(losses=[WrongMass()]).fit(X[:N], TARGET, pairs=PAIRS)
