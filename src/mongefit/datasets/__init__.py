"""Data with known answers: toys, problems whose true map is known, and cells seen twice.

All but the toys are imported on first use, so that the toys come without loading JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mongefit.datasets.random_diffeos import LimitedPairs, limited_pairs
from mongefit.datasets.toys import displaced, moon, spiral, t_shape

if TYPE_CHECKING:
    from mongefit.datasets.comparison import CostComparison as CostComparison
    from mongefit.datasets.comparison import DrawnGroundTruth as DrawnGroundTruth
    from mongefit.datasets.comparison import compare_costs as compare_costs
    from mongefit.datasets.comparison import draw_ground_truth as draw_ground_truth
    from mongefit.datasets.ground_truth import GroundTruth as GroundTruth
    from mongefit.datasets.ground_truth import make_ground_truth as make_ground_truth
    from mongefit.datasets.live_seq import LiveSeq as LiveSeq
    from mongefit.datasets.live_seq import find_live_seq as find_live_seq
    from mongefit.datasets.live_seq import find_live_seq_samples as find_live_seq_samples
    from mongefit.datasets.live_seq import read_live_seq as read_live_seq
    from mongefit.datasets.live_seq import simulate_live_seq as simulate_live_seq

_HOMES = {
    "CostComparison": "comparison",
    "DrawnGroundTruth": "comparison",
    "compare_costs": "comparison",
    "draw_ground_truth": "comparison",
    "GroundTruth": "ground_truth",
    "make_ground_truth": "ground_truth",
    "LiveSeq": "live_seq",
    "find_live_seq": "live_seq",
    "find_live_seq_samples": "live_seq",
    "read_live_seq": "live_seq",
    "simulate_live_seq": "live_seq",
}

__all__ = [
    "LimitedPairs",
    "displaced",
    "limited_pairs",
    "moon",
    "spiral",
    "t_shape",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mongefit.datasets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mongefit.datasets.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
