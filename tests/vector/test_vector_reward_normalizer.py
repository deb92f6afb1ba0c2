"""One normalizer is fed with the rewards of all sub-environments that really stepped."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from vector_toys import MODES, ActionSource, NativeDrift, assert_same, sync

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.vector import RewardNormalizerWrapper


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [sync, NativeDrift])
def test_equals_a_loop_over_the_envs(make, mode: AutoresetMode) -> None:
    plain, wrapped = make(4, mode), RewardNormalizerWrapper(make(4, mode), clip=2.0, speed=3.0)
    assert wrapped.metadata["autoreset_mode"] is mode
    reference = AdaptiveNormalizer(speed=3.0, clip=2.0)
    source = ActionSource(plain.action_space, 5)
    plain.reset(seed=5)
    wrapped.reset(seed=5)
    ended = [False] * 4
    ghosts = 0
    for _ in range(60):
        actions = source()
        _, raw, terminated, truncated, _ = plain.step(actions)
        _, rewards, _, _, infos = wrapped.step(actions)
        live = [i for i in range(4) if not (mode is AutoresetMode.NEXT_STEP and ended[i])]
        ghosts += 4 - len(live)
        if live:
            reference.update([raw[i] for i in live])
        for i in range(4):
            assert infos["_raw_reward"][i] == (i in live)
            assert infos["raw_reward"][i] == raw[i]
            assert rewards[i] == (reference.normalize(float(raw[i])) if i in live else 0.0)
        ended = list(terminated | truncated)
        if mode is AutoresetMode.DISABLED and any(ended):
            for envs in (plain, wrapped):
                envs.reset(options={"reset_mask": np.array(ended)})
    assert (ghosts > 0) == (mode is AutoresetMode.NEXT_STEP)
    assert wrapped.state_dict() == reference.state_dict()


def test_a_frozen_normalizer_normalizes_and_learns_nothing() -> None:
    envs = RewardNormalizerWrapper(sync(2, AutoresetMode.SAME_STEP))
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(source())
    saved = envs.state_dict()
    envs.update = False
    _, rewards, _, _, infos = envs.step(source())
    assert envs.state_dict() == saved
    assert_same(rewards, envs.normalizer.normalize(infos["raw_reward"]))
    fresh = RewardNormalizerWrapper(sync(2, AutoresetMode.SAME_STEP), update=False)
    fresh.load_state_dict(saved)
    assert fresh.state_dict() == saved


def test_the_last_reward_of_an_episode_is_also_in_final_info() -> None:
    envs = RewardNormalizerWrapper(sync(2, AutoresetMode.SAME_STEP))
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    infos: dict = {}
    while "final_info" not in infos:
        _, _, terminated, truncated, infos = envs.step(source())
    done = terminated | truncated
    assert_same(infos["final_info"]["_raw_reward"], done)
    assert_same(infos["final_info"]["raw_reward"], np.where(done, infos["raw_reward"], 0.0))


def test_float32_rewards_stay_float32() -> None:
    envs = RewardNormalizerWrapper(gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"))
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(np.array([0, 1, 0]))
    assert rewards.dtype == infos["raw_reward"].dtype == np.float32
    assert_same(infos["raw_reward"], np.ones(3, np.float32))
    assert_same(rewards, np.zeros(3, np.float32))  # rewards that are all the same have no deviation


def test_raw_rewards_do_not_change_with_the_buffer_of_the_env() -> None:
    class OneBuffer(NativeDrift):
        def step(self, actions: np.ndarray):
            observations, rewards, *rest = super().step(actions)
            self.buffer = getattr(self, "buffer", np.zeros(self.num_envs))
            self.buffer[...] = rewards
            return observations, self.buffer, *rest

    envs = RewardNormalizerWrapper(OneBuffer(2, AutoresetMode.SAME_STEP))
    source = ActionSource(envs.action_space, 0)
    envs.reset(seed=0)
    first = envs.step(source())[-1]["raw_reward"]
    before = first.copy()
    assert (envs.step(source())[-1]["raw_reward"] != before).all()
    assert_same(first, before)
