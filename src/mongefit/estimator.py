"""MongeMap, the scikit-learn estimator: NumPy in, NumPy out."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from mongefit._numerics import cast, double_precision
from mongefit.convex import ConvexFunction
from mongefit.costs import Cost
from mongefit.diffeos import Diffeo
from mongefit.duals import Differentiation, DualSolver
from mongefit.errors import DataError, OptionError, warn_user
from mongefit.families import build_cost
from mongefit.files import StrPath
from mongefit.losses import Groups, Paired, Term
from mongefit.penalties import CostSize
from mongefit.programs import Clouds, solved_map, transported
from mongefit.trained import TrainedEstimator, Training, check_terms
from mongefit.training import Checkpoint, Run
from mongefit.validation import Knowledge, check_count, check_validation_pairs


class Fitting(NamedTuple):
    """A fit that is checked and not trained: ``training`` is None where nothing is learned."""

    X: ArrayLike
    clouds: Clouds
    known: Knowledge
    held_out: NDArray[np.int64] | None
    n_losses: int
    epsilon: float
    costs: list[Cost]
    training: Training | None


class CostEstimator(TrainedEstimator):
    """An estimator that learns a cost h(Φμ(x) − Φν(y)); concrete classes say from which losses."""

    losses_: tuple[Any, ...]
    scores_: NDArray[np.float64]

    def __init__(
        self,
        cost: str | ConvexFunction = "icnn",
        diffeo: str | Diffeo | tuple[Diffeo | None, Diffeo | None] | None = None,
        *,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        symmetric: bool = True,
        alpha: float = 0.01,
        epsilon: float | tuple[float, float] = 0.01,
        max_iter: int = 500,
        batch_size: int | None = None,
        learning_rate: float | tuple[float, float] = 0.05,
        diffeo_learning_rate: float | tuple[float, float] = 0.005,
        losses: list[Any] | None = None,
        penalties: list[Any] | None = None,
        dual: str | DualSolver = "newton",
        differentiate: Differentiation = "implicit",
        many_to_many: bool = False,
        n_init: int = 1,
        normalize_weight: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        dtype: str = "float64",
        strict: bool = False,
        verbose: int = 0,
    ):
        self.cost = cost
        self.diffeo = diffeo
        self.hidden_layer_sizes = hidden_layer_sizes
        self.symmetric = symmetric
        self.alpha = alpha
        self.epsilon = epsilon
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.diffeo_learning_rate = diffeo_learning_rate
        self.losses = losses
        self.penalties = penalties
        self.dual = dual
        self.differentiate = differentiate
        self.many_to_many = many_to_many
        self.n_init = n_init
        self.normalize_weight = normalize_weight
        self.random_state = random_state
        self.dtype = dtype
        self.strict = strict
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
        validation_pairs: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
        checkpoint: StrPath | Checkpoint | None = None,
        resume: bool = False,
    ) -> Self:
        """Learn the cost and build its map.

        Parameters
        ----------
        X, Y
            Source and target points, [n, d] and [m, d].
        pairs
            Known pairs, integers [k, 2]: row of X, row of Y.
        pair_weight
            How much each pair counts, relative to the others.
        groups
            Labels of the rows of X and of Y: points with a label should land among those with the
            same label. None, or −1 among whole numbers, marks a point whose group is not known.
        validation_pairs
            Pairs, as in ``pairs``, to stop early by and to choose among several starts by: the
            cost of the step with the least RMSE on them is kept. None may be trained on, which
            pairs of weight 0 are not.
        source_weight, target_weight
            Weights of the points, non-negative with sum 1; uniform by default.
        checkpoint
            A folder in which training is kept while it goes on, every 30 seconds and when it is
            interrupted; or a `mongefit.training.Checkpoint`, which says how often.
        resume
            Go on with the training that is kept in the folder, to the same bits on the same CPU.
            The data and the options must be the same.

        Returns
        -------
        Self
            This estimator.
        """
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint, resume=resume)
        elif resume:
            raise OptionError("resume needs checkpoint, a folder to go on from.")
        with double_precision():
            fitting = self._begin(
                X, Y, pairs=pairs, pair_weight=pair_weight, groups=groups,
                validation_pairs=validation_pairs, source_weight=source_weight,
                target_weight=target_weight,
            )  # fmt: skip
            return self._complete(fitting, self._run(fitting, checkpoint))

    def _begin(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
        validation_pairs: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
    ) -> Fitting:
        """Check everything, up to what there is to train. To be called in double precision."""
        notes: list[str] = []
        options = self._check_training_options(notes)
        penalties = [1e-7 * CostSize()] if self.penalties is None else self.penalties
        penalties = check_terms(penalties, "penalties")
        n_init = check_count(self.n_init, "n_init", minimum=1)
        clouds = self._check_clouds(X, Y, source_weight, target_weight)
        clouds.warnings[:0] = notes
        known = self._check_knowledge(clouds, pairs, pair_weight, groups)
        held_out = check_validation_pairs(
            validation_pairs, len(clouds.source), len(clouds.target), known.trained_on()
        )
        costs = [
            build_cost(
                clouds.dim,
                cost=self.cost,
                diffeo=self.diffeo,
                hidden_layer_sizes=self.hidden_layer_sizes,
                symmetric=self.symmetric,
                alpha=self.alpha,
                random_state=options.seed + k,
            )
            for k in range(n_init)
        ]
        cost = costs[0]
        losses = check_terms(
            self._default_losses(known) if self.losses is None else self.losses, "losses"
        )
        learns = cost.h.learned or cost.phi_mu is not None or cost.phi_nu is not None
        if learns and not losses:
            raise DataError(
                "There is a cost to learn and nothing to learn it from: give pairs or groups, "
                "or losses=[TargetFit()] for the target alone, or use cost='sqeuclidean' and "
                "no diffeo for a map with a fixed cost."
            )
        if n_init > 1 and not isinstance(self.cost, str) and not isinstance(self.diffeo, str):
            warn_user("n_init has no effect: costs and flows that are given start as they are.")
        if losses and not learns:
            warn_user(
                "Pairs, groups and losses are not used: with a fixed cost and no diffeo "
                "nothing is learned."
            )
        costs = [cast(cost, clouds.x.dtype) for cost in costs]
        training = None
        if learns:
            training = self._training(clouds, costs, known, losses, penalties, options, held_out)
        return Fitting(X, clouds, known, held_out, len(losses), options.epsilon[1], costs, training)

    def _run(self, fitting: Fitting, checkpoint: Checkpoint | None = None) -> list[Run]:
        """Train, where there is something to learn. To be called in double precision."""
        if fitting.training is None:
            return []
        return self._train(fitting.training, fitting.clouds, checkpoint)

    def _complete(self, fitting: Fitting, runs: Sequence[Run]) -> Self:
        """Keep the best run and build its map. To be called in double precision."""
        clouds, epsilon, held_out = fitting.clouds, fitting.epsilon, fitting.held_out
        cost, history = fitting.costs[0], {}
        learned: tuple[Any, ...] = ()
        scores = np.asarray([_score(run, clouds, epsilon, held_out) for run in runs])
        if len(runs):
            best = runs[int(np.argmin(scores))]
            history = _in_data_units(best.history, clouds)
            cost, learned = best.model.cost, best.model.terms[: fitting.n_losses]
        arrays = (*fitting.known.arrays(), held_out)
        self._finish(fitting.X, clouds, cost, epsilon=epsilon, history=history, known=arrays)
        self.losses_ = learned
        self.scores_ = scores
        return self

    @abc.abstractmethod
    def _default_losses(self, known: Knowledge) -> list[Term]:
        """The losses that what is known calls for."""


def _in_data_units(history: dict[str, np.ndarray], clouds: Clouds) -> dict[str, np.ndarray]:
    """A history with the error on validation pairs, if there are any, in the units of the data."""
    if "validation" not in history:
        return history
    rest = {name: column for name, column in history.items() if name != "validation"}
    return rest | {"validation_rmse": history["validation"] * float(clouds.units.scale)}


def _score(run: Run, clouds: Clouds, epsilon: float, pairs: NDArray[np.int64] | None) -> float:
    """What a run is chosen by: RMSE on pairs that it was not trained on, or its objective."""
    if run.failure:
        return np.inf
    if pairs is None:
        return run.objective
    solved = solved_map(clouds, run.model.cost, epsilon)
    found = transported(solved.map, clouds.source[pairs[:, 0]], reverse=False)
    missed = np.sum((found.points - clouds.target[pairs[:, 1]]) ** 2, axis=1)
    error = float(np.sqrt(np.mean(missed)))
    good = solved.dual.converged and np.all(found.converged) and np.isfinite(error)
    return error if good else np.inf


class MongeMap(CostEstimator):
    """Learn what moving costs and where things move, from two clouds and what is known of the map.

    The cost is c(x, y) = h(Φμ(x) − Φν(y)) with h convex; its entropic optimal transport map is
    trained, through its cost, until it agrees with what is known: pairs, groups, how things move.

    Parameters
    ----------
    cost : {"icnn", "conjugate_icnn", "sqeuclidean"} or ConvexFunction, default="icnn"
        The convex function h: learned, learned through its conjugate h* (slower to train and to
        map: the cost of every pair is a solve), ½‖z‖², or an object of `mongefit.convex`. It is
        applied to displacements in common units (see `units_`).
    diffeo : None, {"shared", "separate"}, Diffeo or pair of them, default=None
        The flows Φμ and Φν: none, one for both clouds, one each, or objects of `mongefit.diffeos`.
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Hidden layers of the learned h.
    symmetric : bool, default=True
        Whether h(−z) = h(z).
    alpha : float, default=0.01
        Strong convexity of the learned h, which contains (alpha/2)‖z‖².
    epsilon : float or (float, float), default=0.01
        Entropic regularisation relative to the mean cost, or its (start, end) over training.
    max_iter : int, default=500
        Training steps. With 0 the map of the initial cost is built.
    batch_size : int, default=None
        Points of each cloud in a training step: all that are in pairs or groups, and others drawn
        anew each time, the same ones for all starts; all points by default. A step then trains the
        map between two samples, which is blurred and shifted by their size; the map that is built
        in the end is that of all points.
    learning_rate, diffeo_learning_rate : float or (float, float), default=0.05 and 0.005
        Adam's rates for h and for the flows, or their (start, end) over training.
    losses : list of losses, default=None
        What the map should agree with, of `mongefit.losses` or any function of a `Context`, with
        weights: ``[Paired(), 0.1 * TargetFit()]``. By default what `fit` is told: `Paired` for
        pairs, `Groups` for groups.
    penalties : list of penalties, default=None
        What the cost should avoid, of `mongefit.penalties`; by default ``[1e-7 * CostSize()]``,
        which keeps h from growing.
    dual : {"newton", "sinkhorn"} or DualSolver, default="newton"
        How the potentials are found in training.
    differentiate : {"implicit", "unrolled"}, default="implicit"
        How the potentials are differentiated: by the optimality condition, or through the last
        Sinkhorn iterations.
    many_to_many : bool, default=False
        Accept several targets for one source; the map then fits their mean.
    n_init : int, default=1
        Number of starts, with the seeds random_state, random_state + 1, …, trained in one compiled
        program. The one with the least RMSE on ``validation_pairs`` is kept or, where there are
        none, the one with the least loss.
    normalize_weight : bool, default=False
        Divide weights by their sum instead of refusing a sum other than 1.
    random_state : int, RandomState or None, default=0
        Seed of the initial weights.
    dtype : {"float64", "mixed", "float32"}, default="float64"
        Precision of the computation. "mixed" computes gradients and derivatives over the pairs in
        float32 while training, which is faster, and all else in float64; it makes no difference to
        "conjugate_icnn". Results are float64 arrays in any case.
    strict : bool, default=False
        Raise `ConvergenceError` where a solve did not converge, instead of warning.
    verbose : int, default=0
        With 1, a progress bar on stderr.

    Attributes
    ----------
    map_ : EntropicMap
        The fitted map, with its cost, clouds and potentials.
    units_ : Units
        Centre and scale that take the data to common units.
    losses_ : tuple
        The losses after training, in the order of `losses`: where one has learned arrays, such as
        the directions of `Directional`, they are here.
    history_ : dict of arrays
        Per training step: loss, epsilon, solver errors, whether it was applied, and the RMSE on
        validation pairs where there are any. Entry k describes the cost after k updates.
    diagnostics_ : dict
        Whether and how well the final problem was solved, checked from `map_` alone; the keys are
        in docs/reliability.md.
    data_sha256_ : str
        Hash of the arrays that were fitted.
    scores_ : array
        What each start was judged by: the RMSE on validation pairs, or the least loss with
        penalties in the last tenth of the run (with batches its mean); infinite where training gave
        up or the map could not be solved.
    n_features_in_ : int
        Number of features.
    n_iter_ : int
        Training steps taken.

    Examples
    --------
    >>> from mongefit import MongeMap, datasets
    >>> X, Y = datasets.t_shape(32, seed=0)
    >>> euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)
    >>> euclidean.transform(X).shape
    (32, 2)
    """

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted estimator to one file; `mongefit.load` reads it."""
        from mongefit.storage import save

        check_is_fitted(self)
        save(self, path, overwrite=overwrite)

    def _default_losses(self, known: Knowledge) -> list[Term]:
        chosen: list[Term] = [] if known.pairs is None else [Paired()]
        return chosen if known.groups is None else [*chosen, Groups()]
