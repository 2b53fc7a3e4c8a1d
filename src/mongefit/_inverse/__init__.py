"""The inverse gradient (∇h)⁻¹, and functions that are given by it."""

from mongefit._inverse.conjugate import ConjugateICNN as ConjugateICNN
from mongefit._inverse.solvers import InverseGradient as InverseGradient
from mongefit._inverse.solvers import InverseGradientSolver as InverseGradientSolver
from mongefit._inverse.solvers import LBFGSInverse as LBFGSInverse
from mongefit._inverse.solvers import NewtonInverse as NewtonInverse
from mongefit._inverse.solvers import inverse_gradient as inverse_gradient
