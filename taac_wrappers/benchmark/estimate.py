"""What a comparison would take, by running the script of each method on each task for a short while.

Such a run has four equal parts: random actions, learning (to warm up), learning, and learning with one evaluation in
it. Its log says when each of them ended.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.results import Curve
from taac_wrappers.benchmark.running import run_cell
from taac_wrappers.benchmark.workplace import Plan, Workplace
from taac_wrappers.training.tracking import METRICS, read_metrics

HOW = (
    "Each script is run for 2,000 frames, or four rounds of updates if that is more: random ones, learning, and an "
    "evaluation. What is counted is how long a core was busy with it; other programs on the cores slow it down "
    "nevertheless. Episodes of evaluations count as long as they may be."
)

LOG_INTERVAL = 500
"""Frames between two lines of the scripts' logs that say how much time has passed."""

EPISODES = 10
"""Of the evaluation."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a processor that a frame takes."""

    random: float
    learning: float
    evaluation: float

    def hours(self, plan: Plan, length: float) -> float:
        """Of a whole run, whose evaluations have episodes of ``length`` frames.

        >>> Cost(0.001, 0.01, 0.002).hours(Plan(70_000, 10_000, 35_000, 20, 60), 1000) * 3600
        770.0
        """
        random = min(plan.learning_starts, plan.total_frames)
        learning = plan.total_frames - random
        episodes = plan.final_episodes + learning // plan.eval_interval * plan.eval_episodes
        seconds = random * self.random + learning * self.learning + episodes * length * self.evaluation
        return seconds / 3600


def cost_of(metrics: dict[str, Curve], part: int, busy: float) -> Cost:
    """What the log of a short run tells.

    Args:
        metrics: those of its ``metrics.csv``.
        part: frames of each of its four parts.
        busy: share of its time for which a processor was.
    """
    frames, speeds = metrics["charts/SPS"]  # frames per second since the start
    ends = [np.flatnonzero(frames >= number * part)[0] for number in (1, 2, 3, 4)]
    at, seconds = frames[ends], busy * (frames / speeds)[ends]
    random, learning = seconds[0] / at[0], (seconds[2] - seconds[1]) / (at[2] - at[1])
    evaluated = EPISODES * metrics["eval/length"][1][-1]
    if evaluated < LOG_INTERVAL:  # it is lost in the noise; acting at random is about as fast
        return Cost(random, learning, random)
    evaluation = seconds[3] - seconds[2] - learning * (at[3] - at[2])
    return Cost(random, learning, max(0.0, evaluation / evaluated))


def measure(workplace: Workplace, cell: Cell) -> float | str:
    """Core-hours of a cell, or what kept its script from running. Leaves nothing behind."""
    part = LOG_INTERVAL * math.ceil(workplace.frames_per_round(cell) / LOG_INTERVAL)
    flags = {"total-frames": 4 * part, "learning-starts": part, "checkpoint-interval": 100 * part}
    flags |= {"eval-interval": 3 * part, "eval-episodes": EPISODES, "final-episodes": 1}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        there = replace(workplace, runs=folder, results=folder, script_args=(*workplace.script_args, *words))
        busy, started = _seconds_of_children(), time.monotonic()
        outcome = run_cell(there, cell)
        busy = (_seconds_of_children() - busy) / (time.monotonic() - started)
        if outcome.problem is not None:
            return f"{outcome.problem}: {there.end_of_log(cell, 1)}"
        metrics = read_metrics(there.run_dir(cell) / METRICS)
    longest = gym.spec(cell.env_id).max_episode_steps or float(metrics["eval/length"][1][-1])
    return cost_of(metrics, part, busy).hours(workplace.plan(cell), longest)


def _seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def print_estimate(workplace: Workplace, cells: Collection[Cell], workers: int, console: Console) -> bool:
    """Measure one cell of each method on each task, and print what all of them take; False if one could not be run."""
    console.print(HOW, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("cells", overflow="fold")
    for column in ("seeds", "frames", "core-hours", "of all"):
        table.add_column(column, justify="right")
    all_hours, failed = 0.0, []
    for (method, env_id), seeds in Counter((cell.method, cell.env_id) for cell in cells).items():
        cell = Cell(method, env_id, 0)
        console.print(f"measuring {method} on {env_id}", markup=False, highlight=False)
        hours = measure(workplace, cell)
        if isinstance(hours, str):
            failed.append(f"{method} on {env_id} cannot be run: {hours}")
            each, together = "–", "–"
        else:
            all_hours += seeds * hours
            each, together = f"{hours:.2f}", f"{seeds * hours:.2f}"
        frames = f"{workplace.plan(cell).total_frames:,}"
        table.add_row(f"{method} on {env_id}", str(seeds), frames, each, together)
    console.print(table)
    console.print(f"{all_hours:.1f} core-hours; {all_hours / workers:.1f} hours with {workers} cells at a time")
    for line in failed:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failed
