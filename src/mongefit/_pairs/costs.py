"""h over all pairs of two clouds, and ∇h where it is requested."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from mongefit._convex import ConvexFunction, QuadraticConvexFunction
from mongefit._costs import pairwise_value, pairwise_value_and_gradient
from mongefit._pairs.derivatives import gradients, pairwise
from mongefit._pairs.request import PairRequest, take


class PairCosts(eqx.Module):
    """The costs of all pairs of two clouds of latent points, and their gradients on request.

    Parameters
    ----------
    h, u, v
        Convex function and latent points.
    request
        The pairs whose gradients will be requested.
    dtype
        Precision of gradients and derivatives; that of the points by default.
    guess
        Approximation of ∇h over all pairs, for an h that must solve for it.
    every_order
        Evaluate ∇h everywhere, together with h, so that derivatives of every order are right. An h
        that must solve for its value always does.
    """

    h: ConvexFunction
    u: Float[Array, "n d"]
    v: Float[Array, "m d"]
    request: PairRequest
    C: Float[Array, "n m"]
    everywhere: Float[Array, "n m d"] | None
    token: Any  # what `pairwise` gives to `gradients`
    dtype: str | None = eqx.field(static=True)

    def __init__(
        self,
        h: ConvexFunction,
        u: Float[Array, "n d"],
        v: Float[Array, "m d"],
        request: PairRequest,
        *,
        dtype: str | None = None,
        guess: Float[Array, "n m d"] | None = None,
        every_order: bool = False,
    ):
        self.h, self.u, self.v, self.request, self.dtype = h, u, v, request, dtype
        self.everywhere = self.token = None
        if isinstance(h, QuadraticConvexFunction):
            # Its map needs no gradients, and its costs are cheap to differentiate as they are.
            self.C = pairwise_value(h, u, v)
        elif h.solves or every_order:
            self.C, self.everywhere = pairwise_value_and_gradient(h, u, v, guess)
        else:
            self.C, self.token = pairwise(h, u, v, request, dtype=dtype)

    def gradients(
        self, s: Float[Array, "r m"], t: Float[Array, "c n"]
    ) -> tuple[Float[Array, "r m d"], Float[Array, "c n d"]]:
        """∇h for the requested rows and columns, where their weights s and t are not negligible."""
        rows, columns = self.request.rows, self.request.columns
        if self.everywhere is not None:
            return take(self.everywhere, rows), take(self.everywhere.swapaxes(0, 1), columns)
        return gradients(self.token, self.h, self.u, self.v, self.request, s, t, dtype=self.dtype)
