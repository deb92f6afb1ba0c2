"""Which cells the names of methods and tasks stand for, and which names are refused."""

from __future__ import annotations

import sys
import warnings

import pytest

from taac_wrappers.benchmark.cells import cells_of
from taac_wrappers.benchmark.methods import METHODS


@pytest.mark.parametrize(
    ("task", "env_ids"),
    [
        ("simple-control", ["MountainCarContinuous-v0", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5"]),
        ("locomotion", ["Hopper-v5", "Ant-v5", "Walker2d-v4", "HalfCheetah-v5"]),
        ("terrain", ["BipedalWalker-v3", "BipedalWalkerHardcore-v3"]),
        ("manipulation", ["FetchReach-v4", "FetchPush-v4", "FetchSlide-v4", "FetchPickAndPlace-v4"]),
        ("Pendulum-v1", ["Pendulum-v1"]),
    ],
)
def test_tasks(task, env_ids):
    cells = cells_of(METHODS, [task], seeds=3)
    assert list(dict.fromkeys(cell.env_id for cell in cells)) == env_ids
    assert len(set(cells)) == len(cells) == 10 * 3 * len(env_ids)
    assert {cell.seed for cell in cells} == {0, 1, 2}


def test_what_is_named_twice_is_run_once():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old name
        cells = cells_of(["sac", "sac"], ["LunarLanderContinuous-v2", "simple-control", "Pendulum-v1"], seeds=1)
    assert [cell.env_id for cell in cells] == [
        *("LunarLanderContinuous-v3", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5", "Pendulum-v1")
    ]


def test_an_environment_of_one_s_own(tmp_path, monkeypatch):
    """From a module in the current folder."""
    (tmp_path / "my_walks.py").write_text(
        "import gymnasium as gym\ngym.register('mine/Walk-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path.copy())
    (cell,) = cells_of(["taac"], ["my_walks:mine/Walk-v0"], seeds=1)
    assert cell.env_id == "my_walks:mine/Walk-v0"


@pytest.mark.parametrize(
    ("methods", "tasks", "seeds", "message"),
    [
        (["tacc"], ["terrain"], 1, "--methods must be among taac, .*, got 'tacc'"),
        (["taac"], ["terain"], 1, "--tasks: no environment is named 'terain'.* or one of simple-control, "),
        (["taac"], ["Pendulum-v1"], 0, "--seeds must be at least 1, got 0"),
        ([], ["Pendulum-v1"], 1, "must name at least one each"),
        (["taac"], [], 1, "must name at least one each"),
        (["taac"], ["no_such_module:Env-v0"], 1, "--tasks: .* names a module that cannot be imported"),
    ],
)
def test_names_that_are_refused(methods, tasks, seeds, message):
    with pytest.raises(ValueError, match=message):
        cells_of(methods, tasks, seeds)


def test_environments_with_the_same_name_are_refused():
    with pytest.raises(ValueError, match="would have the same results, Pendulum-v1"):
        cells_of(["sac"], ["Pendulum-v1", "gymnasium.envs.classic_control:Pendulum-v1"], seeds=1)
