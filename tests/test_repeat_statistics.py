"""``RepeatStatisticsWrapper`` by hand and against the list of executed actions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyEnv

from taac_wrappers import (
    HybridActionWrapper,
    KRepWrapper,
    NRepeatWrapper,
    RepeatStatisticsWrapper,
    ZetaRepeatWrapper,
)


def run(env, actions):
    """Play ``actions``, the last of which ends the episode; return the statistics."""
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        assert ("repeat" in info) == (terminated or truncated)
    return info["repeat"]


def full(value):
    return np.full(2, value, np.float32)


def test_above_no_repeat_wrapper_equal_actions_are_repetitions():
    env = RepeatStatisticsWrapper(ToyEnv(length=6))
    statistics = run(env, [full(value) for value in (0, 0, 0.5, 0.5, 0.5, -0.5)])
    assert statistics == {
        "fraction": 3 / 6,
        "mean_run": 6 / 3,
        "decisions": 6,
        "frames": 6,
        "apr": 2.0,
        "afr": pytest.approx((0.5 + 1.0) / 5),
    }


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_an_episode_of_one_frame(end):
    statistics = run(RepeatStatisticsWrapper(ToyEnv(length=1, end=end)), [full(0)])
    assert statistics == {"fraction": 0.0, "mean_run": 1.0, "decisions": 1, "frames": 1, "apr": 1.0, "afr": 0.0}


def test_each_episode_counts_anew():
    env = RepeatStatisticsWrapper(ToyEnv(length=2))
    first, second = run(env, [full(0.5), full(0.5)]), run(env, [full(0.5), full(-0.5)])
    assert (first["fraction"], first["afr"]) == (0.5, 0.0)
    assert (second["fraction"], second["afr"]) == (0.0, 1.0)
    env.reset()
    env.step(full(1.0))  # an episode that is given up
    assert run(env, [full(0.5), full(0.5)]) == first


def test_above_n_repeat():
    env = RepeatStatisticsWrapper(NRepeatWrapper(ToyEnv(length=7), 3))
    statistics = run(env, [full(0), full(0.5), full(0.5)])
    assert statistics == {
        "fraction": 4 / 7,
        "mean_run": 7 / 3,
        "decisions": 3,
        "frames": 7,
        "apr": 7 / 3,
        "afr": pytest.approx(0.5 / 6),
    }


def test_above_k_rep():
    env = RepeatStatisticsWrapper(KRepWrapper(ToyEnv(length=5), 4))
    statistics = run(env, [{"action": full(0), "repeat": 4}, {"action": full(1), "repeat": 3}])
    assert statistics == {
        "fraction": 3 / 5,
        "mean_run": 5 / 2,
        "decisions": 2,
        "frames": 5,
        "apr": 5 / 2,
        "afr": pytest.approx(1 / 4),
    }


def test_above_hybrid():
    env = RepeatStatisticsWrapper(HybridActionWrapper(ToyEnv(length=5)))
    choices = [(0.5, 1), (1, 0), (1, 0), (-0.5, 1), (1, 0)]
    statistics = run(env, [{"action": full(a), "switch": b} for a, b in choices])
    assert statistics == {
        "fraction": 3 / 5,
        "mean_run": 5 / 2,
        "decisions": 5,
        "frames": 5,
        "apr": pytest.approx(5 / 2),
        "afr": pytest.approx(1 / 4),
    }


def test_a_first_switch_of_zero_is_a_repetition_and_begins_a_run():
    env = RepeatStatisticsWrapper(HybridActionWrapper(ToyEnv(length=4)))
    statistics = run(env, [{"action": full(1), "switch": 0}] * 4)
    assert statistics == {"fraction": 1.0, "mean_run": 4.0, "decisions": 4, "frames": 4, "apr": 4.0, "afr": 0.0}
    statistics = run(env, [{"action": full(1), "switch": b} for b in (0, 0, 1, 0)])
    assert statistics == {
        "fraction": 3 / 4,
        "mean_run": 2.0,
        "decisions": 4,
        "frames": 4,
        "apr": 4.0,
        "afr": pytest.approx(1 / 3),
    }


def test_repeating_a_repeat():
    env = RepeatStatisticsWrapper(HybridActionWrapper(NRepeatWrapper(ToyEnv(length=6), 2)))
    statistics = run(env, [{"action": full(0.5), "switch": b} for b in (1, 0, 1)])
    assert (statistics["fraction"], statistics["frames"], statistics["decisions"]) == (4 / 6, 6, 3)
    assert statistics["mean_run"] == 3.0


def test_above_zeta():
    env = RepeatStatisticsWrapper(ZetaRepeatWrapper(ToyEnv(length=200), epsilon=1.0, mu=0.5))
    env.reset(seed=0)
    repeated = []
    for frame in range(200):
        info = env.step(full(0))[-1]
        repeated.append(info["repeated"])
        assert ("repeat" in info) == (frame == 199)
    received = np.array(env.unwrapped.received, np.float64)
    assert info["repeat"]["fraction"] == np.mean(repeated) > 0.3
    assert info["repeat"]["mean_run"] == pytest.approx(200 / (200 - sum(repeated)))
    assert info["repeat"]["afr"] == pytest.approx(np.abs(np.diff(received, axis=0)).mean())


def test_below_repeat_wrappers_it_sees_every_frame():
    env = NRepeatWrapper(RepeatStatisticsWrapper(ToyEnv(length=4)), 2)
    env.reset(seed=0)
    env.step(full(0.5))
    info = env.step(full(1))[-1]
    assert (info["repeat"]["fraction"], info["repeat"]["decisions"], info["frames"]) == (0.5, 4, 2)


@pytest.mark.parametrize(
    ("kind", "actions", "afr"),
    [
        ("discrete", [0, 2, 2], 1 / 2),
        ("multi discrete", [[0, 0], [1, 2], [1, 0]], (1 + 0.5) / 2),
        ("multi binary", [[0, 0, 0], [1, 0, 0], [1, 0, 0]], (1 / 3) / 2),
        ("scalar box", [0.0, 0.5, 0.5], 0.5 / 2),
        ("tuple", [(0, [0, 0]), (1, [0.5, 0]), (1, [0.5, 0])], (1 + 1 + 0.5 + 0) / 4 / 2),
    ],
)
def test_change_of_other_actions(kind, actions, afr):
    if kind == "tuple":
        actions = [(first, np.array(second, np.float32)) for first, second in actions]
    statistics = run(RepeatStatisticsWrapper(ToyEnv(action=kind, length=3)), actions)
    assert statistics["afr"] == pytest.approx(afr)
    assert statistics["fraction"] == (1 / 3 if kind != "multi discrete" else 0)


@given(
    values=st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=1, max_size=30),
    switches=st.lists(st.integers(0, 1), min_size=30, max_size=30),
    hybrid=st.booleans(),
)
def test_against_the_list_of_executed_actions(values, switches, hybrid):
    inner = ToyEnv(length=len(values))
    env = RepeatStatisticsWrapper(HybridActionWrapper(inner) if hybrid else inner)
    actions = [full(value) for value in values]
    if hybrid:
        pairs = zip(actions, switches, strict=False)
        statistics = run(env, [{"action": action, "switch": switch} for action, switch in pairs])
        repeated = [switch == 0 for switch in switches[: len(values)]]
    else:
        statistics = run(env, actions)
        repeated = [i > 0 and values[i] == values[i - 1] for i in range(len(values))]
    p = sum(repeated) / len(values)
    runs = 1 + sum(not flag for flag in repeated[1:])
    changes = np.abs(np.diff(np.array(inner.received, np.float64), axis=0))
    assert statistics["fraction"] == pytest.approx(p)
    assert statistics["apr"] == pytest.approx(1 / (1 - p) if p < 1 else len(values))
    assert statistics["mean_run"] == pytest.approx(len(values) / runs)
    assert statistics["afr"] == pytest.approx(changes.mean() if changes.size else 0.0)
    assert statistics["decisions"] == statistics["frames"] == len(values)
