"""A run's folder: how it comes to be, and whether it may be resumed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from number_script import Args, contents, main, record

from taac_wrappers.training import folder as folder_module
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import BadInput
from taac_wrappers.training.config import from_config
from taac_wrappers.training.files import read_config
from taac_wrappers.training.folder import RunFolder

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")


def test_the_folder_is_named_after_what_runs(monkeypatch):
    monkeypatch.setattr(folder_module.time, "strftime", lambda layout: "now")
    folder = RunFolder(Args(seed=3), "number", "test_run/Drift-v0")
    assert folder.path == Path("runs/test_run_Drift-v0__number__3__now")
    folder = RunFolder(Args(), "number", "my.module:test_run/Drift-v0")
    assert folder.path == Path("runs/my.module_test_run_Drift-v0__number__0__now")


def test_no_permission_to_write(command, monkeypatch, tmp_path):
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    code, _, said = command("--run-dir", "run")
    assert (code, said) == (2, "error: --run-dir: cannot create 'run': Permission denied\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ImportError("no wandb"), OSError("disk"), KeyboardInterrupt()])
def test_a_new_folder_vanishes_if_tracking_cannot_start(monkeypatch, tmp_path, error):
    def fail(*_: Any, **__: Any) -> None:
        assert Path("run").is_dir()
        raise error

    monkeypatch.setattr(run_module, "Tracker", fail)
    with pytest.raises((BadInput, KeyboardInterrupt)):
        main(Args(run_dir=Path("run")))
    assert list(tmp_path.iterdir()) == []


def test_a_run_to_resume_survives_that_tracking_cannot_start(monkeypatch):
    main(Args(run_dir=Path("run"), total_frames=10))
    before = contents(Path("run"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match="tracking needs wandb"):
        main(replace(from_config(Args, Path("run")), track=True))
    assert contents(Path("run")) == before


def test_a_run_without_a_checkpoint_begins_anew(command, capsys):
    main(Args(run_dir=Path("whole")))
    main(Args(run_dir=Path("run"), total_frames=10))
    shutil.rmtree("run/checkpoint")
    code, out, _ = command("--resume", "run", "--total-frames", "40")
    assert code == 0
    assert "run holds no checkpoint yet: starting from the beginning\n" in out
    assert record(Path("run")) == record(Path("whole"))
    assert len(list(Path("run/tensorboard").iterdir())) == 1  # of this beginning, not of the one before

    (Path("run/metrics.csv")).unlink()
    shutil.rmtree("run/checkpoint")  # as if killed just after the folder was made
    assert command("--resume", "run")[0] == 0
    assert record(Path("run")) == record(Path("whole"))


def test_a_folder_that_was_never_finished_is_not_in_the_way(tmp_path):
    Path(".tmp-run").mkdir()
    Path(".tmp-run/.tmp-config.json").write_text("{")
    main(Args(run_dir=Path("run"), total_frames=10))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("call", ["write_config", "os.rename"])
def test_a_folder_that_cannot_be_finished_leaves_nothing(command, monkeypatch, tmp_path, call):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"taac_wrappers.training.folder.{call}", full)
    code, _, said = command("--run-dir", "run")
    assert (code, said) == (2, "error: --run-dir: cannot create 'run': No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_what_belongs_to_something_else(command):
    main(Args(run_dir=Path("run"), total_frames=10))
    main(Args(run_dir=Path("dark"), env_id="test_run/DarkDrift-v0", total_frames=10))
    code, _, said = command("--resume", "run", "--env-id", "test_run/DarkDrift-v0")
    expected = "error: --resume: this run has --env-id test_run/Drift-v0, got test_run/DarkDrift-v0; start a new run"
    assert (code, said.startswith(expected)) == (2, True)
    code, _, said = command("--resume", "run", "--run-dir", "elsewhere")
    assert (code, said) == (2, "error: --run-dir elsewhere is for a new run, but --resume continues run\n")

    shutil.rmtree("run/checkpoint")
    Path("dark/checkpoint").rename("run/checkpoint")
    code, _, said = command("--resume", "run")
    assert code == 2
    assert said.endswith("is a checkpoint of test_run/DarkDrift-v0, not of test_run/Drift-v0\n")

    config = read_config(Path("run"))
    for changes, message in [
        ({"method": "other"}, "'run' is a run of other, not of number"),
        ({"resolved_env_id": "Drift-v9"}, "this run was of Drift-v9, which is now test_run/Drift-v0"),
        ({"args": {"seed": 0}}, "'run' is a run of another script or version (['batch_size', "),
    ]:
        Path("run/config.json").write_text(json.dumps(config | changes))
        code, _, said = command("--resume", "run")
        assert code == 2
        assert said.startswith(f"error: --resume: {message}")


def test_resume_refuses_a_checkpoint_that_is_damaged_throughout(command):
    main(Args(run_dir=Path("run")))
    generations = sorted(Path("run/checkpoint").glob("0*"))
    assert len(generations) == 2
    for generation in generations:
        os.truncate(generation / "state.safetensors", 10)
    before = contents(Path("run"))
    code, _, said = command("--resume", "run", "--total-frames", "99")
    assert code == 2
    assert said.startswith("error: no checkpoint is usable: ")
    assert all(str(generation) in said for generation in generations)
    assert said.count("\n") == 1
    assert contents(Path("run")) == before
