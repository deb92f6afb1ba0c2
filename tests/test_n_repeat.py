"""``NRepeatWrapper``: sums, discounts and early ends, by hand and against a slow reference."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ACTION_SPACES, ToyEnv, rollout, sample_actions

from taac_wrappers import NRepeatWrapper


def test_sum_by_hand():
    env = NRepeatWrapper(ToyEnv(length=7), 3)
    env.reset(seed=0)
    action = np.array([0.5, -0.5], np.float32)
    steps = [env.step(action) for _ in range(3)]
    assert [step[1] for step in steps] == [1 + 2 + 3, 4 + 5 + 6, 7]
    assert [step[0][0] for step in steps] == [3, 6, 7]
    assert [step[2] for step in steps] == [False, False, True]
    assert [step[-1]["frames"] for step in steps] == [3, 3, 1]
    assert [step[-1]["toy"] for step in steps] == [3, 6, 7]
    assert not any(step[-1]["repeated"] for step in steps)
    assert all("discount" not in step[-1] for step in steps)
    assert np.array_equal(steps[-1][-1]["executed_action"], action)
    assert all(np.array_equal(received, action) for received in env.unwrapped.received)


class WritesOverActions(gym.ActionWrapper):
    """Keeps a record of what it received, and then spoils it in place."""

    def __init__(self, env):
        super().__init__(env)
        self.received = []

    def action(self, action):
        self.received.append(np.array(action))
        action *= 0
        return action


def test_an_environment_that_writes_over_its_action_receives_the_same_one_again():
    inner = WritesOverActions(ToyEnv(length=7))
    env = NRepeatWrapper(inner, 3)
    env.reset(seed=0)
    info = env.step(np.array([0.5, -0.5], np.float32))[-1]
    assert [received.tolist() for received in inner.received] == [[0.5, -0.5]] * 3
    assert info["executed_action"].tolist() == [0.5, -0.5]


def test_discounted_sum_by_hand():
    env = NRepeatWrapper(ToyEnv(length=5), 3, gamma=0.5)
    env.reset(seed=0)
    first, second = env.step(np.zeros(2, np.float32)), env.step(np.zeros(2, np.float32))
    assert (first[1], first[-1]["discount"]) == (1 + 0.5 * 2 + 0.25 * 3, 0.125)
    assert (second[1], second[-1]["discount"]) == (4 + 0.5 * 5, 0.25)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_extreme_discounts(gamma):
    env = NRepeatWrapper(ToyEnv(), 3, gamma=gamma)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.zeros(2, np.float32))
    assert (reward, info["discount"]) == ((1.0, 0.0) if gamma == 0 else (6.0, 1.0))


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("last", [1, 2, 3, 4])
def test_an_episode_that_ends_at_each_inner_step(end, last):
    env = NRepeatWrapper(ToyEnv(length=4 + last, end=end), 4, gamma=0.5)
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    observation, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
    assert env.unwrapped.frame == 4 + last
    assert (terminated, truncated) == (end != "truncated", end != "terminated")
    assert observation[0] == 4 + last
    assert reward == sum((4 + i) * 0.5 ** (i - 1) for i in range(1, last + 1))
    assert (info["frames"], info["discount"]) == (last, 0.5**last)


@given(
    rewards=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    n=st.integers(1, 6),
    gamma=st.none() | st.floats(0, 1),
)
def test_against_a_slow_reference(rewards, n, gamma):
    class Rewards(gym.RewardWrapper):
        def reward(self, reward):
            return np.float32(rewards[int(reward) - 1])

    env = NRepeatWrapper(Rewards(ToyEnv(length=len(rewards))), n, gamma=gamma)
    env.reset(seed=0)
    for start in range(0, len(rewards), n):
        chunk = rewards[start : start + n]
        _, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
        expected = sum(value if gamma is None else gamma**i * value for i, value in enumerate(chunk))
        assert reward == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert type(reward) is float
        assert info["frames"] == len(chunk)
        assert info.get("discount") == (None if gamma is None else gamma ** len(chunk))
        assert terminated == (start + n >= len(rewards))


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_any_action_space(kind):
    env = NRepeatWrapper(ToyEnv(action=kind), 2)
    actions = sample_actions(env, 3)
    steps = rollout(env, actions)[1:]
    space = env.action_space
    for i, action in enumerate(actions):
        executed = steps[i][-1]["executed_action"]
        assert type(executed) is np.ndarray
        assert np.array_equal(executed, gym.spaces.flatten(space, action) if kind in ("dict", "tuple") else action)
        assert executed in env.executed_action_space
        for received in env.unwrapped.received[2 * i : 2 * i + 2]:
            assert received in space


def test_a_discrete_action_stays_hashable():
    env = NRepeatWrapper(ToyEnv(action="discrete"), 2)
    env.reset(seed=0)
    for action in (1, np.int64(1), np.array(1)):
        env.step(action)
    assert [{0: "a", 1: "b"}[received] for received in env.unwrapped.received] == ["b"] * 6
