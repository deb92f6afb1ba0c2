"""SAC, ready to act: a squashed Gaussian actor and twin critics. Trained by ``agents/sac_continuous.py``."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium import spaces
from torch import Tensor

from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.agent.networks import Actor, Observation


class SACAgent(ActorCriticAgent):
    """The agent that TAAC is compared with: it chooses a new action at every frame.

    Args:
        observation_space: a one-dimensional Box, or a Dict of such.
        action_space: a one-dimensional, bounded Box.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.

    >>> import numpy as np
    >>> agent = SACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> action = agent.act(np.zeros((4, 3), np.float32))
    >>> action.shape, action.dtype
    ((4, 2), dtype('float32'))
    """

    FORMAT = "taac_wrappers.SACAgent"

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ):
        super().__init__(observation_space, action_space, action_space, hidden=hidden)
        self.actor = Actor(self.observation_size, action_space.shape[0], hidden, (log_std_min, log_std_max), self.keys)

    def _choose(self, observation: Observation, deterministic: bool) -> Tensor:
        return self.draw(observation, deterministic)
