"""How good a map, a coupling or a cost is; `evaluate` puts all of it into one table."""

from mongefit.metrics.couplings import incorrect_mass as incorrect_mass
from mongefit.metrics.couplings import incorrect_mass_floor as incorrect_mass_floor
from mongefit.metrics.couplings import map_plan_gap as map_plan_gap
from mongefit.metrics.couplings import recovered_pairs as recovered_pairs
from mongefit.metrics.divergence import Divergence as Divergence
from mongefit.metrics.divergence import sinkhorn_divergence as sinkhorn_divergence
from mongefit.metrics.evaluation import evaluate as evaluate
from mongefit.metrics.points import l2_uvp as l2_uvp
from mongefit.metrics.points import rmse as rmse
from mongefit.metrics.table import Table as Table
