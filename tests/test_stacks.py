"""Wrappers on wrappers: what nested ones report, Gymnasium's own around and below them, and real environments."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import gymnasium_robotics
import numpy as np
import pytest
from gymnasium.wrappers import ClipAction, RecordEpisodeStatistics, RescaleAction, TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from test_contract import ALL_CASES, REPEAT_WRAPPERS, wrap
from toy_envs import ToyEnv, continued, rollout, same, sample_actions

from taac_wrappers import (
    HybridActionWrapper,
    KRepWrapper,
    NRepeatWrapper,
    PrevActionWrapper,
    RepeatStatisticsWrapper,
    RewardNormalizerWrapper,
    ZetaRepeatWrapper,
)

gym.register_envs(gymnasium_robotics)

REAL_IDS = ["MountainCarContinuous-v0", "LunarLanderContinuous-v3", "HalfCheetah-v5", "FetchPush-v4"]
ZERO = np.zeros(2, np.float32)


def pair(value: float, **choice: int) -> dict[str, Any]:
    return {"action": np.full(2, value, np.float32), **choice}


def test_n_repeat_above_k_rep_adds_frames_and_multiplies_discounts():
    env = NRepeatWrapper(KRepWrapper(ToyEnv(), 3, gamma=0.5), 2, gamma=0.9)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(pair(0.5, repeat=3))
    first, second = 1 + 0.5 * 2 + 0.25 * 3, 4 + 0.5 * 5 + 0.25 * 6
    assert info["frames"] == 6
    assert info["discount"] == 0.125 * 0.125  # the inner discounts count, not 0.9
    assert reward == first + 0.125 * second
    assert info["executed_action"].tolist() == [0.5, 0.5]
    assert info["repeated"] is False


def test_an_outer_gamma_above_a_plain_inner_sum():
    env = NRepeatWrapper(NRepeatWrapper(ToyEnv(), 2), 2, gamma=0.5)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(ZERO)
    assert (reward, info["frames"], info["discount"]) == ((1 + 2) + 0.25 * (3 + 4), 4, 0.5**4)


def test_a_plain_outer_sum_above_an_inner_gamma_still_tells_the_discount():
    env = NRepeatWrapper(KRepWrapper(ToyEnv(), 3, gamma=0.5), 2)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(pair(0.5, repeat=2))
    assert (reward, info["frames"], info["discount"]) == ((1 + 0.5 * 2) + (3 + 0.5 * 4), 4, 0.5**4)


class Talkative(gym.Wrapper):
    """Uses the names of the repeat wrappers' infos for something else."""

    words: dict[str, Any] = {"frames": [1, 2], "discount": 0.5, "executed_action": "jump", "repeated": "no"}  # noqa: RUF012

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        return *result, {**info, **self.words}


@pytest.mark.parametrize(("name", "kwargs"), ALL_CASES)
@pytest.mark.parametrize("below", [None, ("HybridActionWrapper", {"encoding": "box"}), ("NRepeatWrapper", {"n": 2})])
def test_what_the_environment_says_under_the_names_of_reports_is_not_believed(name, kwargs, below):
    def stack(env: gym.Env) -> gym.Env:
        env = env if below is None else wrap(env, *below)
        return wrap(TimeLimit(env, 99), name, kwargs)

    actions = sample_actions(stack(ToyEnv()), 15)
    quiet, loud = (rollout(stack(env), actions)[1:] for env in (ToyEnv(), Talkative(ToyEnv())))
    reports = below is not None or name in REPEAT_WRAPPERS
    passed_on = {} if reports else Talkative.words
    assert same(loud, [(*result, {**info, **passed_on}) for *result, info in quiet])


