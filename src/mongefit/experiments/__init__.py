"""The paper's experiments, each with its runs, its table and its picture."""

from mongefit.experiments.base import Experiment as Experiment
from mongefit.experiments.base import Goal as Goal
from mongefit.experiments.base import Outcome as Outcome
from mongefit.experiments.base import Result as Result
from mongefit.experiments.base import Run as Run
from mongefit.experiments.displacements import DisplacementsExperiment as DisplacementsExperiment
from mongefit.experiments.inverse_ot import InverseOTExperiment as InverseOTExperiment
from mongefit.experiments.limited_pairs import LimitedPairsExperiment as LimitedPairsExperiment
from mongefit.experiments.live_seq import LiveSeqExperiment as LiveSeqExperiment
from mongefit.experiments.running import FILES as FILES
from mongefit.experiments.running import Report as Report
from mongefit.experiments.running import reproduce as reproduce
