"""Options of a fit, as `MongeMap` documents them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import optax

from mongefit._duals import Differentiation, DualSolver, NewtonDual, SinkhornDual
from mongefit._options import FitOptions
from mongefit._validation import (
    check_choice,
    check_count,
    check_positive,
    check_schedule,
    check_seed,
    check_switch,
)
from mongefit.errors import OptionError, wrong_option
from mongefit.losses import FunctionTerm, Term, Weighted
from mongefit.penalties import CostSize

DUALS = {"newton": NewtonDual, "sinkhorn": SinkhornDual}
# What training does for each way that users may ask for.
DIFFERENTIATIONS: dict[str, Differentiation] = {"implicit": "one_step", "unrolled": "unrolled"}
DTYPES = ("float64", "mixed", "float32")


class Checked(NamedTuple):
    """Options that were checked and brought to one form."""

    epsilon: tuple[float, float]
    learning_rate: tuple[float, float]
    diffeo_learning_rate: tuple[float, float]
    seed: int
    penalties: list[Weighted]
    dual_solver: DualSolver


def check_options(options: FitOptions) -> Checked:
    """Refuse options that make no sense, before any work."""
    for name in ("symmetric", "many_to_many", "normalize_weight", "strict"):
        check_switch(getattr(options, name), name)
    check_choice(options.dtype, "dtype", DTYPES)
    epsilon, rate, diffeo_rate = (
        check_schedule(getattr(options, name), name)
        for name in ("epsilon", "learning_rate", "diffeo_learning_rate")
    )
    seed = check_seed(options.random_state)
    check_count(options.max_iter, "max_iter")
    if options.batch_size is not None:
        check_count(options.batch_size, "batch_size", minimum=2)
    check_count(options.n_init, "n_init", minimum=1)
    dual = options.dual
    if not isinstance(dual, DualSolver):
        dual = DUALS[check_choice(dual, "dual", DUALS, others="a DualSolver")]()
    check_choice(options.differentiate, "differentiate", DIFFERENTIATIONS)
    if not isinstance(options.optimizer, optax.GradientTransformation | None):
        needed = "an optimizer of optax, such as optax.adam(0.01)"
        raise wrong_option("optimizer", needed, options.optimizer)
    penalties = [1e-7 * CostSize()] if options.penalties is None else options.penalties
    return Checked(epsilon, rate, diffeo_rate, seed, check_terms(penalties, "penalties"), dual)


def check_terms(terms: Any, name: str) -> list[Weighted]:
    """Losses or penalties with their weights, from a list of objects and functions."""
    if isinstance(terms, Weighted) or callable(terms):
        terms = [terms]
    if not isinstance(terms, Sequence) or isinstance(terms, str):
        raise OptionError(
            f"{name} must be a list such as [Paired(), 0.1 * TargetFit()], got {terms!r}."
        )
    checked = []
    for entry in terms:
        weighted = entry if isinstance(entry, Weighted) else Weighted(entry)
        check_positive(float(weighted.weight), f"A weight in {name}", zero=True)
        term = weighted.term
        if isinstance(term, type) or not callable(term):
            hint = f" Write {term.__name__}()." if isinstance(term, type) else ""
            raise OptionError(f"{name} holds {term!r}, which is no loss or penalty.{hint}")
        own = term if isinstance(term, Term) else FunctionTerm(term)
        checked.append(Weighted(own, weighted.weight))
    return checked
