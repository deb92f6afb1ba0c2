"""Wrappers that change the reward give hindsight replay a ``compute_reward`` that matches it, or refuse to."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from test_contract import CASES, wrap
from toy_envs import ToyEnv, sample_actions

from taac_wrappers import KRepWrapper, NRepeatWrapper, RewardNormalizerWrapper


class GoalEnv(ToyEnv):
    """Rewards the distance of the frame to a goal; ``compute_reward`` does so for any goals."""

    goal = 5.0

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(self.compute_reward(np.float64(self.frame), np.float64(self.goal), {})), *rest

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -np.abs(achieved - desired)


def refusal(env: gym.Env) -> str:
    """The reason that is given for having no `compute_reward`, the same whichever way one asks."""
    assert not env.has_wrapper_attr("compute_reward")
    assert not hasattr(env, "compute_reward")
    with pytest.raises(AttributeError) as asked:
        env.get_wrapper_attr("compute_reward")
    with pytest.raises(AttributeError) as direct:
        env.compute_reward  # noqa: B018
    assert str(asked.value) == str(direct.value)
    return str(direct.value)


SUMS = [lambda env: NRepeatWrapper(env, 2), lambda env: KRepWrapper(env, 3, gamma=0.9, encoding="box")]


@pytest.mark.parametrize("wrapper", SUMS)
def test_sums_over_frames_are_refused_with_the_reason(wrapper):
    assert "refuses `compute_reward`: its rewards are sums over frames" in refusal(wrapper(GoalEnv()))
    with pytest.raises(AttributeError) as above:  # Gymnasium's wrappers give the reason as the cause
        TimeLimit(wrapper(GoalEnv()), 9).get_wrapper_attr("compute_reward")
    assert "sums over frames" in str(above.value.__cause__)
    assert "sums over frames" in refusal(RewardNormalizerWrapper(wrapper(GoalEnv()), update=False))


def test_moving_statistics_are_refused_with_the_reason():
    assert "refuses `compute_reward`: its statistics move" in refusal(RewardNormalizerWrapper(GoalEnv()))


@pytest.mark.parametrize("wrapper", [*SUMS, RewardNormalizerWrapper])
def test_an_environment_that_has_none_says_so_itself(wrapper):
    assert refusal(wrapper(ToyEnv())) == "'ToyEnv' object has no attribute 'compute_reward'"


ONE_FRAME = [
    *[(name, CASES[name][0]) for name in CASES if name not in ("NRepeatWrapper", "KRepWrapper")],
    ("NRepeatWrapper", {"n": 1, "gamma": 0.9}),
    ("KRepWrapper", {"max_repeat": 1}),
]


@pytest.mark.parametrize(("name", "kwargs"), ONE_FRAME)
def test_what_is_offered_matches_the_reward(name, kwargs):
    env = wrap(TimeLimit(GoalEnv(), 99), name, kwargs)
    if name == "RewardNormalizerWrapper":
        env.load_state_dict({"count": 7, "first_moment": -2.0, "second_moment": 6.0})
        env.update = False
    assert env.has_wrapper_attr("compute_reward")
    compute_reward = env.get_wrapper_attr("compute_reward")
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in sample_actions(env, 8)]
    frames = np.arange(1.0, 9.0)
    assert compute_reward(frames, np.full(8, GoalEnv.goal), [{}] * 8).tolist() == rewards
    assert compute_reward(frames[0], GoalEnv.goal, {}) == rewards[0]
