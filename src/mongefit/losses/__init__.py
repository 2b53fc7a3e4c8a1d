"""What is known of the map, as losses on one context that is computed once per step.

To add a loss: one file with a `MapLoss` that says in `one_way` what is bad, its name below, and one
line in tests/contracts/families.py. Any function of a `Context` is a loss too.
"""

from mongefit.losses._base import Context as Context
from mongefit.losses._base import FunctionTerm as FunctionTerm
from mongefit.losses._base import MapLoss as MapLoss
from mongefit.losses._base import Pairs as Pairs
from mongefit.losses._base import Reach as Reach
from mongefit.losses._base import Subset as Subset
from mongefit.losses._base import Subsets as Subsets
from mongefit.losses._base import Term as Term
from mongefit.losses._base import View as View
from mongefit.losses._base import Weighted as Weighted
from mongefit.losses._coupling import CorrectMass as CorrectMass
from mongefit.losses._coupling import WrongMass as WrongMass
from mongefit.losses._displacements import Directional as Directional
from mongefit.losses._displacements import LowRank as LowRank
from mongefit.losses._divergences import Groups as Groups
from mongefit.losses._divergences import TargetFit as TargetFit
from mongefit.losses._likelihood import Likelihood as Likelihood
from mongefit.losses._paired import Paired as Paired
