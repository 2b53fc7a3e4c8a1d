"""How good a map, a coupling or a cost is; `evaluate` puts all of it into one table."""

from mongefit.metrics._couplings import incorrect_mass as incorrect_mass
from mongefit.metrics._couplings import incorrect_mass_floor as incorrect_mass_floor
from mongefit.metrics._couplings import map_plan_gap as map_plan_gap
from mongefit.metrics._couplings import recovered_pairs as recovered_pairs
from mongefit.metrics._divergence import Divergence as Divergence
from mongefit.metrics._divergence import sinkhorn_divergence as sinkhorn_divergence
from mongefit.metrics._energy import energy_score as energy_score
from mongefit.metrics._evaluation import evaluate as evaluate
from mongefit.metrics._labels import LabelScores as LabelScores
from mongefit.metrics._labels import label_scores as label_scores
from mongefit.metrics._points import l2_uvp as l2_uvp
from mongefit.metrics._points import rmse as rmse
from mongefit.metrics._table import Table as Table
