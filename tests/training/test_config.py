"""The arguments of a run: written to its config.json, read back, and what of them may change."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import pytest
from number_script import Args, contents, main, record

from taac_wrappers.training.config import CHANGEABLE_ON_RESUME, from_config, typed
from taac_wrappers.training.files import read_config
from taac_wrappers.training.folder import RunFolder
from taac_wrappers.training.run import Run
from taac_wrappers.training.tracking import read_metrics

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


def test_config_tells_both_ids_versions_and_arguments():
    with pytest.warns(UserWarning, match="using test_run/Drift-v0"):
        main(Args(env_id="test_run/Drift-v7", run_dir=Path("run")))
    config = read_config(Path("run"))
    assert config["method"] == "number"
    assert (config["env_id"], config["resolved_env_id"]) == ("test_run/Drift-v7", "test_run/Drift-v0")
    assert config["versions"]["gymnasium"] == gym.__version__
    assert config["versions"].keys() >= {"python", "numpy", "torch", "taac-wrappers"}
    assert config["args"] | {"run_dir": "run"} == json.loads(json.dumps(vars(Args("test_run/Drift-v7", run_dir="run"))))


def test_arguments_of_the_environment_are_kept_and_used_everywhere(command):
    """Episodes of five frames: in training, in evaluation, and after a resume that does not name them."""
    assert command("--env-kwargs", '{"length": 5}', "--run-dir", "run", "--total-frames", "20")[0] == 0
    assert read_config(Path("run"))["args"]["env_kwargs"] == {"length": 5}
    assert command("--resume", "run", "--total-frames", "40")[0] == 0
    metrics = read_metrics(Path("run") / "metrics.csv")
    for name in ("charts/episodic_length", "eval/length", "final/length"):
        assert set(metrics[name][1]) == {5.0}, name
    assert metrics["charts/episodic_length"][0].tolist() == list(range(5, 41, 5))


def test_only_the_user_may_name_a_file(command):
    """The environment would open whatever a stranger's config.json names."""
    env_kwargs = '{"length": 7, "render_mode": "rgb_array"}'
    assert command("--env-kwargs", env_kwargs, "--run-dir", "run", "--total-frames", "10")[0] == 0
    code, _, said = command("--resume", "run", "--total-frames", "20")
    assert code == 2
    assert said.endswith(f"among the environment's arguments; to allow it, add --env-kwargs '{env_kwargs}'\n")
    assert command("--resume", "run", "--total-frames", "20", "--env-kwargs", env_kwargs)[0] == 0


def test_the_command_to_go_on_repeats_what_a_file_may_not_say():
    args = Args("own:Drift-v0", {"path": ["a b"]}, run_dir=Path("run"))
    command = RunFolder(args, "number", args.env_id).resume_command()
    assert command.endswith("""--resume run --env-id own:Drift-v0 --env-kwargs '{"path": ["a b"]}'""")
    assert RunFolder(Args(run_dir=Path("run")), "number", "Drift-v0").resume_command().endswith("--resume run")


def test_an_extended_run_remembers_that_it_was_extended(command):
    main(Args(run_dir=Path("run"), total_frames=20))
    versions = read_config(Path("run"))["versions"]
    stops = iter([25])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "goes_on", lambda run, counters: counters.frames < next(stops))
        stops = iter(range(22, 26))
        with pytest.raises(StopIteration):  # the run dies after the checkpoint that resuming wrote
            main(replace(from_config(Args, Path("run")), total_frames=40))
    assert from_config(Args, Path("run")) == Args(resume=Path("run"), total_frames=40)
    assert read_config(Path("run"))["versions"] == versions
    assert command("--resume", "run")[0] == 0
    main(Args(run_dir=Path("whole")))
    assert record(Path("run")) == record(Path("whole"))


def test_only_arguments_that_do_not_matter_may_change(command):
    main(Args(run_dir=Path("run"), total_frames=10))
    before = contents(Path("run"))
    fixed = {name for name in vars(Args()) if name not in CHANGEABLE_ON_RESUME}
    fixed -= {"env_id", "env_kwargs", "hidden"}
    unusual = {"settings": "laptop", "her": "0.5"}
    for name in sorted(fixed):
        value = getattr(Args(), name)
        other = unusual.get(name) or str(value / 2 if isinstance(value, float) else value + 1)
        code, _, said = command("--resume", "run", f"--{name.replace('_', '-')}", other)
        assert code == 2
        expected = f"this run has --{name.replace('_', '-')} {value}, got {other}"
        assert expected in said, said
    assert contents(Path("run")) == before


def test_nothing_that_may_change_on_resume_changes_what_is_learned(capsys):
    main(Args(run_dir=Path("plain")))
    other = Args(run_dir=Path("other"), eval_interval=7, eval_episodes=2, final_episodes=1, checkpoint_interval=4)
    main(replace(other, stop_at_score=1e9, threads=2, capture_video=True, device="auto", wandb_project="p"))
    assert record(Path("plain"))[0] == record(Path("other"))[0]


@dataclass
class Shape:
    sides: int
    name: str | None = None
    lengths: tuple[float, ...] = ()


SQUARE = {"sides": 4, "name": None, "lengths": [1, 1.5]}


def test_a_dataclass_comes_back_from_json():
    assert typed(Shape, json.loads(json.dumps(SQUARE)), "file") == Shape(4, None, (1, 1.5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "file: sides is missing"),
        ({"sides": 4, "lengths": []}, "file: name is missing"),  # even where there is a default
        (SQUARE | {"sides": "4"}, "file: sides must be <class 'int'>, got '4'"),
        (SQUARE | {"sides": True}, "file: sides must be <class 'int'>, got True"),
        (SQUARE | {"sides": 4.0}, "file: sides must be <class 'int'>, got 4.0"),
        (SQUARE | {"name": 3}, "file: name must be str | None, got 3"),
        (SQUARE | {"lengths": ["1"]}, "file: lengths must be tuple[float, ...], got ['1']"),
    ],
)
def test_values_that_do_not_fit_a_dataclass_are_named(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        typed(Shape, values, "file")
