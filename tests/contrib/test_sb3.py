"""Stable-Baselines3 stores the executed actions with the replay buffers made for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import ToyEnv

from taac_wrappers import (
    HybridActionWrapper,
    NRepeatWrapper,
    PrevActionWrapper,
    RepeatStatisticsWrapper,
    ZetaRepeatWrapper,
)
from taac_wrappers.contrib import sb3
from taac_wrappers.training.envs import make_env

SMALL: dict[str, Any] = {"learning_starts": 80, "buffer_size": 400, "batch_size": 8, "device": "cpu", "seed": 0}


class GoalEnv(ToyEnv):
    """Achieves the frame and wants another one."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = Dict({name: Box(0, 1000, (1,), np.float32) for name in names})

    def _observe(self) -> Any:
        return {name: np.full(1, self.frame, np.float32) for name in self.observation_space}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -np.abs(achieved - desired).reshape(-1)


class Received(gym.Wrapper):
    """Keeps the actions of all episodes."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.actions: list[Any] = []

    def step(self, action: Any) -> Any:
        self.actions.append(np.copy(action))
        return self.env.step(action)


def trained(
    algorithm: type, wrap: Callable[[gym.Env], gym.Env], make: Callable[[], gym.Env], **kwargs: Any
) -> tuple[OffPolicyAlgorithm, np.ndarray]:
    """A model after 200 steps of two environments, and the actions they received, ``[steps, 2, ...]``."""
    envs = DummyVecEnv([lambda: wrap(Received(make()))] * 2)
    model = algorithm(env=envs, policy_kwargs={"net_arch": [8]}, **SMALL, **kwargs)
    model.learn(200)
    return model, np.stack(envs.get_attr("actions"), axis=1)


def explored(env: gym.Env) -> gym.Env:
    return ZetaRepeatWrapper(env, epsilon=0.3, mu=0.5)


def stored(model: OffPolicyAlgorithm, steps: int) -> np.ndarray:
    return model.replay_buffer.actions[:steps]


BUFFERS = {
    "box": (sb3.ExecutedActionReplayBuffer, ToyEnv, explored, "MlpPolicy"),
    "dict": (
        sb3.ExecutedActionDictReplayBuffer,
        ToyEnv,
        lambda env: PrevActionWrapper(explored(env), flatten=False),
        "MultiInputPolicy",
    ),
    "her": (sb3.ExecutedActionHerReplayBuffer, GoalEnv, explored, "MultiInputPolicy"),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_all_stored_actions_are_the_executed_ones(kind):
    buffer, env, wrap, policy = BUFFERS[kind]
    make = partial(env, action="uneven box", length=30)
    model, received = trained(SAC, wrap, make, policy=policy, replay_buffer_class=buffer)
    low, high = model.action_space.low, model.action_space.high
    assert len(received) == 100
    np.testing.assert_allclose(low + (stored(model, 100) + 1) / 2 * (high - low), received, atol=1e-6)
    assert np.abs(stored(model, 100)).max() <= 1
    if kind == "box":  # what Stable-Baselines3 stores by itself is something else
        model, received = trained(SAC, wrap, make, policy=policy)
        differ = np.abs(low + (stored(model, 100) + 1) / 2 * (high - low) - received).max(axis=-1) > 1e-3
        assert differ.mean() > 0.2


def test_discrete_actions_are_stored_as_they_are():
    make, buffer = partial(ToyEnv, action="discrete", length=30), sb3.ExecutedActionReplayBuffer
    model, received = trained(DQN, explored, make, policy="MlpPolicy", replay_buffer_class=buffer)
    np.testing.assert_array_equal(stored(model, 100)[..., 0], received)


def add_one(buffer: ReplayBuffer, info: dict[str, Any]) -> None:
    zeros = np.zeros((1, 2), np.float32)
    buffer.add(zeros, zeros, zeros, np.zeros(1), np.zeros(1, bool), [info])


def test_what_the_agent_could_not_have_chosen_is_refused():
    buffer = sb3.ExecutedActionReplayBuffer(10, Box(0, 1, (2,)), Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=r"needs info\['executed_action'\]: use it above ZetaRepeatWrapper"):
        add_one(buffer, {})
    with pytest.raises(ValueError, match=r"`info\['executed_action'\]` must have shape \(2,\), got .* shape \(1,\)"):
        add_one(buffer, {"executed_action": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match=r"`info\['executed_action'\]` must lie in Box"):
        add_one(buffer, {"executed_action": np.full(2, 1.5, np.float32)})
    assert buffer.pos == 0
    add_one(buffer, {"executed_action": np.full(2, 0.5, np.float32)})
    assert buffer.actions[0, 0].tolist() == [0.5, 0.5]


def test_hindsight_replay_trains_on_a_wrapped_fetch_reach():
    """Rewards of new goals are the environment's own, through the wrappers, whose previous action stays beside."""

    def wrap(env: gym.Env) -> gym.Env:
        env = PrevActionWrapper(HybridActionWrapper(env, encoding="box"), flatten=False)
        return RepeatStatisticsWrapper(env)

    fetch_reach = make_env("FetchReach-v4")
    make = partial(gym.make, "FetchReach-v4", max_episode_steps=25)
    model, received = trained(SAC, wrap, make, policy="MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
    batch = model.replay_buffer.sample(256)
    goals, achieved = (batch.next_observations[key].numpy() for key in ("desired_goal", "achieved_goal"))
    np.testing.assert_array_equal(batch.rewards[:, 0], fetch_reach.unwrapped.compute_reward(achieved, goals, {}))
    recorded = model.replay_buffer.observations["desired_goal"].reshape(-1, 3)
    is_new = ~(goals[:, None] == recorded).all(axis=-1).any(axis=-1)
    assert 0.6 < is_new.mean() < 0.95  # four of five
    executed = np.concatenate([np.zeros((1, *received.shape[1:])), received]).reshape(-1, 4)
    prev_action = batch.observations["prev_action"].numpy()
    assert np.isclose(prev_action[:, None], executed, atol=1e-6).all(axis=-1).any(axis=-1).all()


def test_hindsight_replay_is_told_why_sums_of_frames_do_not_do():
    make, wrap = partial(GoalEnv, length=30), partial(NRepeatWrapper, n=2)
    with pytest.raises(AttributeError, match="sums over frames"):
        trained(SAC, wrap, make, policy="MultiInputPolicy", replay_buffer_class=HerReplayBuffer)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ImportError, match=r'needs Stable-Baselines3: pip install "taac-wrappers\[sb3\]"'):
        importlib.reload(sb3)