@given(
    inner_n=st.integers(1, 3),
    outer_n=st.integers(1, 4),
    length=st.integers(1, 14),
    inner_gamma=st.none() | st.floats(0, 1),
    outer_gamma=st.none() | st.floats(0, 1),
)
def test_nested_repeats_against_a_slow_reference(inner_n, outer_n, length, inner_gamma, outer_gamma):
    env = NRepeatWrapper(NRepeatWrapper(ToyEnv(length=length), inner_n, gamma=inner_gamma), outer_n, gamma=outer_gamma)
    env.reset(seed=0)
    rewards = iter(range(1, length + 1))
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(ZERO)
        total, discount, frames = 0.0, 1.0, 0
        for _ in range(outer_n):
            chunk = list(itertools.islice(rewards, inner_n))
            if not chunk:
                break
            inner = sum(value * (1.0 if inner_gamma is None else inner_gamma**i) for i, value in enumerate(chunk))
            total += inner if outer_gamma is None else discount * inner
            per_frame = inner_gamma if inner_gamma is not None else 1.0 if outer_gamma is None else outer_gamma
            discount *= per_frame ** len(chunk)
            frames += len(chunk)
        assert reward == pytest.approx(total)
        assert info["frames"] == frames
        if inner_gamma is None and outer_gamma is None:
            assert "discount" not in info
        else:
            assert info["discount"] == pytest.approx(discount)


def test_n_repeat_above_hybrid_repeats_if_its_first_frame_does():
    env = NRepeatWrapper(HybridActionWrapper(ToyEnv()), 2)
    env.reset(seed=0)
    infos = [env.step(pair(value, switch=switch))[-1] for value, switch in [(0.5, 1), (0.25, 0), (0.25, 1)]]
    assert [info["repeated"] for info in infos] == [False, True, False]
    assert [info["executed_action"][0] for info in infos] == [0.5, 0.5, 0.25]
    assert [received[0] for received in env.unwrapped.received] == [0.5] * 4 + [0.25] * 2


def test_n_repeat_above_zeta_repeats_if_its_first_frame_does():
    env = NRepeatWrapper(ZetaRepeatWrapper(ToyEnv(length=10**6), epsilon=1.0, mu=0.1, max_repeat=4), 2)
    env.reset(seed=0)
    flags = [env.step(ZERO)[-1]["repeated"] for _ in range(100)]
    received = np.array(env.unwrapped.received)
    firsts = (received[2::2] == received[1:-1:2]).all(axis=1)
    seconds = (received[3::2] == received[2::2]).all(axis=1)
    assert flags == [False, *firsts.tolist()]
    assert (firsts != seconds).any()


def test_zeta_above_a_hybrid_box_reports_both_kinds_of_repetition():
    env = ZetaRepeatWrapper(HybridActionWrapper(ToyEnv(length=10**6), encoding="box"), epsilon=0.3, mu=0.5)
    env.reset(seed=0)
    previous = np.zeros(2, np.float32)
    for action in sample_actions(env, 300):
        info = env.step(action)[-1]
        received = env.unwrapped.received[-1]
        assert np.array_equal(info["executed_action"], received)
        assert info["repeated"] is bool(np.array_equal(received, previous))
        previous = received


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_observing_wrappers_agree_in_any_order(order):
    layers = [PrevActionWrapper, RewardNormalizerWrapper, RepeatStatisticsWrapper]

    def stack(order: tuple[int, ...]) -> gym.Env:
        env: gym.Env = HybridActionWrapper(ToyEnv(length=5))
        for index in order:
            env = layers[index](env)
        return env

    actions = sample_actions(stack(order), 5)
    assert same(rollout(stack(order), actions), rollout(stack((0, 1, 2)), actions))


def test_record_episode_statistics_counts_frames_inside_and_decisions_outside():
    inside = NRepeatWrapper(RecordEpisodeStatistics(ToyEnv(length=6)), 2, gamma=0.5)
    outside = RecordEpisodeStatistics(NRepeatWrapper(ToyEnv(length=6), 2, gamma=0.5))
    for env, length, total in ((inside, 6, 21.0), (outside, 3, 2.0 + 5.0 + 8.0)):
        env.reset(seed=0)
        for _ in range(3):
            info = env.step(ZERO)[-1]
        assert info["episode"]["l"] == length
        assert info["episode"]["r"] == total


@pytest.mark.parametrize(("name", "kwargs"), ALL_CASES)
def test_rescale_action_inside(name, kwargs):
    """The wrapper speaks the rescaled units; the environment below gets its own."""
    env = wrap(RescaleAction(ToyEnv(action="uneven box", length=100), np.float32(-1), np.float32(1)), name, kwargs)
    steps = rollout(env, sample_actions(env, 8))
    for received in env.unwrapped.received:
        assert received in env.unwrapped.action_space
    if name in REPEAT_WRAPPERS:
        executed = steps[-1][-1]["executed_action"]
        assert np.abs(executed).max() <= 1
        low, high = env.unwrapped.action_space.low, env.unwrapped.action_space.high
        assert np.allclose(low + (executed + 1) / 2 * (high - low), env.unwrapped.received[-1], atol=1e-6)


