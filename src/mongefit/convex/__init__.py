r"""Strictly convex functions h: R^d → R, the shape of the cost of a displacement.

Every function is normalised so that h(0) = 0 and ∇h(0) = 0 and is evaluated on a batch of
displacements ``z[N, d]`` at once, value and gradient together, as a few large matrix products.
"""

from mongefit.convex.base import ClosedFormConvexFunction as ClosedFormConvexFunction
from mongefit.convex.base import ConvexFunction as ConvexFunction
from mongefit.convex.base import ProjectedConvexFunction as ProjectedConvexFunction
from mongefit.convex.fixed import Mahalanobis as Mahalanobis
from mongefit.convex.fixed import PowerNorm as PowerNorm
from mongefit.convex.fixed import SquaredEuclidean as SquaredEuclidean
from mongefit.convex.network import ICNN as ICNN
from mongefit.convex.network import Activation as Activation
