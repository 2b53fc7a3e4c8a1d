"""Diffeomorphisms Φ of R^d; one file for each flow library."""

from mongefit._flows.affine import AffineMap as AffineMap
from mongefit._flows.autoregressive import AutoregressiveFlow as AutoregressiveFlow
from mongefit._flows.base import Diffeo as Diffeo
from mongefit._flows.composed import ComposedMap as ComposedMap
from mongefit._flows.kernel import KernelMap as KernelMap
