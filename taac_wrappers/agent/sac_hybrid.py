"""SAC-Hybrid, ready to act: one output of the policy proposes a new action, another decides whether to execute it.

Unlike TAAC's switch, which compares the values of both actions, this one is learned beside the action, and does not
know what is proposed. Trained by ``agents/sac_hybrid_continuous.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Bernoulli

from taac_wrappers.agent.distributions import SquashedGaussian
from taac_wrappers.agent.networks import HybridActor, Observation
from taac_wrappers.agent.repeating import RepeatingAgent


class HybridAgent(RepeatingAgent):
    """The factored policy ``pi(a_hat | s, a_prev) pi(b | s, a_prev)``, and critics with a value for each b.

    It acts in an environment wrapped in `HybridActionWrapper` and then `PrevActionWrapper(flatten=False)`, whose spaces
    it is made of; in the bare environment, :meth:`policy` does the two wrappers' job.

    Args:
        observation_space: a Dict of one-dimensional Boxes, with the entry ``prev_action``.
        action_space: ``Dict(action=Box, switch=Discrete(2))``, the Box one-dimensional and bounded.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.

    >>> import numpy as np
    >>> actions = spaces.Box(-1, 1, (2,))
    >>> observations = spaces.Dict(observation=spaces.Box(-1, 1, (3,)), prev_action=actions)
    >>> agent = HybridAgent(observations, spaces.Dict(action=actions, switch=spaces.Discrete(2)))
    >>> answer = agent.act({"observation": np.zeros((4, 3)), "prev_action": np.zeros((4, 2))})
    >>> answer["action"].shape, answer["switch"].shape
    ((4, 2), (4,))
    """

    FORMAT = "taac_wrappers.HybridAgent"
    actor: HybridActor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Dict,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ):
        super().__init__(observation_space, action_space, hidden=hidden, choices=2, critics_see_prev_action=True)
        self.actor = HybridActor(
            self.observation_size, self.action_box.shape[0], hidden, (log_std_min, log_std_max), self.keys
        )
        self.log_switch_temperature = nn.Parameter(torch.zeros(()))  # alpha'; the actor's is the paper's alpha''

    def policies(self, observation: Observation) -> tuple[SquashedGaussian, Bernoulli]:
        """Of the new action, and of whether to execute it, ``[B]``."""
        mean, log_std, switch_logit = self.actor(observation)
        action = SquashedGaussian(mean, log_std, self.action_center, self.action_scale)
        return action, Bernoulli(logits=switch_logit, validate_args=False)

    def policy_distribution(self, observation: Observation) -> SquashedGaussian:
        """What new actions are drawn from: ``pi(a_hat | s, a_prev)``."""
        return self.policies(observation)[0]

    def log_probs(self, observation: Any, action: Mapping[str, Any]) -> Any:
        """Log density of ``a_hat`` and log probability of ``b``, ``[n, 2]``, of actions of the wrapped environment."""

        def both(looked_at: Observation) -> Tensor:
            policy, switch = self.policies(looked_at)
            of_action = policy.log_prob(self._batch("action", action["action"], self.action_box))
            return torch.stack([of_action, switch.log_prob(self._to_tensor(action["switch"]))], dim=-1)

        return self._answer(both, observation)

    def _choose(self, observation: Observation, deterministic: bool) -> dict[str, Tensor]:
        """Both parts, or their modes; a tie repeats."""
        policy, switch = self.policies(observation)
        chosen = switch.probs > 0.5 if deterministic else switch.sample()
        return {"action": self.draw_from(policy, deterministic), "switch": chosen.long()}
