"""A disk that is full or may not be written to: training goes on, says so now and then, and saves when it can."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sac_continuous as sac
import taac_continuous as taac
from number_script import Args, Number, main, metric_lines, plot_curve, record
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from taac_wrappers.training import folder, progress, sinks, tracking
from taac_wrappers.training import run as run_module
from taac_wrappers.training.checkpoint import CheckpointStore
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.tracking import Tracker, read_metrics

pytestmark = [
    pytest.mark.usefixtures("inside_an_empty_folder"),
    # What the thread of TensorBoard's writer dies of is noticed at the next call of the writer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

RUN = Path("run")


@contextlib.contextmanager
def full_disk(largest: int = 0) -> Iterator[None]:
    """The operating system itself refuses to let any file grow beyond ``largest`` bytes: for everybody, everywhere."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Clock:
    """Ten seconds pass with every frame."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        fake = types.SimpleNamespace(monotonic=lambda: self.now, strftime=lambda _: "now")
        for module in (run_module, folder, progress, tracking, sinks):
            monkeypatch.setattr(module, "time", fake)
        # TensorBoard reads files in the order of their names. In truth a minute lies between two of a run; here it is
        # the same second, and a number decides that other tests have driven up: as text, 100 would be before 99.
        monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))

    def __call__(self, counters: Counters) -> None:
        self.now += 10


def test_the_limit_is_one_for_root_too(tmp_path):
    with full_disk(100):
        (tmp_path / "small").write_bytes(b"x" * 100)
        with pytest.raises(OSError, match="File too large"):
            (tmp_path / "large").write_bytes(b"x" * 101)
    (tmp_path / "large").write_bytes(b"x" * 101)


def test_a_full_disk_is_said_once_a_minute_and_saved_to_when_there_is_room(monkeypatch, capsys):
    args = Args(total_frames=120, checkpoint_interval=30)
    main(replace(args, run_dir=Path("whole")))
    clock, saved, said = Clock(monkeypatch), {}, {}
    disk = contextlib.ExitStack()
    capsys.readouterr()

    def at_frame(counters: Counters) -> None:
        clock(counters)
        saved[counters.frames] = CheckpointStore(RUN).newest_frame()
        said[counters.frames] = capsys.readouterr().err
        if counters.frames == 31:
            disk.enter_context(full_disk(1000))
        if counters.frames == 94:
            disk.close()

    with disk:
        assert main(replace(args, run_dir=RUN), at_frame) == 0
    # The save due at frame 60 fails, then one try a minute, which is six frames. The one at frame 90 is not mentioned.
    goes_on = "training goes on, and saving is tried again"
    assert [frame for frame, text in said.items() if goes_on in text] == [60, 66, 72, 78, 84, 90]
    assert [frame for frame, text in said.items() if "saved again, at frame 95" in text] == [96]
    assert "File too large: 'run/" in said[60]
    assert [saved[frame] for frame in (29, 30, 60, 95, 96, 119)] == [None, 30, 30, 30, 95, 95]
    assert record(RUN) == record(Path("whole"))


def test_what_a_full_disk_left_out_of_the_metrics_comes_later(monkeypatch, capsys):
    main(Args(run_dir=Path("whole"), total_frames=60))
    clock = Clock(monkeypatch)
    disk, sizes = contextlib.ExitStack(), []

    def at_frame(counters: Counters) -> None:
        clock(counters)
        sizes.append((RUN / "metrics.csv").stat().st_size)
        if counters.frames == 20:
            disk.enter_context(full_disk(sizes[-1]))
        if counters.frames == 50:
            disk.close()

    with disk:
        assert main(Args(run_dir=RUN, total_frames=60), at_frame) == 0
    assert len(set(sizes[20:50])) == 1
    assert metric_lines(RUN) == metric_lines(Path("whole"))


def curves_of(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows; of the metric that measures time only when."""
    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(e.step, 0 if "SPS" in tag else e.value) for e in accumulator.Scalars(tag)] for tag in tags}


