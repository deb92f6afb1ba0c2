"""``PrevActionWrapper``: what is shown, in every kind of observation and action."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import RescaleAction
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ACTION_SPACES, ToyEnv, sample_actions

from taac_wrappers import HybridActionWrapper, KRepWrapper, NRepeatWrapper, PrevActionWrapper, ZetaRepeatWrapper

OBSERVATIONS = ["box", "box64", "matrix box", "image", "dict", "tuple", "discrete"]


def test_joined_box_by_hand():
    env = PrevActionWrapper(ToyEnv(action="uneven box"))
    low, high = np.array([0, 0, -1, 0.5], np.float32), np.array([1000, 1, 0.5, 2], np.float32)
    assert env.observation_space == Box(low, high)
    observation, _ = env.reset(seed=0)
    assert observation[2:].tolist() == [0, 0.5]
    for action in ([-0.5, 1.5], [0.25, 2.0]):
        observation = env.step(np.array(action, np.float32))[0]
        assert observation[2:].tolist() == action
    observation, _ = env.reset()
    assert observation[2:].tolist() == [0, 0.5]


def test_the_observation_itself_is_unchanged():
    env, bare = PrevActionWrapper(ToyEnv()), ToyEnv()
    assert np.array_equal(env.reset(seed=1)[0][:2], bare.reset(seed=1)[0])
    for action in sample_actions(env, 5):
        assert np.array_equal(env.step(action)[0][:2], bare.step(action)[0])


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTION_SPACES)
@pytest.mark.parametrize("flatten", [True, False])
def test_every_kind_of_observation_and_action(observation, action, flatten):
    env = PrevActionWrapper(ToyEnv(action=action, observation=observation), flatten=flatten)
    shown, _ = env.reset(seed=0)
    assert shown in env.observation_space
    inner_action_space, executed_space = env.action_space, ACTION_SPACES[action]
    if action in ("dict", "tuple"):
        executed_space = gym.spaces.flatten_space(executed_space)
    for chosen in sample_actions(env, 4):
        shown = env.step(chosen)[0]
        assert shown in env.observation_space
        executed = gym.spaces.flatten(inner_action_space, chosen) if action in ("dict", "tuple") else chosen
        wanted = gym.spaces.flatten(executed_space, executed) if flatten else executed
        if flatten and observation in ("box", "box64", "matrix box", "image"):
            assert shown.ndim == 1
            assert np.allclose(shown[2:], wanted)
        else:
            assert set(shown) == {"state" if observation == "dict" else "observation", "prev_action"}
            assert np.array_equal(shown["prev_action"], wanted)


def test_an_image_joined_with_a_float_action_becomes_float():
    env = PrevActionWrapper(ToyEnv(observation="image"))
    assert env.observation_space.dtype == np.float32
    env.reset(seed=0)
    assert env.step(np.array([0.5, -0.5], np.float32))[0][2:].tolist() == [0.5, -0.5]
    assert PrevActionWrapper(ToyEnv(observation="image", action="discrete")).observation_space.dtype == np.uint8


def test_discrete_actions_are_one_hot_and_begin_with_zeros():
    env = PrevActionWrapper(ToyEnv(action="shifted discrete"))
    assert env.reset(seed=0)[0][2:].tolist() == [0, 0, 0]
    assert env.step(2)[0][2:].tolist() == [1, 0, 0]
    assert env.step(4)[0][2:].tolist() == [0, 0, 1]


def test_multi_discrete_actions_are_one_hot_per_component():
    env = PrevActionWrapper(ToyEnv(action="multi discrete"))
    assert env.reset(seed=0)[0][2:].tolist() == [0] * 5
    assert env.step([1, 2])[0][2:].tolist() == [0, 1, 0, 0, 1]
    assert env.step([0, 1])[0][2:].tolist() == [1, 0, 0, 1, 0]


def test_a_multi_discrete_matrix_with_its_own_start():
    inner = ToyEnv()
    inner.action_space = MultiDiscrete([[2, 3], [2, 2]], start=[[1, 0], [0, 5]])
    env = PrevActionWrapper(inner)
    assert env.reset(seed=0)[0][2:].tolist() == [0] * 9
    assert env.step([[2, 1], [0, 6]])[0][2:].tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1]


def test_unflattened_discrete_begins_with_zero_clipped_into_the_space():
    env = PrevActionWrapper(ToyEnv(action="shifted discrete"), flatten=False)
    assert env.observation_space["prev_action"] == Discrete(3, start=2)
    assert env.reset(seed=0)[0]["prev_action"] == 2
    assert env.step(4)[0]["prev_action"] == 4


@pytest.mark.parametrize(
    ("action", "initial", "flat"),
    [
        ("box", [0.5, -1], [0.5, -1]),
        ("matrix box", [[0, 1, 2], [0, -1, -2]], [0, 1, 2, 0, -1, -2]),
        ("discrete", 1, [0, 1, 0]),
        ("multi discrete", [0, 2], [1, 0, 0, 0, 1]),
        ("multi binary", [0, 1, 1], [0, 1, 1]),
    ],
)
def test_initial_action(action, initial, flat):
    for value in (initial, np.array(initial)):
        joined = PrevActionWrapper(ToyEnv(action=action), initial_action=value)
        raw = PrevActionWrapper(ToyEnv(action=action), initial_action=value, flatten=False)
        for _ in range(2):
            assert joined.reset(seed=0)[0][2:].tolist() == flat
            assert np.array_equal(raw.reset(seed=0)[0]["prev_action"], initial)
            joined.step(joined.action_space.sample())
            raw.step(raw.action_space.sample())


def test_dict_observation_gets_one_more_key():
    env = PrevActionWrapper(ToyEnv(observation="dict"), key="last")
    assert set(env.observation_space.spaces) == {"state", "last"}
    env.reset(seed=0)
    observation = env.step(np.array([0.5, 1], np.float32))[0]
    assert observation["last"].tolist() == [0.5, 1]
    assert observation["state"][0] == 1


@pytest.mark.parametrize("encoding", ["dict", "box"])
def test_above_a_hybrid_action_the_executed_one_is_shown(encoding):
    env = PrevActionWrapper(HybridActionWrapper(ToyEnv(action="uneven box"), encoding=encoding))
    assert env.observation_space.shape == (4,)

    def step(value: list[float], switch: int) -> list[float]:
        pair = {"action": value, "switch": switch} if encoding == "dict" else [*value, switch - 0.5]
        return env.step(pair)[0][2:].tolist()

    assert env.reset(seed=0)[0][2:].tolist() == [0, 0.5]
    assert step([0.5, 2], 0) == [0, 0.5]
    assert step([0.5, 2], 1) == [0.5, 2]
    assert step([-1, 1], 0) == [0.5, 2]


def test_above_other_repeat_wrappers():
    env = PrevActionWrapper(KRepWrapper(ToyEnv(), 3))
    env.reset(seed=0)
    assert env.step({"action": [0.5, 1], "repeat": 3})[0][2:].tolist() == [0.5, 1]
    env = PrevActionWrapper(ZetaRepeatWrapper(ToyEnv(), epsilon=1.0))
    env.reset(seed=0)
    observation, _, _, _, info = env.step([0, 0])
    assert np.array_equal(observation[2:], info["executed_action"])
    env = PrevActionWrapper(
        RescaleAction(NRepeatWrapper(ToyEnv(action="matrix box"), 2), np.float32(-1), np.float32(1)), flatten=False
    )
    assert env.observation_space["prev_action"] == ACTION_SPACES["matrix box"]
    env.reset(seed=0)
    assert env.step(np.full((2, 3), 0.5, np.float32))[0]["prev_action"].tolist() == [[1.0] * 3] * 2


def test_a_foreign_wrapper_that_names_the_space_may_report_the_executed_action():
    class Halve(gym.Wrapper):
        executed_action_space = ToyEnv().action_space

        def step(self, action):
            *result, info = self.env.step(action / 2)
            return (*result, {**info, "executed_action": action / 2})

    env = PrevActionWrapper(Halve(ToyEnv()))
    env.reset(seed=0)
    assert env.step(np.array([1, -0.5], np.float32))[0][2:].tolist() == [0.5, -0.25]


@given(st.lists(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2), min_size=1, max_size=20))
def test_against_a_slow_reference(actions):
    env = PrevActionWrapper(ToyEnv(length=6), flatten=False)
    assert isinstance(env.observation_space, Dict)
    shown, _ = env.reset(seed=0)
    previous = [0.0, 0.0]
    for action in actions:
        assert shown["prev_action"].tolist() == previous
        shown, _, terminated, _, _ = env.step(action)
        previous = action
        if terminated:
            assert shown["prev_action"].tolist() == action
            shown, _ = env.reset()
            previous = [0.0, 0.0]
