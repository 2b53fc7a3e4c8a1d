"""Every baseline that the contract covers. A new one joins with one line here."""

from __future__ import annotations

import numpy as np

from mongefit.baselines import (
    CouplingFit,
    ElasticMap,
    EuclideanMap,
    IdentityMap,
    InverseOT,
    MongeGapMap,
    NearestPair,
    PairedRidge,
    TargetMean,
)
from mongefit.baselines._linear_costs import QuadraticCost
from tests.conftest import random_clouds

N, M, D = 16, 12, 2
X, Y, A, B = random_clouds(N, M, D, uniform=False)
Z = random_clouds(N, 1, D, seed=9).x
# Every target and all but four sources are known, so that pairs make clouds of one size, 12 by 12.
PAIRS = np.column_stack([np.arange(M), np.random.default_rng(1).permutation(M)])
PAIR_WEIGHT = np.random.default_rng(2).uniform(1, 2, size=M)
GROUPS = (np.arange(N) % 2, np.where(np.arange(M) == 5, -1, np.arange(M) % 2))
KNOWN = {
    "pairs": PAIRS,
    "pair_weight": PAIR_WEIGHT,
    "groups": GROUPS,
    "source_weight": A,
    "target_weight": B,
}

EPSILON = 0.2
# Sinkhorn's method is slower than Newton's and compiles faster.
TRAINED = {"epsilon": EPSILON, "max_iter": 5, "dual": "sinkhorn"}

BASELINES = {
    "identity": lambda: IdentityMap(epsilon=EPSILON),
    "target mean": lambda: TargetMean(epsilon=EPSILON),
    "ridge on pairs": lambda: PairedRidge(epsilon=EPSILON),
    "nearest pair": lambda: NearestPair(epsilon=EPSILON),
    "Euclidean": lambda: EuclideanMap(epsilon=EPSILON),
    # The smallest cost that learns; networks are trained with `MongeMap`.
    "coupling": lambda: CouplingFit(QuadraticCost(np.eye(D), 0.01), **TRAINED),
    "elastic": lambda: ElasticMap(**TRAINED),
    "inverse, powers": lambda: InverseOT("powers", epsilon=EPSILON),
    "inverse, quadratic": lambda: InverseOT("quadratic", epsilon=EPSILON),
    "Monge gap": lambda: MongeGapMap(hidden_layer_sizes=(4,), epsilon=EPSILON, max_iter=5),
}
