"""Temporal abstraction by action repetition, as Gymnasium wrappers.

Versions for vector environments are in `taac_wrappers.vector`, under the same names.
"""

from taac_wrappers.hybrid_action import HybridActionWrapper
from taac_wrappers.k_rep import KRepWrapper
from taac_wrappers.n_repeat import NRepeatWrapper
from taac_wrappers.prev_action import PrevActionWrapper
from taac_wrappers.repeat_statistics import RepeatStatisticsWrapper
from taac_wrappers.reward_normalizer import AdaptiveNormalizer, RewardNormalizerWrapper
from taac_wrappers.zeta_repeat import ZetaRepeatWrapper

__all__ = [
    "AdaptiveNormalizer",
    "HybridActionWrapper",
    "KRepWrapper",
    "NRepeatWrapper",
    "PrevActionWrapper",
    "RepeatStatisticsWrapper",
    "RewardNormalizerWrapper",
    "ZetaRepeatWrapper",
]

__version__ = "0.2.0"
