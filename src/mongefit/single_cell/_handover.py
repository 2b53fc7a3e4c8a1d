"""Plans and costs in the form that CellRank, moscot and Waddington-OT take."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import mongefit
from mongefit._estimators.ensemble import EnsembleMap
from mongefit._runtime import require_memory
from mongefit.errors import DataError, MissingPackageError, OptionError, warn_user
from mongefit.single_cell._columns import import_anndata, listed
from mongefit.single_cell._model import SingleCellMap, check_model

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from mongefit._fitting.chains import Chain

    TimePair = tuple[Any, Any]

_SIDES = ("source", "target")
_NEAR = 1e-3


class _Leg(NamedTuple):
    """One leg of a model with its cells in an AnnData.

    ``rows`` are those of the cells of both sides, ``times`` both times as obs has them.
    """

    model: SingleCellMap
    chain: Chain
    rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    times: TimePair

    @property
    def estimator(self) -> Any:
        """The fitted estimator."""
        return self.model.model

    def weights(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights a and b of the fit."""
        a, b = _end(self.chain, 0).a, _end(self.chain, 1).b
        return np.asarray(a, np.float64), np.asarray(b, np.float64)


def to_cellrank(
    model: SingleCellMap, adata: AnnData, *, drop: float = 1e-9
) -> dict[TimePair, AnnData]:
    """The plan of every leg as CellRank's ``RealTimeKernel`` takes it.

    Parameters
    ----------
    model
        What `fit` or `load` gave.
    adata
        The cells of the fit; their names must be unique.
    drop
        Leave out weights below this in the distribution of each source cell, never the largest.

    Returns
    -------
    dict
        For ``RealTimeKernel(cells, time_key, couplings=…)``. The keys are pairs of consecutive
        times, as obs has them. Each value is an AnnData with the source cells as obs, the target
        cells as var and the plan as a sparse X, whose rows have the mass that the plan gives to
        each source cell. Its obs has ``mongefit_weight``, ``mongefit_growth`` and
        ``mongefit_dropped``, the share of a row that was left out before the row was brought to its
        mass; ``uns["mongefit"]`` has the share of all that was left out.

    Notes
    -----
    CellRank needs a categorical time, and an AnnData with the cells of these times only.
    """
    legs = _legs(model, adata)
    couplings = {leg.times: _coupling(leg, adata, drop) for leg in legs}
    _warn_of_order(adata, legs)
    for leg, plan in zip(legs, couplings.values(), strict=True):
        if empty := int(np.sum(plan.X.sum(axis=1) == 0)):
            warn_user(
                f"{empty} cells of {model.times.key} {leg.model.times.source} have no mass: "
                "CellRank sends a cell whose row is empty to all cells alike."
            )
    return couplings


def to_anndata_map(
    model: SingleCellMap,
    adata: AnnData,
    *,
    source: Any = None,
    target: Any = None,
    drop: float = 1e-9,
) -> AnnData:
    """A transport map in the format of Waddington-OT.

    Parameters
    ----------
    model, adata, drop
        As in `to_cellrank`.
    source, target
        Two times of the model; by default its first and last. Waddington-OT reads one file for each
        pair of consecutive times, called ``<prefix>_<source>_<target>.h5ad``.

    Returns
    -------
    AnnData
        The source cells as obs, the target cells as var, and as a sparse X the plan times the
        number of source cells. The row of a cell sums to its growth; the mean over all cells is 1
        where the plan has mass 1, since the weights of a fit know no total. Its obs has what
        Waddington-OT writes, ``g0``, the growth that went in, and ``g1``, that of the plan, per
        unit of time where times are numbers, and the columns of `to_cellrank`.
    """
    check_model(model, adata)
    leg = _leg(model.between(source, target), adata)
    found = _coupling(leg, adata, drop)
    found.X = found.X * len(leg.rows[0])
    span = leg.model.times.span or 1.0
    weight, growth = (found.obs[f"mongefit_{name}"] for name in ("weight", "growth"))
    found.obs["g0"] = (weight * len(weight)) ** (1 / span)
    found.obs["g1"] = (weight * growth * len(weight)) ** (1 / span)
    return found


def cost_matrices(model: SingleCellMap, adata: AnnData) -> dict[TimePair, DataFrame]:
    """The learned costs between the cells of every leg, with the names of the cells.

    Parameters
    ----------
    model, adata
        As in `to_cellrank`.

    Returns
    -------
    dict
        By pair of times a DataFrame [n, m] of c(x_i, y_j), in the common units of the fit. Its
        ``attrs`` are what the plan was computed with: ``epsilon``, the regularisation in the units
        of these costs, ``tau_a`` and ``tau_b``. moscot takes the DataFrame by
        ``problem[t0, t1].set_xy(costs, tag="cost_matrix")``.
    """
    return {leg.times: _costs(leg, adata) for leg in _legs(model, adata)}