def test_what_a_full_disk_left_out_of_tensorboard_comes_later(monkeypatch, capsys):
    args = Args(total_frames=120, checkpoint_interval=30)
    main(replace(args, run_dir=Path("whole")))
    clock, disk = Clock(monkeypatch), contextlib.ExitStack()
    capsys.readouterr()

    def at_frame(counters: Counters) -> None:
        clock(counters)
        if counters.frames == 20:
            disk.enter_context(full_disk((RUN / "metrics.csv").stat().st_size))
        if counters.frames == 50:
            disk.close()

    with disk:
        assert main(replace(args, run_dir=RUN), at_frame) == 0
    assert capsys.readouterr().err.count("TensorBoard cannot be written ([Errno 27] File too large") == 1
    assert len(list((RUN / "tensorboard").iterdir())) == 2
    assert curves_of(RUN) == curves_of(Path("whole"))


@pytest.mark.parametrize("full_at", [0, 1, 2, 3])
def test_tensorboard_loses_nothing_whenever_the_disk_is_full(monkeypatch, capsys, full_at):
    records = [(5, {"a": 1.0}), (5, {"b": 2.0}), (6, {"a": 3.0}), (7, {"a": 4.0, "b": 5.0})]
    whole = {"a": [(5, 1.0), (6, 3.0), (7, 4.0)], "b": [(5, 2.0), (7, 5.0)]}
    clock = Clock(monkeypatch)
    RUN.mkdir()
    tracker = Tracker(RUN, {})
    (events,) = (RUN / "tensorboard").iterdir()
    for number, (frame, metrics) in enumerate(records):
        size = events.stat().st_size
        with full_disk(size + 5) if number == full_at else contextlib.nullcontext():  # the next event is torn
            tracker.log(frame, metrics)
            tracker.flush()
        grown = events.stat().st_size - size
        assert grown > 5 if number < full_at else grown == (5 if number == full_at else 0)
    assert curves_of(RUN) != whole  # within the same minute nothing is tried
    clock.now += 60
    tracker.flush()
    assert curves_of(RUN) == whole
    tracker.close()
    assert curves_of(RUN) == whole
    assert capsys.readouterr().err.count("TensorBoard cannot be written ([Errno 27] File too large)") == 1


def test_tensorboard_gets_what_it_missed_at_the_latest_at_the_end(capsys):
    RUN.mkdir()
    with full_disk(40):  # room for metrics.csv
        tracker = Tracker(RUN, {})
        tracker.log(5, {"a": 1.0})
        tracker.flush()
    assert "TensorBoard cannot be written" in capsys.readouterr().err
    tracker.close()
    assert curves_of(RUN) == {"a": [(5, 1.0)]}


@pytest.mark.parametrize("first_save", [True, False])
def test_a_disk_that_stays_full_ends_with_one_line_and_code_1(capsys, first_save):
    main(Args(run_dir=Path("whole")))
    capsys.readouterr()
    disk = contextlib.ExitStack()

    def at_frame(counters: Counters) -> None:
        if counters.frames == (20 if first_save else 1):
            disk.enter_context(full_disk((RUN / "metrics.csv").stat().st_size))

    with disk:
        assert main(Args(run_dir=RUN), at_frame) == 1
    output = capsys.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert "File too large" in line
    assert "the last lines of metrics.csv are lost" in line
    assert "agent: " not in output.out
    assert "score" in output.out  # the last evaluation is told all the same
    lines = (RUN / "metrics.csv").read_text().splitlines(keepends=True)
    assert all(line.endswith("\n") for line in lines)
    assert [line for line in lines if "SPS" not in line] == [
        line + "\n" for line in metric_lines(Path("whole"))[: len([line for line in lines if "SPS" not in line])]
    ]
    if first_save:
        assert "what was learned after frame 15 is lost, continue from there with python " in line
        assert main(Args(resume=RUN)) == 0
        assert record(RUN) == record(Path("whole"))
    else:
        assert "nothing of this run is saved" in line
        assert not CheckpointStore(RUN).exists()
        assert not (RUN / "agent.safetensors").exists()


def test_an_interrupted_run_that_cannot_be_saved_does_not_claim_so(capsys):
    disk = contextlib.ExitStack()

    def at_frame(counters: Counters) -> None:
        if counters.frames == 20:
            disk.enter_context(full_disk())
            os.kill(os.getpid(), 15)

    with disk:
        assert main(Args(run_dir=RUN), at_frame) == 1
    assert "interrupted and saved" not in capsys.readouterr().out


