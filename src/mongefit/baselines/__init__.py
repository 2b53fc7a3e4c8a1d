"""What a learned map is compared with: estimators with the surface of `MongeMap`."""

from mongefit.baselines._base import Baseline as Baseline
from mongefit.baselines._coupling_fit import CouplingFit as CouplingFit
from mongefit.baselines._elastic import ElasticMap as ElasticMap
from mongefit.baselines._euclidean import EuclideanMap as EuclideanMap
from mongefit.baselines._inverse_ot import InverseOT as InverseOT
from mongefit.baselines._monge_gap import MongeGapMap as MongeGapMap
from mongefit.baselines._trivial import IdentityMap as IdentityMap
from mongefit.baselines._trivial import NearestPair as NearestPair
from mongefit.baselines._trivial import PairedRidge as PairedRidge
from mongefit.baselines._trivial import TargetMean as TargetMean