def to_moscot(model: SingleCellMap, adata: AnnData, *, drop: float = 1e-9) -> Any:
    """A ``TemporalProblem`` of moscot with the learned costs, whose solution is the plan.

    Its ``push``, ``pull``, ``cell_transition``, ``annotation_mapping`` and plots use the plan.
    ``solve`` replaces it by moscot's own solution for the same costs and weights.

    Parameters
    ----------
    model, adata, drop
        As in `to_cellrank`. An ensemble has several costs: give one of its members.

    Returns
    -------
    moscot.problems.time.TemporalProblem
        With a copy of the cells of these times, which are numbers in it. Its obs has the weights of
        the fit, ``mongefit_a`` for cells as sources and ``mongefit_b`` as targets. For each leg
        ``uns["mongefit"]`` has ``dropped``, ``tau_a``, ``tau_b`` and ``epsilon``, in the units of
        the costs, for ``problem[t0, t1].solve(epsilon=…, scale_cost=1.0)``.

    Notes
    -----
    From these costs, ``epsilon``, ``tau_a`` and ``tau_b`` moscot finds the same plan, with one
    exception: where ``tau_a`` or ``tau_b`` is below 1 and the weights are not even, its plan
    depends on the weights in another way.
    """
    check_model(model, adata)
    try:
        from moscot.base.output import MatrixSolverOutput
        from moscot.problems.time import TemporalProblem
    except ImportError as error:
        raise MissingPackageError(
            "moscot is not installed. Install it with: pip install moscot"
        ) from error
    legs, key = _legs(model, adata), model.times.key
    times = [tuple(_number(time, key) for time in leg.times) for leg in legs]
    costs = [_costs(leg, adata) for leg in legs]
    plans = [_coupling(leg, adata, drop) for leg in legs]
    problem = TemporalProblem(_cells_of(legs, times, adata))
    # The costs replace what is prepared here, so that any coordinates will do.
    problem.prepare(time_key=key, joint_attr="mongefit", a="mongefit_a", b="mongefit_b")
    record: dict[str, Any] = {}
    for leg, pair, cost, plan in zip(legs, times, costs, plans, strict=True):
        part = problem[pair]
        part.set_xy(cost, tag="cost_matrix")
        part.set_solution(MatrixSolverOutput(plan.X, converged=_converged(leg)), overwrite=True)
        dropped = {"dropped": plan.uns["mongefit"]["dropped"]}
        record["{:g} to {:g}".format(*pair)] = cost.attrs | dropped
    problem._stage = "solved"
    problem.adata.uns["mongefit"] = record
    return problem


def _legs(model: SingleCellMap, adata: AnnData) -> list[_Leg]:
    """The legs of a model, from each time to the next."""
    check_model(model, adata)
    return [_leg(model.between(*pair), adata) for pair in itertools.pairwise(model.times.values)]


def _leg(model: SingleCellMap, adata: AnnData) -> _Leg:
    """A model of one leg, once it is checked that the cells of the fit are there, with names."""
    from mongefit._estimators.outcomes import chain_of

    rows = model.times.rows(adata, target=False), model.times.rows(adata, target=True)
    names = adata.obs_names[np.concatenate(rows)]
    twice = names[names.duplicated()]
    if len(twice):
        raise DataError(
            f"{len(twice.unique())} names of cells occur more than once (first: {twice[0]!r}), and "
            "other packages find cells by their names. Make them unique with "
            "adata.obs_names_make_unique()."
        )
    chain = chain_of(model.model)
    for side in (0, 1):
        _require_cells(model, chain, adata, rows[side], side)
    source, target = (_time(adata, model.times.key, each) for each in rows)
    return _Leg(model, chain, rows, (source, target))


def _time(adata: AnnData, key: str, rows: NDArray[np.int64]) -> Any:
    """The time of some cells as obs has it, a number of Python where it is one of NumPy."""
    value = adata.obs[key].iloc[rows[0]]
    return value.item() if isinstance(value, np.generic) else value


def _require_cells(
    model: SingleCellMap, chain: Chain, adata: AnnData, rows: NDArray[np.int64], side: int
) -> None:
    """Refuse cells that are not those of the fit, in its order: a plan is between those."""
    fitted = _points(chain, side)
    where = f"{model.times.key} {getattr(model.times, _SIDES[side])}"
    if len(rows) != len(fitted):
        raise DataError(
            f"There are {len(rows)} cells of {where}, and the model was fitted to {len(fitted)}. A "
            "plan is between the cells of the fit: give the AnnData of the fit."
        )
    away = np.abs(model.coordinates(adata, rows) - fitted).max(axis=1)
    moved = away > _NEAR * np.abs(fitted).max()
    if np.any(moved):
        first = adata.obs_names[rows[int(np.argmax(moved))]]
        raise DataError(
            f"{np.sum(moved)} of {len(rows)} cells of {where} are not where the fit had them "
            f"(first: {first!r}). A plan is between the cells of the fit: give the AnnData of the "
            "fit, with its cells in the same order."
        )


def _end(chain: Chain, side: int) -> Any:
    """A map that has the cloud of the source, or of the target."""
    from mongefit._fitting.chains import end_of

    return end_of(chain, source=side == 0)


