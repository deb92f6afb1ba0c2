"""An agent at work in an environment that has none of its method's wrappers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from taac_wrappers.agent.base import ActorCriticAgent


class AgentPolicy:
    """``policy(observation) -> action``, from an observation to an action of the bare environment.

    One env may pass its observation without a batch dimension and gets an action without one.

    >>> from taac_wrappers.agent import SACAgent
    >>> agent = SACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> policy = agent.policy()
    >>> policy(np.zeros(3, np.float32)).shape
    (2,)
    >>> policy.reset()  # at the start of every episode
    """

    def __init__(self, agent: ActorCriticAgent, num_envs: int, *, deterministic: bool):
        if not isinstance(num_envs, int) or num_envs < 1:
            raise ValueError(f"num_envs must be a positive integer, got {num_envs!r}")
        self.agent, self.num_envs, self.deterministic = agent, num_envs, deterministic

    def reset(self, mask: np.ndarray | None = None) -> None:
        """Forget the previous episode of all envs, or of those where ``mask`` ``[num_envs]`` is true."""
        mask = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask)
        if mask.shape != (self.num_envs,):
            raise ValueError(f"mask must have shape {(self.num_envs,)}, got {mask!r}")
        self._forget(mask)

    def __call__(self, observation: Any) -> np.ndarray:
        parts = dict(observation) if isinstance(observation, Mapping) else {"observation": observation}
        parts = {key: np.asarray(part) for key, part in parts.items()}
        single = all(part.ndim == 1 for part in parts.values())
        if single:
            parts = {key: part[None] for key, part in parts.items()}
        self._check(parts)
        action = self._decide(parts if isinstance(observation, Mapping) else parts["observation"])
        return action[0].copy() if single else action.copy()

    def _decide(self, observation: Any) -> np.ndarray:
        """The actions to execute, ``[num_envs, A]``."""
        return self.agent.act(observation, deterministic=self.deterministic)

    def _forget(self, mask: np.ndarray) -> None:
        """Nothing is remembered."""

    def _check(self, parts: Mapping[str, np.ndarray]) -> None:
        """Raise for observations that are not of the bare environment."""
        space = self.agent.observation_space
        keys = self.agent.keys
        looked_at = {key: space[key] for key in keys} if isinstance(space, spaces.Dict) else {"observation": space}
        for key, box in looked_at.items():
            shape = (self.num_envs, *box.shape)  # type: ignore[misc]
            if key not in parts or parts[key].shape != shape:
                got = {key: part.shape for key, part in parts.items()}
                raise ValueError(f"{key} must have shape {shape}, got {got.get(key, got)}")


class HoldingPolicy(AgentPolicy):
    """As :class:`AgentPolicy`, for agents that decide on several frames at once: it holds every action for so long.

    Args:
        frames_of: the actions to execute ``[num_envs, A]`` and for how many frames ``[num_envs]``, of what the agent
            answers.

    Attributes:
        remaining: frames for which the present action is still to be held, ``[num_envs]``.
    """

    def __init__(
        self,
        agent: ActorCriticAgent,
        num_envs: int,
        *,
        deterministic: bool,
        frames_of: Callable[[Any], tuple[np.ndarray, np.ndarray]],
    ):
        super().__init__(agent, num_envs, deterministic=deterministic)
        self._frames_of = frames_of
        self._held = np.zeros((num_envs, *agent.action_box.shape), np.float32)
        self.remaining = np.zeros(num_envs, np.int64)

    def _decide(self, observation: Any) -> np.ndarray:
        new = self.remaining == 0
        if new.any():
            action, frames = self._frames_of(super()._decide(observation))
            self._held = np.where(new[:, None], action, self._held)
            self.remaining = np.where(new, frames, self.remaining)
        self.remaining -= 1
        return self._held

    def _forget(self, mask: np.ndarray) -> None:
        self.remaining = np.where(mask, 0, self.remaining)


class RepeatingPolicy(AgentPolicy):
    """As :class:`AgentPolicy`, for agents that choose ``{"action", "switch"}``: it remembers what was executed.

    Attributes:
        prev_action: what was executed last, ``[num_envs, A]``; zeros, clipped into the space, before the first action.
        switch: what the last call decided, ``[num_envs]`` (True: acted anew).
    """

    def __init__(self, agent: ActorCriticAgent, num_envs: int, *, deterministic: bool):
        super().__init__(agent, num_envs, deterministic=deterministic)
        box = agent.action_box
        self._initial_action = np.clip(np.zeros(box.shape), box.low, box.high).astype(np.float32)
        self.prev_action = np.tile(self._initial_action, (num_envs, 1))
        self.switch = np.ones(num_envs, bool)

    def _decide(self, observation: Any) -> np.ndarray:
        parts = observation if isinstance(observation, Mapping) else {"observation": observation}
        chosen = self.agent.act({**parts, "prev_action": self.prev_action}, deterministic=self.deterministic)
        self.switch = chosen["switch"] == 1
        self.prev_action = np.where(self.switch[:, None], chosen["action"], self.prev_action)
        return self.prev_action

    def _forget(self, mask: np.ndarray) -> None:
        self.prev_action = np.where(mask[:, None], self._initial_action, self.prev_action)
