"""``vector.RewardNormalizerWrapper``: normalizes the rewards of all sub-environments together."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from taac_wrappers._validation import require_bool
from taac_wrappers.reward_normalizer import AdaptiveNormalizer
from taac_wrappers.vector._autoreset import EpisodicVectorWrapper, add_report, require_vector_env


class RewardNormalizerWrapper(EpisodicVectorWrapper):
    """`taac_wrappers.RewardNormalizerWrapper` for vector environments.

    All sub-environments share one `AdaptiveNormalizer`, so that equal rewards stay equal whichever sub-environment
    they come from. The rewards of one step are one batch, that is one update. With a single sub-environment this is
    the wrapper for one environment exactly. A step that only resets gives no reward: its 0 stays 0 and is not counted.

    The attribute ``update`` switches the statistics on and off; set it to False for evaluation. They outlive episodes:
    ``state_dict()`` and ``load_state_dict()`` keep them.

    Infos, on every step, with Gymnasium's mask ``_raw_reward``:
        * ``raw_reward`` (``[num_envs]``): the rewards as they were.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers.vector import RewardNormalizerWrapper
        >>> envs = RewardNormalizerWrapper(gym.make_vec("MountainCarContinuous-v0", num_envs=3))
        >>> _ = envs.reset(seed=0)
        >>> _, rewards, _, _, infos = envs.step(np.array([[0.0], [0.5], [1.0]], dtype=np.float32))
        >>> infos["raw_reward"].round(3), rewards.round(3)
        (array([ 0.   , -0.025, -0.1  ]), array([ 0.981,  0.392, -1.373]))
        >>> envs.state_dict()["count"]
        1

    Change log:
        * v0.1.0 - Added
    """

    def __init__(self, env: VectorEnv, *, clip: float | None = 5.0, speed: float = 8.0, update: bool = True):
        """Wrap ``env``.

        Args:
            env: the vector environment to wrap.
            clip: normalized rewards are clipped to [-clip, clip], above 0; None does not clip.
            speed: how much recent rewards weigh, above 0.
            update: whether rewards update the statistics.
        """
        require_vector_env(env)
        normalizer = AdaptiveNormalizer(speed=speed, clip=clip)
        update = require_bool("update", update)
        RecordConstructorArgs.__init__(self, clip=clip, speed=speed, update=update)
        super().__init__(env)
        self.normalizer = normalizer
        self.update = update

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and normalize their rewards."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        masks = self._masks(terminated, truncated)
        raw_rewards = rewards[masks.stepped]
        if self.update and raw_rewards.size:
            self.normalizer.update(raw_rewards)
        normalized = self.normalizer.normalize(raw_rewards)
        infos = add_report(infos, {"raw_reward": rewards.copy()}, masks)
        rewards = np.zeros(self.num_envs, normalized.dtype)
        rewards[masks.stepped] = normalized
        return observations, rewards, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers."""
        return self.normalizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the statistics of a `state_dict`; a bad one raises and changes nothing."""
        self.normalizer.load_state_dict(state)

    def _begin_episodes(self, mask: np.ndarray) -> None:
        """Nothing here belongs to one episode."""
