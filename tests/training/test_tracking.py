"""Tracking: metrics that round-trip and resume byte for byte, and copies of them that may fail without harm."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from taac_wrappers.training import tracking
from taac_wrappers.training.tracking import (
    Tracker,
    plot_curve,
    read_config,
    read_json,
    read_metrics,
    write_atomically,
    write_config,
)

HEADER = "frame,metric,value\n"


@pytest.fixture
def clock(monkeypatch):
    """The tracker's clock, which stands still unless a test moves it."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(tracking.time, "monotonic", lambda: clock.now)
    return clock


class NoSink:
    """In place of TensorBoard where a test is about the file alone: starting TensorBoard takes its time."""

    name = "nothing"

    def __init__(self, run_dir, last_frame):
        pass

    def log(self, frame, metrics):
        pass

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def no_tensorboard(monkeypatch):
    monkeypatch.setattr(tracking, "_TensorBoard", NoSink)


def csv(run_dir: Path) -> str:
    return (run_dir / "metrics.csv").read_bytes().decode()


# metrics.csv


def test_every_kind_of_number_is_written_exactly(tmp_path, no_tensorboard):
    tracker = Tracker(tmp_path, {})
    values = {"int": 3, "float": 0.1, "bool": True, "inf": -math.inf, "nan": math.nan}
    values |= {"f32": np.float32(0.1), "i64": np.int64(7), "0-d": np.array(2.5), "tensor": torch.tensor(0.1)}
    values["needs grad"] = torch.tensor(1.5, requires_grad=True) * 2
    tracker.log(12, values)
    tracker.log(np.int64(13), {"int": 4})
    tracker.close()
    f32 = "0.10000000149011612"
    expected = f"int,3.0 float,0.1 bool,1.0 inf,-inf nan,nan f32,{f32} i64,7.0 0-d,2.5 tensor,{f32}".split()
    expected.append("needs grad,3.0")
    assert csv(tmp_path) == HEADER + "".join(f"12,{line}\n" for line in expected) + "13,int,4.0\n"


@settings(deadline=None)  # a busy disk is no fault
@given(value=st.floats())
def test_values_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    path.write_text(f"{HEADER}1,a,{tracking._to_float('a', value)!r}\n")
    (read,) = read_metrics(path)["a"][1]
    assert read == value or (math.isnan(read) and math.isnan(value))


def test_read_metrics(tmp_path, no_tensorboard):
    tracker = Tracker(tmp_path, {})
    tracker.log(1, {"a": 0.1, "b": 2})
    tracker.log(5, {"a": math.nan})
    tracker.close()
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert list(metrics) == ["a", "b"]
    frames, values = metrics["a"]
    assert frames.dtype == np.int64
    assert values.dtype == np.float64
    assert frames.tolist() == [1, 5]
    np.testing.assert_array_equal(values, [0.1, math.nan])
    assert [column.tolist() for column in metrics["b"]] == [[1], [2.0]]


def test_one_torn_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    text = HEADER + "1,a,0.5\n2,a,0.25\n"
    rows = {len(HEADER): 0, len(HEADER + "1,a,0.5\n"): 1, len(text): 2}
    for length in range(len(text) + 1):
        path.write_text(text[:length])
        complete = max((count for end, count in rows.items() if end <= length), default=0)
        assert len(read_metrics(path).get("a", ([], []))[0]) == complete


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "line 1 must be 'frame,metric,value', got b'a,b'"),
        (HEADER + "1,a,0.5\n2,a\n3,a,1.0\n", "line 3 must be 'frame,metric,value', got b'2,a'"),
        (HEADER + "x,a,0.5\n", "line 2 must be"),
        (HEADER + "1,a,much\n", "line 2 must be"),
        (HEADER + "1,a,1.0,2.0\n", "line 2 must be"),
        (HEADER + "1,a,1.0\n\n", "line 3 must be"),
        (HEADER + "1,a\udcff,1.0\n", "line 2 must be"),
    ],
)
def test_malformed_lines_are_named(tmp_path, text, message):
    path = tmp_path / "metrics.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message):
        read_metrics(path)


@pytest.mark.parametrize(
    ("frame", "metrics", "error", "message"),
    [
        (-1, {"a": 1}, ValueError, "frame must not be negative, got -1"),
        (1.5, {"a": 1}, TypeError, r"frame must be an integer, got 1\.5"),
        (1, {"ok": 1, "a,b": 1}, ValueError, "metric names must be .* got 'a,b'"),
        (1, {"a\n": 1}, ValueError, "metric names"),
        (1, {"": 1}, ValueError, "metric names"),
        (1, {3: 1}, ValueError, "metric names must be .* got 3"),
        (1, {"ok": 1, "a": "3"}, TypeError, "metric 'a' must be a single number, got '3'"),
        (1, {"a": None}, TypeError, "metric 'a' must be a single number, got None"),
        (1, {"a": np.ones(1)}, TypeError, "metric 'a' must be a single number"),
        (1, {"a": torch.ones(2)}, TypeError, "metric 'a' must be a single number"),
    ],
)
def test_bad_metrics_leave_no_trace(tmp_path, no_tensorboard, frame, metrics, error, message):
    tracker = Tracker(tmp_path, {})
    with pytest.raises(error, match=message):
        tracker.log(frame, metrics)
    tracker.close()
    assert csv(tmp_path) == HEADER


