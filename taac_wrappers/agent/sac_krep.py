"""SAC-Krep, ready to act: the actor proposes an action, the critics for how many frames to hold it.

Stage one samples ``a ~ pi(. | s)``; stage two chooses the duration K with the probability
``softmax(Q(s, a, K) / alpha')``, the closed form that TAAC's switch has too. Trained by
``agents/sac_krep_continuous.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from taac_wrappers.agent.base import ActorCriticAgent, require_vector
from taac_wrappers.agent.networks import Actor, Observation
from taac_wrappers.agent.policy import HoldingPolicy


class KRepAgent(ActorCriticAgent):
    """It decides what to do and for how long, and does not look again before that.

    It acts in an environment wrapped in `KRepWrapper`, whose spaces it is made of; in the bare environment,
    :meth:`policy` does the wrapper's job.

    Args:
        observation_space: a one-dimensional Box, or a Dict of such.
        action_space: ``Dict(action=Box, repeat=Discrete(K, start=1))``, the Box one-dimensional and bounded.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.

    >>> import gymnasium as gym
    >>> from taac_wrappers import KRepWrapper
    >>> envs = gym.vector.SyncVectorEnv([lambda: KRepWrapper(gym.make("MountainCarContinuous-v0"), 4)] * 3)
    >>> agent = KRepAgent(envs.single_observation_space, envs.single_action_space)
    >>> observation, _ = envs.reset(seed=0)
    >>> action = agent.act(observation)
    >>> action["action"].shape, set(action["repeat"].tolist()) <= {1, 2, 3, 4}
    ((3, 1), True)
    """

    FORMAT = "taac_wrappers.KRepAgent"

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Dict,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ):
        if not isinstance(action_space, spaces.Dict) or set(action_space) != {"action", "repeat"}:
            raise TypeError(f"action_space must be that of KRepWrapper, Dict(action, repeat), got {action_space}")
        box, repeat = action_space["action"], action_space["repeat"]
        require_vector("action_space['action']", box)
        if not isinstance(repeat, spaces.Discrete) or repeat.start != 1:
            raise TypeError(f"action_space['repeat'] must be Discrete(K, start=1), got {repeat}")
        super().__init__(observation_space, action_space, box, hidden=hidden, choices=int(repeat.n))  # type: ignore[arg-type]
        self.max_repeat = int(repeat.n)
        self.actor = Actor(
            self.observation_size, self.action_box.shape[0], hidden, (log_std_min, log_std_max), self.keys
        )
        self.log_repeat_temperature = nn.Parameter(torch.zeros(()))  # alpha'; the actor's is the paper's alpha''

    def repeat_probabilities(self, q: Tensor) -> Tensor:
        """Stage two: of every duration, ``[B, K]``, from its values ``[B, K]``."""
        return torch.softmax(q / self.log_repeat_temperature.exp(), dim=-1)

    def _choose(self, observation: Observation, deterministic: bool) -> dict[str, Tensor]:
        """Both stages, or their modes; of equal durations the shortest."""
        action = self.draw(observation, deterministic)
        q = self.critics.minimum(observation, action)
        choice = q.argmax(-1) if deterministic else torch.multinomial(self.repeat_probabilities(q), 1).squeeze(-1)
        return {"action": action, "repeat": choice + 1}

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> HoldingPolicy:
        """For an environment without the wrapper; it holds every action for as long as it decided.

        >>> import numpy as np
        >>> space = spaces.Dict(action=spaces.Box(-1, 1, (2,)), repeat=spaces.Discrete(4, start=1))
        >>> policy = KRepAgent(spaces.Box(-1, 1, (3,)), space).policy()
        >>> policy(np.zeros(3, np.float32)).shape
        (2,)
        >>> policy.reset()  # at the start of every episode
        """
        return HoldingPolicy(
            self, num_envs, deterministic=deterministic, frames_of=lambda answer: (answer["action"], answer["repeat"])
        )

    @classmethod
    def action_space_of(cls, action_box: spaces.Box, weights: Mapping[str, Any]) -> spaces.Space:
        """The action space of the wrapped environment; there are as many durations as the critics tell apart."""
        max_repeat = len(weights["critics.twins.0.head.bias"])
        return spaces.Dict({"action": action_box, "repeat": spaces.Discrete(max_repeat, start=1)})
