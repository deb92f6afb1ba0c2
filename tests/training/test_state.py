"""What a run goes on with: all of it, exactly, and how far the run has come."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from number_script import Args, Drift, Number, main, record, wrap
from torch import nn

from taac_wrappers import NRepeatWrapper, RewardNormalizerWrapper, ZetaRepeatWrapper
from taac_wrappers.training.checkpoint import Loaded
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.state import TrainingState
from taac_wrappers.training.tracking import read_metrics

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


@pytest.mark.parametrize("changes", [{}, {"num_envs": 2, "frames_per_iteration": 13}], ids=["1 env", "2 envs"])
@pytest.mark.parametrize("stop", [3, 15, 28])
def test_resumed_equals_uninterrupted(changes, stop):
    args = Args(**changes)
    main(replace(args, run_dir=Path("whole")))
    main(replace(args, run_dir=Path("parts"), total_frames=stop))
    main(replace(args, resume=Path("parts")))
    assert record(Path("parts")) == record(Path("whole"))


def with_statistics(env: gym.Env) -> gym.Env:
    """Rewards by statistics that outlive an episode, and decisions of several frames."""
    return wrap(NRepeatWrapper(RewardNormalizerWrapper(env), 3, gamma=0.9))


def with_exploration(env: gym.Env) -> gym.Env:
    """Random numbers and a schedule that outlive an episode."""
    return wrap(ZetaRepeatWrapper(env, epsilon=(1.0, 0.2, 50)))


@pytest.mark.parametrize("with_more_wrappers", [with_statistics, with_exploration])
@pytest.mark.parametrize("stop", [10, 14, 40])
def test_wrappers_go_on_too(stop, with_more_wrappers):
    args = Args(total_frames=80, num_envs=2, buffer_size=60)
    main(replace(args, run_dir=Path("whole")), wrap=with_more_wrappers)
    main(replace(args, run_dir=Path("parts"), total_frames=stop), wrap=with_more_wrappers)
    states = json.loads(next(Path("parts/checkpoint").glob("0*/meta.json")).read_text())["episodes"]
    assert [len(state["wrappers"]) for state in states] == [1, 1]
    main(replace(args, resume=Path("parts")), wrap=with_more_wrappers)
    agents, lines = zip(record(Path("parts")), record(Path("whole")), strict=True)
    assert agents[0] == agents[1]
    # Evaluations have an environment of their own, whose statistics and schedules begin anew with every process.
    parts, whole = ([line for line in each if ",charts/" in line or ",losses/" in line] for each in lines)
    assert parts == whole


def test_resume_from_the_older_checkpoint_if_the_newest_is_damaged():
    main(Args(run_dir=Path("whole")))
    main(Args(run_dir=Path("run")))
    (Path("run/checkpoint") / f"{40:012d}" / "meta.json").write_text("{}")
    Path("run/agent.safetensors").unlink()
    with pytest.warns(UserWarning, match="going back to checkpoint"):
        main(Args(resume=Path("run")))
    assert record(Path("run")) == record(Path("whole"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        main(Args(resume=Path("run")))  # the last checkpoint is good again


def test_an_episode_that_cannot_be_repeated_is_cut_off(monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    monkeypatch.setattr(Drift, "luck", 0.5)
    restore, frames = TrainingState.restore, []

    def restored(state: TrainingState, loaded: Loaded) -> dict[str, np.ndarray]:
        assert loaded.arrays["env.0.observation"].shape == (2,)
        assert loaded.arrays["env.0.observation"][1] != 0  # prev_action
        observation = restore(state, loaded)
        assert observation["prev_action"] == 0
        return observation

    monkeypatch.setattr(TrainingState, "restore", restored)
    with pytest.warns(UserWarning, match="did not repeat its episode of 3 steps"):
        main(Args(resume=Path("run")), lambda c: frames.append(c.frames))
    lengths = read_metrics(Path("run/metrics.csv"))["charts/episodic_length"]
    assert frames == list(range(11, 41))
    assert lengths[0].tolist() == [7, 17, 24, 31, 38]  # a new episode began at frame 10


def test_resume_refuses_networks_of_another_shape(command, monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    monkeypatch.setattr(Number, "__init__", lambda self: (nn.Module.__init__(self), setattr(self, "value", WIDE))[0])
    code, _, said = command("--resume", "run")
    assert code == 2
    assert "does not fit this run" in said
    assert said.count("\n") == 1


WIDE = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7])
def test_due_counts_every_multiple_once(num_envs):
    for interval in range(1, 12):
        counters, multiples = Counters(), []
        while counters.frames < 60:
            counters.count(np.ones(num_envs, np.int64))
            stepped = range(counters.frames - num_envs + 1, counters.frames + 1)
            assert counters.due(interval) == sum(frame % interval == 0 for frame in stepped)
            multiples.append(counters.due(interval))
        assert sum(multiples) == counters.frames // interval


def test_decisions_of_several_frames_are_counted_one_by_one():
    counters = Counters()
    counters.count(np.array([3, 1]))
    assert (counters.frames, counters.decisions, counters.due(2), counters.due(5)) == (4, 2, 2, 0)
    counters.count(np.array([2, 5]))
    assert (counters.frames, counters.decisions, counters.due(2), counters.due(5)) == (11, 4, 3, 2)
