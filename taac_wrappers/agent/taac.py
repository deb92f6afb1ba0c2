"""TAAC, ready to act: the actor proposes, the critics decide whether to act or to repeat.

Stage one samples a candidate ``a_hat ~ pi(. | s, a_prev)``; stage two compares ``Q(s, a_hat)`` with ``Q(s, a_prev)``
and executes the candidate with probability ``beta*_1`` (paper, Section 4.1). Networks and initialisation follow the
authors' code. How the agent is trained is spelled out in ``agents/taac_continuous.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.agent.distributions import SquashedGaussian
from taac_wrappers.agent.networks import PrevActionActor
from taac_wrappers.agent.operators import switch_probability


class TAACAgent(ActorCriticAgent):
    """The closed-loop agent that learns when to act and when to repeat.

    Args:
        observation_space: a one-dimensional Box.
        action_space: a one-dimensional, bounded Box.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.
        min_advantage: clip of ``Q(s, a_hat) - Q(s, a_prev)`` from below when deciding (0 in the paper's Locomotion).

    >>> import numpy as np
    >>> _ = torch.manual_seed(0)
    >>> agent = TAACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> action, switch = agent.act(np.zeros((4, 3), np.float32), prev_action=np.zeros((4, 2), np.float32))
    >>> action.shape, switch.shape, action.dtype, switch.dtype
    ((4, 2), (4,), dtype('float32'), dtype('bool'))
    >>> bool(np.all(action[~switch] == 0))  # where it repeats, it executes the previous action
    True
    """

    FORMAT = "taac_wrappers.TAACAgent/2"
    actor: PrevActionActor

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        min_advantage: float | None = None,
    ):
        super().__init__(observation_space, action_space, hidden=hidden)
        self.min_advantage = min_advantage
        sizes = observation_space.shape[0], action_space.shape[0]
        self.actor = PrevActionActor(*sizes, hidden, (log_std_min, log_std_max))
        self.log_switch_temperature = nn.Parameter(torch.zeros(()))  # alpha'; the actor's is the paper's alpha''

    def config(self) -> dict[str, Any]:
        """The constructor's arguments beside the spaces, as JSON knows them."""
        return super().config() | {"min_advantage": self.min_advantage}

    def policy_distribution(self, observation: Tensor, prev_action: Tensor) -> SquashedGaussian:
        """Stage one: the distribution of the candidate action, ``pi(a_hat | s, a_prev)``."""
        mean, log_std = self.actor.forward(observation, prev_action)
        return SquashedGaussian(mean, log_std, self.action_center, self.action_scale)

    def switch_probability(self, q_repeat: Tensor, q_new: Tensor) -> Tensor:
        """Stage two: the probability beta*_1 of executing the candidate."""
        return switch_probability(q_repeat, q_new, self.log_switch_temperature.exp(), self.min_advantage)

    def _act(self, observation: Tensor, prev_action: Any, deterministic: bool) -> tuple[Tensor, Tensor]:
        """Both stages, or their modes; a tie repeats."""
        prev_action = self._to_tensor(prev_action)
        distribution = self.policy_distribution(observation, prev_action)
        candidate = distribution.mode() if deterministic else distribution.sample()
        candidate = candidate.clamp(self.action_low, self.action_high)  # rounding may step over a bound
        both = torch.cat([observation, observation]), torch.cat([prev_action, candidate])
        q_repeat, q_new = self.critics.minimum(*both).chunk(2)
        if deterministic:
            switch = q_new > q_repeat
        else:
            beta = self.switch_probability(q_repeat, q_new)
            switch = torch.rand_like(beta) < beta
        return torch.where(switch.unsqueeze(-1), candidate, prev_action), switch
