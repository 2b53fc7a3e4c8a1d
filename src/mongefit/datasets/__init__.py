"""Data with known answers."""

from mongefit.datasets.toys import moon as moon
from mongefit.datasets.toys import spiral as spiral
from mongefit.datasets.toys import t_shape as t_shape
