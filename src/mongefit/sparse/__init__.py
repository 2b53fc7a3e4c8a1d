r"""Costs of all pairs, with gradients and derivatives over the pairs that carry mass.

At small eps most entries of a plan are negligible, and so is what their gradients contribute to the
map and to any derivative. Here h is evaluated for every pair; ∇h and the derivatives, which cost
several times as much, only for pairs that matter, in chunks of a fixed size, as many as there are.

What is left out is bounded. Of the gradients, those are left out whose weights add up to at most
``LEFT_OUT`` of any mean. The derivative leaves out the pairs with the smallest slopes, which
together are at most ``LEFT_OUT_SLOPE`` of the sum of all. Where one chunk holds all pairs, nothing
is left out.

With float64 points, gradients and derivatives may be computed in float32, which halves their time
and leaves about six digits, and more is left out with it. Not so the costs themselves: they are
divided by eps, and differences of a millionth of a cost decide at small eps which pairs carry mass.

Memory: besides matrices over all pairs there is a vector for every pair whose gradient is asked
for, and what one block of pairs needs.
"""

from mongefit.sparse.asked import Asked as Asked
from mongefit.sparse.asked import take as take
from mongefit.sparse.derivatives import LEFT_OUT as LEFT_OUT
from mongefit.sparse.derivatives import LEFT_OUT_SLOPE as LEFT_OUT_SLOPE
from mongefit.sparse.derivatives import gradients as gradients
from mongefit.sparse.derivatives import pairwise as pairwise
from mongefit.sparse.sweeps import chunk_size as chunk_size
from mongefit.sparse.sweeps import one_chunk as one_chunk
