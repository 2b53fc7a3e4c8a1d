r"""Entropic optimal transport between weighted points, seen only through the cost matrix.

With weights a, b that appear exactly once,

    f_i = −eps log Σ_j b_j exp((g_j − C_ij)/eps),    P_ij = a_i b_j exp((f_i + g_j − C_ij)/eps),

the semi-dual F(g) = Σ a_i f_i(g) + Σ b_j g_j is concave with gradient b − colsum(P). Solvers climb
it in the log domain with everything held constant; `solve_dual` then attaches the derivative. The
potentials are determined up to f + t, g − t; they are returned with Σ a_i f_i = Σ b_j g_j.
"""

from mongefit.duals.semidual import LARGEST_FACTORISED as LARGEST_FACTORISED
from mongefit.duals.semidual import DualSolution as DualSolution
from mongefit.duals.semidual import default_tolerance as default_tolerance
from mongefit.duals.semidual import marginal_error as marginal_error
from mongefit.duals.semidual import plan as plan
from mongefit.duals.semidual import soft_minimum as soft_minimum
from mongefit.duals.solve import Differentiation as Differentiation
from mongefit.duals.solve import TransportValue as TransportValue
from mongefit.duals.solve import divergence as divergence
from mongefit.duals.solve import solve_dual as solve_dual
from mongefit.duals.solve import transport_value as transport_value
from mongefit.duals.solvers import DualSolver as DualSolver
from mongefit.duals.solvers import NewtonDual as NewtonDual
from mongefit.duals.solvers import SinkhornDual as SinkhornDual
from mongefit.duals.solvers import SymmetricDual as SymmetricDual
