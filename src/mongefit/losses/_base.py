"""What losses and penalties look at, and what they are: small frozen objects with a weight."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mongefit._registry import Registered
from mongefit._runtime import to_device

Direction = Literal["both", "forward", "reverse"]
Reach = Literal["all", "pairs", "nothing"]


class Pairs(eqx.Module):
    """Known pairs: source ``source[k]`` goes to target ``target[k]``, with weight ``weight[k]``.

    Attributes
    ----------
    rows, columns
        The sources and the targets at which the map is needed, each once: those that occur.
    """

    source: Int[Array, " k"]
    target: Int[Array, " k"]
    weight: Float[Array, " k"]
    rows: Int[Array, " r"]
    columns: Int[Array, " c"]

    @classmethod
    def of(
        cls,
        pairs: Int[np.ndarray, "k 2"],
        weight: Float[Array, " k"],
        *,
        also: Int[np.ndarray, " l"] | None = None,
    ) -> Pairs:
        """Pairs out of a table of row numbers; the map is needed at the sources ``also`` too."""
        source, target = to_device(pairs[:, 0]), to_device(pairs[:, 1])
        rows = np.unique(pairs[:, 0] if also is None else np.append(pairs[:, 0], also))
        return cls(source, target, weight, to_device(rows), to_device(np.unique(pairs[:, 1])))


class Subset(eqx.Module):
    """Rows of each of K groups in one cloud, padded to the largest with rows of weight zero."""

    rows: Int[Array, "K s"]
    weight: Float[Array, "K s"]

    @classmethod
    def of(cls, members: Sequence[np.ndarray], weight: Float[Array, " n"]) -> Subset:
        """Subsets out of the rows of each group; weights within a group are brought to sum 1."""
        size = max(map(len, members))
        rows = np.zeros((len(members), size), dtype=int)
        present = np.zeros((len(members), size), dtype=bool)
        for k, group in enumerate(members):
            rows[k, : len(group)] = group
            present[k, : len(group)] = True
        mass = jnp.where(present, weight[rows], 0.0)
        return cls(jnp.asarray(rows), mass / jnp.sum(mass, axis=1, keepdims=True))


class Subsets(eqx.Module):
    """Known groups: subset k of the source goes to subset k of the target."""

    source: Subset
    target: Subset


class View(eqx.Module):
    """The map in one direction, from ``points`` towards ``others``.

    Attributes
    ----------
    points, weight
        The cloud that is mapped, and its weights.
    others, other_weight
        The cloud that it should land on, and its weights.
    mapped
        The image of every point; NaN at points that no loss asked for.
    pairs, subsets
        What is known, with ``source`` the rows of ``points`` and ``target`` those of ``others``.
    sign
        +1 forwards and −1 in reverse.
    log_density
        As in `Context`, with a row for each of ``points``.
    """

    points: Float[Array, "n d"]
    weight: Float[Array, " n"]
    others: Float[Array, "m d"]
    other_weight: Float[Array, " m"]
    mapped: Float[Array, "n d"]
    pairs: Pairs | None
    subsets: Subsets | None
    sign: float = eqx.field(static=True)
    log_density: Float[Array, "n m"] | None = None

    @property
    def displacement(self) -> Float[Array, "n d"]:
        """T(x) − x forwards and y − T⁻¹(y) in reverse, so that both pull the same way."""
        return self.sign * (self.mapped - self.points)


class Context(eqx.Module):
    """What losses and penalties may look at, computed once per step, in common units.

    Attributes
    ----------
    cost
        The cost c(x, y) = h(Φμ(x) − Φν(y)).
    x, y, a, b
        Both clouds and their weights.
    C, P
        Cost matrix and plan.
    pairs, subsets
        Known pairs and groups, or None.
    forward, reverse
        T(x) at every source point and T⁻¹(y) at every target point; NaN at points that no loss
        asked for.
    log_density
        log of P_ij/(a_i b_j), which is (f_i + g_j − C_ij)/eps; finite where P is too small to be.
    """

    cost: Any
    x: Float[Array, "n d"]
    y: Float[Array, "m d"]
    a: Float[Array, " n"]
    b: Float[Array, " m"]
    C: Float[Array, "n m"]
    P: Float[Array, "n m"]
    pairs: Pairs | None
    subsets: Subsets | None
    forward: Float[Array, "n d"]
    reverse: Float[Array, "m d"]
    log_density: Float[Array, "n m"] | None = None

    def view(self, direction: Direction) -> View:
        """The context as seen by the forward or by the reverse map."""
        if direction == "forward":
            return View(
                self.x, self.a, self.y, self.b, self.forward, self.pairs, self.subsets, sign=1.0,
                log_density=self.log_density,
            )  # fmt: skip
        pairs, subsets = self.pairs, self.subsets
        if pairs is not None:
            pairs = Pairs(pairs.target, pairs.source, pairs.weight, pairs.columns, pairs.rows)
        if subsets is not None:
            subsets = Subsets(subsets.target, subsets.source)
        log_density = None if self.log_density is None else self.log_density.T
        return View(
            self.y, self.b, self.x, self.a, self.reverse, pairs, subsets, sign=-1.0,
            log_density=log_density,
        )  # fmt: skip


class Term(Registered):
    """A loss or a penalty: a number computed from the context, smaller when things are better.

    ``0.1 * term`` gives it a weight. A term of your own needs `__call__`. Every real array of it is
    trained along with the cost, except inside `NonTrainable`.

    Attributes
    ----------
    reach
        Where it looks at the map: at "all" points, at those in "pairs" only, or at "nothing", if it
        looks at the cost or the plan alone. The map is computed nowhere else.
    requires
        What must be known: "pairs", "groups" or None.
    takes_several
        Whether a source may have several targets among the known pairs.
    """

    reach: ClassVar[Reach] = "all"
    requires: ClassVar[str | None] = None
    takes_several: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, context: Context) -> Float[Array, ""]:
        """The value, unweighted."""

    def reach_of(self, direction: Direction) -> Reach:
        """Where it looks at the forward or at the reverse map."""
        return self.reach

    def initialised(
        self, displacement: Float[np.ndarray, "n d"], weight: Float[np.ndarray, " n"], seed: int
    ) -> Term:
        """The term with starting values for arrays that it learns and that were not given.

        Parameters
        ----------
        displacement, weight
            Displacements of the source points before training, and their weights.
        seed
            Seed of random choices.
        """
        return self

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def __rmul__(self, weight: float) -> Weighted:
        return Weighted(self, weight)


class Weighted(Registered):
    """A term and its weight, as ``0.1 * term`` makes it."""

    term: Any
    weight: float = 1.0

    def __rmul__(self, weight: float) -> Weighted:
        return Weighted(self.term, weight * self.weight)


class FunctionTerm(Term):
    """A loss that is any function of the context."""

    function: Callable[[Context], Float[Array, ""]] = eqx.field(static=True)

    def __call__(self, context):
        return self.function(context)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


class MapLoss(Term):
    """A loss on the map: forward, in reverse, or the mean of both.

    Attributes
    ----------
    direction
        "both", "forward" or "reverse".
    """

    direction: eqx.AbstractVar[Direction]

    @abc.abstractmethod
    def one_way(self, view: View) -> Float[Array, ""]:
        """The loss of the map in one direction."""

    def reach_of(self, direction):
        return self.reach if self.direction in ("both", direction) else "nothing"

    def __call__(self, context):
        ways: tuple[Direction, ...] = (
            ("forward", "reverse") if self.direction == "both" else (self.direction,)
        )
        values = [self.one_way(context.view(way)) for way in ways]
        return sum(values[1:], values[0]) / len(values)
