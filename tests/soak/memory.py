"""Does a long run stay within its memory and its open files? Samples a real training process from outside (Linux)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FRAMES = 200_000
BUFFER = 20_000  # so that it fills early and is overwritten nine times
INTERVAL = 5_000  # of checkpoints and evaluations: everything that a run does happens forty times
WARM_UP = BUFFER + 2 * INTERVAL  # all memory that a run needs has been used by then
SETTINGS = {
    "env-id": "Pendulum-v1",
    "buffer-size": BUFFER,
    "checkpoint-interval": INTERVAL,
    "eval-interval": INTERVAL,
    "eval-episodes": 2,
    "final-episodes": 2,
    "hidden": "8 8",
    "batch-size": 16,
    "learning-starts": 1_000,
    "frames-per-iteration": 4,
    "updates-per-iteration": 1,
    "num-envs": 1,
    "device": "cpu",
}


@dataclass(frozen=True)
class Sample:
    seconds: float
    frame: int
    rss: int  # bytes
    handles: int


def train_and_sample(script: Path, run_dir: Path, frames: int, every: float = 2.0) -> Iterator[Sample]:
    """Train in a process of its own, and look at it until it is done; a run that fails is an error."""
    settings = SETTINGS | {"total-frames": frames}
    words = [word for name, value in settings.items() for word in (f"--{name}", *str(value).split())]
    with open(run_dir.with_suffix(".log"), "wb") as log:
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, script, *words, "--run-dir", run_dir], stdout=log, stderr=log)
        try:
            while process.poll() is None:
                if (sample := _sample(process.pid, run_dir, time.monotonic() - started)) is not None:
                    yield sample
                time.sleep(every)
        finally:
            process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"{script} ended with {process.returncode}: {run_dir.with_suffix('.log').read_text()}")


def summarize(samples: list[Sample], frames: int) -> dict[str, Any]:
    """How flat memory and open files were between the warm-up and the end of training (drawing the curve needs more).

    A file is open for a moment now and then, so that handles are compared by the fewest in each half.

    >>> cold, warm = Sample(0, 100, 10, 4), [Sample(1, 30_000, 100, 4), Sample(2, 60_000, 104, 5)]
    >>> warm += [Sample(3, 90_000, 99, 4), Sample(4, 120_000, 100, 5)]
    >>> summary = summarize([cold, *warm, Sample(5, FRAMES, 400, 9)], FRAMES)
    >>> summary["samples"], round(summary["rss_spread"], 4), summary["handles_growth"]
    (4, 0.0505, 0)
    """
    warm = [sample for sample in samples if WARM_UP <= sample.frame < frames]
    if len(warm) < 2:
        raise ValueError(f"needs samples between frame {WARM_UP} and the last, {frames}; got {len(warm)}")
    rss, handles = [sample.rss for sample in warm], [sample.handles for sample in warm]
    half = len(warm) // 2
    return {
        "samples": len(warm),
        "first": asdict(warm[0]),
        "last": asdict(warm[-1]),
        "rss_spread": max(rss) / min(rss) - 1,
        "handles_growth": min(handles[half:]) - min(handles[:half]),
    }


def _sample(pid: int, run_dir: Path, seconds: float) -> Sample | None:
    """None while the process has nothing to show yet, or no longer."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        handles = len(os.listdir(f"/proc/{pid}/fd"))
        return Sample(seconds, _last_frame(run_dir / "metrics.csv"), pages * os.sysconf("SC_PAGE_SIZE"), handles)
    except (OSError, IndexError, ValueError):
        return None


def _last_frame(metrics: Path) -> int:
    with open(metrics, "rb") as file:
        file.seek(max(0, metrics.stat().st_size - 4096))
        return int(file.read().split(b"\n")[-2].split(b",")[0])
