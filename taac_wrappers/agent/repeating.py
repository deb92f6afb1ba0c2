"""What the agents have in common that answer, at every frame, a new action and whether to execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from taac_wrappers.agent.base import ActorCriticAgent, require_vector
from taac_wrappers.agent.policy import RepeatingPolicy


class RepeatingAgent(ActorCriticAgent):
    """It acts in an environment wrapped in `HybridActionWrapper` and then `PrevActionWrapper(flatten=False)`.

    Args:
        observation_space: a Dict of one-dimensional Boxes, with the entry ``prev_action``.
        action_space: ``Dict(action=Box, switch=Discrete(2))``, the Box one-dimensional and bounded.
        hidden: sizes of the hidden layers of the actor and of each critic.
        choices: for how many discrete choices the critics have a value each, if for any.
        critics_see_prev_action: whether their value depends on the previous action.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Dict,
        *,
        hidden: Sequence[int],
        choices: int | None = None,
        critics_see_prev_action: bool = False,
    ):
        if not isinstance(action_space, spaces.Dict) or set(action_space) != {"action", "switch"}:
            raise TypeError(
                f"action_space must be that of HybridActionWrapper, Dict(action, switch), got {action_space}"
            )
        box = action_space["action"]
        require_vector("action_space['action']", box)
        if action_space["switch"] != spaces.Discrete(2):
            raise TypeError(f"action_space['switch'] must be Discrete(2), got {action_space['switch']}")
        if not isinstance(observation_space, spaces.Dict) or "prev_action" not in observation_space.spaces:
            raise TypeError(
                f"observation_space must be that of PrevActionWrapper(flatten=False), a Dict with 'prev_action', "
                f"got {observation_space}"
            )
        if observation_space["prev_action"].shape != box.shape:
            raise ValueError(
                f"observation_space['prev_action'] must have the action's shape {box.shape}, "
                f"got {observation_space['prev_action']}"
            )
        super().__init__(
            observation_space,
            action_space,
            box,  # type: ignore[arg-type]
            hidden=hidden,
            unseen=["prev_action"],
            seen_by_critics=["prev_action"] if critics_see_prev_action else [],
            choices=choices,
        )

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> RepeatingPolicy:
        """For an environment without the two wrappers; it remembers the action that was executed.

        >>> from taac_wrappers.agent import load_agent
        >>> policy = load_agent("examples/pretrained/MountainCarContinuous-v0/agent.safetensors").policy()
        >>> policy([-0.5, 0.0]).shape
        (1,)
        >>> policy.reset()  # at the start of every episode
        """
        return RepeatingPolicy(self, num_envs, deterministic=deterministic)

    @classmethod
    def action_space_of(cls, action_box: spaces.Box, weights: Mapping[str, Any]) -> spaces.Space:
        """The action space of the wrapped environment."""
        return spaces.Dict({"action": action_box, "switch": spaces.Discrete(2)})

    @classmethod
    def observation_space_of(cls, observation_box: spaces.Box, action_box: spaces.Box) -> spaces.Space:
        """The observation space of the wrapped environment if nothing else is observed than ``observation_box``."""
        return spaces.Dict({"observation": observation_box, "prev_action": action_box})
