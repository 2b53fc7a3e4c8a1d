"""Long use: training that never breaks, the same bits every time, and no growth.

`make soak` runs this at full length.
"""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest

from mongefit import MongeMap

COMPILED = "/jax/core/compile/backend_compile_duration"


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_training(campaign):
    """Live-seq's shape, 121 × 72 in ten dimensions with nine pairs, and a shared flow."""
    steps = campaign.pick(10, 1000)
    for seed in campaign.cases(f"trainings of {steps} steps", short=1, long=10):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(121, 10)), 1.3 * rng.normal(size=(72, 10)) + 0.5
        model = MongeMap(
            diffeo="shared", hidden_layer_sizes=(32, 32), epsilon=(0.05, 0.01), max_iter=steps,
            random_state=seed,
        )  # fmt: skip
        pairs = np.stack([rng.choice(121, 9, replace=False), rng.choice(72, 9, replace=False)], 1)
        model.fit(x, y, pairs=pairs)
        assert model.n_iter_ == steps and model.diagnostics_["converged"]
        for name, column in model.history_.items():
            assert np.all(np.isfinite(column)), name
        assert np.all(np.isfinite(model.transform(x)))
        assert np.all(np.isfinite(model.inverse_transform(y)))
        campaign.count("training steps that were skipped", model.diagnostics_["skipped_steps"])


def test_the_same_seed_gives_the_same_bits(campaign):
    arrangements = ({}, {"diffeo": "shared"}, {"n_init": 2}, {"batch_size": 12})
    for case in campaign.cases("the same seed twice, the same bits", short=2, long=20):
        rng = np.random.default_rng(case)
        x, y = rng.normal(size=(16, 2)), rng.normal(size=(16, 2)) + 1
        pairs = np.stack([np.arange(5)] * 2, axis=1)
        options = arrangements[case % len(arrangements) if campaign.long else 0]
        found = []
        for _ in range(2):
            model = MongeMap(
                hidden_layer_sizes=(8,), epsilon=0.05, max_iter=30, random_state=case, **options
            )
            found.append(model.fit(x, y, pairs=pairs))
        first, second = found
        np.testing.assert_array_equal(first.transform(x), second.transform(x))
        for name, column in first.history_.items():
            np.testing.assert_array_equal(column, second.history_[name])


@pytest.fixture
def compilations():
    """How often XLA compiled, as a list that grows."""
    seen: list[float] = []

    def listen(event, duration, **_):
        if event == COMPILED:
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_transform_again_and_again(campaign, compilations):
    """Queries of 500 sizes: few programs, and memory that does not grow."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 3)), rng.normal(size=(48, 3)) + 1
    model = MongeMap(hidden_layer_sizes=(8,), epsilon=0.05, max_iter=0)
    model.fit(x, y, pairs=np.stack([np.arange(9)] * 2, axis=1))
    queries = rng.normal(size=(500, 3))
    compilations.clear()
    before = None
    total, stride = campaign.pick(300, 10_000), campaign.pick(2, 1)
    for case in campaign.cases("calls of transform", short=300, long=10_000):
        size = stride * (case + 1) if stride * case < 500 else int(rng.integers(1, 501))
        assert len(model.transform(queries[:size])) == size
        if case == total // 2:  # when every size has been seen
            gc.collect()
            before = resident()
    gc.collect()
    assert len(compilations) <= 15
    assert resident() <= 1.05 * before
    campaign.count("compilations in calls of transform", len(compilations))
