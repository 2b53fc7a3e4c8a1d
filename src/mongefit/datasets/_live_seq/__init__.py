"""Live-seq: the same cells before and after they differentiate (Chen et al., Nature 2022)."""

from mongefit.datasets._live_seq.loading import LiveSeq as LiveSeq
from mongefit.datasets._live_seq.loading import read_live_seq as read_live_seq
from mongefit.datasets._live_seq.simulation import simulate_live_seq as simulate_live_seq
from mongefit.datasets._live_seq.sources import find_live_seq as find_live_seq
from mongefit.datasets._live_seq.sources import find_live_seq_samples as find_live_seq_samples
