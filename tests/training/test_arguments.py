"""A script's command line: what it refuses, by name and value, and the one line that says so."""

from __future__ import annotations

import re
import reprlib
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from number_script import Args

from taac_wrappers.training.arguments import FOREIGN_FLAGS, check_common, parse, pick_device
from taac_wrappers.training.files import read_config

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


AT_LEAST_ONE = (
    *("total_frames", "num_envs", "batch_size", "window", "updates_per_iteration", "frames_per_iteration"),
    *("eval_interval", "eval_episodes", "final_episodes", "checkpoint_interval", "target_interval", "threads"),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: 0}, f"--{name.replace('_', '-')} must be at least 1, got 0") for name in AT_LEAST_ONE),
        *(
            ({name: value}, rf"--{name.replace('_', '-')} must be in \(0, 1\], got {value}")
            for name in ("learning_rate", "gamma", "tau")
            for value in (0.0, 1.5, float("nan"))
        ),
        ({"seed": -1}, "--seed must not be negative, got -1"),
        ({"learning_starts": 2, "num_envs": 3}, "--learning-starts must be at least one frame per env, got 2"),
        ({"batch_size": 31}, "--batch-size 31 is larger than the replay, --buffer-size 30"),
        ({"window": 30}, "--buffer-size 30 cannot hold a window of 30 for 1 envs"),
        ({"window": 9, "num_envs": 3, "learning_starts": 9}, "--buffer-size 30 cannot hold a window of 9 for 3 envs"),
    ],
)
def test_refuses_numbers_by_name_and_value(changes, message):
    with pytest.raises(ValueError, match=message):
        check_common(Args(**changes))


def test_accepts_the_numbers_next_to_those():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_common(
            Args(**dict.fromkeys(AT_LEAST_ONE, 1), learning_starts=1, learning_rate=1.0, gamma=1.0, tau=1.0, seed=0)
        )
        check_common(Args(batch_size=30, window=28))
        check_common(Args(learning_starts=40, num_envs=40, buffer_size=160))
    with pytest.warns(UserWarning, match="--total-frames 40 ends before --learning-starts 41: nothing will be learned"):
        check_common(Args(learning_starts=41))


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta"])
def test_refuses_devices_that_are_not_there(name):
    with pytest.raises(ValueError, match=f"--device '{name}' cannot be used: "):
        pick_device(name)


def test_picks_a_device():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-id", "test_run/Drft-v0"], "no environment is named 'test_run/Drft-v0'; close matches: test_run/Drift"),
        (["--run-dir", "taken"], "--run-dir: 'taken' exists already; continue it with --resume taken"),
        (["--run-dir", "file/run"], "--run-dir: cannot create 'file/run': Not a directory"),
        (["--resume", "taken"], "--resume: 'taken' is not a run folder (no config.json)"),
        (["--resume", "nowhere"], "--resume: 'nowhere' is not a run folder (no config.json)"),
        (["--resume", "file"], "--resume: 'file' is not a run folder (no config.json)"),
        (["--resume", "foreign"], "--resume: 'foreign' is not a run folder (its config.json is of something else)"),
        (["--resume", "torn"], "torn/config.json: not valid JSON"),
        (["--env-id", "test_run/DarkDrift-v0", "--capture-video"], "DarkDrift-v0 cannot be filmed: no light"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(command, tmp_path, words, message):
    for name, config in {"taken": None, "foreign": "{}", "torn": "{"}.items():
        Path(name).mkdir()
        if config is not None:
            (Path(name) / "config.json").write_text(config)
    Path("file").touch()
    before = sorted(tmp_path.rglob("*"))
    code, out, said = command(*words)
    assert code == 2
    assert out == ""
    lines = said.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "runs"] == before


def test_flags_read_as_people_write_them(command):
    assert command("--no-track", "--no-capture-video", "--hidden", "3", "3", "3", "--run-dir", "run")[0] == 0
    assert read_config(Path("run"))["args"]["hidden"] == [3, 3, 3]
    assert command("--widnow", "3")[0] == 2
    assert command("--window", "three")[0] == 2
    code, out, _ = command("--resume", "run", "--help")
    assert code == 0
    assert re.search(r"--hidden.*\(default: 3 3 3\)", out, re.DOTALL)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--total-frames", "1e5"], {"total_frames": 100_000}),
        (["--total-frames", "1_000", "--hidden", "1e1", "3"], {"total_frames": 1000, "hidden": (10, 3)}),
        (
            ["--total_frames=4.2e1", "--seed", "12345678901234567890"],
            {"total_frames": 42, "seed": 12345678901234567890},
        ),
        (["--env-kwargs", '{"length": 5, "wind": [0.5, null]}'], {"env_kwargs": {"length": 5, "wind": [0.5, None]}}),
    ],
)
def test_counts_and_json_are_read(words, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", *words])
    assert parse(Args, Args()) == Args(**expected)
    assert parse(Args) == Args(**expected)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "inf", "nan", "1e400", "many", ""])
def test_what_is_no_count_is_refused(text, command):
    code, _, said = command("--total-frames", text)
    assert code == 2
    assert f"Error parsing --total-frames: must be a whole number, got '{text}'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            ([flag, "3"], f"there is no {flag.replace('_', '-')}; did you mean {meant}?")
            for flag, meant in {
                "--total-timesteps": "--total-frames",
                "--total_timesteps": "--total-frames",
                "--env": "--env-id",
                "--lr": "--learning-rate",
                "--target-network-frequency": "--target-interval",
                "--cuda": "--device cuda",
            }.items()
        ),
        (["--n-envs=3"], "there is no --n-envs; did you mean --num-envs?"),
        *(
            (
                ["--env-kwargs", text],
                f"""--env-kwargs must be a JSON object such as '{{"frame_skip": 2}}', got '{text}'""",
            )
            for text in ('{"length": 5', "[5]", "length=5", "null", "[" * 100_000)
        ),
        (["--env-kwargs", '{"lenght": 5}'], "unexpected keyword argument 'lenght'"),
        (["--env-kwargs", '{"length": 5}', "--resume", "run"], "run has --env-kwargs {'length': 4}, got {'length': 5}"),
    ],
    ids=reprlib.repr,
)
def test_unusual_flags_are_one_line(words, message, command):
    if "--resume" in words:
        assert command("--env-kwargs", '{"length": 4}', "--run-dir", "run", "--total-frames", "5")[0] == 0
    code, _, said = command(*words)
    assert code == 2
    assert said.count("\n") == 1
    assert said.startswith("error: ")
    assert message in said


def test_flags_of_other_libraries_are_none_of_ours():
    ours = {f"--{field.name.replace('_', '-')}" for field in fields(Args)} | {"--env-engine"}  # which this script lacks
    assert {meant.split()[0] for meant in FOREIGN_FLAGS.values()} <= ours
    assert not {f"--{foreign}" for foreign in FOREIGN_FLAGS} & ours
