"""TensorBoard and Weights & Biases: copies of the metrics that are right, and may fail without harm."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_tracking import HEADER, NoSink, csv

from taac_wrappers.training import tracking
from taac_wrappers.training.tracking import Tracker

# TensorBoard


def events(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(run_dir / "tensorboard"))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_has_the_metrics_and_drops_what_a_resume_undoes(tmp_path):
    first = Tracker(tmp_path, {})
    first.log(10, {"a": 1.5})
    position = first.position()
    first.log(20, {"a": 99})
    first.flush()
    assert events(tmp_path) == {"a": [(10, 1.5), (20, 99)]}
    first.close()
    second = Tracker(tmp_path, {}, resume_at=position)
    second.log(20, {"a": 2.5, "b": math.nan})
    second.close()
    found = events(tmp_path)
    assert found["a"] == [(10, 1.5), (20, 2.5)]
    assert len(found["b"]) == 1


def test_tensorboard_drops_what_a_resume_undoes_at_the_same_frame_too(tmp_path):
    """A run that is killed after its final evaluation, at the frame of its last checkpoint, evaluates once more."""
    first = Tracker(tmp_path, {})
    first.log(10, {"a": 0.5})
    first.log(20, {"a": 1.5})
    first.log(20, {"a": 2.5, "b": 3.5})
    position = first.position()
    first.log(20, {"final": 4.5})
    first.close()
    for _ in range(2):
        again = Tracker(tmp_path, {}, resume_at=position)
        again.log(20, {"final": 4.5})
        again.close()
    assert events(tmp_path) == {"a": [(10, 0.5), (20, 1.5), (20, 2.5)], "b": [(20, 3.5)], "final": [(20, 4.5)]}


def test_tensorboard_shows_the_settings_as_a_table(tmp_path):
    config = {"method": "taac", "args": {"gamma": 0.9, "env_kwargs": {"frame_skip": 2}}}
    first = Tracker(tmp_path, config)
    first.log(10, {"a": 1.5})
    position = first.position()
    first.close()
    Tracker(tmp_path, config | {"method": "changed"}, resume_at=position).close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    shown = accumulator.Tensors("hyperparameters/text_summary")
    assert [event.step for event in shown] == [0, 10]
    table = shown[0].tensor_proto.string_val[0].decode()
    assert table == "|param|value|\n|-|-|\n|method|taac|\n|args.gamma|0.9|\n|args.env_kwargs|{'frame_skip': 2}|"
    assert "|method|changed|" in shown[1].tensor_proto.string_val[0].decode()


# Weights & Biases


class FakeRun:
    def __init__(self, fail_at: int | None):
        self.logged: list[dict] = []
        self.axes: list[tuple] = []
        self.finished = 0
        self.fail_at = fail_at
        self.calls = 0

    def define_metric(self, name, step_metric=None):
        self.axes.append((name, step_metric))

    def log(self, metrics):
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("network gone")
        self.logged.append(metrics)

    def finish(self):
        self.finished += 1


class FakeWandb(types.ModuleType):
    """Records how it was started. Starting fails in the modes of ``broken``, and then holds on to the run's id."""

    def __init__(self):
        super().__init__("wandb")
        self.broken: set[str] = set()
        self.fail_at: int | None = None
        self.started: list[dict] = []
        self.runs: list[FakeRun] = []
        self.held_id: str | None = None
        self.Settings = lambda **settings: types.SimpleNamespace(finish_timeout=0, **settings)

    def init(self, **arguments):
        self.started.append(arguments)
        if arguments["id"] == self.held_id:
            raise RuntimeError("run ID is in use")
        if arguments["mode"] in self.broken:
            self.held_id = arguments["id"]
            raise RuntimeError(f"no {arguments['mode']}\ntoday")
        self.runs.append(FakeRun(self.fail_at))
        return self.runs[-1]

    def teardown(self):
        self.held_id = None

    def setup(self):
        base_url = os.environ.get("WANDB_BASE_URL", "https://api.default.org")
        return types.SimpleNamespace(settings=types.SimpleNamespace(base_url=base_url))


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """A fake wandb on a machine where no key is configured."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tracking, "TensorBoard", NoSink)
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "run").mkdir()
    return fake


def test_not_tracked_unless_asked(tmp_path, wandb):
    tracker = Tracker(tmp_path / "run", {}, project="p", run_id="x")
    assert tracker.run_id is None
    tracker.close()
    assert wandb.started == []


def test_offline_without_a_key(tmp_path, wandb, capsys):
    tracker = Tracker(tmp_path / "run", {"lr": 0.1}, track=True, project="p", entity="e")
    tracker.log(7, {"a": torch.tensor(0.5)})
    tracker.flush()
    tracker.close()
    (started,) = wandb.started
    settings = started.pop("settings")
    assert 0 < settings.init_timeout <= 30  # by default it waits for minutes
    assert 0 < settings.finish_timeout <= 60  # by default it waits for ever
    assert started == {
        "project": "p",
        "entity": "e",
        "config": {"lr": 0.1},
        "name": "run",
        "dir": str(tmp_path / "run"),
        "id": tracker.run_id,
        "resume": "allow",
        "mode": "offline",
    }
    (run,) = wandb.runs
    assert run.axes == [("frame", None), ("*", "frame")]
    assert run.logged == [{"frame": 7, "a": 0.5}]
    assert run.finished == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_run_ids_differ_and_continue(tmp_path, wandb):
    first = Tracker(tmp_path / "run", {}, track=True)
    position = first.position()
    first.close()
    second = Tracker(tmp_path / "run", {}, track=True, run_id=first.run_id, resume_at=position)
    second.close()
    (tmp_path / "other").mkdir()
    other = Tracker(tmp_path / "other", {}, track=True)
    other.close()
    assert [started["id"] for started in wandb.started] == [first.run_id, first.run_id, other.run_id]
    assert second.run_id == first.run_id != other.run_id


def netrc_file(path: Path, host: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"machine {host}\n  login user\n  password {'0' * 40}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("setup", "mode"),
    [
        (lambda home, env: env("WANDB_API_KEY", "0" * 40), "online"),
        (lambda home, env: env("WANDB_API_KEY", ""), "offline"),
        (lambda home, env: netrc_file(home / ".netrc", "api.wandb.ai"), "online"),
        (lambda home, env: netrc_file(home / "_netrc", "api.wandb.ai"), "online"),
        (lambda home, env: netrc_file(home / ".netrc", "api.default.org"), "online"),
        (lambda home, env: netrc_file(home / ".netrc", "example.org"), "offline"),
        (lambda home, env: env("NETRC", str(netrc_file(home / "elsewhere", "api.wandb.ai"))), "online"),
        (lambda home, env: (home.mkdir(), (home / ".netrc").write_text("machine")), "offline"),
        (lambda home, env: env("WANDB_MODE", "online"), "online"),
        (lambda home, env: env("WANDB_MODE", "disabled"), "disabled"),
        (lambda home, env: (env("WANDB_MODE", "offline"), env("WANDB_API_KEY", "0" * 40)), "offline"),
        (
            lambda home, env: (
                env("WANDB_BASE_URL", "https://own.example.org:8080"),
                netrc_file(home / ".netrc", "own.example.org:8080"),
            ),
            "online",
        ),
    ],
)
def test_mode(tmp_path, wandb, monkeypatch, setup, mode):
    setup(tmp_path / "home", monkeypatch.setenv)
    Tracker(tmp_path / "run", {}, track=True).close()
    assert [started["mode"] for started in wandb.started] == [mode]


def test_falls_back_to_offline(tmp_path, wandb, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.broken = {"online"}
    tracker = Tracker(tmp_path / "run", {}, track=True)
    tracker.log(1, {"a": 1})
    tracker.close()
    assert [started["mode"] for started in wandb.started] == ["online", "offline"]
    assert wandb.runs[0].logged == [{"frame": 1, "a": 1.0}]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "Weights & Biases could not start online (no online today); going on offline"


def test_goes_on_without_it(tmp_path, wandb, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.broken = {"online", "offline"}
    tracker = Tracker(tmp_path / "run", {}, track=True)
    tracker.log(1, {"a": 1})
    tracker.close()
    assert csv(tmp_path / "run") == HEADER + "1,a,1.0\n"
    assert "going on without it" in capsys.readouterr().err.splitlines()[-1]


def test_failing_in_the_middle_is_said_once_and_harmless(tmp_path, wandb, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.fail_at = 2
    tracker = Tracker(tmp_path / "run", {}, track=True)
    for frame in (1, 2, 3, 4):
        tracker.log(frame, {"a": 0})
    tracker.close()
    assert csv(tmp_path / "run") == HEADER + "".join(f"{frame},a,0.0\n" for frame in (1, 2, 3, 4))
    (run,) = wandb.runs
    assert (run.calls, run.finished) == (2, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "Weights & Biases failed and is left out from here on (network gone); metrics.csv goes on"


def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "TensorBoard", NoSink)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "taac-wrappers\[track\]"'):
        Tracker(tmp_path, {}, track=True)
    assert not list(tmp_path.iterdir())


OFFLINE_RUN = """
import sys
from taac_wrappers.training.tracking import Tracker
tracker = Tracker(sys.argv[1], {"seed": 1}, track=True, project="p")
for frame in range(5):
    tracker.log(frame, {"a": frame})
tracker.close()
print(tracker.run_id)
"""


def test_the_real_thing_offline(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    environment |= {"HOME": str(tmp_path / "home")}
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", OFFLINE_RUN, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[-1]
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert folder.name.endswith(run_id)
    assert list(folder.glob("*.wandb"))
    assert "failed" not in done.stderr
