"""Problems made to be hard: what is called converged passes a check that was written apart.

`make fuzz` runs this at full length.
"""

from __future__ import annotations

import warnings

import jax.random as jr
import numpy as np

from mongefit import ICNN, Mahalanobis, MongeMap, PowerNorm
from mongefit._runtime import double_precision
from mongefit.errors import ConvergenceWarning
from tests.campaigns.checking import inverse_residual, marginal_error
from tests.contracts.families import shaken


def network(rng, d):
    with double_precision():
        h = ICNN(d, (6, 4), key=jr.key(0), gain=2.0, symmetric=bool(rng.integers(2)))
        return shaken(h, rng.uniform(0, 0.8), seed=int(rng.integers(2**31)))


COSTS = {
    "squared": lambda rng, d: "sqeuclidean",
    "quadratic": lambda rng, d: Mahalanobis(np.diag(10.0 ** rng.uniform(-3, 3, size=d))),
    "power": lambda rng, d: PowerNorm(1.5, 0.1),
    "network": network,
}


def far_groups(rng, x, y):
    """Groups of both clouds far apart, of unequal mass on the two sides or equal."""
    distance = 10.0 ** rng.uniform(1, 6)
    cut = rng.integers(1, len(x) + 1), rng.integers(1, len(y) + 1)
    x[: cut[0], 0] += distance
    y[: cut[1] if rng.integers(2) else len(y) // 2, 0] += distance


def duplicates(rng, x, y):
    x[:] = x[rng.integers(0, min(3, len(x)), size=len(x))]
    y[:] = y[rng.integers(0, min(3, len(y)), size=len(y))]
    if rng.integers(2):
        y[0] = x[0]


def flat(rng, x, y):
    """Features of very different scales."""
    scales = 10.0 ** rng.uniform(-8, 8, size=x.shape[1])
    x *= scales
    y *= scales


def huge(rng, x, y):
    scale, offset = 10.0 ** rng.uniform(-20, 20), 10.0 ** rng.uniform(0, 6)
    for points in (x, y):
        points[:] = scale * (points + offset)


def outlier(rng, x, y):
    x[0] *= 10.0 ** rng.uniform(1, 8)


def lattice(rng, x, y):
    """Many plans of the same cost."""
    x[:], y[:] = np.round(x), np.round(y)


def shrunk(rng, x, y):
    y *= 10.0 ** -rng.uniform(1, 12)


NASTY = (far_groups, duplicates, flat, huge, outlier, lattice, shrunk)
SHAPES = ((1, 1), (1, 8), (8, 1), (16, 16), (24, 16))


def weights(rng, size):
    kind = rng.integers(4)
    if kind == 0 or size == 1:
        return None
    weight = rng.dirichlet(np.full(size, (1.0, 0.05)[kind % 2]))
    if kind == 3:
        weight[rng.integers(size, size=size // 2)] = 0
    weight = np.where(weight.sum() > 0, weight, 1.0)
    return weight / weight.sum()


def problem(rng, n, m, d):
    x, y = rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 1
    names = []
    for change in rng.choice(len(NASTY), size=rng.integers(1, 3), replace=False):
        NASTY[change](rng, x, y)
        names.append(NASTY[change].__name__)
    return x, y, names


def test_what_is_called_converged_is(campaign):
    rng = np.random.default_rng(0)
    shapes, costs = (
        (SHAPES, list(COSTS)) if campaign.long else (SHAPES[1:4:2], ["squared", "network"])
    )
    outcomes = {"converged": 0, "said otherwise": 0}
    for case in campaign.cases("adversarial solves", short=60, long=1000):
        n, m = shapes[case % len(shapes)]
        kind = costs[(case // len(shapes)) % len(costs)]
        d = 2 if not campaign.long or case % 3 else 10
        x, y, names = problem(rng, n, m, d)
        epsilon = 10.0 ** rng.uniform(-6, 0)
        model = MongeMap(COSTS[kind](rng, d), epsilon=epsilon, max_iter=0)
        if kind == "network":
            model.set_params(losses=[lambda context: 0.0])
        story = f"case {case}: {kind}, {n}×{m}×{d}, {names}, epsilon {epsilon:.1e}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, source_weight=weights(rng, n), target_weight=weights(rng, m))
        found, made = model.diagnostics_, model.map_
        error, rounding = marginal_error(made)
        assert np.isfinite(error), story
        if found["converged"]:
            assert error <= 1e-9 + rounding, (story, error, rounding)
        same = found["epsilon"] == found["epsilon_requested"]
        if not (found["converged"] and same):
            said = [str(w.message) for w in caught if w.category is ConvergenceWarning]
            assert any(f"{found['epsilon']:g}" in text for text in said), story
        outcomes["converged" if found["converged"] and same else "said otherwise"] += 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            images = model.transform(x)
        assert np.all(np.isfinite(images)), story
        if not any("inverse gradient" in str(w.message) for w in caught):
            residual, rounding = inverse_residual(made, x, images)
            assert np.all(residual <= 1e-9 + rounding), (story, (residual - rounding).max())
    assert outcomes["converged"] > 0
    for what, cases in outcomes.items():
        campaign.count(f"adversarial solves: {what}", cases)