def _points(chain: Chain, side: int) -> NDArray[np.float64]:
    """The points of the fit, in the units of the data."""
    from mongefit._fitting.outcomes import fitted_points

    return fitted_points(_end(chain, side), source=side == 0)


def _coupling(leg: _Leg, adata: AnnData, drop: float) -> AnnData:
    """The plan between named cells, sparse, and what was left out of it."""
    import pandas as pd
    from scipy.sparse import csr_matrix, diags

    from mongefit._fitting.chains import conditional_over, growth_over
    from mongefit._validation import check_share

    points = _points(leg.chain, 0)
    found = conditional_over(leg.chain, points, drop=check_share(drop, "drop"))
    weight, growth = leg.weights()[0], growth_over(leg.chain, points)
    mass = weight * growth
    names = [adata.obs_names[rows] for rows in leg.rows]
    columns = {"weight": weight, "growth": growth, "dropped": found.dropped}
    obs = pd.DataFrame(
        {f"mongefit_{name}": column for name, column in columns.items()}, index=names[0]
    )
    # A matrix and no array: CellRank and Waddington-OT multiply it by *.
    plan = csr_matrix(diags(mass) @ found.weights)
    plan.eliminate_zeros()
    record = {
        "time_key": leg.model.times.key,
        **{side: getattr(leg.model.times, side) for side in _SIDES},
        "drop": drop,
        "dropped": float(mass @ found.dropped / mass.sum()),
        "version": mongefit.__version__,
    }
    return import_anndata().AnnData(
        plan, obs=obs, var=pd.DataFrame(index=names[1]), uns={"mongefit": record}
    )


def _costs(leg: _Leg, adata: AnnData) -> DataFrame:
    import pandas as pd

    if isinstance(leg.estimator, EnsembleMap):
        raise OptionError(
            "The members of an ensemble have a cost each. Give one of them: "
            "dataclasses.replace(model, model=model.model.members_[0])."
        )
    sizes = [len(rows) for rows in leg.rows]
    what = "The costs between {} and {} cells need about".format(*sizes)
    # In blocks, as a whole and once more for whoever takes them.
    require_memory(3 * 8 * sizes[0] * sizes[1], what, "Take a random part of the cells.")
    index, columns = (adata.obs_names[rows] for rows in leg.rows)
    C = leg.estimator.cost_matrix(*(_points(leg.chain, side) for side in (0, 1)))
    costs = pd.DataFrame(C, index=index, columns=columns)
    own = _end(leg.chain, 0)
    taus = {name: getattr(own, name) for name in ("tau_a", "tau_b")}
    costs.attrs = {
        "epsilon": float(own.eps),
        **{name: 1.0 if tau is None else float(tau) for name, tau in taus.items()},
    }
    return costs


def _number(time: Any, key: str) -> float:
    """A time as a number, which moscot needs."""
    try:
        return float(time)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"moscot needs times that are numbers, and obs[{key!r}] has {time!r}. Write numbers "
            "into this column and fit again."
        ) from error


def _cells_of(legs: list[_Leg], times: list[tuple[float, ...]], adata: AnnData) -> AnnData:
    """A copy of the cells of all legs, with times as numbers and the weights of the fit."""
    import pandas as pd

    rows = np.sort(np.unique(np.concatenate([side for leg in legs for side in leg.rows])))
    found = adata[rows]
    found = found.to_memory() if found.isbacked else found.copy()
    columns = np.full((2, adata.n_obs), np.nan)
    points = np.full((adata.n_obs, legs[0].estimator.n_features_in_), np.nan)
    numbers = np.full(adata.n_obs, np.nan)
    for leg, pair in zip(legs, times, strict=True):
        for side, weight in enumerate(leg.weights()):
            columns[side, leg.rows[side]] = weight
            points[leg.rows[side]] = _points(leg.chain, side)
            numbers[leg.rows[side]] = pair[side]
    ordered = [times[0][0], *(pair[1] for pair in times)]
    key = legs[0].model.times.key
    found.obs[key] = pd.Categorical(numbers[rows], categories=ordered, ordered=True)
    for name, column in zip("ab", columns, strict=True):
        found.obs[f"mongefit_{name}"] = column[rows]
    found.obsm["mongefit"] = points[rows]
    return found


def _converged(leg: _Leg) -> bool:
    return bool(leg.estimator.diagnostics_["converged"])


def _warn_of_order(adata: AnnData, legs: list[_Leg]) -> None:
    """Warn of times that CellRank cannot place, or puts in another order."""
    times = [legs[0].times[0], *(leg.times[1] for leg in legs)]
    key = legs[0].model.times.key
    others = [value for value in adata.obs[key].dropna().unique() if value not in times]
    if others:
        warn_user(
            f"There are also cells of {key} {listed(others, 5)}. CellRank's kernel takes cells of "
            f"these times only: adata[adata.obs[{key!r}].isin({times})].copy()."
        )
    if sorted(times) != times:
        warn_user(
            f"CellRank sorts the values of obs[{key!r}] and takes {sorted(times)[-1]!r} for the "
            f"last time, not {times[-1]!r}. Make them numbers."
        )
