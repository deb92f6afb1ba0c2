"""Kills real training runs with SIGKILL again and again, resumes them, and compares them with runs never killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.stem.removesuffix("_continuous"): path for path in sorted((ROOT / "agents").glob("*_continuous.py"))}
THOROUGHLY = ("taac", "sac")
"""Those whose runs are killed in every way: what saves and resumes them is the same in all scripts, to the letter."""
RUNNER = Path(__file__).parent / "runner.py"
KILLED = -signal.SIGKILL

SETTINGS = {
    "total-frames": 520,
    "checkpoint-interval": 60,
    "eval-interval": 350,
    "eval-episodes": 1,
    "final-episodes": 1,
    "buffer-size": 300,  # wraps
    "learning-starts": 40,
    "frames-per-iteration": 10,
    "updates-per-iteration": 1,
    "target-interval": 1,
    "hidden": "8 8",
    "batch-size": 16,
    "device": "cpu",
}


class DoesNotResume(AssertionError):
    """A killed run that could not be continued."""


@dataclass(frozen=True)
class Case:
    """What is trained; everything else is as small as it can be."""

    method: str
    env_id: str = "InvertedDoublePendulum-v5"
    num_envs: int = 1
    seed: int = 0
    changes: tuple[tuple[str, Any], ...] = ()
    reports_every: int = 100
    """Frames between reports of progress. On the real command line, where nothing can change that, it is 500."""

    def words(self) -> list[str]:
        settings = SETTINGS | {"env-id": self.env_id, "num-envs": self.num_envs, "seed": self.seed}
        settings |= dict(self.changes)
        return [word for name, value in settings.items() for word in (f"--{name}", *str(value).split())]


@dataclass(frozen=True)
class Outcome:
    """How a process ended; ``step`` is the change of the file system it died at, if it was killed at one."""

    code: int
    seconds: float
    step: str
    said: str


class Runner:
    """Starts scripts in forks of one process that has imported everything: an attempt costs little."""

    def __init__(self) -> None:
        self.seconds: dict[Case, float] = {}
        """What a run that nobody killed took."""

    def __enter__(self) -> Runner:
        self._process = subprocess.Popen(
            [sys.executable, RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(
        self,
        case: Case,
        run_dir: Path,
        *,
        resume: bool = False,
        spare: list[str] | None = None,
        die_after: float | None = None,
    ) -> Outcome:
        log = run_dir.with_name(run_dir.name + ".log")
        request = {
            "script": str(SCRIPTS[case.method]),
            "words": ["--resume", str(run_dir)] if resume else [*case.words(), "--run-dir", str(run_dir)],
            "log": str(log),
            "reports_every": case.reports_every,
            "folder": run_dir.name,
            "spare": spare,
            "die_after": die_after,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        outcome = Outcome(**json.loads(self._process.stdout.readline()), said=log.read_text(errors="replace"))
        if outcome.code == 0 and not resume:
            self.seconds[case] = outcome.seconds
        return outcome


def environment() -> dict[str, str]:
    """Of every training process: this package, one thread, and no network."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }


def run_command(case: Case, run_dir: Path, *, resume: bool = False, die_once: str | None = None) -> Outcome:
    """As a user would: a new process of the real command line, killed once a new file matches ``die_once``."""
    assert case.reports_every == 500
    words = ["--resume", str(run_dir)] if resume else [*case.words(), "--run-dir", str(run_dir)]
    log, started = run_dir.with_name(run_dir.name + ".log"), time.monotonic()
    old = set() if die_once is None else set(run_dir.glob(die_once))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, SCRIPTS[case.method], *words], stdout=output, stderr=output, env=environment()
        )
        while die_once is not None and process.poll() is None:
            if set(run_dir.glob(die_once)) - old:
                process.kill()
            time.sleep(0.01)
        process.wait()
    return Outcome(process.returncode, time.monotonic() - started, "", log.read_text(errors="replace"))


