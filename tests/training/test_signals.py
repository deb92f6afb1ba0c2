"""A run that is asked to end: it answers at once, saves first, and can go on."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import number_script
import pytest
from number_script import Args, Drift, Number, main, record

from taac_wrappers.training.arguments import exit_with
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.tracking import read_metrics

pytestmark = pytest.mark.usefixtures("inside_an_empty_folder")

ANSWER = "saving after this frame; once more stops without saving"
BOTH = pytest.mark.parametrize(
    ("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.fixture
def interrupt_evaluation(monkeypatch):
    """Sends signals at the given call of the agent: it is asked in evaluations and films, and nowhere else."""
    act = Number.act

    def at(call: int, *numbers: int) -> None:
        calls = itertools.count(1)

        def interrupted(*args, **kwargs):
            if next(calls) == call:
                send(*numbers)
            return act(*args, **kwargs)

        monkeypatch.setattr(Number, "act", interrupted)

    return at


@pytest.fixture
def exits(monkeypatch, capfd):
    """Runs a program as a script does: its exit code, and what it says on stderr."""

    def run(program: Callable[[], int]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # which are replaced for good
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            exit_with(program)
        return exit_.value.code, capfd.readouterr().err

    return run


@BOTH
def test_a_signal_ends_the_run_and_it_can_go_on(number, code, name, capfd):
    main(Args(run_dir=Path("whole")))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(Args(run_dir=Path("run 1")), lambda c: c.frames == 22 and send(number)) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    said = capfd.readouterr()
    assert said.err.count(f"\n{name}: {ANSWER}\n") == 1
    script = number_script.__file__
    assert f"continue with: python {os.path.relpath(script)} --resume 'run 1'" in said.out.replace(
        script, os.path.relpath(script)
    )
    metrics = read_metrics(Path("run 1/metrics.csv"))
    assert metrics["charts/frames"][0][-1] == 20
    assert "final/score" not in metrics
    assert main(Args(resume=Path("run 1"))) == 0
    assert record(Path("run 1")) == record(Path("whole"))


@pytest.mark.parametrize(
    ("call", "evaluated"),
    [
        (1, None),  # in the first of four evaluations of seven frames
        (10, [10]),
        (15, [10, 20]),  # where a checkpoint is due too
        (24, [10, 20, 30]),  # after the last frame of training
        (31, [10, 20, 30, 40]),  # in the last evaluation, which has two episodes
    ],
)
def test_an_interrupted_evaluation_is_repeated(interrupt_evaluation, call, evaluated):
    main(Args(run_dir=Path("whole")))
    interrupt_evaluation(call, signal.SIGTERM)
    assert main(Args(run_dir=Path("run"))) == 143
    metrics = read_metrics(Path("run/metrics.csv"))
    assert (metrics["eval/score"][0].tolist() if "eval/score" in metrics else None) == evaluated
    assert "final/score" not in metrics
    interrupt_evaluation(3, signal.SIGTERM)
    assert main(Args(resume=Path("run"))) == 143  # once more, in the same evaluation
    assert read_metrics(Path("run/metrics.csv")).keys() == metrics.keys()
    assert main(Args(resume=Path("run"))) == 0
    assert record(Path("run")) == record(Path("whole"))


def test_an_interrupted_film_is_repeated(interrupt_evaluation):
    args = Args(run_dir=Path("run"), total_frames=20, capture_video=True)
    main(replace(args, run_dir=Path("whole")))
    interrupt_evaluation(7 + 7 + 3, signal.SIGTERM)  # a film and an evaluation at frame 10, a film at frame 20
    assert main(args) == 143
    assert [path.name for path in Path("run/videos").iterdir()] == ["frame-10"]
    assert main(replace(args, run_dir=None, resume=Path("run"))) == 0
    ours, whole = (sorted(path.relative_to(run) for path in Path(run).rglob("*.mp4")) for run in ("run", "whole"))
    assert ours == whole
    assert record(Path("run")) == record(Path("whole"))


@pytest.mark.parametrize(
    ("frame", "lost"),
    [(5, "nothing of this run is saved"), (22, "what was learned after frame 15 is lost, continue from there with ")],
)
def test_a_second_ctrl_c_does_not_wait(frame, lost, exits):
    def impatient(counters: Counters) -> None:
        if counters.frames == frame:
            send(signal.SIGINT, signal.SIGINT)

    code, said = exits(lambda: main(Args(run_dir=Path("run")), impatient))
    assert code == 130
    assert said.count(f"\nCtrl-C: {ANSWER}\n") == 1
    assert said.count(f"\nstopped at once: {lost}") == 1
    assert "Traceback" not in said
    main(Args(run_dir=Path("whole")))
    assert main(Args(resume=Path("run"))) == 0
    assert record(Path("run")) == record(Path("whole"))


def test_a_second_ctrl_c_when_everything_is_saved(interrupt_evaluation, exits):
    interrupt_evaluation(4 * 7 + 1, signal.SIGINT, signal.SIGINT)
    code, said = exits(lambda: main(Args(run_dir=Path("run"))))
    assert (code, said.count("\nstopped at once: nothing is lost, continue with ")) == (130, 1)


def test_another_signal_is_not_a_second_one():
    """Those who end jobs send one after the other."""
    both = lambda c: c.frames == 22 and send(signal.SIGINT, signal.SIGTERM)  # noqa: E731
    assert main(Args(run_dir=Path("run")), both) == 143
    assert len(list(Path("run/checkpoint").glob("0*22"))) == 1


@BOTH
@pytest.mark.parametrize("resume", [False, True])
def test_a_signal_during_the_start_ends_it_with_one_line(number, code, name, resume, exits, monkeypatch):
    args = Args(run_dir=Path("run"))
    if resume:
        main(replace(args, total_frames=20))
        args = Args(resume=Path("run"))

    def interrupted(env, *, seed=None, options=None):
        send(number)

    monkeypatch.setattr(Drift, "reset", interrupted)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert exits(lambda: main(args)) == (code, f"interrupted by {name}\n")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert Path("run").exists() == resume


@BOTH
def test_a_process_in_the_middle_of_an_evaluation(number, code, name):
    """One that never ends, on a terminal: the bar says what goes on, the signal is answered, and all is saved."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    program = (
        "from number_script import *; from taac_wrappers.training import arguments as a; a.command_line(Args, main)"
    )
    words = ["--env-kwargs", '{"length": 0}', "--run-dir", "run", "--total-frames", "10", "--eval-episodes", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(number_script.__file__), *sys.path])},
        text=True,
    )
    os.close(theirs)
    said = b""
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        while b", evaluating 1/1000000:" not in said:
            said += os.read(terminal, 1000)
        process.send_signal(number)
        while chunk := _read(terminal):
            said += chunk
        out = process.communicate()[0]
    finally:
        watchdog.cancel()
        process.kill()
        os.close(terminal)
    assert process.returncode == code, said.decode()
    assert f"{name}: {ANSWER}\r\n".encode() in said
    assert b"Traceback" not in said
    assert "interrupted and saved; continue with: " in out
    assert len(list(Path("run/checkpoint").glob("0*10"))) == 1
    args = Args(resume=Path("run"), env_kwargs={"length": 0}, total_frames=10, final_episodes=1)
    assert main(args) == 0
    assert read_metrics(Path("run/metrics.csv"))["eval/score"][0].tolist() == [10]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1000)
    except OSError:  # nobody is at the other end any more
        return b""


def test_runs_in_a_thread_without_touching_signals():
    before, codes = signal.getsignal(signal.SIGINT), []
    during = []
    watch = lambda c: during.append(signal.getsignal(signal.SIGINT))  # noqa: E731
    thread = threading.Thread(target=lambda: codes.append(main(Args(run_dir=Path("run")), watch)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert set(during) == {before}