def in_the_way(path: Path) -> None:
    """Something else has the place, so that nothing can be written there whatever the permissions."""
    if path.is_dir():
        shutil.move(path, "aside")
        path.write_text("in the way")
    else:
        path.mkdir()


def test_a_folder_that_may_not_be_written_to(monkeypatch, capsys):
    clock = Clock(monkeypatch)

    def at_frame(counters: Counters) -> None:
        clock(counters)
        if counters.frames == 20:
            in_the_way(RUN / "checkpoint")
        if counters.frames == 37:
            (RUN / "checkpoint").unlink()
            shutil.move("aside", RUN / "checkpoint")

    assert main(Args(run_dir=RUN, total_frames=44), at_frame) == 0
    said = capsys.readouterr().err
    assert said.count("training goes on, and saving is tried again") == 2  # at frames 30 and 35
    assert "saved again, at frame 41" in said
    assert CheckpointStore(RUN).load().frame == 44


def test_only_the_agent_file_cannot_be_written(monkeypatch, capsys):
    save = Number.save

    def at_frame(counters: Counters) -> None:
        if counters.frames == 20:
            monkeypatch.setattr(Number, "save", lambda self, path: Path("missing/agent").write_text("x"))

    assert main(Args(run_dir=RUN), at_frame) == 1
    output = capsys.readouterr()
    assert "the checkpoint is saved, but agent.safetensors is not of the last frame" in output.err
    monkeypatch.setattr(Number, "save", save)
    assert main(Args(resume=RUN)) == 0
    assert CheckpointStore(RUN).load().frame == 40


def test_only_the_curve_cannot_be_written(monkeypatch, capsys):
    monkeypatch.setattr(run_module, "plot_curve", plot_curve)

    def at_frame(counters: Counters) -> None:
        if counters.frames == 40:
            in_the_way(RUN / "curve.png")

    assert main(Args(run_dir=RUN), at_frame) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.endswith("there is no new curve.png")
    assert CheckpointStore(RUN).load().frame == 40


def test_a_video_that_cannot_be_written_is_left_out(capsys):
    def at_frame(counters: Counters) -> None:
        if counters.frames == 5:
            shutil.rmtree(RUN / "videos", ignore_errors=True)
            (RUN / "videos").write_text("in the way")

    assert main(Args(run_dir=RUN, capture_video=True), at_frame) == 0
    said = capsys.readouterr().err
    assert said.count("no video of frame 10: ") == 1
    assert "no video of frame 20" not in said  # not within the same minute


SMALL = {
    "total_frames": 60,
    "hidden": (8, 8),
    "learning_starts": 10,
    "batch_size": 8,
    "eval_interval": 60,
    "eval_episodes": 1,
    "final_episodes": 1,
    "checkpoint_interval": 20,
    "buffer_size": 100,
}


@pytest.mark.parametrize("script", [taac, sac], ids=["taac", "sac"])
def test_both_scripts_outlast_a_full_disk(script, capsys):
    args = replace(script.Args.for_task("Pendulum-v1"), run_dir=RUN, **SMALL)
    with full_disk(2000):  # room for config.json and some metrics
        assert script.main(args) == 1
    assert "nothing of this run is saved" in capsys.readouterr().err
    assert script.main(replace(args, run_dir=Path("with room"))) == 0


@pytest.mark.parametrize("script", [taac, sac], ids=["taac", "sac"])
def test_a_log_on_the_same_full_disk_does_not_end_the_run(script):
    """As in ``python agents/... > log 2>&1``: even saying that the disk is full fails."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "hidden"]
    command = [sys.executable, script.__file__, "--env-id", "Pendulum-v1", "--run-dir", str(RUN), *flags]
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    limited += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    Path("log").write_bytes(b"x" * 1999)
    with open("log", "a") as log:
        done = subprocess.run(
            [command[0], "-c", limited, *command[1:]],
            stdout=log,
            stderr=log,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert done.returncode == 1
    assert Path("log").stat().st_size == 2000
    assert not CheckpointStore(RUN).exists()
    assert "final/score" in read_metrics(RUN / "metrics.csv")  # it did train to its end
