"""Above no repeat wrapper, an action is repeated if it equals the one before in every bit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from taac_wrappers.vector import RepeatStatisticsWrapper


class ThreeSteps(gym.Env):
    """Writes over the action it was given."""

    observation_space = gym.spaces.Box(0, 3, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        action[...] = self._time
        return np.zeros(1, np.float32), 0.0, self._time == 3, False, {}


def statistics(*actions: np.ndarray) -> dict[str, np.ndarray]:
    envs = RepeatStatisticsWrapper(SyncVectorEnv([ThreeSteps] * 2))
    envs.reset(seed=0)
    for action in actions:
        infos = envs.step(action)[-1]
    return infos["repeat"]


def test_an_env_that_writes_over_its_actions_changes_no_count() -> None:
    report = statistics(*(np.array([[0.5], [value]], np.float32) for value in (0.5, 0.5, 0.25)))
    np.testing.assert_array_equal(report["fraction"], [2 / 3, 1 / 3])
    np.testing.assert_array_equal(report["mean_run"], [3.0, 1.5])
    np.testing.assert_array_equal(report["afr"], [0.0, 0.125])


def test_the_sign_of_zero_is_a_bit() -> None:
    report = statistics(*(np.array([[0.0], [value]], np.float32) for value in (0.0, -0.0, 0.0)))
    np.testing.assert_array_equal(report["fraction"], [2 / 3, 0.0])
    np.testing.assert_array_equal(report["afr"], [0.0, 0.0])


def test_another_dtype_is_another_action() -> None:
    report = statistics(*(np.full((2, 1), 0.5, dtype) for dtype in (np.float32, np.float64, np.float64)))
    np.testing.assert_array_equal(report["fraction"], [1 / 3, 1 / 3])
