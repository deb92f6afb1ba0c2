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
from gymnasium.spaces import Box

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from taac_continuous import Args, Learner, make_agent

from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import Counters

REPETITION = 0.7  # about what training settles at
EPISODE = 100
UPDATES, BURN_IN = 200, 40


def filled_replay(observations: Box, actions: Box) -> SequenceReplay:
    rng = np.random.default_rng(0)
    replay = SequenceReplay(observations, actions, capacity=100_000, num_envs=1, seed=0)
    no = np.zeros(1, bool)
    for frame in range(10_000):
        if frame % EPISODE == 0:
            replay.start(rng.normal(size=(1, 2)))
        switch, truncated = rng.random(1) > REPETITION, np.array([frame % EPISODE == EPISODE - 1])
        replay.add(rng.uniform(-1, 1, (1, 1)), switch, rng.normal(size=1), no, truncated, rng.normal(size=(1, 2)))
    return replay


def main() -> None:
    torch.set_num_threads(1)
    observations, actions = Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,))
    replay = filled_replay(observations, actions)
    variants: tuple[Literal["first", "all"], ...] = ("first", "all")
    learners = {}
    for train_on in variants:
        args = replace(Args.for_task("MountainCarContinuous-v0"), train_on=train_on)
        learners[train_on] = Learner(args, make_agent(args, observations, actions))
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
