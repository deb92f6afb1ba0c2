"""TAAC, ready to act: the actor proposes, the critics decide whether to act or to repeat.

Stage one samples a candidate ``a_hat ~ pi(. | s, a_prev)``; stage two compares ``Q(s, a_hat)`` with ``Q(s, a_prev)``
and executes the candidate with probability ``beta*_1`` (paper, Section 4.1). Networks and initialisation follow the
authors' code. How the agent is trained is spelled out in ``agents/taac_continuous.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from taac_wrappers.agent.networks import Observation, PrevActionActor
from taac_wrappers.agent.operators import switch_probability
from taac_wrappers.agent.repeating import RepeatingAgent


class TAACAgent(RepeatingAgent):
    """The closed-loop agent that learns when to act and when to repeat.

    It acts in an environment wrapped in `HybridActionWrapper` and then `PrevActionWrapper(flatten=False)`, whose spaces
    it is made of; in the bare environment, :meth:`policy` does the two wrappers' job.

    Args:
        observation_space: a Dict of one-dimensional Boxes, with the entry ``prev_action``.
        action_space: ``Dict(action=Box, switch=Discrete(2))``, the Box one-dimensional and bounded.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.
        min_advantage: clip of ``Q(s, a_hat) - Q(s, a_prev)`` from below when deciding (0 in the paper's Locomotion).

    >>> import gymnasium as gym
    >>> from taac_wrappers import HybridActionWrapper, PrevActionWrapper
    >>> make = lambda: PrevActionWrapper(HybridActionWrapper(gym.make("MountainCarContinuous-v0")), flatten=False)
    >>> envs = gym.vector.SyncVectorEnv([make] * 3)
    >>> agent = TAACAgent(envs.single_observation_space, envs.single_action_space)
    >>> observation, _ = envs.reset(seed=0)
    >>> action = agent.act(observation)
    >>> action["action"].shape, action["switch"].shape
    ((3, 1), (3,))
    >>> observation, *_ = envs.step(action)
    """

    FORMAT = "taac_wrappers.TAACAgent"
    actor: PrevActionActor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Dict,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        min_advantage: float | None = None,
    ):
        super().__init__(observation_space, action_space, hidden=hidden)
        self.min_advantage = min_advantage
        self.actor = PrevActionActor(
            self.observation_size, self.action_box.shape[0], hidden, (log_std_min, log_std_max), self.keys
        )
        self.log_switch_temperature = nn.Parameter(torch.zeros(()))  # alpha'; the actor's is the paper's alpha''

    def config(self) -> dict[str, Any]:
        """The constructor's arguments beside the spaces, as JSON knows them."""
        return super().config() | {"min_advantage": self.min_advantage}

    def switch_probability(self, q_repeat: Tensor, q_new: Tensor) -> Tensor:
        """Stage two: the probability beta*_1 of executing the candidate."""
        return switch_probability(q_repeat, q_new, self.log_switch_temperature.exp(), self.min_advantage)

    def _choose(self, observation: Observation, deterministic: bool) -> dict[str, Tensor]:
        """Both stages, or their modes; a tie repeats."""
        assert isinstance(observation, Mapping)
        candidate = self.draw(observation, deterministic)
        q_repeat = self.critics.minimum(observation, observation["prev_action"])
        q_new = self.critics.minimum(observation, candidate)
        if deterministic:
            switch = q_new > q_repeat
        else:
            beta = self.switch_probability(q_repeat, q_new)
            switch = torch.rand_like(beta) < beta
        return {"action": candidate, "switch": switch.long()}
