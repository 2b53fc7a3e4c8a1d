"""CellRank's RealTimeKernel runs from our couplings, and says of fates what we say."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit.single_cell import to_cellrank
from tests.interop.conftest import FATES

cellrank = pytest.importorskip("cellrank")


@pytest.fixture
def kernel(case):
    couplings = to_cellrank(case.model, case.adata)
    found = cellrank.kernels.RealTimeKernel(case.adata.copy(), "day", couplings=couplings)
    return found.compute_transition_matrix()


def between(case, matrix):
    """The part of a matrix of all cells that leads from day 2 to day 4."""
    early, late = (np.flatnonzero(case.adata.obs["day"] == day) for day in (2, 4))
    return np.asarray(matrix[early][:, late].todense())


def test_couplings_are_the_plan(case, kernel):
    (coupling,) = kernel.couplings.values()
    np.testing.assert_allclose(coupling.X.toarray(), case.P, atol=1e-9)


def test_transitions_are_the_conditional_distribution(case, kernel):
    found = between(case, kernel.transition_matrix)
    np.testing.assert_allclose(found, case.conditional, atol=1e-6)


def test_fate_probabilities(case, kernel):
    estimator = cellrank.estimators.GPCCA(kernel)
    late = case.adata[case.adata.obs["day"] == 4]
    ends = {fate: late.obs_names[late.obs["cell_type"] == fate].tolist() for fate in FATES}
    estimator.set_terminal_states(ends)
    estimator.compute_fate_probabilities(tol=1e-12, show_progress_bar=False)
    found = estimator.fate_probabilities[(case.adata.obs["day"] == 2).to_numpy()]
    assert tuple(found.names) == FATES
    np.testing.assert_allclose(found.X, case.conditional @ case.is_fate(), atol=1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_macrostates_and_fates_without_options(case, kernel):
    estimator = cellrank.estimators.GPCCA(kernel)
    estimator.fit(n_states=2)
    estimator.predict_terminal_states(method="top_n", n_states=2)
    estimator.compute_fate_probabilities()
    found = np.asarray(estimator.fate_probabilities.X)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert found.shape == (case.adata.n_obs, 2)
