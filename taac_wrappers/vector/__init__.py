"""The wrappers for vector environments, under the names and with the arguments of their counterparts for one.

Wrapping a vector environment equals wrapping each of its sub-environments, in all three autoreset modes, at a fraction
of the cost. `NRepeatWrapper` and `KRepWrapper` have no vector version: the sub-environments of one decision would need
different numbers of inner steps, so that the batch could not step together. Wrap each sub-environment
(``gym.make_vec(..., wrappers=[...])``); the wrappers here understand what those report.
"""

from taac_wrappers.vector.hybrid_action import HybridActionWrapper
from taac_wrappers.vector.prev_action import PrevActionWrapper
from taac_wrappers.vector.repeat_statistics import RepeatStatisticsWrapper
from taac_wrappers.vector.reward_normalizer import RewardNormalizerWrapper
from taac_wrappers.vector.zeta_repeat import ZetaRepeatWrapper

__all__ = [
    "HybridActionWrapper",
    "PrevActionWrapper",
    "RepeatStatisticsWrapper",
    "RewardNormalizerWrapper",
    "ZetaRepeatWrapper",
]