# --- Killing ---------------------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """A run that went through kills to its end."""

    kills: int = 0
    steps: list[str] = field(default_factory=list)
    """What the kills at a step came just before."""

    def count(self, outcome: Outcome) -> bool:
        """Whether the run is done; anything but done or killed is what must never happen."""
        if outcome.code == KILLED:
            self.kills += 1
            if outcome.step:
                self.steps.append(outcome.step)
        elif outcome.code != 0:
            last = f" after a kill just before {self.steps[-1]!r}" if self.steps else ""
            raise DoesNotResume(f"exit code {outcome.code}{last}:\n{outcome.said}")
        return outcome.code == 0


def kill_at_every_step(runner: Runner, case: Case, run_dir: Path, *, in_every_stage: bool = False) -> Killed:
    """Kill just before a change of the file system of a kind that has not been deadly yet, until all have been.

    Args:
        in_every_stage: the same kind of change is deadly again when there is a run folder, when there is a checkpoint,
            and when the run is done and resumed nevertheless.
    """
    killed, stage, spare = Killed(), "", []
    for done_once in (False, True):
        done = False
        while not done:
            previous, stage = stage, "done" if done_once else stage_of(run_dir)
            if in_every_stage and stage != previous:
                spare = []
            outcome = runner.run(case, run_dir, resume=run_dir.exists(), spare=spare)
            spare.append(outcome.step)
            done = killed.count(outcome)
    return killed


def stage_of(run_dir: Path) -> str:
    if not run_dir.exists():
        return "new"
    return "saved" if list(run_dir.glob("checkpoint/0*")) else "begun"


def kill_at_random_times(runner: Runner, case: Case, run_dir: Path, kills: int, rng: random.Random) -> Killed:
    """Kill so many times, on average spread evenly over the time that the run takes, then let it finish."""
    killed, longest = Killed(), 2 * runner.seconds[case] / (kills + 1)
    while killed.kills < kills:
        outcome = runner.run(case, run_dir, resume=run_dir.exists(), die_after=rng.uniform(0, longest))
        if killed.count(outcome):
            longest = min(longest, outcome.seconds)  # it is done, and takes less time from now on
    assert killed.count(runner.run(case, run_dir, resume=run_dir.exists()))
    return killed


# --- Comparing -------------------------------------------------------------------------------------------------------


def metric_lines(run_dir: Path) -> list[str]:
    """Of ``metrics.csv``, but for the metric that measures time."""
    return [line for line in (run_dir / "metrics.csv").read_text().splitlines() if ",charts/SPS," not in line]


def files_of(run_dir: Path) -> set[str]:
    """Names relative to the run folder; checkpoints and event files are named differently in every run."""
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(("checkpoint/", "tensorboard/", "wandb/"))}


def curves_of(run_dir: Path) -> dict[str, list[int]]:
    """The frames at which TensorBoard shows each metric."""
    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def assert_same_run(run_dir: Path, whole: Path) -> None:
    """The killed run has the same metrics and the same agent as the whole one, to the byte, and no rubbish beside."""
    pair = f"of {run_dir} and {whole}"
    assert metric_lines(run_dir) == metric_lines(whole), f"metrics.csv {pair}"
    assert curves_of(run_dir) == curves_of(whole), f"TensorBoard's curves {pair}"
    agents = [(folder / "agent.safetensors").read_bytes() for folder in (run_dir, whole)]
    assert agents[0] == agents[1], f"agent.safetensors {pair}"
    assert files_of(run_dir) == files_of(whole), f"the files {pair}"
    rubbish = [path for path in run_dir.rglob("*") if path.name.startswith(".tmp-") or path.suffix == ".tmp"]
    assert rubbish == [], f"left lying about: {rubbish}"
    checkpoints = [len(list(folder.glob("checkpoint/0*"))) for folder in (run_dir, whole)]
    assert checkpoints == [2, 2], f"the number of checkpoints {pair}: {checkpoints}"
