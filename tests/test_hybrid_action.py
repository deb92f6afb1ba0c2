"""``HybridActionWrapper``: act or repeat, by hand and against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyEnv

from taac_wrappers import HybridActionWrapper, ZetaRepeatWrapper


def pair(value: float, switch: int) -> dict:
    return {"action": np.full(2, value, np.float32), "switch": switch}


def test_spaces():
    inner = ToyEnv(action="uneven box")
    assert HybridActionWrapper(inner).action_space == Dict(action=inner.action_space, switch=Discrete(2))
    expected = Box(np.array([-1, 0.5, -1], np.float32), np.array([0.5, 2, 1], np.float32))
    assert HybridActionWrapper(inner, encoding="box").action_space == expected


def test_by_hand():
    env = HybridActionWrapper(ToyEnv())
    env.reset(seed=0)
    infos = [env.step(pair(*choice))[-1] for choice in [(0.5, 1), (0.25, 0), (-1, 0), (-0.5, 1), (1, 0)]]
    expected = [0.5, 0.5, 0.5, -0.5, -0.5]
    assert [info["executed_action"][0] for info in infos] == expected
    assert [received[0] for received in env.unwrapped.received] == expected
    assert [info["repeated"] for info in infos] == [False, True, True, False, True]
    assert [info["frames"] for info in infos] == [1] * 5


@pytest.mark.parametrize(
    ("kind", "initial"),
    [("box", [0, 0]), ("uneven box", [0, 0.5]), ("matrix box", np.zeros((2, 3))), ("scalar box", 0)],
)
def test_a_first_switch_of_zero_repeats_zeros_clipped_into_the_space(kind, initial):
    env = HybridActionWrapper(ToyEnv(action=kind))
    for _ in range(2):
        env.reset(seed=0)
        high = env.action_space["action"].high
        info = env.step({"action": high, "switch": 0})[-1]
        assert info["repeated"] is True
        assert type(info["executed_action"]) is type(env.unwrapped.received[0]) is np.ndarray
        assert np.array_equal(info["executed_action"], initial)
        assert np.array_equal(env.unwrapped.received[0], initial)
        env.step({"action": high, "switch": 1})


@pytest.mark.parametrize(("entry", "acts"), [(-1, False), (-1e-6, False), (0, False), (1e-6, True), (1, True)])
def test_box_entry_above_zero_means_act(entry, acts):
    env = HybridActionWrapper(ToyEnv(), encoding="box")
    env.reset(seed=0)
    info = env.step(np.array([0.5, -0.5, entry], np.float32))[-1]
    assert info["repeated"] is not acts
    assert info["executed_action"].tolist() == ([0.5, -0.5] if acts else [0, 0])


choices = st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(0, 1)), min_size=1, max_size=30)


@given(choices=choices, length=st.integers(1, 8), encoding=st.sampled_from(["dict", "box"]))
def test_against_a_slow_reference(choices, length, encoding):
    env = HybridActionWrapper(ToyEnv(length=length), encoding=encoding)
    env.reset(seed=0)
    held = 0.0
    for value, switch in choices:
        held = value if switch else held
        action = pair(value, switch) if encoding == "dict" else np.array([value, value, switch - 0.5], np.float32)
        _, _, terminated, _, info = env.step(action)
        assert np.array_equal(info["executed_action"], [held, held])
        assert np.array_equal(env.unwrapped.received[-1], [held, held])
        assert info["repeated"] is (switch == 0)
        if terminated:
            env.reset()
            held = 0.0


def test_an_inner_exploratory_action_is_no_repetition():
    """Below, another action is executed than the one to repeat: then the executed ones tell what was repeated."""
    env = HybridActionWrapper(ZetaRepeatWrapper(ToyEnv(length=1000), epsilon=0.3, mu=1.0, max_repeat=3))
    env.reset(seed=0)
    env.step(pair(0.5, 1))
    previous, interrupted = env.unwrapped.received[-1], 0
    for _ in range(300):
        info = env.step(pair(0.0, 0))[-1]
        received = env.unwrapped.received[-1]
        assert np.array_equal(info["executed_action"], received)
        assert info["repeated"] is bool(np.array_equal(received, previous))
        interrupted += not info["repeated"]
        previous = received
    assert interrupted > 50
