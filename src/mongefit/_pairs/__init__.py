r"""Costs of all pairs, with gradients and derivatives over the pairs that carry mass.

At small eps most entries of a plan are negligible, and so is what their gradients contribute to the
map and to any derivative. h is evaluated for every pair. ∇h and the derivatives, which cost several
times as much, are evaluated only for pairs that matter, in chunks of a fixed size.

What is left out is bounded. Gradients are left out whose weights add up to at most ``LEFT_OUT`` of
any mean. The derivative leaves out the pairs with the smallest slopes, which together are at most
``LEFT_OUT_SLOPE`` of the sum of all. Nothing is left out where one chunk holds all pairs.

With float64 points, gradients and derivatives may be computed in float32. That halves their time
and leaves about six digits, and more is left out. The costs themselves stay in float64: they are
divided by eps, and at small eps differences of a millionth of a cost decide which pairs carry mass.

Memory: matrices over all pairs, a vector for every pair whose gradient is requested, and what one
block of pairs needs.
"""

from mongefit._pairs.costs import PairCosts as PairCosts
from mongefit._pairs.derivatives import LEFT_OUT as LEFT_OUT
from mongefit._pairs.derivatives import LEFT_OUT_SLOPE as LEFT_OUT_SLOPE
from mongefit._pairs.derivatives import gradients as gradients
from mongefit._pairs.derivatives import pairwise as pairwise
from mongefit._pairs.request import PairRequest as PairRequest
from mongefit._pairs.request import take as take
