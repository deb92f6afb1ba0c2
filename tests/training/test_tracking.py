"""The record of metrics: it round-trips, resumes byte for byte, and outlasts a full disk and a failing copy."""

from __future__ import annotations

import errno
import math
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac_wrappers.training import tracking
from taac_wrappers.training.tracking import Tracker, read_metrics

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

    def __init__(self, run_dir, last_frame, config):
        pass

    def log(self, frame, metrics):
        pass

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def no_tensorboard(monkeypatch):
    monkeypatch.setattr(tracking, "TensorBoard", NoSink)


def csv(run_dir: Path) -> str:
    return (run_dir / "metrics.csv").read_bytes().decode()


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"path": Path("x")}, "config.path must be JSON"),
        ({"a": {"b": np.int64(3)}}, "config.a.b must be JSON .* of type int64"),
        ({3: 4}, "config must have string keys, got 3 of type int"),
    ],
)
def test_a_config_that_is_not_json_is_named_before_anything_is_written(tmp_path, config, message):
    with pytest.raises(TypeError, match=message):
        Tracker(tmp_path, config)
    assert not list(tmp_path.iterdir())


def test_tensorboard_failing_does_not_stop_the_run(tmp_path, capsys, monkeypatch):
    def broken(self, *args):
        raise OSError("no space for events")

    monkeypatch.setattr(NoSink, "log", broken)
    monkeypatch.setattr(NoSink, "name", "TensorBoard")
    monkeypatch.setattr(tracking, "TensorBoard", NoSink)
    tracker = Tracker(tmp_path, {})
    for frame in (1, 2, 3):
        tracker.log(frame, {"a": frame})
    tracker.close()
    assert csv(tmp_path) == HEADER + "1,a,1.0\n2,a,2.0\n3,a,3.0\n"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "TensorBoard failed and is left out from here on (no space for events); metrics.csv goes on"


def test_importing_costs_nothing():
    program = """
import sys
from taac_wrappers.training import curve, files, sinks, tracking
print([name for name in ("torch", "wandb", "matplotlib", "tensorboard", "safetensors") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
