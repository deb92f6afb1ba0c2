"""How the time of an update grows with batch, window, repetition and observation size, for TAAC and SAC.

    python benchmarks/scaling.py

Made-up transitions with HalfCheetah's sizes, one thread. Every point takes its turn in each round; its median counts.
It is processor time, which a busy machine changes least. Writes results/performance/scaling.csv and draws
docs/figures/scaling.png.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

import sac_continuous
import taac_continuous
from synthetic import filled_replay, wrapped_spaces

from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.state import Counters

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

SCRIPTS = {"TAAC": taac_continuous, "SAC": sac_continuous}
ROOT = Path(__file__).parents[1]
CSV, FIGURE = ROOT / "results/performance/scaling.csv", ROOT / "docs/figures/scaling.png"
BURN_IN = 3  # rounds that do not count
FILL, EPISODE, ACTIONS = 10_000, 1000, 6


@dataclass(frozen=True)
class Point:
    """The setting that is timed; all but one number are those of its axis' base."""

    batch: int = 256
    window: int = 3
    repetition: float = 0.3
    observation: int = 17


@dataclass(frozen=True)
class Axis:
    base: Point
    values: Sequence[Any]
    label: str
    logarithmic: bool


AXES = {
    "batch": Axis(Point(), (64, 128, 256, 512, 1024, 2048, 4096), "batch, windows", True),
    "window": Axis(Point(), (1, 2, 3, 5, 7, 10), "window, transitions", False),
    "repetition": Axis(Point(window=10), (0.0, 0.1, 0.3, 0.5, 0.7, 0.9), "repetition, share of frames", False),
    "observation": Axis(Point(), (10, 30, 100, 300, 1000), "observation, numbers", True),
}


class Timed:
    """One method at one point, and its times."""

    def __init__(self, method: str, point: Point, replay: SequenceReplay):
        script = SCRIPTS[method]
        window = {"window": point.window} if method == "TAAC" else {}  # SAC's spans one transition
        args = replace(script.Args.for_task("HalfCheetah-v5"), batch_size=point.batch, **window)
        agent = script.make_agent(args, *wrapped_spaces(script, point.observation, ACTIONS))
        self.learner, self.replay, self.counters = script.Learner(args, agent), replay, Counters()
        self.milliseconds: list[tuple[float, float]] = []  # sampling, update

    def turn(self) -> None:
        start = time.process_time()
        batch = self.learner.sample(self.replay)
        sampled = time.process_time()
        self.learner.update(batch, self.counters)
        self.milliseconds.append((1e3 * (sampled - start), 1e3 * (time.process_time() - sampled)))


def measure(rounds: int) -> list[dict[str, Any]]:
    """A row per axis, value and method."""
    points = {
        (axis, value): replace(settings.base, **{axis: value})
        for axis, settings in AXES.items()
        for value in settings.values
    }

    @functools.cache
    def replay(method: str, repetition: float, observation: int) -> SequenceReplay:
        space, _ = wrapped_spaces(SCRIPTS[method], observation, ACTIONS)
        return filled_replay(space, ACTIONS, repetition=repetition, frames=FILL, episode=EPISODE)

    timed = {
        (axis, method, point): Timed(method, point, replay(method, point.repetition, point.observation))
        for (axis, _), point in points.items()
        for method in SCRIPTS
    }
    for _ in range(BURN_IN + rounds):
        for one in timed.values():
            one.turn()
    rows = []
    for (axis, method, point), one in timed.items():
        low, middle, high = np.percentile(one.milliseconds[BURN_IN:], [25, 50, 75], axis=0)
        times = {"sample_ms": middle[0], "update_ms": middle[1], "update_ms_q1": low[1], "update_ms_q3": high[1]}
        rows.append({"axis": axis, "method": method, **asdict(point), **{k: f"{v:.3f}" for k, v in times.items()}})
    return rows


def write(rows: list[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure, panels = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    for panel, (axis, settings) in zip(panels.flat, AXES.items(), strict=True):
        for method, color in zip(SCRIPTS, ("tab:blue", "tab:orange"), strict=True):
            chosen = [row for row in rows if row["axis"] == axis and row["method"] == method]
            values = [float(row[axis]) for row in chosen]
            low, update, high, sample = (
                [float(row[column]) for row in chosen]
                for column in ("update_ms_q1", "update_ms", "update_ms_q3", "sample_ms")
            )
            panel.plot(values, update, "o-", color=color, label=f"{method}: update")
            panel.fill_between(values, low, high, color=color, alpha=0.2, linewidth=0)
            panel.plot(values, sample, ".--", color=color, linewidth=1, label=f"{method}: sampling")
        panel.set_xlabel(settings.label)
        panel.set_ylabel("ms per update")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        if settings.logarithmic:
            panel.set_xscale("log")
            panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticks(settings.values, [f"{value:g}" for value in settings.values])
        fixed = {name: value for name, value in asdict(settings.base).items() if name != axis}
        panel.set_title(", ".join(f"{name} {value}" for name, value in fixed.items()), fontsize=9)
        panel.grid(alpha=0.3, which="both")
    panels[0, 0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The ends of every axis, as markdown."""
    lines = ["| axis | method | from | to | update, ms | ratio |", "|---|---|---|---|---|---|"]
    for axis in AXES:
        for method in SCRIPTS:
            chosen = [row for row in rows if row["axis"] == axis and row["method"] == method]
            first, last = chosen[0], chosen[-1]
            ratio = float(last["update_ms"]) / float(first["update_ms"])
            times = f"{float(first['update_ms']):.2f} to {float(last['update_ms']):.2f}"
            lines.append(f"| {axis} | {method} | {first[axis]} | {last[axis]} | {times} | {ratio:.2f} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time per update against batch, window, repetition and observation.")
    parser.add_argument("--rounds", type=int, default=100, help="that count, after a burn-in")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    torch.set_num_threads(1)
    rows = measure(args.rounds)
    write(rows, CSV)
    draw(rows, FIGURE)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
