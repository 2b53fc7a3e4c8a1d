r"""Entropic optimal transport between weighted points, seen only through the cost matrix.

The semi-dual F(g) is concave. Where both sides keep their weights it is Σ a_i f_i(g) + Σ b_j g_j
with gradient b − colsum(P), and potentials are determined up to f + t, g − t: they are returned
with Σ a_i f_i = Σ b_j g_j. Solvers climb F in the log domain with everything held constant;
`solve_dual` then attaches the derivative.
"""

from mongefit._duals.problem import DualProblem as DualProblem
from mongefit._duals.problem import DualSolution as DualSolution
from mongefit._duals.problem import as_floats as as_floats
from mongefit._duals.problem import as_tau as as_tau
from mongefit._duals.problem import check_regularisation as check_regularisation
from mongefit._duals.problem import default_tolerance as default_tolerance
from mongefit._duals.problem import kept_mass as kept_mass
from mongefit._duals.problem import relaxed as relaxed
from mongefit._duals.problem import soft_minimum as soft_minimum
from mongefit._duals.solve import Differentiation as Differentiation
from mongefit._duals.solve import TransportValue as TransportValue
from mongefit._duals.solve import check_differentiation as check_differentiation
from mongefit._duals.solve import divergence as divergence
from mongefit._duals.solve import solve_dual as solve_dual
from mongefit._duals.solve import transport_value as transport_value
from mongefit._duals.solvers import DualSolver as DualSolver
from mongefit._duals.solvers import NewtonDual as NewtonDual
from mongefit._duals.solvers import SinkhornDual as SinkhornDual
from mongefit._duals.solvers import SymmetricDual as SymmetricDual