def test_lines_are_buffered_and_written_every_few_seconds(tmp_path, clock, no_tensorboard):
    tracker = Tracker(tmp_path, {})
    tracker.log(1, {"a": 1})
    assert csv(tmp_path) == HEADER
    clock.now += 5.5
    tracker.log(2, {"a": 2})
    assert csv(tmp_path) == HEADER + "1,a,1.0\n2,a,2.0\n"
    tracker.log(3, {"a": 3})
    assert csv(tmp_path).endswith("2,a,2.0\n")
    tracker.flush()
    assert csv(tmp_path).endswith("3,a,3.0\n")
    tracker.log(4, {"a": 4})
    assert tracker.position() == len(csv(tmp_path))
    assert csv(tmp_path).endswith("4,a,4.0\n")
    tracker.close()
    tracker.close()


def test_a_resumed_run_writes_the_same_bytes(tmp_path, no_tensorboard):
    def log(tracker, frames):
        for frame in frames:
            tracker.log(frame, {"losses/critic": math.sqrt(frame), "charts/return": -frame})

    (tmp_path / "whole").mkdir()
    whole = Tracker(tmp_path / "whole", {})
    log(whole, range(100))
    whole.close()
    for stop in (0, 1, 40):
        run_dir = tmp_path / f"resumed at {stop}"
        run_dir.mkdir()
        first = Tracker(run_dir, {})
        log(first, range(stop))
        position = first.position()
        log(first, range(stop, stop + 7))  # lost: the checkpoint knows nothing of them
        first.close()
        with open(run_dir / "metrics.csv", "ab") as file:
            file.write(b"47,losses/cri")  # torn by a kill
        second = Tracker(run_dir, {}, resume_at=position)
        assert len(csv(run_dir)) == position
        log(second, range(stop, 100))
        second.close()
        assert csv(run_dir) == csv(tmp_path / "whole")


@pytest.mark.parametrize("resume_at", [0, 5, 20, 1000, -1, 26.0, True])
def test_a_wrong_resume_at_is_named_and_changes_nothing(tmp_path, no_tensorboard, resume_at):
    text = HEADER + "1,a,1.0\n2,a,2.0\n"
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match=f"resume_at must be .*got {resume_at}"):
        Tracker(tmp_path, {}, resume_at=resume_at)
    assert csv(tmp_path) == text
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_another_file_is_not_continued(tmp_path, no_tensorboard):
    (tmp_path / "metrics.csv").write_text("time,metric,amount\n1,a,1.0\n")
    with pytest.raises(ValueError, match="line 1 must be 'frame,metric,value'"):
        Tracker(tmp_path, {}, resume_at=27)


def test_existing_metrics_are_not_overwritten(tmp_path, no_tensorboard):
    (tmp_path / "metrics.csv").write_text(HEADER + "1,a,1.0\n")
    with pytest.raises(ValueError, match=r"already holds metrics\.csv"):
        Tracker(tmp_path, {})
    assert csv(tmp_path) == HEADER + "1,a,1.0\n"


class FullDisk:
    """A file that takes ``room`` more bytes, a few at a time, and then fails until there is room again."""

    def __init__(self, file, room: int):
        self._file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self._file.__enter__()

    def __exit__(self, *args):
        return self._file.__exit__(*args)

    def write(self, data):
        count = min(self.room, 3, len(data))
        if count == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= count
        return self._file.write(data[:count])


def test_a_full_disk_delays_metrics_and_loses_none(tmp_path, clock, capsys, no_tensorboard):
    tracker = Tracker(tmp_path, {})
    disk = tracker._file = FullDisk(tracker._file, room=5)
    for frame in range(1, 26):  # 150 s
        tracker.log(frame, {"a": frame})
        clock.now += 6
        tracker.flush()
    assert csv(tmp_path) == HEADER + "1,a,1"
    complaints = capsys.readouterr().err.splitlines()
    assert len(complaints) == 3  # one a minute
    assert "metrics.csv cannot be written (No space left on device)" in complaints[0]
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.csv'"):
        tracker.position()
    disk.room = 10**6
    assert tracker.position() == len(csv(tmp_path))
    tracker.close()
    assert csv(tmp_path) == HEADER + "".join(f"{frame},a,{float(frame)}\n" for frame in range(1, 26))
    assert capsys.readouterr().err == ""


