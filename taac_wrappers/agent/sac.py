"""SAC, ready to act: a squashed Gaussian actor and twin critics. Trained by ``agents/sac_continuous.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.agent.distributions import SquashedGaussian
from taac_wrappers.agent.networks import Actor


class SACAgent(ActorCriticAgent):
    """The agent that TAAC is compared with: it chooses a new action at every frame.

    Args:
        observation_space: a one-dimensional Box.
        action_space: a one-dimensional, bounded Box.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.

    >>> import numpy as np
    >>> _ = torch.manual_seed(0)
    >>> agent = SACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> action, switch = agent.act(np.zeros((4, 3), np.float32))
    >>> action.shape, action.dtype, bool(switch.all())  # it acts anew at every frame
    ((4, 2), dtype('float32'), True)
    """

    FORMAT = "taac_wrappers.SACAgent/2"

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ):
        super().__init__(observation_space, action_space, hidden=hidden)
        sizes = observation_space.shape[0], action_space.shape[0]
        self.actor = Actor(*sizes, hidden, (log_std_min, log_std_max))

    def policy_distribution(self, observation: Tensor) -> SquashedGaussian:
        """The distribution of the action, ``pi(a | s)``."""
        mean, log_std = self.actor.forward(observation)
        return SquashedGaussian(mean, log_std, self.action_center, self.action_scale)

    def act(self, observation: Any, prev_action: Any = None, deterministic: bool = False) -> tuple[Any, Any]:
        """As every agent's; the switch is always True, and ``prev_action`` is not looked at."""
        return super().act(observation, prev_action, deterministic)

    def _act(self, observation: Tensor, prev_action: Any, deterministic: bool) -> tuple[Tensor, Tensor]:
        distribution = self.policy_distribution(observation)
        action = distribution.mode() if deterministic else distribution.sample()
        action = action.clamp(self.action_low, self.action_high)  # rounding may step over a bound
        return action, torch.ones(len(action), dtype=torch.bool, device=self.device)
