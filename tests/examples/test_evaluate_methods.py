"""examples/evaluate.py judges the agents of all scripts by what they do in the bare environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from untrained_runs import ENV, METHODS

from taac_wrappers.agent import load_agent
from taac_wrappers.training.arguments import BadInput
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.files import read_config, write_config

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
EPISODES, SEED = 2, 1


@pytest.fixture
def example(examples_on_path: None) -> ModuleType:
    import evaluate

    return evaluate


@pytest.fixture
def kinds(example: ModuleType) -> dict[str, type]:
    from trained_agent import METHODS

    return METHODS


def evaluated(example: ModuleType, path: Path, capsys: pytest.CaptureFixture, **changes: Any) -> str:
    capsys.readouterr()
    assert example.main(example.Args(path, episodes=EPISODES, seed=SEED, **changes)) == 0
    return capsys.readouterr().out


def returns_in_the_bare_env(agent: Any) -> tuple[list[float], int]:
    """Sums of the environment's own rewards, undiscounted and frame by frame, and how many actions were new."""
    env, policy, returns, new_actions = make_env(ENV), agent.policy(), [], 0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=SEED if episode == 0 else None)
        policy.reset()
        done, episode_return, before = False, 0.0, None
        while not done:
            action = policy(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            episode_return += float(reward)
            new_actions += before is None or not np.array_equal(action, before)
            done, before = terminated or truncated, action
        returns.append(episode_return)
    return returns, new_actions


def test_all_scripts_are_known(kinds):
    assert sorted(kinds) == METHODS
    assert len(METHODS) == 7


@EVERY_METHOD
def test_the_score_is_what_the_agent_gets_in_the_bare_environment(method, run_of, example, capsys):
    """With the agent's own durations, without discounts, and without exploration."""
    run = run_of(method)
    said = evaluated(example, run, capsys)
    returns, new_actions = returns_in_the_bare_env(load_agent(run / "agent.safetensors"))
    assert said.startswith(f"{ENV}: mean length 200.0 frames\n")
    assert f"score {np.mean(returns):.2f} +- {np.std(returns):.2f} over {EPISODES} episodes" in said
    if method in ("sac_nrep", "sac_krep"):  # whoever acts anew with the same action is not said to repeat
        assert new_actions < 0.9 * EPISODES * 200
        assert f"acts anew every {EPISODES * 200 / new_actions:.1f} frames" in said


@EVERY_METHOD
def test_an_agent_file_alone_tells_what_it_needs(method, run_of, example, tmp_path, capsys):
    shutil.copy(run_of(method) / "agent.safetensors", tmp_path)
    alone = evaluated(example, tmp_path / "agent.safetensors", capsys, env_id=ENV)
    assert alone == evaluated(example, run_of(method), capsys)


@pytest.mark.parametrize("method", ["sac_nrep", "sac_krep"])
@pytest.mark.parametrize("args", [{}, {"window": 2}, {"window": "text", "gamma": None}])
def test_how_long_an_agent_holds_an_action_is_its_own_affair(method, args, run_of, example, tmp_path, capsys):
    """Whatever a config.json says, or that of an older version does not say."""
    shutil.copytree(run_of(method), tmp_path / "run")
    write_config(tmp_path / "run", read_config(tmp_path / "run") | {"args": args})
    assert evaluated(example, tmp_path / "run", capsys) == evaluated(example, run_of(method), capsys)


@EVERY_METHOD
def test_the_agent_of_another_method_is_refused(method, run_of, example, kinds, tmp_path):
    """Also where the spaces of both are the same: SAC would be made to hold its actions."""
    shutil.copytree(run_of(method), tmp_path / "run")
    others = [other for other in METHODS if kinds[other] is not kinds[method]]
    for other in others:
        write_config(tmp_path / "run", read_config(run_of(method)) | {"method": other})
        message = rf"agent\.safetensors' does not fit {ENV}: it was trained on other spaces or not by {other}$"
        with pytest.raises(BadInput, match=message):
            example.main(example.Args(tmp_path / "run", episodes=1))
    assert len(others) >= 4


def test_methods_with_the_same_agent_are_evaluated_alike(run_of, example, tmp_path, capsys):
    shutil.copytree(run_of("sac"), tmp_path / "run")
    said = set()
    for method in ("sac", "sac_ntd", "sac_ez"):
        write_config(tmp_path / "run", read_config(run_of("sac")) | {"method": method})
        said.add(evaluated(example, tmp_path / "run", capsys))
    assert len(said) == 1


@EVERY_METHOD
def test_another_environment_is_refused(method, run_of, example):
    with pytest.raises(BadInput, match="does not fit MountainCarContinuous-v0: it was trained on other spaces"):
        example.main(example.Args(run_of(method), episodes=1, env_id="MountainCarContinuous-v0"))
