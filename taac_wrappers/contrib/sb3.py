"""Replay buffers for Stable-Baselines3 that store the action which was executed, not the one the agent asked for.

Above `ZetaRepeatWrapper` the two differ, and a critic has to learn from the first. Take the buffer in the place of the
one that Stable-Baselines3 would use: ``SAC(..., replay_buffer_class=ExecutedActionReplayBuffer)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from taac_wrappers._validation import ActionCheck

try:
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
except ModuleNotFoundError as error:
    message = 'taac_wrappers.contrib.sb3 needs Stable-Baselines3: pip install "taac-wrappers[sb3]"'
    raise ImportError(message) from error


class ExecutedActionReplayBuffer(ReplayBuffer):
    """``ReplayBuffer`` that stores ``info["executed_action"]``, scaled as Stable-Baselines3 scales actions.

    The executed action must be one the agent could have chosen: a repeat wrapper below that keeps the action space, and
    nothing above it that rescales actions. Anything else raises a ValueError.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Take the arguments of Stable-Baselines3's buffer."""
        super().__init__(*args, **kwargs)
        self._check_executed = ActionCheck(self.action_space, name="info['executed_action']")

    def add(
        self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray, infos: list[dict]
    ) -> None:
        """Store one transition of each environment; ``action`` is left aside."""
        super().add(obs, next_obs, self._executed(infos), reward, done, infos)

    def _executed(self, infos: list[dict]) -> np.ndarray:
        """The executed actions ``[n_envs, ...]``; those of a Box are scaled to [-1, 1]."""
        if not all("executed_action" in info for info in infos):
            raise ValueError(f"{type(self).__name__} needs info['executed_action']: use it above ZetaRepeatWrapper")
        executed = np.stack([self._check_executed(info["executed_action"]) for info in infos])
        if not isinstance(self.action_space, spaces.Box):
            return executed
        low, high = self.action_space.low, self.action_space.high
        return 2 * (executed - low) / (high - low) - 1


class ExecutedActionDictReplayBuffer(ExecutedActionReplayBuffer, DictReplayBuffer):
    """`ExecutedActionReplayBuffer` for Dict observations."""


class ExecutedActionHerReplayBuffer(ExecutedActionReplayBuffer, HerReplayBuffer):
    """`ExecutedActionReplayBuffer` with hindsight, for goal environments."""
