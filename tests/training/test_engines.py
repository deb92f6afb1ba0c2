"""The engines that call environments one by one are equal, bit for bit; and none needs envpool but its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac_wrappers.training import engines as engines_module
from taac_wrappers.training.envs import make_env, make_vector_env
from taac_wrappers.training.faults import WatchedEnvs


def actions_for(envs: WatchedEnvs, frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.5, 1.5, (frames, *envs.action_space.shape)).astype(np.float32)


def play(envs: Any, actions: np.ndarray) -> list[bytes]:
    """Everything that a learner sees who resets what is done."""
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, infos = envs.step(action)
        seen += [array.tobytes() for array in (observation, reward, terminated, truncated)]
        if (done := terminated | truncated).any():
            assert infos["_episode"].tolist() == done.tolist()
            seen += [infos["episode"][key][done].tobytes() for key in ("r", "l")]
            seen.append(envs.reset(options={"reset_mask": done})[0].tobytes())
    return seen


# --- In this process and in workers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1"])
def test_sync_and_async_do_what_gymnasium_does(env_id):
    theirs = SyncVectorEnv([lambda: make_env(env_id)] * 3, autoreset_mode=AutoresetMode.DISABLED)
    ours = [make_vector_env(env_id, 3, engine=engine) for engine in ("sync", "async")]
    actions = actions_for(ours[0], 230, 0)
    expected = theirs.reset(seed=5)[0].tobytes(), play(theirs, actions)
    for envs in ours:
        assert (envs.reset(seed=5)[0].tobytes(), play(envs, actions)) == expected
        envs.close()
    theirs.close()


@pytest.mark.parametrize("engine", ["sync", "async"])
def test_episodes_go_on_bit_for_bit(engine):
    envs, others = (make_vector_env("Hopper-v5", 2, engine=engine) for _ in range(2))
    envs.reset(seed=1)
    play(envs, actions_for(envs, 105, 0))
    states = envs.episode_states()
    observation, exact = others.restore(states)
    assert exact.all()
    np.testing.assert_array_equal(observation, np.stack([state["observation"] for state in states]))
    assert play(others, actions_for(envs, 60, 1)) == play(envs, actions_for(envs, 60, 1))
    envs.close()
    others.close()


def test_states_of_workers_are_plain_data():
    envs = make_vector_env("Pendulum-v1", 1, engine="async")
    envs.reset(seed=1)
    (state,) = envs.episode_states()
    del state["actions"], state["observation"]
    assert json.loads(json.dumps(state)) == state
    envs.close()


def test_workers_know_what_this_program_registered(monkeypatch):
    spec = gym.envs.registration.EnvSpec("test_engines/Local-v0", lambda: gym.make("Pendulum-v1").unwrapped)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    envs = make_vector_env(spec.id, 2, engine="async")
    assert envs.reset(seed=0)[0].shape == (2, 3)
    assert envs.stop_reason is None
    envs.close()


def test_workers_leave_signals_to_the_learner_and_end_with_it():
    envs = make_vector_env("Pendulum-v1", 1, engine="async")
    envs.reset(seed=0)
    process = envs._engine._hosts[0]._process
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    for _ in range(3):
        envs.step(np.zeros((1, 1), np.float32))
    assert envs.stop_reason is None
    envs.close()
    assert process.exitcode == 0  # it was not killed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "threads"}, "engine must be 'sync', 'async' or 'envpool', got 'threads'"),
        ({"on_error": "ignore"}, "on_error must be 'stop' or 'restart', got 'ignore'"),
        ({"timeout": 0}, "timeout of envs must be a positive number of seconds, got 0"),
        ({"timeout": float("nan")}, "timeout of envs must be a positive number of seconds, got nan"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_vector_env("Pendulum-v1", 1, **changes)


def test_envpool_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r'needs envpool: pip install "taac-wrappers\[envpool\]"'):
        make_vector_env("Pendulum-v1", 1, engine="envpool")


def test_the_other_engines_need_no_envpool(monkeypatch):
    monkeypatch.setattr(engines_module, "_import_envpool", lambda: pytest.fail("imported"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_vector_env("Pendulum-v1", 1).close()
