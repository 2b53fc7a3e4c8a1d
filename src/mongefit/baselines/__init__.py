"""What a learned map is compared with: estimators with the surface of `MongeMap`."""

from mongefit.baselines.base import Baseline as Baseline
from mongefit.baselines.coupling_fit import CouplingFit as CouplingFit
from mongefit.baselines.elastic import ElasticMap as ElasticMap
from mongefit.baselines.euclidean import EuclideanMap as EuclideanMap
from mongefit.baselines.inverse_ot import InverseOT as InverseOT
from mongefit.baselines.monge_gap import MongeGapMap as MongeGapMap
from mongefit.baselines.trivial import IdentityMap as IdentityMap
from mongefit.baselines.trivial import NearestPair as NearestPair
from mongefit.baselines.trivial import PairedRidge as PairedRidge
from mongefit.baselines.trivial import TargetMean as TargetMean
