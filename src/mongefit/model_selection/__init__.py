"""Choosing settings by known pairs that were held out, and saying how good the choice is."""

from mongefit.model_selection._held_out import CrossValidation as CrossValidation
from mongefit.model_selection._held_out import Difference as Difference
from mongefit.model_selection._legs import growth_of_clones as growth_of_clones
from mongefit.model_selection._legs import leave_time_out as leave_time_out
from mongefit.model_selection._selecting import Choice as Choice
from mongefit.model_selection._selecting import Selection as Selection
from mongefit.model_selection._selecting import default_candidates as default_candidates
from mongefit.model_selection._selecting import select as select
from mongefit.model_selection._validating import cross_validate as cross_validate
