"""How fast each engine steps many environments: env steps per second, and the ratio to `--env-engine sync`.

    python benchmarks/env_engines.py

Random actions, episodes reset as the scripts do it. All engines take turns in each round, after a burn-in; the median
round counts, and ratios are taken within a round, where what else the machine does touches all engines alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Literal

import numpy as np

from taac_wrappers.training.envs import make_vector_env, random_action
from taac_wrappers.training.faults import WatchedEnvs
from taac_wrappers.training.structure import Structure

ENGINES: tuple[Literal["sync", "async", "envpool"], ...] = ("sync", "async", "envpool")


def seconds_for(envs: WatchedEnvs, actions: Sequence[Structure]) -> float:
    """Time for one vector step by each of ``actions``, with the resets it calls for."""
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = envs.step(action)
        if (done := terminated | truncated).any():
            envs.reset(options={"reset_mask": done})
    return time.perf_counter() - start


def measure(env_id: str, num_envs: int, rounds: int, steps: int, burn_in: int) -> dict[str, np.ndarray]:
    """Env steps per second of each engine, ``[rounds]``."""
    rng = np.random.default_rng(0)
    speeds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    engines: dict[str, WatchedEnvs] = {engine: make_vector_env(env_id, num_envs, engine=engine) for engine in ENGINES}
    try:
        for envs in engines.values():
            envs.reset(seed=0)
        for round_ in range(-1, rounds):
            space = engines["sync"].action_space
            actions = [random_action(rng, space) for _ in range(burn_in if round_ < 0 else steps)]
            for engine, envs in engines.items():
                seconds = seconds_for(envs, actions)
                if round_ >= 0:
                    speeds[engine].append(steps * num_envs / seconds)
    finally:
        for envs in engines.values():
            envs.close()
    return {engine: np.array(values) for engine, values in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="BipedalWalkerHardcore-v3")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100, help="vector steps per engine and round")
    parser.add_argument("--burn-in", type=int, default=300, help="vector steps per engine before the first round")
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that envpool's physics differ is said below
        speeds = measure(args.env_id, args.num_envs, args.rounds, args.steps, args.burn_in)
    print(
        f"{args.env_id}, {args.num_envs} environments, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"gymnasium {metadata.version('gymnasium')}, envpool {metadata.version('envpool')} (its physics differ)\n"
    )
    print("| engine | env steps per second | ratio to sync, median (lowest to highest round) |")
    print("|---|---|---|")
    for engine, values in speeds.items():
        ratio = values / speeds["sync"]
        print(
            f"| {engine} | {np.median(values):.0f} | {np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f}) |"
        )


if __name__ == "__main__":
    main()
