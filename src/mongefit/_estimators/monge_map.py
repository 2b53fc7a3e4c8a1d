"""MongeMap, the scikit-learn estimator: NumPy in, NumPy out.

Nothing here imports JAX before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from mongefit._estimators.queries import EntropicQueries, Saved
from mongefit._options import FitOptions

if TYPE_CHECKING:
    from mongefit._costs import Cost
    from mongefit._fitting import Record, Task
    from mongefit._io import StrPath
    from mongefit._training import Checkpoint
    from mongefit._validation import Knowledge
    from mongefit.losses import Term


class CostLearner(FitOptions, EntropicQueries):
    """An estimator that learns a cost h(Φμ(x) − Φν(y))."""

    def _choose_losses(self, known: Knowledge, cost: Cost) -> list[Term]:
        """The losses to take where the options name none."""
        from mongefit._fitting.preparing import default_losses

        return default_losses(known, cost)

    def fit(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        pairs: ArrayLike | None = None,
        pair_weight: ArrayLike | None = None,
        groups: tuple[ArrayLike, ArrayLike] | None = None,
        validation_pairs: ArrayLike | None = None,
        clones: ArrayLike | None = None,
        source_weight: ArrayLike | None = None,
        target_weight: ArrayLike | None = None,
        checkpoint: StrPath | Checkpoint | None = None,
        resume: bool = False,
        callback: Callable[[Record], Any] | None = None,
    ) -> Self:
        """Learn the cost, build its map, and return this estimator.

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
            cost of the step with the least RMSE on them is kept. Must not overlap ``pairs``, except
            pairs with weight 0.
        clones
            A label for each pair: pairs with the same one are held out together where a start is
            chosen by cross-validation. By default pairs that share a point are.
        source_weight, target_weight
            Weights of the points, non-negative with sum 1; uniform by default.
        checkpoint
            A folder in which training is saved every 30 seconds and when it is interrupted; or a
            `mongefit.Checkpoint`, which says how often.
        resume
            Go on with the training that is saved in the folder, to the same bits on the same CPU.
            The data and the options must be the same.
        callback
            Called with a `mongefit.Record` every ten steps: step, loss, each term, epsilon, solver
            health, validation error. If it raises StopIteration, training ends there and the map of
            the best cost so far is built. Any other error ends the fit; a checkpoint is kept.
        """
        from mongefit import _fitting

        kept = _fitting.check_checkpoint(checkpoint, resume)
        task = self._prepare(
            X, Y, pairs=pairs, pair_weight=pair_weight, groups=groups,
            validation_pairs=validation_pairs, clones=clones,
            source_weight=source_weight, target_weight=target_weight,
        )  # fmt: skip
        return self._store(X, _fitting.fit(task, checkpoint=kept, callback=callback))

    def _prepare(self, X: ArrayLike, Y: ArrayLike, **knowledge: Any) -> Task:
        """What `fit` with these arguments would train; see `mongefit._fitting`."""
        from mongefit._fitting import FitData, prepare

        options = FitOptions(**self.get_params(deep=False))
        return prepare(options, FitData(X, Y, **knowledge), choose_losses=self._choose_losses)


class MongeMap(Saved, CostLearner):
    """Learn what moving costs and where things move, from two clouds and what is known of the map.

    The cost is c(x, y) = h(Φμ(x) − Φν(y)) with h convex; its entropic optimal transport map is
    trained, through its cost, until it agrees with what is known: pairs, groups, how things move.

    Parameters
    ----------
    cost : {"icnn", "conjugate_icnn", "matrix", "sqeuclidean"} or ConvexFunction, default="icnn"
        The convex function h: a learned network, one that is learned through its conjugate h*
        (slower to train and to map: the cost of every pair is a solve), ½zᵀAz with a learned matrix
        A (above 64 features diagonal plus low rank), ½‖z‖², or a `mongefit.ConvexFunction`. It is
        applied to displacements in common units (see `units_`).
    diffeo : None, {"affine", "kernel", "shared", "separate"}, Diffeo or pair, default=None
        The maps Φμ and Φν: none; on the source alone an affine map, or one of Gaussian kernels,
        that starts as the ridge regression on the known pairs; one flow for both clouds, or one
        each; or a `mongefit.Diffeo`, or a pair of them.
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Hidden layers of the learned h.
    symmetric : bool, default=True
        Whether h(−z) = h(z).
    alpha : float, default=0.01
        Strong convexity of the learned h, which contains (alpha/2)‖z‖².
    epsilon : float or (float, float), default=(0.1, 0.01)
        Entropic regularisation relative to the mean cost, or its (start, end) over training.
    debias : bool, default=False
        Undo the shrinking of entropic maps at the boundary of the clouds, in both directions, by
        the map of each cloud to itself. It matters most where epsilon is large. Training sees the
        map without it.
    tau_a, tau_b : float, default=1.0
        How strictly the plan keeps the weights of the source and of the target, above 0 and at most
        1. Below 1 mass may grow or die: `growth_` says how much. See docs/guide/growth.md.
    max_iter : int, default=500
        Training steps. With 0 the map of the initial cost is built.
    validation_fraction : float, default=0.2
        Share of the clones, from 20 on, whose pairs are kept from training if there are no
        ``validation_pairs``: the cost of the step with the least RMSE on them is kept. 0 for none,
        as where `Likelihood` is told of several targets of a source.
    batch_size : int, default=None
        Points of each cloud in a training step: all that are in pairs or groups, and others drawn
        anew each time, the same ones for all starts; all points by default. A step then trains the
        map between two samples, which is blurred and shifted by their size; the map that is built
        in the end is that of all points.
    learning_rate, diffeo_learning_rate : float or (float, float), default=0.05 and 0.005
        Adam's rates for h and for the flows, or their (start, end) over training.
    optimizer : optax.GradientTransformation, default=None
        An optimizer of optax, with rates of its own: the two rates above are then not used. It sees
        all parameters as one vector. By default Adam with clipped gradients.
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
        Accept several targets for one source; the map then fits their mean. `Likelihood` takes them
        in any case, and fits none of them in particular.
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
    growth_ : array [n]
        The mass that each source point sends, over its weight; ``growth(X)`` of new points.
    died_, unexplained_ : float
        The share of the mass of the source that goes nowhere, and of the target that comes from
        nowhere.
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
    n_features_in_, n_iter_ : int
        Number of features, and training steps taken.

    Examples
    --------
    >>> from mongefit import MongeMap, datasets
    >>> X, Y = datasets.t_shape(32, seed=0)
    >>> euclidean = MongeMap(cost="sqeuclidean").fit(X, Y)
    >>> euclidean.transform(X).shape
    (32, 2)
    """
