"""Replays of made-up transitions, for benchmarks that ask for a shape and a repetition rather than for a task."""

from __future__ import annotations

from types import ModuleType

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Space

from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.structure import Structure, mapped


def unit_box(size: int) -> Box:
    return Box(-1.0, 1.0, (size,), np.float32)


def wrapped_spaces(script: ModuleType, observation_size: int, action_size: int) -> tuple[Space, Space]:
    """Observation and action space of an environment with one of our scripts' wrappers."""
    env = gym.Env()
    env.observation_space, env.action_space = unit_box(observation_size), unit_box(action_size)
    wrapped = script.wrap(env)
    return wrapped.observation_space, wrapped.action_space


def filled_replay(
    observation_space: Space, action_size: int, *, repetition: float, frames: int, episode: int
) -> SequenceReplay:
    """Random observations, actions and rewards in episodes of ``episode`` frames.

    Args:
        repetition: probability that a frame repeats the action before it.
    """
    rng = np.random.default_rng(0)
    replay = SequenceReplay(observation_space, unit_box(action_size), capacity=frames, num_envs=1, seed=0)
    terminated, discount = np.zeros(1, bool), np.full(1, 0.99)

    def observation() -> Structure:
        return mapped(lambda part: rng.normal(size=(1, *part.shape)), observation_space)

    for frame in range(frames):
        if frame % episode == 0:
            replay.start(observation())
        truncated = np.array([frame % episode == episode - 1])
        replay.add(
            rng.uniform(-1, 1, (1, action_size)),
            rng.normal(size=1),
            terminated,
            truncated,
            observation(),
            repeated=rng.random(1) < repetition,
            discount=discount,
        )
    return replay
