r"""Strictly convex functions h: R^d → R, the shape of the cost of a displacement.

Every function is normalised so that h(0) = 0 and ∇h(0) = 0 and is evaluated on a batch of
displacements ``z[N, d]`` at once, value and gradient together, as a few large matrix products.
"""

from mongefit._convex.base import ClosedFormConvexFunction as ClosedFormConvexFunction
from mongefit._convex.base import ConvexFunction as ConvexFunction
from mongefit._convex.base import ProjectedConvexFunction as ProjectedConvexFunction
from mongefit._convex.network import ICNN as ICNN
from mongefit._convex.network import Activation as Activation
from mongefit._convex.power import PowerNorm as PowerNorm
from mongefit._convex.quadratic import LearnedMatrix as LearnedMatrix
from mongefit._convex.quadratic import LowRankMatrix as LowRankMatrix
from mongefit._convex.quadratic import Mahalanobis as Mahalanobis
from mongefit._convex.quadratic import QuadraticConvexFunction as QuadraticConvexFunction
from mongefit._convex.quadratic import SquaredEuclidean as SquaredEuclidean
