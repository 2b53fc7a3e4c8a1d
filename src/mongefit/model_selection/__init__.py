"""Choosing settings by known pairs that were held out, and saying how good the choice is."""

from mongefit.model_selection.selecting import Choice as Choice
from mongefit.model_selection.selecting import Selection as Selection
from mongefit.model_selection.selecting import default_candidates as default_candidates
from mongefit.model_selection.selecting import select as select
from mongefit.model_selection.validating import CrossValidation as CrossValidation
from mongefit.model_selection.validating import Difference as Difference
from mongefit.model_selection.validating import cross_validate as cross_validate
