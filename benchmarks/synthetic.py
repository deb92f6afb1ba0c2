"""Replays of made-up transitions, for benchmarks that ask for a shape and a repetition rather than for a task."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box

from taac_wrappers.training.replay import SequenceReplay


def unit_box(size: int) -> Box:
    return Box(-1.0, 1.0, (size,), np.float32)


def filled_replay(
    observation_size: int, action_size: int, *, repetition: float, frames: int, episode: int
) -> SequenceReplay:
    """Random observations, actions and rewards in episodes of ``episode`` frames.

    Args:
        repetition: probability that a frame repeats the action before it.
    """
    rng = np.random.default_rng(0)
    replay = SequenceReplay(unit_box(observation_size), unit_box(action_size), capacity=frames, num_envs=1, seed=0)
    terminated = np.zeros(1, bool)
    for frame in range(frames):
        if frame % episode == 0:
            replay.start(rng.normal(size=(1, observation_size)))
        switch, truncated = rng.random(1) >= repetition, np.array([frame % episode == episode - 1])
        action, reward = rng.uniform(-1, 1, (1, action_size)), rng.normal(size=1)
        replay.add(action, switch, reward, terminated, truncated, rng.normal(size=(1, observation_size)))
    return replay
