"""Raw results: what a run's folder becomes, the command that repeats it, and files that are refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from pathlib import Path

import pytest

from taac_wrappers.benchmark.commands import NOT_LEARNED_FROM, command_of, method_of
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.results import COLUMNS, read_result, read_results, result_of_run, write_result
from taac_wrappers.training.config import plain
from taac_wrappers.training.files import write_config

HEADER = ",".join(COLUMNS)
LINE = "taac,Pendulum-v1,0,final/score,100,1.5"


def args_of(exp_name: str, env_id: str, **changes):
    """Arguments as the method's script has them by default, in JSON's types."""
    method = METHODS[exp_name]
    script = importlib.import_module(method.script.removesuffix(".py"))
    args = plain(dataclasses.asdict(script.Args.for_task(env_id, changes.get("settings", "paper"))))
    if "--td-operator" in method.flags:
        args["td_operator"] = method.flags[1]
    if "--window" in method.flags:
        args["window"] = int(method.flags[3])
    return args | changes


def make_run(folder: Path, exp_name: str, lines: str = "100,final/score,2.5\n", **changes) -> Path:
    args = args_of(exp_name, "Pendulum-v1", **changes)
    method = METHODS[exp_name].script.removesuffix("_continuous.py")
    config = {"method": method, "resolved_env_id": "Pendulum-v1", "versions": {"numpy": "2"}, "args": args}
    folder.mkdir()
    write_config(folder, config)
    (folder / "metrics.csv").write_text("frame,metric,value\n" + lines)
    return folder


@pytest.mark.parametrize("exp_name", METHODS)
@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "HalfCheetah-v5", "Pendulum-v1"])
def test_a_run_by_default_has_the_method_s_own_command(exp_name, env_id):
    expected = shlex.join(["python", *METHODS[exp_name].command(env_id, 0)])
    assert command_of(exp_name, args_of(exp_name, env_id)) == expected


@pytest.mark.parametrize("exp_name", METHODS)
@pytest.mark.parametrize("settings", ["paper", "laptop"])
def test_settings_are_named_where_the_computer_would_choose(exp_name, settings):
    expected = shlex.join(["python", *METHODS[exp_name].command("FetchReach-v4", 0), "--settings", settings])
    assert command_of(exp_name, args_of(exp_name, "FetchReach-v4", settings=settings)) == expected


def test_what_was_changed_is_in_the_command():
    changes = {"seed": 4, "clip_advantage": True, "hidden": [64, 32], "env_kwargs": {"g": 9.8}, "final_episodes": 20}
    command = command_of("taac", args_of("taac", "Pendulum-v1", **changes))
    for words in (
        "--seed 4",
        "--clip-advantage",
        "--hidden 64 32",
        "--env-kwargs '{\"g\": 9.8}'",
        "--final-episodes 20",
    ):
        assert f" {words}" in command


@pytest.mark.parametrize("exp_name", METHODS)
def test_a_config_tells_its_method(exp_name):
    script = METHODS[exp_name].script.removesuffix("_continuous.py")
    assert method_of({"method": script, "args": args_of(exp_name, "Pendulum-v1")}) == exp_name


def test_a_run_becomes_a_result_and_comes_back(tmp_path):
    lines = "50,eval/score,1.25\n60,losses/critic,3.0\n100,final/score,2.5\n"
    result = result_of_run(make_run(tmp_path / "run", "sac-ez", lines, seed=3), "sac-ez")
    path = write_result(tmp_path / "results", result)
    assert path == tmp_path / "results" / "Pendulum-v1" / "sac-ez_s3.csv"
    assert path.read_text().splitlines() == [
        HEADER,
        "sac-ez,Pendulum-v1,3,eval/score,50,1.25",
        "sac-ez,Pendulum-v1,3,final/score,100,2.5",
    ]
    made_by = json.loads(path.with_suffix(".json").read_text())
    assert made_by["command"] == "python agents/sac_ez_continuous.py --env-id Pendulum-v1 --seed 3"
    assert made_by["versions"] == {"numpy": "2"}
    assert made_by["args"]["seed"] == 3
    assert not NOT_LEARNED_FROM & made_by["args"].keys()
    assert [run.last("final/score") for run in read_results(tmp_path / "results")] == [2.5]


def test_a_run_of_another_method_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is a run of taac-1td, got 'taac'"):
        result_of_run(make_run(tmp_path / "run", "taac-1td"), "taac")


def test_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not finished"):
        result_of_run(make_run(tmp_path / "run", "sac", "100,eval/score,2.5\n"), "sac")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must be"),
        ("frame,metric,value\n", "line 1 must be"),
        (f"{HEADER}\n", "must hold one run, got 0"),
        (f"{HEADER}\n{LINE}\n{LINE[:-3]}nan\n", "line 3 must be"),
        (f"{HEADER}\n{LINE}\n{LINE[:-4]}\n", "line 3 must be"),
        (f"{HEADER}\n{LINE.replace('100', '1' + '0' * 30)}\n", "line 2 must be"),
        (f"{HEADER}\n{LINE}\n{LINE.replace('taac', 'sac')}\n", "must hold one run, got 2"),
        (f"{HEADER}\n{LINE.replace('taac', 'sac')}\n", "which its name does not say"),
    ],
)
def test_malformed_files_are_named(text, message, tmp_path):
    path = tmp_path / "Pendulum-v1" / "taac_s0.csv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"taac_s0\.csv.*{message}"):
        read_result(path)


def test_a_broken_json_is_named(tmp_path):
    path = tmp_path / "Pendulum-v1" / "taac_s0.csv"
    path.parent.mkdir()
    path.write_text(f"{HEADER}\n{LINE}\n")
    path.with_suffix(".json").write_text("{")
    with pytest.raises(ValueError, match=r"taac_s0\.json: not valid JSON"):
        read_result(path)
