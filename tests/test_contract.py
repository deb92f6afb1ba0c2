"""What every wrapper promises, walked over everything in ``taac_wrappers.__all__``."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from copy import deepcopy
from importlib import metadata
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from toy_envs import TOY_ID, ToyEnv, continued, rollout, same, sample_actions

import taac_wrappers
from taac_wrappers import AdaptiveNormalizer

# Each argument has a value other than its default in at least one case; a test below sees to it.
CASES: dict[str, list[dict[str, Any]]] = {
    "HybridActionWrapper": [{}, {"encoding": "box"}],
    "KRepWrapper": [{"max_repeat": 3}, {"max_repeat": 3, "gamma": 0.9, "encoding": "box"}],
    "NRepeatWrapper": [{"n": 3}, {"n": 2, "gamma": 0.9}],
    "PrevActionWrapper": [{}, {"key": "last", "flatten": False, "initial_action": [0.25, -0.5]}],
    "RepeatStatisticsWrapper": [{}, {"key": "runs"}],
    "RewardNormalizerWrapper": [{}, {"clip": 1.0, "speed": 2.0, "update": False}, {"clip": None}],
    "ZetaRepeatWrapper": [{"epsilon": 0.5}, {"epsilon": (1.0, 0.25, 20), "mu": 0.5, "max_repeat": 4}],
}
REPEAT_WRAPPERS = ("HybridActionWrapper", "KRepWrapper", "NRepeatWrapper", "ZetaRepeatWrapper")
ALL_CASES = [pytest.param(name, kwargs, id=f"{name}-{kwargs}") for name in CASES for kwargs in CASES[name]]
REPEAT_CASES = [case for case in ALL_CASES if case.values[0] in REPEAT_WRAPPERS]

every_case = pytest.mark.parametrize(("name", "kwargs"), ALL_CASES)
every_repeat_case = pytest.mark.parametrize(("name", "kwargs"), REPEAT_CASES)


def wrap(env: gym.Env, name: str, kwargs: dict[str, Any]) -> gym.Wrapper:
    return getattr(taac_wrappers, name)(env, **kwargs)


def scribble(value: Any) -> None:
    """Overwrite all arrays in a nested value, as a caller who reuses its buffers does."""
    if isinstance(value, np.ndarray):
        value.fill(7)
    elif isinstance(value, dict):
        for item in value.values():
            scribble(item)


def test_all_is_complete():
    wrappers = {name for name in taac_wrappers.__all__ if issubclass(getattr(taac_wrappers, name), gym.Wrapper)}
    assert wrappers == set(CASES)
    assert set(taac_wrappers.__all__) - wrappers == {AdaptiveNormalizer.__name__}
    assert taac_wrappers.__version__ == metadata.version("taac-wrappers") == "0.2.0"


def test_import_needs_gymnasium_and_numpy_only():
    heavy = ["torch", "mujoco", "gymnasium_robotics", "pygame", "matplotlib", "scipy", "pandas"]
    code = f"import sys, taac_wrappers; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@every_case
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_check_env(name, kwargs):
    check_env(wrap(gym.make(TOY_ID), name, kwargs), skip_render_check=True)


@pytest.mark.parametrize("name", CASES)
def test_every_argument_is_recorded(name):
    parameters = dict(inspect.signature(getattr(taac_wrappers, name)).parameters)
    assert next(iter(parameters)) == "env"
    del parameters["env"]
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    for kwargs in CASES[name]:
        recorded = wrap(ToyEnv(), name, kwargs)._saved_kwargs
        assert recorded == {**defaults, **kwargs}
    for key, default in defaults.items():
        assert any(kwargs.get(key, default) != default for kwargs in CASES[name]), key


@every_case
def test_spec_rebuilds_the_environment(name, kwargs):
    env = wrap(gym.make(TOY_ID, length=7), name, kwargs)
    actions = sample_actions(env, 20)
    steps = rollout(env, actions)
    json_spec = env.spec.to_json()
    for spec in (env.spec, EnvSpec.from_json(json_spec)):
        rebuilt = gym.make(spec)
        assert type(rebuilt) is type(env)
        assert rebuilt.spec == env.spec
        assert rebuilt.spec.to_json() == json_spec
        assert rebuilt.action_space == env.action_space
        assert rebuilt.observation_space == env.observation_space
        assert same(rollout(rebuilt, actions), steps)


def test_numpy_arguments_are_recorded_as_json():
    env = taac_wrappers.PrevActionWrapper(gym.make(TOY_ID), initial_action=np.array([0.5, 1.0]))
    env = taac_wrappers.ZetaRepeatWrapper(env, epsilon=[np.float64(0.5), 0.25, np.int64(9)], max_repeat=np.int64(3))
    rebuilt = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert rebuilt.spec == env.spec
    assert rebuilt._saved_kwargs["epsilon"] == (0.5, 0.25, 9)
    assert rebuilt.env._saved_kwargs["initial_action"] == [0.5, 1.0]


@every_case
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_pickle_in_mid_episode_goes_on_alike(name, kwargs, pickler):
    env = wrap(gym.make(TOY_ID, length=30), name, kwargs)
    actions = sample_actions(env, 24)
    rollout(env, actions[:4], seed=3)
    copy = pickler.loads(pickler.dumps(env))
    assert same(continued(copy, actions[4:]), continued(env, actions[4:]))


@every_case
def test_same_seed_same_trajectory(name, kwargs):
    actions = sample_actions(wrap(ToyEnv(), name, kwargs), 30)
    first, second, other = (rollout(wrap(ToyEnv(), name, kwargs), actions, seed=seed) for seed in (5, 5, 6))
    assert same(first, second)
    assert not same(first, other)


@every_case
def test_the_environments_own_random_stream_is_untouched(name, kwargs):
    env, bare = wrap(ToyEnv(length=100), name, kwargs), ToyEnv(length=100)
    env.reset(seed=11)
    bare.reset(seed=11)
    for action in sample_actions(env, 20):
        env.step(action)
    for action in env.unwrapped.received:
        bare.step(action)
    assert bare.frame >= 20
    assert env.unwrapped.np_random.bit_generator.state == bare.np_random.bit_generator.state


@every_case
def test_reset_ends_the_episodes_state(name, kwargs):
    """After any history, an episode equals that of a new wrapper, but for what is meant to outlive episodes."""
    env, fresh = wrap(ToyEnv(), name, kwargs), wrap(ToyEnv(), name, kwargs)
    actions = sample_actions(env, 8)
    rollout(env, actions[:3], seed=1)
    for stateful in (env, fresh):
        if hasattr(stateful, "load_state_dict"):
            stateful.load_state_dict(wrap(ToyEnv(), name, kwargs).state_dict())
    assert same(rollout(env, actions, seed=2), rollout(fresh, actions, seed=2))


@every_case
def test_reused_buffers_do_not_alias(name, kwargs):
    env, careful = wrap(ToyEnv(), name, kwargs), wrap(ToyEnv(), name, kwargs)
    actions = sample_actions(env, 20)
    expected = rollout(careful, deepcopy(actions), seed=4)
    observation, info = env.reset(seed=4)
    for action, wanted in zip(actions, expected[1:], strict=True):
        buffer = deepcopy(action)
        scribble(observation)
        scribble(info)
        observation, reward, terminated, truncated, info = env.step(buffer)
        scribble(buffer)
        assert same((observation, reward, terminated, truncated, info), wanted)
        if terminated or truncated:
            observation, info = env.reset()


@every_repeat_case
def test_the_environment_does_not_get_the_callers_buffer(name, kwargs):
    env = wrap(ToyEnv(), name, kwargs)
    env.reset(seed=0)
    buffer = sample_actions(env, 1)[0]
    info = env.step(buffer)[-1]
    scribble(buffer)
    scribble(info["executed_action"])
    toy = env.unwrapped
    assert same(toy.references, toy.received)


@pytest.mark.parametrize(("name", "kwargs"), [("HybridActionWrapper", {}), ("ZetaRepeatWrapper", {"epsilon": 1.0})])
def test_an_environment_that_overwrites_its_action_does_not_change_the_held_one(name, kwargs):
    class Overwrites(gym.ActionWrapper):
        def action(self, action: Any) -> Any:
            original = action.copy()
            scribble(action)
            return original

    overwriting, plain = wrap(Overwrites(ToyEnv()), name, kwargs), wrap(ToyEnv(), name, kwargs)
    actions = sample_actions(plain, 10)
    rollout(overwriting, actions)
    rollout(plain, actions)
    assert same(overwriting.unwrapped.received, plain.unwrapped.received)


@every_case
@pytest.mark.parametrize(("kind", "dtype"), [("box", np.float32), ("box64", np.float64)])
def test_dtype_is_kept(name, kwargs, kind, dtype):
    env = wrap(ToyEnv(action=kind, observation=kind), name, kwargs)
    for observation, _, _, _, info in rollout(env, sample_actions(env, 12)):
        entries = observation if isinstance(observation, dict) else {"observation": observation}
        assert all(entry.dtype == dtype for entry in entries.values())
        assert observation in env.observation_space
        assert info.get("executed_action", np.zeros(1, dtype)).dtype == dtype
    assert all(action.dtype == dtype for action in env.unwrapped.received)


@every_case
def test_infos_are_typed_on_every_step(name, kwargs):
    env = wrap(ToyEnv(), name, kwargs)
    for step in rollout(env, sample_actions(env, 30))[1:]:
        _, reward, terminated, truncated, info = step
        assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
        assert "toy" in info
        if name in REPEAT_WRAPPERS:
            assert type(info["frames"]) is int
            assert type(info["repeated"]) is bool
            assert type(info["executed_action"]) is np.ndarray
            assert ("discount" in info) == ("gamma" in kwargs)
            assert type(info.get("discount", 1.0)) is float
        if name == "ZetaRepeatWrapper":
            assert type(info["exploring"]) is bool
        if name == "RewardNormalizerWrapper":
            assert type(info["raw_reward"]) is float
        if name == "RepeatStatisticsWrapper" and terminated:
            types = {"fraction": float, "mean_run": float, "decisions": int, "frames": int, "apr": float, "afr": float}
            assert {key: type(value) for key, value in info[kwargs.get("key", "repeat")].items()} == types


@every_case
def test_infos_can_be_stacked_by_a_vector_environment(name, kwargs):
    def factory() -> gym.Env:
        return wrap(ToyEnv(length=6), name, kwargs)

    envs = gym.vector.SyncVectorEnv([factory, factory])
    envs.reset(seed=0)
    envs.action_space.seed(0)
    keys = {"frames": np.integer, "repeated": np.bool_, "discount": np.floating, "raw_reward": np.floating}
    for _ in range(6):
        infos = envs.step(envs.action_space.sample())[-1]
        for key, kind in keys.items():
            if key in infos:
                assert infos[key].shape == (2,)
                assert np.issubdtype(infos[key].dtype, kind)
        if "executed_action" in infos:
            assert infos["executed_action"].shape == (2, 2)
            assert infos["executed_action"].dtype == np.float32


@every_case
def test_inner_spaces_are_not_changed(name, kwargs):
    inner = ToyEnv()
    inner.action_space.seed(1)
    inner.observation_space.seed(1)
    before = deepcopy((inner.action_space, inner.observation_space))
    env = wrap(inner, name, kwargs)
    if env.action_space is not inner.action_space:
        env.action_space.seed(99)
    if env.observation_space is not inner.observation_space:
        env.observation_space.seed(99)
    rollout(env, sample_actions(env, 10))
    assert (inner.action_space, inner.observation_space) == before
    assert same([space.sample() for space in before], [inner.action_space.sample(), inner.observation_space.sample()])


@every_case
def test_inner_info_dict_is_left_alone(name, kwargs):
    """An environment may hand out one dict again and again; what a wrapper adds must not leak into the next step."""

    class OneDict(gym.Wrapper):
        shared: dict[str, Any] = {}  # noqa: RUF012

        def step(self, action: Any) -> Any:
            return (*self.env.step(action)[:-1], self.shared)

    env = wrap(OneDict(ToyEnv()), name, kwargs)
    rollout(env, sample_actions(env, 15))
    assert OneDict.shared == {}


@every_case
@pytest.mark.parametrize("outside", [True, False])
def test_time_limit_counts_frames_inside_and_decisions_outside(name, kwargs, outside):
    limit = 4
    env: gym.Env = ToyEnv(length=100)
    env = TimeLimit(wrap(env, name, kwargs), limit) if outside else wrap(TimeLimit(env, limit), name, kwargs)
    env.reset(seed=0)
    decisions, truncated = 0, False
    for action in sample_actions(env, 10):
        _, _, terminated, truncated, _ = env.step(action)
        assert not terminated
        decisions += 1
        if truncated:
            break
    assert truncated
    if outside:
        assert decisions == limit
    else:
        assert env.unwrapped.frame == limit