@pytest.mark.parametrize("name", ["NRepeatWrapper", "ZetaRepeatWrapper", "HybridActionWrapper", "KRepWrapper"])
def test_rescale_action_outside_reaches_the_very_bounds(name):
    """Rescaling may overshoot a bound by rounding; that must not count as an action outside the space."""
    inner = ToyEnv()
    inner.action_space = gym.spaces.Box(np.array([-0.1, -0.7], np.float32), np.array([0.3, 1.1], np.float32))
    kwargs = {"NRepeatWrapper": {"n": 2}, "ZetaRepeatWrapper": {"epsilon": 0.0}, "KRepWrapper": {"max_repeat": 2}}
    extra = {} if name in ("NRepeatWrapper", "ZetaRepeatWrapper") else {"encoding": "box"}
    env = RescaleAction(wrap(inner, name, {**kwargs.get(name, {}), **extra}), np.float32(-3), np.float32(3))
    env.reset(seed=0)
    ones = np.full(env.action_space.shape, 3, np.float32)
    for action in (ones, -ones, ones):
        executed = env.step(action)[-1]["executed_action"]
        assert executed in inner.action_space
        if name != "HybridActionWrapper" or action[0] > 0:  # -1 in the last entry repeats the action before
            assert np.allclose(executed, inner.action_space.high if action[0] > 0 else inner.action_space.low)


def test_clip_action_above_lets_any_agent_in():
    env = ClipAction(NRepeatWrapper(ToyEnv(), 2))
    env.reset(seed=0)
    assert env.step(np.array([5, -0.5], np.float32))[-1]["executed_action"].tolist() == [1, -0.5]


def test_frames_and_time_limits_under_repetition():
    env = KRepWrapper(TimeLimit(ToyEnv(length=100), 5), 4)
    env.reset(seed=0)
    assert env.step(pair(0, repeat=4))[3] is False
    _, _, terminated, truncated, info = env.step(pair(0, repeat=4))
    assert (terminated, truncated, info["frames"]) == (False, True, 1)


@pytest.mark.parametrize("env_id", REAL_IDS)
@pytest.mark.parametrize(("name", "kwargs"), ALL_CASES)
def test_real_environments_through_every_wrapper(env_id, name, kwargs):
    bare = gym.make(env_id)
    if "initial_action" in kwargs:
        kwargs = {**kwargs, "initial_action": [0.25] * bare.action_space.shape[0]}
    env = wrap(bare, name, kwargs)
    actions = sample_actions(env, 6)
    steps = rollout(env, actions, seed=3)
    frames = 0
    for observation, reward, _, _, info in steps[1:]:
        assert observation in env.observation_space
        assert np.isfinite(reward)
        frames += info.get("frames", 1)
        if name in REPEAT_WRAPPERS:
            assert info["executed_action"] in env.unwrapped.action_space
    assert frames >= 6
    again = wrap(gym.make(env_id), name, kwargs)
    assert same([step[1:4] for step in rollout(again, actions, seed=3)], [step[1:4] for step in steps])
    env.close()
    again.close()


@pytest.mark.parametrize("env_id", REAL_IDS)
def test_the_documented_stack_on_real_environments(env_id):
    env: gym.Env = RecordEpisodeStatistics(gym.make(env_id, max_episode_steps=12))
    env = HybridActionWrapper(env, encoding="box")
    env = RewardNormalizerWrapper(PrevActionWrapper(RepeatStatisticsWrapper(env)))
    steps = rollout(env, sample_actions(env, 12), seed=0)
    info = steps[-1][-1]
    assert steps[-1][3] is True
    assert info["repeat"]["frames"] == info["episode"]["l"] == 12
    assert info["repeat"]["fraction"] == sum(step[-1]["repeated"] for step in steps[1:]) / 12
    rebuilt = gym.make(env.spec)
    assert same([step[1] for step in rollout(rebuilt, sample_actions(env, 12), seed=0)], [step[1] for step in steps])
    assert len(continued(env, sample_actions(env, 2))) == 2
