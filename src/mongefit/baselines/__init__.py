"""What a learned map is compared with: estimators with the surface of `MongeMap`."""

from mongefit.baselines.base import Baseline as Baseline
from mongefit.baselines.trivial import IdentityMap as IdentityMap
from mongefit.baselines.trivial import NearestPair as NearestPair
from mongefit.baselines.trivial import PairedRidge as PairedRidge
from mongefit.baselines.trivial import TargetMean as TargetMean
