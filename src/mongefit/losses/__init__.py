"""What is known of the map, as losses on one context that is computed once per step.

To add a loss: one file with a `MapLoss` that says in `one_way` what is bad, one line here and one
in tests/contracts/families.py. Any function of a `Context` is a loss too.
"""

from mongefit.losses.base import Context as Context
from mongefit.losses.base import CostTerm as CostTerm
from mongefit.losses.base import LearnedMapLoss as LearnedMapLoss
from mongefit.losses.base import MapLoss as MapLoss
from mongefit.losses.base import Pairs as Pairs
from mongefit.losses.base import Subset as Subset
from mongefit.losses.base import Subsets as Subsets
from mongefit.losses.base import Term as Term
from mongefit.losses.base import View as View
from mongefit.losses.base import Weighted as Weighted
from mongefit.losses.coupling import CorrectMass as CorrectMass
from mongefit.losses.coupling import WrongMass as WrongMass
from mongefit.losses.displacements import Directional as Directional
from mongefit.losses.displacements import LowRank as LowRank
from mongefit.losses.divergences import Groups as Groups
from mongefit.losses.divergences import TargetFit as TargetFit
from mongefit.losses.paired import Paired as Paired
