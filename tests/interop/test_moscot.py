"""moscot takes our costs and our plan, and finds the same plan from the same costs."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit import MongeMap
from mongefit._runtime import double_precision
from mongefit.errors import DataError
from mongefit.single_cell import cost_matrices, fit, to_moscot
from tests.interop.conftest import FATES, make_cells

moscot = pytest.importorskip("moscot")
LEG = (2.0, 4.0)
EXACT = {"scale_cost": 1.0, "threshold": 1e-10, "max_iterations": 200_000}


def solved(problem, attributes):
    """moscot's own plan, in double precision."""
    with double_precision():
        problem.solve(**attributes, **EXACT)
        assert problem.solution.converged
        return np.asarray(problem.solution.transport_matrix)


def agrees(found, case):
    """Whether a plan is ours, or is known not to be.

    Where OTT need not keep weights, the reference of its entropy is no longer their product.
    """
    if not case.even and case.model.model.tau_a < 1:
        return np.abs(found - case.P).max() > 1e-3 * case.P.max()
    conditional = found / found.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(conditional, case.conditional, atol=1e-6)
    np.testing.assert_allclose(found, case.P, atol=1e-6 * case.P.max())
    return True


def test_same_costs_same_plan(case):
    costs = cost_matrices(case.model, case.adata)[LEG]
    weights = {"a": "a", "b": "b"}
    adata = case.adata.copy()
    for name, day in zip("ab", LEG, strict=True):
        weight = case.of(day, "weight") if not case.even else np.ones(costs.shape[name == "b"])
        adata.obs.loc[adata.obs["day"] == day, name] = weight / weight.sum()
    problem = moscot.problems.time.TemporalProblem(adata)
    problem.prepare(time_key="day", joint_attr="X_pca", **weights)
    problem[LEG].set_xy(costs, tag="cost_matrix")
    assert agrees(solved(problem[LEG], costs.attrs), case)


def test_a_problem_that_was_handed_over_can_be_solved_again(case):
    problem = to_moscot(case.model, case.adata)
    attributes = dict(problem.adata.uns["mongefit"]["2 to 4"])
    assert attributes.pop("dropped") < 1e-7
    assert agrees(solved(problem[LEG], attributes), case)


class TestSolution:
    @pytest.fixture
    def problem(self, case):
        return to_moscot(case.model, case.adata)

    def test_cell_transition(self, case, problem):
        problem.cell_transition(*LEG, "cell_type", "cell_type", forward=True)
        found = problem.adata.uns["moscot_results"]["cell_transition"]["cell_transition"]
        table = case.is_fate(2.0).T @ case.P @ case.is_fate()
        table /= table.sum(axis=1, keepdims=True)
        order = list(FATES)
        found = found["transition_matrix"].loc[order, order]
        np.testing.assert_allclose(found, table, atol=1e-6)
        assert moscot.plotting.cell_transition(problem, return_fig=True) is not None

    def test_push_and_pull(self, case, problem):
        mass = case.is_fate(2.0)[:, 0]
        plain = {"normalize": False, "key_added": None}
        found = problem.push(*LEG, data=mass, scale_by_marginals=False, **plain)
        np.testing.assert_allclose(found[:, 0], case.P.T @ mass, atol=1e-9)
        if case.model.model.tau_a == 1:
            found = problem.push(*LEG, data=mass, **plain)
            np.testing.assert_allclose(found[:, 0], case.model.model.push(mass), rtol=1e-6)
        problem.pull(
            *LEG, data="cell_type", subset=FATES[1], scale_by_marginals=False, key_added="pulled"
        )
        late = case.is_fate()[:, 1]
        early = (problem.adata.obs["day"] == 2.0).to_numpy()
        np.testing.assert_allclose(
            problem.adata.obs["pulled"][early], case.P @ late / late.sum(), atol=1e-9
        )

    def test_annotation_mapping(self, case, problem):
        found = problem.annotation_mapping("sum", "cell_type", False, *LEG)
        ours = (case.conditional @ case.is_fate()).argmax(axis=1)
        np.testing.assert_array_equal(found["cell_type"], np.asarray(FATES)[ours])

    def test_cellrank_reads_it_through_moscot(self, case, problem):
        cellrank = pytest.importorskip("cellrank")
        kernel = cellrank.kernels.RealTimeKernel.from_moscot(problem)
        coupling = kernel.couplings[LEG]
        np.testing.assert_allclose(coupling.X.toarray(), case.P, atol=1e-9)
        kernel.compute_transition_matrix()

    def test_cells_can_be_written(self, problem, tmp_path):
        problem.adata.write_h5ad(tmp_path / "cells.h5ad")


@pytest.mark.parametrize("values", [("2", "4"), ("6", "10")])
def test_times_as_text_become_numbers(values):
    adata = make_cells()
    adata.obs["day"] = np.where(adata.obs["day"] == 2, *values)
    keys = {"time_key": "day", "source": values[0], "target": values[1]}
    model = fit(adata, **keys, model=MongeMap(cost="sqeuclidean", epsilon=0.1))
    problem = to_moscot(model, adata)
    assert list(problem.solutions) == [tuple(map(float, values))]
    problem.push(*map(int, values), data="cell_type", subset=FATES[0], key_added="pushed")


def test_times_that_are_no_numbers():
    adata = make_cells()
    adata.obs["day"] = np.where(adata.obs["day"] == 2, "early", "late")
    keys = {"time_key": "day", "source": "early", "target": "late"}
    model = fit(adata, **keys, model=MongeMap(cost="sqeuclidean", epsilon=0.1))
    with pytest.raises(DataError, match=r"obs\['day'\] has 'early'"):
        to_moscot(model, adata)
