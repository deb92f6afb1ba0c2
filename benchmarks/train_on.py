"""What an update of TAAC costs when it trains on the first transition of every window, and on all of them.

    python benchmarks/train_on.py

MountainCarContinuous' shapes, the paper's settings, one thread. Both variants take turns; the median of each counts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from synthetic import filled_replay, unit_box
from taac_continuous import Args, Learner, make_agent

from taac_wrappers.training.run import Counters

REPETITION = 0.7  # about what training settles at
FRAMES, EPISODE = 10_000, 100
UPDATES, BURN_IN = 200, 40


def main() -> None:
    torch.set_num_threads(1)
    replay = filled_replay(2, 1, repetition=REPETITION, frames=FRAMES, episode=EPISODE)
    variants: tuple[Literal["first", "all"], ...] = ("first", "all")
    learners = {}
    for train_on in variants:
        args = replace(Args.for_task("MountainCarContinuous-v0"), train_on=train_on)
        learners[train_on] = Learner(args, make_agent(args, unit_box(2), unit_box(1)))
    seconds: dict[str, list[float]] = {train_on: [] for train_on in variants}
    for _ in range(UPDATES):
        for train_on, learner in learners.items():
            start = time.perf_counter()
            learner.update(learner.sample(replay), Counters(num_envs=1))
            seconds[train_on].append(time.perf_counter() - start)
    first, everything = (float(np.median(seconds[train_on][BURN_IN:])) for train_on in variants)
    print(f"first: {1e3 * first:.1f} ms, all: {1e3 * everything:.1f} ms, ratio {everything / first:.2f}")


if __name__ == "__main__":
    main()
