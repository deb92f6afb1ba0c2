"""A small environment in which everything a wrapper does can be counted by hand, and helpers to compare episodes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.utils.env_checker import data_equivalence

ACTION_SPACES: dict[str, Space] = {
    "box": Box(-1.0, 1.0, (2,), np.float32),
    "box64": Box(-1.0, 1.0, (2,), np.float64),
    "uneven box": Box(np.array([-1.0, 0.5], np.float32), np.array([0.5, 2.0], np.float32)),
    "scalar box": Box(-1.0, 1.0, (), np.float32),
    "matrix box": Box(-2.0, 2.0, (2, 3), np.float32),
    "long box": Box(-1.0, 1.0, (40,), np.float32),
    "half open box": Box(0.0, np.inf, (2,), np.float32),
    "discrete": Discrete(3),
    "shifted discrete": Discrete(3, start=2),
    "multi discrete": MultiDiscrete([2, 3]),
    "multi binary": MultiBinary(3),
    "dict": Dict(gear=Discrete(2), force=Box(-1.0, 1.0, (2,), np.float32)),
    "tuple": Tuple([Discrete(2), Box(-1.0, 1.0, (2,), np.float32)]),
}


class ToyEnv(gym.Env):
    """Observes (time, noise); the t-th frame rewards t; the episode ends at frame ``length``.

    ``received`` lists copies of the actions of the episode, ``references`` the very objects.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, action: str = "box", observation: str = "box", length: int = 12, end: str = "terminated"):
        self.action_space = deepcopy(ACTION_SPACES[action])
        self.render_mode = None
        self.length, self.end, self.kind = length, end, observation
        low, high = np.array([0, 0]), np.array([1000, 1])
        self.observation_space = {
            "box": Box(low, high, dtype=np.float32),
            "box64": Box(low, high, dtype=np.float64),
            "matrix box": Box(0, 1000, (2, 1), np.float32),
            "image": Box(0, 255, (2, 1), np.uint8),
            "dict": Dict(state=Box(low, high, dtype=np.float32)),
            "tuple": Tuple([Discrete(1000), Box(0, 1, (), np.float32)]),
            "discrete": Discrete(1000),
        }[observation]

    def _observe(self) -> Any:
        noise = self.np_random.random()
        space = self.observation_space
        if isinstance(space, Box):
            return np.array([self.frame, noise], space.dtype).reshape(space.shape)
        vector = np.array([self.frame, noise], np.float32)
        return {
            "dict": {"state": vector},
            "tuple": (np.int64(self.frame), np.array(noise, np.float32)),
            "discrete": np.int64(self.frame),
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = 0
        self.received: list[Any] = []
        self.references: list[Any] = []
        return self._observe(), {"toy": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received.append(deepcopy(action))
        self.references.append(action)
        self.frame += 1
        is_last = self.frame >= self.length
        terminated = is_last and self.end in ("terminated", "both")
        truncated = is_last and self.end in ("truncated", "both")
        return self._observe(), float(self.frame), terminated, truncated, {"toy": self.frame}


TOY_ID = "taac_tests/Toy-v0"
gym.register(TOY_ID, entry_point="toy_envs:ToyEnv")

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


def sample_actions(env: gym.Env, count: int, seed: int = 0) -> list[Any]:
    """Return ``count`` random actions, drawn from a copy of the action space."""
    space = deepcopy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def rollout(env: gym.Env, actions: list[Any], seed: int | None = 0) -> list[Step]:
    """Return copies of all steps; the first one is that of ``reset``. Resets where an episode ends."""
    observation, info = env.reset(seed=seed)
    return [deepcopy((observation, 0.0, False, False, info)), *continued(env, actions)]


def continued(env: gym.Env, actions: list[Any]) -> list[Step]:
    """Return copies of all steps from the present state on. Resets where an episode ends."""
    steps = []
    for action in actions:
        step = env.step(action)
        steps.append(deepcopy(step))
        if step[2] or step[3]:
            env.reset()
    return steps


def same(first: Any, second: Any) -> bool:
    """Whether two nested results are equal in type, dtype, shape and every value."""
    return data_equivalence(first, second, exact=True)
