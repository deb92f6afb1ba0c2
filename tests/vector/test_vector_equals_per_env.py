"""Wrapping a vector environment equals wrapping each of its sub-environments, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_toys import MODES, Drift, NativeDrift, lockstep, sync

import taac_wrappers
from taac_wrappers import vector

Layer = tuple[str, dict[str, Any]]

PREV: Layer = ("PrevActionWrapper", {})
HYBRID: Layer = ("HybridActionWrapper", {})
HYBRID_BOX: Layer = ("HybridActionWrapper", {"encoding": "box"})
ZETA: Layer = ("ZetaRepeatWrapper", {"epsilon": 0.3, "mu": 1.0, "max_repeat": 4})
ZETA_SCHEDULE: Layer = ("ZetaRepeatWrapper", {"epsilon": (1.0, 0.1, 40), "mu": 0.5})
STATISTICS: Layer = ("RepeatStatisticsWrapper", {})
N_REPEAT: Layer = ("NRepeatWrapper", {"n": 2})
K_REP_BOX: Layer = ("KRepWrapper", {"max_repeat": 3, "encoding": "box", "gamma": 0.9})

STACKS: dict[str, list[Layer]] = {
    "prev": [PREV],
    "prev as dict": [("PrevActionWrapper", {"flatten": False, "key": "last"})],
    "prev with initial action": [("PrevActionWrapper", {"initial_action": [0.5, 1.5]})],
    "hybrid": [HYBRID],
    "hybrid box": [HYBRID_BOX],
    "zeta": [ZETA],
    "zeta schedule": [ZETA_SCHEDULE],
    "statistics": [STATISTICS],
    "prev over hybrid": [HYBRID, PREV],
    "hybrid over prev": [PREV, HYBRID],
    "prev over zeta": [ZETA, PREV],
    "statistics over hybrid": [HYBRID, STATISTICS],
    "statistics over zeta": [ZETA, STATISTICS],
    "zeta over hybrid": [HYBRID_BOX, ZETA],
    "hybrid over zeta": [ZETA, HYBRID],
    "all": [ZETA, HYBRID, PREV, STATISTICS],
}


def per_env(layers: list[Layer]) -> tuple:
    return tuple((getattr(taac_wrappers, name), arguments) for name, arguments in layers)


def vectorised(envs: VectorEnv, layers: list[Layer]) -> VectorEnv:
    for name, arguments in layers:
        envs = getattr(vector, name)(envs, **arguments)
    return envs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("native", [False, True], ids=["sync", "native"])
@pytest.mark.parametrize("stack", STACKS)
def test_stacks(stack: str, native: bool, mode: AutoresetMode) -> None:
    layers = STACKS[stack]
    inside = NativeDrift(3, mode) if native else sync(3, mode)
    assert lockstep(sync(3, mode, per_env(layers)), vectorised(inside, layers), mode) > 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "action_space",
    [
        Discrete(4),
        Discrete(3, start=5),
        MultiDiscrete([3, 2]),
        MultiBinary(3),
        Box(-1.0, 1.0, (2, 2), np.float64),
        Box(-1.0, 1.0, ()),
        Dict(gear=Discrete(2), force=Box(-1.0, 1.0, (2,))),
        Tuple((Discrete(2), Box(-1.0, 1.0, (2,)))),
    ],
    ids=str,
)
@pytest.mark.parametrize("observation", ["box", "dict", "discrete"])
@pytest.mark.parametrize("flatten", [True, False])
def test_prev_action_in_every_space(
    action_space: gym.Space, observation: str, flatten: bool, mode: AutoresetMode
) -> None:
    layers: list[Layer] = [("PrevActionWrapper", {"flatten": flatten}), STATISTICS]
    arguments: dict[str, Any] = {"action_space": action_space, "observation": observation}
    inside = sync(2, mode, **arguments)
    assert lockstep(sync(2, mode, per_env(layers), **arguments), vectorised(inside, layers), mode, steps=25) > 5


@pytest.mark.parametrize("mode", MODES)
def test_zeta_with_discrete_actions(mode: AutoresetMode) -> None:
    space = Discrete(3, start=5)
    layers = [ZETA, PREV, STATISTICS]
    inside = vectorised(sync(3, mode, action_space=space), layers)
    assert lockstep(sync(3, mode, per_env(layers), action_space=space), inside, mode) > 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", [[HYBRID, PREV, STATISTICS], [HYBRID_BOX, ZETA]], ids=["dict", "box"])
def test_hybrid_actions_of_two_dimensions(layers: list[Layer], mode: AutoresetMode) -> None:
    space = Box(-1.0, 1.0, (2, 2), np.float64)
    inside = vectorised(sync(3, mode, action_space=space), layers)
    assert lockstep(sync(3, mode, per_env(layers), action_space=space), inside, mode) > 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inner", [N_REPEAT, K_REP_BOX, HYBRID_BOX], ids=lambda layer: layer[0])
@pytest.mark.parametrize(
    "outer",
    [[PREV], [STATISTICS], [HYBRID, PREV], [ZETA_SCHEDULE, STATISTICS]],
    ids=["prev", "statistics", "prev over hybrid", "statistics over zeta"],
)
def test_above_wrappers_of_each_env(outer: list[Layer], inner: Layer, mode: AutoresetMode) -> None:
    envs = vectorised(sync(3, mode, per_env([inner])), outer)
    assert lockstep(sync(3, mode, per_env([inner, *outer])), envs, mode, at_top=("repeat",)) > 30


@pytest.mark.parametrize("mode", MODES)
def test_resets_at_any_time(mode: AutoresetMode) -> None:
    layers = STACKS["all"]
    inside = vectorised(sync(3, mode), layers)
    assert lockstep(sync(3, mode, per_env(layers)), inside, mode, reset_anyway=0.3, steps=150) > 30


@settings(max_examples=40, deadline=None)
@given(
    stack=st.sampled_from(sorted(STACKS)),
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_any_seed_and_size(stack: str, mode: AutoresetMode, num_envs: int, seed: int) -> None:
    layers = STACKS[stack]
    inside = vectorised(sync(num_envs, mode), layers)
    lockstep(sync(num_envs, mode, per_env(layers)), inside, mode, seed=seed, steps=25)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_env_is_normalized_as_without_vectorisation(mode: AutoresetMode) -> None:
    layers: list[Layer] = [("RewardNormalizerWrapper", {"clip": 1.5})]
    assert lockstep(sync(1, mode, per_env(layers)), vectorised(sync(1, mode), layers), mode) > 10


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "HalfCheetah-v5"])
def test_real_envs(env_id: str) -> None:
    layers = [ZETA, HYBRID, PREV, STATISTICS]

    def make() -> gym.Env:
        env = gym.make(env_id, max_episode_steps=7)
        for wrapper, arguments in per_env(layers):
            env = wrapper(env, **arguments)
        return env

    expected = SyncVectorEnv([make] * 2)
    envs = gym.make_vec(env_id, num_envs=2, vectorization_mode="sync", max_episode_steps=7)
    assert lockstep(expected, vectorised(envs, layers), AutoresetMode.NEXT_STEP) == 20
    expected.close()
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_async(mode: AutoresetMode) -> None:
    def make() -> gym.Env:
        return taac_wrappers.HybridActionWrapper(Drift())

    layers = [PREV, STATISTICS]
    envs = AsyncVectorEnv([make] * 2, autoreset_mode=mode)
    try:
        assert (
            lockstep(sync(2, mode, per_env([HYBRID, *layers])), vectorised(envs, layers), mode, steps=30, at_top=()) > 5
        )
    finally:
        envs.close()
