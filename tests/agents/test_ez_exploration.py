"""SAC-EZ explores in training as its distribution says, in evaluation not at all, and goes on where it was."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sac_ez_continuous as script
from gymnasium.spaces import Box

from taac_wrappers.training import run as run_module
from taac_wrappers.training.config import from_config
from taac_wrappers.training.envs import make_env, make_vector_env


class Endless(gym.Env):
    """Nothing ever happens."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray):
        self.received = action
        return np.zeros(1, np.float32), 0.0, False, False, {}


gym.register("test_ez/Endless-v0", Endless, max_episode_steps=10**9)
ENV_ID = "test_ez/Endless-v0"
ASKED = 0.125  # what the agent would do; no random action is exactly this


def played(total_frames: int, window: int, steps: int) -> dict[str, np.ndarray]:
    """What two training environments report of so many steps, ``[steps, 2, ...]``."""
    args = replace(script.Args.for_task(ENV_ID), total_frames=total_frames, num_envs=2, window=window)
    envs = make_vector_env(ENV_ID, 2, partial(script.wrap, args=args, explore=True), seed=3)
    envs.reset(seed=3)
    action = np.full((2, 2), ASKED, np.float32)
    infos = [envs.step(action)[-1] for _ in range(steps)]
    envs.close()
    return {key: np.array([info[key] for info in infos]) for key in ("exploring", "repeated", "executed_action")}


@pytest.mark.parametrize("longest", [3, 5])
def test_random_actions_are_uniform_and_held_for_times_of_the_zeta_distribution(longest):
    """At the very beginning of a long training: epsilon is still 1."""
    told = played(total_frames=10**9, window=longest, steps=3000)
    assert told["exploring"].all()
    times, actions = [], []
    for env in (0, 1):
        begins = np.flatnonzero(~told["repeated"][:, env])
        times += np.diff(begins).tolist()
        actions.append(told["executed_action"][begins, env])
        of_its_hold = told["executed_action"][begins, env].repeat(np.diff([*begins, 3000]), axis=0)
        np.testing.assert_array_equal(told["executed_action"][:, env], of_its_hold)
    weights = 1 / np.arange(1, longest + 1) ** 2.0
    expected = weights / weights.sum() * len(times)
    found = np.bincount(times, minlength=longest + 1)[1:]
    assert len(found) == longest
    assert ((found - expected) ** 2 / expected).sum() < 14  # with at most four degrees of freedom: p < 0.01
    quarters, _ = np.histogram(np.concatenate(actions), bins=4, range=(-1, 1))
    np.testing.assert_allclose(quarters / quarters.sum(), 0.25, atol=0.03)


def test_epsilon_falls_over_a_tenth_of_the_frames_to_one_percent():
    """Of 40,000 frames, 2,000 in each of both environments. Epsilon is tested where no action is held."""
    told = played(total_frames=40_000, window=3, steps=6000)
    tested, hits = ~told["repeated"], told["exploring"] & ~told["repeated"]
    for begin, end, epsilon in [(0, 500, 0.876), (500, 1500, 0.505), (1500, 2000, 0.134), (2000, 6000, 0.01)]:
        share, count = hits[begin:end].sum() / tested[begin:end].sum(), tested[begin:end].sum()
        assert share == pytest.approx(epsilon, abs=4 * (epsilon * (1 - epsilon) / count) ** 0.5 + 0.01 * epsilon)
    policys = ~told["exploring"]
    assert (told["executed_action"][policys] == ASKED).all()


def test_evaluation_does_not_explore():
    env = make_env(ENV_ID, partial(script.wrap, args=script.Args(total_frames=10**9)))
    env.reset(seed=0)
    for _ in range(50):
        info = env.step(np.full(2, ASKED, np.float32))[-1]
        np.testing.assert_array_equal(env.unwrapped.received, [ASKED, ASKED])
        assert "exploring" not in info


def test_the_schedule_goes_on_after_a_resume(tmp_path, monkeypatch):
    """Interrupted in the middle of it, and of an episode."""
    wrap, goes_on, epsilons = script.wrap, run_module.Run.goes_on, []

    class Noting(gym.Wrapper):
        def step(self, action):
            epsilons.append(self.get_wrapper_attr("current_epsilon"))
            return self.env.step(action)

    def noting(env, args, explore=False):
        wrapped = wrap(env, args, explore)
        return Noting(wrapped) if explore else wrapped

    def until(run, counters):
        if counters.frames == 25 and run.folder.path.name == "parts" and not run.folder.resuming:
            signal.raise_signal(signal.SIGTERM)
        return goes_on(run, counters)

    monkeypatch.setattr(script, "wrap", noting)
    monkeypatch.setattr(run_module.Run, "goes_on", until)
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")
    settings = {"total_frames": 500, "learning_starts": 500, "final_episodes": 1, "hidden": (4,), "batch_size": 4}
    args = replace(script.Args.for_task("Pendulum-v1"), **settings)
    assert script.main(replace(args, run_dir=tmp_path / "whole")) == 0
    whole, epsilons = epsilons, []
    assert script.main(replace(args, run_dir=tmp_path / "parts")) == 143
    assert epsilons == whole[:25]
    epsilons = []
    assert script.main(from_config(script.Args, tmp_path / "parts")) == 0
    assert epsilons[-475:] == whole[25:]
    assert whole[0] == 1.0
    assert whole[25] == pytest.approx(1 - 0.99 / 2)
    assert whole[50:] == [0.01] * 450
