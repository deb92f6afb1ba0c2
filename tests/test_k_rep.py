"""``KRepWrapper``: chosen durations, by hand and against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyEnv

from taac_wrappers import KRepWrapper


def pair(value: float, repeat: int) -> dict:
    return {"action": np.full(2, value, np.float32), "repeat": repeat}


def test_spaces():
    inner = ToyEnv(action="uneven box")
    assert KRepWrapper(inner, 3).action_space == Dict(action=inner.action_space, repeat=Discrete(3, start=1))
    expected = Box(np.array([-1, 0.5, -1], np.float32), np.array([0.5, 2, 1], np.float32))
    assert KRepWrapper(inner, 3, encoding="box").action_space == expected
    flat = KRepWrapper(ToyEnv(action="matrix box"), 3, encoding="box").action_space
    assert (flat.shape, flat.low.tolist(), flat.high.tolist()) == ((7,), [-2.0] * 6 + [-1], [2.0] * 6 + [1])
    assert KRepWrapper(ToyEnv(action="box64"), 3, encoding="box").action_space.dtype == np.float64


def test_by_hand():
    env = KRepWrapper(ToyEnv(length=6), 4, gamma=0.5)
    env.reset(seed=0)
    steps = [env.step(pair(0.1, 1)), env.step(pair(0.2, 3)), env.step(pair(0.3, 4))]
    assert [step[1] for step in steps] == [1.0, 2 + 0.5 * 3 + 0.25 * 4, 5 + 0.5 * 6]
    assert [step[-1]["frames"] for step in steps] == [1, 3, 2]
    assert [step[-1]["discount"] for step in steps] == [0.5, 0.125, 0.25]
    assert [step[2] for step in steps] == [False, False, True]
    assert [received[0] for received in env.unwrapped.received] == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.3, 0.3])
    assert not any(step[-1]["repeated"] for step in steps)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("last", [1, 2, 3, 4])
def test_an_episode_that_ends_at_each_inner_step(end, last):
    env = KRepWrapper(ToyEnv(length=last, end=end), 4)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(pair(0.0, 4))
    assert env.unwrapped.frame == info["frames"] == last
    assert (terminated, truncated) == (end == "terminated", end == "truncated")
    assert reward == last * (last + 1) / 2


@given(entry=st.floats(-1, 1, width=32), max_repeat=st.integers(1, 7))
def test_box_entry_falls_into_even_bins(entry, max_repeat):
    env = KRepWrapper(ToyEnv(length=100), max_repeat, encoding="box")
    env.reset(seed=0)
    frames = env.step(np.array([0.5, 0.25, entry], np.float32))[-1]["frames"]
    edges = np.linspace(-1, 1, max_repeat + 1)
    assert edges[frames - 1] - 1e-6 <= entry <= edges[frames] + 1e-6
    assert np.array_equal(env.unwrapped.received, [[0.5, 0.25]] * frames)


def test_the_ends_and_the_middle_of_the_box_entry():
    env = KRepWrapper(ToyEnv(length=100), 3, encoding="box")
    env.reset(seed=0)
    assert [env.step([0, 0, entry])[-1]["frames"] for entry in (-1, -0.34, -0.33, 0, 0.33, 0.34, 1)] == [
        1,
        1,
        2,
        2,
        2,
        3,
        3,
    ]


def test_box_encoding_restores_the_actions_shape():
    env = KRepWrapper(ToyEnv(action="matrix box"), 2, encoding="box")
    env.reset(seed=0)
    info = env.step(np.array([0, 1, 2, -1, -2, 0.5, -1], np.float32))[-1]
    assert info["executed_action"].tolist() == [[0, 1, 2], [-1, -2, 0.5]]
    assert env.unwrapped.received[0].shape == (2, 3)


@given(
    choices=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    length=st.integers(1, 25),
    gamma=st.none() | st.floats(0, 1),
)
def test_against_a_slow_reference(choices, length, gamma):
    env = KRepWrapper(ToyEnv(length=length), 5, gamma=gamma)
    env.reset(seed=0)
    frame = 0
    for repeat in choices:
        _, reward, terminated, _, info = env.step(pair(repeat / 10, repeat))
        expected, frames = 0.0, 0
        while frames < repeat and frame < length:
            frame += 1
            expected += frame * (1.0 if gamma is None else gamma**frames)
            frames += 1
        assert reward == pytest.approx(expected, rel=1e-12)
        assert info["frames"] == frames
        assert terminated == (frame == length)
        if terminated:
            break
