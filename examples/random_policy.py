"""Measure the score of a uniformly random policy, the zero (Z0) of normalized scores.

python examples/random_policy.py -o results/random.json      # the paper's 13 simulated tasks
python examples/random_policy.py --env-ids Pendulum-v1 -o my_results/random.json
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro

from taac_wrappers import RepeatStatisticsWrapper
from taac_wrappers.training.arguments import bad_input, exit_with, parse
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.evaluation import LONGEST_EPISODE, evaluate
from taac_wrappers.training.simulators import simulator_versions
from taac_wrappers.training.tasks import TASKS


@dataclass
class Args:
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """the file to write"""
    env_ids: tuple[str, ...] = field(
        default_factory=lambda: tuple(task.env_id for task in TASKS.values() if task.category != "Driving")
    )
    """environments"""
    episodes: int = 100
    """of each"""
    seed: int = 0
    """of the actions and of the first episode's start"""


class RandomPolicy:
    """Draws every action uniformly from the environment's."""

    def __init__(self, space: gym.Space, seed: int):
        self.space = space
        self.space.seed(seed)

    def act(self, observation: Any, deterministic: bool = False) -> np.ndarray:
        return self.space.sample()[None]


def measured(env_id: str, episodes: int, seed: int) -> dict[str, float]:
    env = make_env(env_id, RepeatStatisticsWrapper, longest_episode=LONGEST_EPISODE)
    result = evaluate(RandomPolicy(env.action_space, seed), env, episodes, seed=seed)
    env.close()
    print(f"{env_id}: {result['score']:.2f} +- {result['score_std']:.2f}", flush=True)
    return {name: result[name] for name in ("score", "score_std", "length")}


def main(args: Args) -> int:
    with bad_input():
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
        scores = {env_id: measured(env_id, args.episodes, args.seed) for env_id in args.env_ids}
        record = {
            "command": shlex.join(["python", "examples/random_policy.py", *sys.argv[1:]]),
            "episodes": args.episodes,
            "versions": simulator_versions(),
            "scores": scores,
        }
        args.output.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
