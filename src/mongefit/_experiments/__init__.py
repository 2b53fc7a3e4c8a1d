"""The paper's experiments, each with its runs, its table and its picture."""

from mongefit._experiments.base import Experiment as Experiment
from mongefit._experiments.base import Goal as Goal
from mongefit._experiments.base import Outcome as Outcome
from mongefit._experiments.base import Result as Result
from mongefit._experiments.base import Run as Run
from mongefit._experiments.displacements import DisplacementsExperiment as DisplacementsExperiment
from mongefit._experiments.inverse_ot import InverseOTExperiment as InverseOTExperiment
from mongefit._experiments.limited_pairs import LimitedPairsExperiment as LimitedPairsExperiment
from mongefit._experiments.live_seq import LiveSeqExperiment as LiveSeqExperiment
from mongefit._experiments.running import FILES as FILES
from mongefit._experiments.running import Report as Report
from mongefit._experiments.running import reproduce as reproduce