def test_closing_with_metrics_unwritten_is_an_error(tmp_path, no_tensorboard):
    tracker = Tracker(tmp_path, {})
    file = tracker._file
    tracker._file = FullDisk(file, room=0)
    tracker.log(1, {"a": 1})
    with pytest.raises(OSError, match="No space left"):
        tracker.close()
    assert file.closed


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


def test_tensorboard_failing_does_not_stop_the_run(tmp_path, capsys, monkeypatch):
    def broken(self, *args):
        raise OSError("no space for events")

    monkeypatch.setattr(NoSink, "log", broken)
    monkeypatch.setattr(NoSink, "name", "TensorBoard")
    monkeypatch.setattr(tracking, "_TensorBoard", NoSink)
    tracker = Tracker(tmp_path, {})
    for frame in (1, 2, 3):
        tracker.log(frame, {"a": frame})
    tracker.close()
    assert csv(tmp_path) == HEADER + "1,a,1.0\n2,a,2.0\n3,a,3.0\n"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "TensorBoard failed and is left out from here on (no space for events); metrics.csv goes on"


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
def wandb(monkeypatch, tmp_path, no_tensorboard):
    """A fake wandb on a machine where no key is configured."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
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


def test_a_missing_package_is_named_before_anything_is_written(tmp_path, no_tensorboard, monkeypatch):
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


# config.json


def test_config_round_trip(tmp_path):
    config = {"seed": 3, "env_id": "Ant-v5", "hidden": (256, 256), "gamma": 0.99, "none": None, "nested": {"a": [1]}}
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config | {"hidden": [256, 256]}
    text = (tmp_path / "config.json").read_text()
    assert list(json.loads(text)) == sorted(config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"path": Path("x")}, "config.path must be JSON"),
        ({"a": {"b": np.int64(3)}}, "config.a.b must be JSON .* of type int64"),
        ({3: 4}, "config must have string keys, got 3 of type int"),
    ],
)
def test_a_config_that_is_not_json_is_named_and_changes_nothing(tmp_path, config, message):
    write_config(tmp_path, {"old": 1})
    with pytest.raises(TypeError, match=message):
        write_config(tmp_path, config)
    assert read_config(tmp_path) == {"old": 1}
    with pytest.raises(TypeError, match=message):
        Tracker(tmp_path, config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\x80\x04K\x01.", b"PK\x03\x04", b"[" * 100_000])
def test_a_damaged_config_is_named(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"config\.json: "):
        read_config(tmp_path)


def test_oversized_json_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "JSON_LIMIT", 10)
    (tmp_path / "a.json").write_text('{"a": "123456789"}')
    with pytest.raises(ValueError, match="18 bytes of JSON is above the limit of 10"):
        read_json(tmp_path / "a.json")


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


# curve.png


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []

    def savefig(self, *args, savefig=Figure.savefig, **kwargs):
        figures.append(self)
        return savefig(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def lines(axes) -> dict[str, list[list[float]]]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_curve(tmp_path, drawn):
    write_config(tmp_path, {"env_id": "Hopper-v5", "method": "taac"})
    rows = ["10,charts/episodic_return,1.0", "10,charts/repeat_fraction,0.25", "20,eval/score,3.0"]
    rows += ["20,eval/repeat_fraction,0.5", "30,charts/episodic_return,inf", "40,eval/score,4.0", "40,losses/q,9.0"]
    (tmp_path / "metrics.csv").write_text(HEADER + "\n".join(rows) + "\n")
    path = plot_curve(tmp_path)
    assert path == tmp_path / "curve.png"
    height, width, _ = matplotlib.image.imread(path).shape
    assert (width, height) == (840, 720)
    ((upper, lower),) = [figure.axes for figure in drawn]
    assert upper.get_title() == "Hopper-v5 · taac"
    assert lines(upper) == {"training episodes": [[10, 1], [30, math.inf]], "evaluation": [[20, 3], [40, 4]]}
    assert lines(lower) == {"training": [[10, 25]], "evaluation": [[20, 50]]}
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("score", "repeated frames (%)")
    assert lower.get_xlabel() == "frames"
    faint, bold = upper.lines
    assert faint.get_alpha() < 1
    assert bold.get_alpha() is None
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize(
    "rows", ["", "1,eval/score,2.0\n", "1,charts/episodic_return,nan\n", "1,losses/q,1.0\n", "5,ev"]
)
def test_curve_of_next_to_nothing(tmp_path, drawn, rows):
    write_config(tmp_path, {})
    (tmp_path / "metrics.csv").write_text(HEADER + rows)
    matplotlib.image.imread(plot_curve(tmp_path))
    upper, lower = drawn[0].axes
    assert upper.get_title() == tmp_path.name
    assert [text.get_text() for text in lower.texts] == ["nothing recorded yet"]


# Importing


def test_importing_costs_nothing():
    program = """
import sys, taac_wrappers.training.tracking
print([name for name in ("torch", "wandb", "matplotlib", "tensorboard", "safetensors") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
