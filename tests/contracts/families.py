"""Every family that a contract covers. A new one joins with one line here."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from mongefit._convex import (
    ICNN,
    LearnedMatrix,
    LowRankMatrix,
    Mahalanobis,
    PowerNorm,
    SquaredEuclidean,
)
from mongefit._flows import AffineMap, AutoregressiveFlow, ComposedMap, KernelMap
from mongefit._inverse import ConjugateICNN
from mongefit.baselines._elastic import ElasticCost
from mongefit.baselines._linear_costs import FeatureCost, PowersCost, QuadraticCost
from mongefit.losses import (
    CorrectMass,
    Directional,
    Groups,
    Likelihood,
    LowRank,
    Paired,
    TargetFit,
    WrongMass,
)
from mongefit.penalties import CostSize, Departure, DirichletEnergy, FlowSimilarity, LogDet


def shaken(tree, size=0.3, seed=7):
    """The tree with noise on every weight, so that nothing is at its special initial value."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jr.split(jr.key(seed), len(leaves))
    return jax.tree.unflatten(
        structure,
        [
            leaf + size * jr.normal(key, leaf.shape, leaf.dtype)
            if eqx.is_inexact_array(leaf)
            else leaf
            for key, leaf in zip(keys, leaves, strict=True)
        ],
    )


def as_float32(tree):
    """The tree with every weight in float32."""
    return jax.tree.map(
        lambda leaf: leaf.astype(np.float32) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def _matrix(dim):
    root = np.random.default_rng(3).normal(size=(dim, dim))
    return root @ root.T + 0.5 * np.eye(dim)


CONVEX = {
    "squared Euclidean": lambda dim: SquaredEuclidean(),
    "Mahalanobis": lambda dim: Mahalanobis(_matrix(dim)),
    "learned matrix": lambda dim: shaken(LearnedMatrix(dim)),
    "learned low-rank matrix": lambda dim: shaken(LowRankMatrix(dim, 2, key=jr.key(2))),
    "power 1.5": lambda dim: PowerNorm(1.5, 0.1),
    "power 1.1, no quadratic": lambda dim: PowerNorm(1.1),
    "power 3": lambda dim: PowerNorm(3.0, 0.1),
    "ICNN symmetric": lambda dim: shaken(ICNN(dim, (8, 6), key=jr.key(0), gain=2.0)),
    "ICNN asymmetric": lambda dim: shaken(
        ICNN(dim, (8, 6), key=jr.key(0), gain=2.0, symmetric=False)
    ),
    "ICNN softplus, no quadratic": lambda dim: shaken(
        ICNN(dim, (8,), key=jr.key(1), gain=2.0, activation="softplus", quadratic=False, alpha=0.1)
    ),
    "conjugate ICNN symmetric": lambda dim: shaken(
        ConjugateICNN(dim, (8, 6), key=jr.key(0), gain=2.0)
    ),
    # With this alpha the conjugate is scaled down.
    "conjugate ICNN asymmetric": lambda dim: shaken(
        ConjugateICNN(
            dim, (8,), key=jr.key(1), gain=9.0, symmetric=False, activation="softplus", alpha=0.4
        )
    ),
    "elastic": lambda dim: ElasticCost(jr.normal(jr.key(4), (dim, 2)), 3.0),
    "low-rank quadratic": lambda dim: QuadraticCost(jr.normal(jr.key(5), (dim, 1)), 0.1),
    # Without powers below 2, whose curvature is infinite at zero: Newton's method cannot start
    # there. `PowersCost` inverts them coordinate by coordinate.
    "features": lambda dim: FeatureCost(
        theta=jnp.array([0.5, 0.3]), features=(PowerNorm(3.0), Mahalanobis(_matrix(dim))), alpha=0.1
    ),
    "powers": lambda dim: PowersCost(jr.uniform(jr.key(6), (3, dim)), 0.1),
    # No coordinate has all powers, and one has none: what a sparse θ looks like.
    "few powers": lambda dim: PowersCost(jnp.eye(3, dim).at[1, 1].set(0.0), 0.1),
}

DIFFEOS = {
    "one block": lambda dim: AutoregressiveFlow(dim, key=jr.key(0), n_blocks=1, width=8),
    "three blocks": lambda dim: AutoregressiveFlow(dim, key=jr.key(1), n_blocks=3, width=8),
    "four blocks": lambda dim: AutoregressiveFlow(dim, key=jr.key(2), width=8, depth=2),
    "affine": lambda dim: AffineMap(dim),
    "affine, then a flow": lambda dim: ComposedMap(
        AffineMap(dim), AutoregressiveFlow(dim, key=jr.key(0), n_blocks=1, width=8)
    ),
    "kernel": lambda dim: KernelMap(10 * jr.normal(jr.key(6), (7, dim)), 10.0),
}

LOSSES = {
    "paired": lambda dim: Paired(),
    "paired, robust": lambda dim: Paired(huber=1.2),
    "groups": lambda dim: Groups(),
    "low rank": lambda dim: LowRank(1),
    "directional": lambda dim: Directional(2, directions=jr.normal(jr.key(3), (2, dim))),
    "target fit": lambda dim: TargetFit(),
    "likelihood": lambda dim: Likelihood(),
    "correct mass": lambda dim: CorrectMass(),
    "wrong mass": lambda dim: WrongMass(),
}

PENALTIES = {
    "cost size": lambda dim: CostSize(),
    "flow similarity": lambda dim: FlowSimilarity(),
    "Dirichlet energy": lambda dim: DirichletEnergy(),
    "log-determinant": lambda dim: LogDet(),
    "departure": lambda dim: Departure(),
}
