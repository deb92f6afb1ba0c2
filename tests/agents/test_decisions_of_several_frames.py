"""SAC-Nrep and SAC-Krep: what a decision of several frames is worth, and how sums of rewards are normalized."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous
import sac_krep_continuous as krep
import sac_nrep_continuous as nrep
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.training import run as run_module

REWARDS = np.array([1.0, -2.0, 3.0, 0.5, 4.0, -1.0, 2.0])  # of leaving each state of the chain
GAMMA, N = 0.8, 3
COLD = -20.0  # logarithm of a temperature that makes entropies count for nothing


class Chain(gym.Env):
    """From one state to the next at every frame, whatever is done: seven of them, and then the end."""

    def __init__(self):
        self.observation_space, self.action_space = Box(0.0, 1.0, (len(REWARDS) + 1,)), Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.state = 0
        return self._observe(), {}

    def step(self, action: np.ndarray):
        reward = float(REWARDS[self.state])
        self.state += 1
        return self._observe(), reward, self.state == len(REWARDS), False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(len(REWARDS) + 1, dtype=np.float32)[self.state]


gym.register("test_decisions/Chain-v0", Chain, max_episode_steps=50)


class Tables(nn.Module):
    """In the place of the critics: a number for every state, and for every choice there."""

    def __init__(self, choices: int | None):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(2, len(REWARDS) + 1, *([choices] if choices else [])))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.values[:, observation.argmax(-1)]

    def minimum(self, observation: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(*self(observation, action))


def learned_values(script: ModuleType, tmp_path, monkeypatch, repeat_temperature: float = COLD) -> np.ndarray:
    """What a run of the script makes of the tables, ``[states]`` or ``[states, K]``; temperatures stay as they are."""
    made, make_agent = [], script.make_agent

    def make(args, *spaces):
        agent = make_agent(args, *spaces)
        agent.critics = Tables(args.window if script is krep else None)
        agent.log_action_temperature.data.fill_(COLD)
        if script is krep:
            agent.log_repeat_temperature.data.fill_(repeat_temperature)
        made.append(agent)
        return agent

    monkeypatch.setattr(script, "make_agent", make)
    monkeypatch.setattr(script, "temperature_loss", lambda agent, at, targets: 0 * sum(agent.parameters(recurse=False)))
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")
    settings = {"total_frames": 1300, "learning_starts": 900, "buffer_size": 2000, "batch_size": 64, "hidden": (4,)}
    settings |= {"learning_rate": 0.1, "tau": 1.0, "gamma": GAMMA, "window": N, "reward_clip": None}
    settings |= {"eval_interval": 10**6, "final_episodes": 1}
    args = replace(script.Args.for_task("test_decisions/Chain-v0"), **settings, run_dir=tmp_path / "run")
    assert script.main(args) == 0
    values = made[-1].critics.values.detach()
    torch.testing.assert_close(values[0], values[1], atol=0.02, rtol=0)
    return values.mean(0).numpy()


def test_nrep_learns_the_value_of_the_chain(tmp_path, monkeypatch):
    """The third decision of an episode is made in state 6, one frame before the end."""
    returns = [sum(GAMMA**i * reward for i, reward in enumerate(REWARDS[state:])) for state in (0, 3, 6)]
    values = learned_values(nrep, tmp_path, monkeypatch)
    np.testing.assert_allclose(values[[0, 3, 6]], returns, atol=0.02)
    np.testing.assert_array_equal(values[[1, 2, 4, 5, 7]], 0)  # nothing is decided there


def test_krep_learns_the_value_of_the_chain(tmp_path, monkeypatch):
    """Which is the same for every duration, because the actions change nothing: if the discounts are right."""
    returns = [sum(GAMMA**i * reward for i, reward in enumerate(REWARDS[state:])) for state in range(7)]
    values = learned_values(krep, tmp_path, monkeypatch)
    np.testing.assert_allclose(values[:7], np.tile(np.array(returns)[:, None], N), atol=0.02)
    np.testing.assert_array_equal(values[7], 0)


def test_krep_counts_the_entropy_of_every_decision(tmp_path, monkeypatch):
    """So that short durations are worth more. At the end, where nothing was learned, all durations are alike."""
    temperature = 0.5
    q, soft_value = np.zeros((7, N)), np.zeros(7)
    for state in reversed(range(7)):
        for duration in range(1, N + 1):
            frames = min(duration, 7 - state)
            after = soft_value[state + frames] if state + frames < 7 else temperature * np.log(N)
            rewards = [GAMMA**i * REWARDS[state + i] for i in range(frames)]
            q[state, duration - 1] = sum(rewards) + GAMMA**frames * after
        soft_value[state] = temperature * np.log(np.exp(q[state] / temperature).sum())
    values = learned_values(krep, tmp_path, monkeypatch, repeat_temperature=np.log(temperature))
    np.testing.assert_allclose(values[:7], q, atol=0.03)
    assert (q[0, :-1] - q[0, 1:] > 0.1).all()


# --- Normalization ---------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("script", [nrep, krep], ids=["sac_nrep", "sac_krep"])


def sums(rewards: list[float], frames: list[int]) -> tuple[Any, np.ndarray]:
    """A sample of decisions that paid the same at each of their frames, and the weights of their sums."""
    frames_of = np.array([frames])
    weight = np.array([[sum(GAMMA**i for i in range(each)) for each in frames]])
    discount = np.float32(GAMMA**frames_of)
    return SimpleNamespace(reward=np.float32(weight * rewards), discount=discount), weight


@BOTH
def test_a_sum_is_normalized_per_frame_and_summed_again(script):
    """By hand: rewards 1 and 3 per frame have the mean 2 and the standard deviation 1."""
    windows, weight = sums([1.0, 3.0, 3.0, 1.0], [1, 2, 3, 3])
    np.testing.assert_allclose(weight, [[1, 1 + 0.8, 1 + 0.8 + 0.64, 1 + 0.8 + 0.64]])
    reward = script.learned_reward(script.Args(gamma=GAMMA), AdaptiveNormalizer(clip=5.0), windows)
    np.testing.assert_allclose(reward, weight * [-1, 1, 1, -1], rtol=1e-4)
    assert reward.dtype == np.float32
    clipped = script.learned_reward(script.Args(gamma=GAMMA), AdaptiveNormalizer(clip=0.5), windows)
    np.testing.assert_allclose(clipped, weight * [-0.5, 0.5, 0.5, -0.5], rtol=1e-4)


@BOTH
def test_a_reward_is_worth_the_same_per_frame_whatever_the_duration(script):
    normalizer = AdaptiveNormalizer(clip=5.0)
    normalizer.update(np.random.default_rng(0).normal(3.0, 2.0, 100))
    windows, weight = sums([2.0] * 5, [1, 2, 3, 4, 5])
    per_frame = script.learned_reward(script.Args(gamma=GAMMA), normalizer, windows) / weight
    np.testing.assert_allclose(per_frame, per_frame[0, 0], rtol=1e-5)
    assert abs(per_frame[0, 0]) > 0.1


@BOTH
def test_decisions_of_one_frame_are_normalized_as_sacs(script):
    rewards = np.random.default_rng(1).normal(size=32)
    windows, _ = sums(list(rewards), [1] * 32)
    one, other = (AdaptiveNormalizer(clip=0.7) for _ in range(2))
    for _ in range(3):
        reward = script.learned_reward(script.Args(gamma=GAMMA), one, windows)
        np.testing.assert_allclose(reward, sac_continuous.learned_reward(sac_continuous.Args(), other, windows), 1e-5)
    np.testing.assert_allclose([one.mean, one.std], [other.mean, other.std], rtol=1e-5)


@BOTH
def test_without_normalization_sums_are_learned_from_as_they_are(script):
    windows, _ = sums([1.0, 3.0], [1, 3])
    before = copy.deepcopy(windows.reward)
    np.testing.assert_array_equal(script.learned_reward(script.Args(), None, windows), before)
