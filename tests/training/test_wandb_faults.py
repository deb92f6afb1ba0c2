"""Weights & Biases hangs or fails while a run is going on: training neither waits nor stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import sac_continuous as sac
import taac_continuous as taac

from taac_wrappers.training import run as run_module
from taac_wrappers.training import sinks
from taac_wrappers.training.tracking import Tracker, read_metrics

both_scripts = pytest.mark.parametrize("script", [taac, sac], ids=["taac", "sac"])


class Network(types.ModuleType):
    """A fake wandb whose run loses its network at record ``gone_at``: it then hangs, or raises."""

    def __init__(self, gone_at: int, hangs: bool):
        super().__init__("wandb")
        self.gone_at, self.hangs = gone_at, hangs
        self.back = threading.Event()
        self.logged: list[dict] = []
        self.finished = self.torn_down = 0
        self.Settings = lambda **settings: types.SimpleNamespace(**settings)

    def init(self, **arguments):
        return self  # it is its own run

    def setup(self):
        return types.SimpleNamespace(settings=types.SimpleNamespace(base_url="https://example.org"))

    def define_metric(self, name, step_metric=None):
        pass

    def log(self, metrics):
        if len(self.logged) + 1 >= self.gone_at:
            if not self.hangs:
                raise ConnectionError("network gone")
            self.back.wait(30)
        self.logged.append(metrics)

    def finish(self):
        self.finished += 1

    def teardown(self):
        self.torn_down += 1
        if self.hangs:
            self.back.wait(30)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``network(gone_at, hangs)`` puts the fake in wandb's place."""
    made = []

    def make(gone_at: int, hangs: bool) -> Network:
        made.append(Network(gone_at, hangs))
        monkeypatch.setitem(sys.modules, "wandb", made[-1])
        return made[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(run_module, "plot_curve", lambda folder: folder / "curve.png")
    yield make
    for wandb in made:
        wandb.back.set()
    for thread in threading.enumerate():
        if thread.name == "wandb":
            thread.join(10)
            assert not thread.is_alive()


def log(tracker: Tracker, records: int) -> float:
    """Log so many records; how many seconds it took."""
    start = time.monotonic()
    for frame in range(records):
        tracker.log(frame, {"a": frame})
    return time.monotonic() - start


def test_hanging_holds_up_nothing_and_loses_nothing(tmp_path, network, capsys):
    wandb = network(gone_at=3, hangs=True)
    tracker = Tracker(tmp_path, {}, track=True)
    assert log(tracker, 500) < 10  # one call alone hangs for 30 s
    assert len(wandb.logged) == 2
    wandb.back.set()
    tracker.close()
    assert [record["frame"] for record in wandb.logged] == list(range(500))
    assert (wandb.finished, wandb.torn_down) == (1, 0)
    assert "failed" not in capsys.readouterr().err


def test_a_run_does_not_wait_for_ever_at_its_end(tmp_path, network, monkeypatch, capsys):
    wandb = network(gone_at=3, hangs=True)
    monkeypatch.setattr(sinks, "WANDB_FINISH_SECONDS", -4.9)  # five more are granted
    tracker = Tracker(tmp_path, {}, track=True)
    log(tracker, 10)
    start = time.monotonic()
    tracker.close()
    assert time.monotonic() - start < 10
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "Weights & Biases failed and is left out from here on (it does not finish); metrics.csv goes on"
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 11
    assert wandb.torn_down == 1


def test_what_waits_for_it_is_bounded(tmp_path, network, monkeypatch, capsys):
    wandb = network(gone_at=1, hangs=True)
    monkeypatch.setattr(sinks, "WANDB_QUEUE", 20)
    tracker = Tracker(tmp_path, {}, track=True)
    log(tracker, 100)
    tracker.close()
    (line,) = capsys.readouterr().err.splitlines()
    expected = (
        "Weights & Biases failed and is left out from here on (20 records are waiting for it); metrics.csv goes on"
    )
    assert line == expected
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 101
    assert (wandb.finished, wandb.torn_down) == (0, 1)


SMALL = {
    "total_frames": 60,
    "hidden": (8, 8),
    "learning_starts": 10,
    "batch_size": 8,
    "eval_interval": 20,
    "eval_episodes": 1,
    "final_episodes": 1,
    "checkpoint_interval": 20,
    "buffer_size": 100,
}


@both_scripts
@pytest.mark.parametrize("hangs", [True, False])
def test_both_scripts_train_on_as_if_nothing_had_happened(script, hangs, network, monkeypatch, capsys):
    monkeypatch.setattr(sinks, "WANDB_FINISH_SECONDS", -4.9)
    args = replace(script.Args.for_task("Pendulum-v1"), **SMALL)
    assert script.main(replace(args, run_dir=Path("alone"))) == 0
    wandb = network(gone_at=2, hangs=hangs)
    capsys.readouterr()
    assert script.main(replace(args, run_dir=Path("tracked"), track=True)) == 0
    assert wandb.torn_down == 1
    said = capsys.readouterr().err
    assert said.count("Weights & Biases failed and is left out from here on") == 1
    assert (Path("tracked") / "agent.safetensors").read_bytes() == (Path("alone") / "agent.safetensors").read_bytes()
    assert (Path("tracked") / "metrics.csv").read_bytes() == (Path("alone") / "metrics.csv").read_bytes()


# --- The real wandb: its service is a process of its own, and its hook at exit waits for that -------------------------

WITH_LITTLE_PATIENCE = """
import runpy, sys
from taac_wrappers.training import sinks
sinks.WANDB_FINISH_SECONDS = -3  # five more are granted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def service_of(pid: int) -> int:
    """The process that wandb started."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    (service,) = [child for child in children if b"wandb" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(service)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_service_of_the_real_wandb_dies_or_hangs(number, tmp_path):
    run_dir, log = tmp_path / "run", tmp_path / "log"
    settings = SMALL | {"total_frames": 400, "checkpoint_interval": 100, "eval_interval": 200, "hidden": "8 8"}
    settings |= {"env_id": "Pendulum-v1", "run_dir": run_dir, "track": ""}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", *str(value).split())]
    # Not WANDB_SERVICE, by which a process finds the service that another test may have started in this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_LITTLE_PATIENCE, sac.__file__, *flags],
            stdout=output,
            stderr=output,
            env=environment | {"WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    service = None
    try:
        while not list(run_dir.glob("checkpoint/0*")):
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        service = service_of(process.pid)
        os.kill(service, number)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        if service is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(service, signal.SIGKILL)
    said = log.read_text()
    assert said.count("Weights & Biases failed and is left out from here on (") == 1
    assert "Traceback" not in said
    assert "final/score" in read_metrics(run_dir / "metrics.csv")


# --- Signals ---------------------------------------------------------------------------------------------------------


@both_scripts
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_both_scripts_save_and_close_the_trackers_on_a_signal(script, number, code, network, monkeypatch, capsys):
    wandb = network(gone_at=10**9, hangs=False)
    args = replace(script.Args.for_task("Pendulum-v1"), run_dir=Path("run"), track=True, **SMALL)
    update = script.Learner.update

    def interrupted(self, batch, counters):
        if counters.updates == 25:
            os.kill(os.getpid(), number)
        return update(self, batch, counters)

    monkeypatch.setattr(script.Learner, "update", interrupted)
    assert script.main(args) == code
    assert wandb.finished == 1
    assert "interrupted and saved; continue with: python " in capsys.readouterr().out
    monkeypatch.setattr(script.Learner, "update", update)
    assert script.main(replace(args, run_dir=None, resume=Path("run"))) == 0
    assert script.main(replace(args, run_dir=Path("whole"), track=False)) == 0
    assert Path("run/agent.safetensors").read_bytes() == Path("whole/agent.safetensors").read_bytes()
