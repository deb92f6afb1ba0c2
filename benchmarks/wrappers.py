"""What each wrapper adds to a step, beside Gymnasium's nearest wrapper.

    python benchmarks/wrappers.py

The environment inside does nothing, so that what is left after subtracting its own time is the wrapper. All
candidates take turns in each round and the fastest round of each counts: what else the machine does only ever adds.
Rounds are short, so that even a busy machine leaves some of them alone.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv, VectorEnv

import taac_wrappers
from taac_wrappers import vector

NUM_ENVS = 64
REPEATS = 4


class Idle(gym.Env):
    """A step costs next to nothing and no episode ends."""

    spec = EnvSpec("Idle-v0", max_episode_steps=10**9)
    observation_space = Box(-1.0, 1.0, (8,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self._observation = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 1.0, False, False, {}


class CheckedRepeatAction(gym.wrappers.RepeatAction):
    """Gymnasium's RepeatAction with what `NRepeatWrapper` does beside repeating: check, copy and report the action."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if action not in self.action_space:
            raise ValueError(f"{action} is not in {self.action_space}")
        executed = np.array(action)
        observation, reward, terminated, truncated, info = super().step(executed)
        info = {**info, "frames": self.num_repeats, "executed_action": executed.copy(), "repeated": False}
        return observation, reward, terminated, truncated, info


def sync(wrapper: Callable[[gym.Env], gym.Env] | None = None) -> SyncVectorEnv:
    """Many idle environments side by side, each wrapped on its own."""
    return SyncVectorEnv([(lambda: wrapper(Idle())) if wrapper else Idle] * NUM_ENVS)


def candidates() -> dict[str, tuple[gym.Env | VectorEnv, Any]]:
    """Every environment that is timed, with the action it is stepped with."""
    action = np.full(2, 0.5, np.float32)
    actions = np.full((NUM_ENVS, 2), 0.5, np.float32)
    switches = np.zeros(NUM_ENVS, np.int64)
    return {
        "idle": (Idle(), action),
        "RepeatAction": (gym.wrappers.RepeatAction(Idle(), REPEATS), action),
        "RepeatAction, checked and reported": (CheckedRepeatAction(Idle(), REPEATS), action),
        "NRepeatWrapper": (taac_wrappers.NRepeatWrapper(Idle(), REPEATS), action),
        "StickyAction": (gym.wrappers.StickyAction(Idle(), 0.01), action),
        "ZetaRepeatWrapper": (taac_wrappers.ZetaRepeatWrapper(Idle(), epsilon=0.01), action),
        "NormalizeReward": (gym.wrappers.NormalizeReward(Idle()), action),
        "RewardNormalizerWrapper": (taac_wrappers.RewardNormalizerWrapper(Idle()), action),
        "TimeAwareObservation": (gym.wrappers.TimeAwareObservation(Idle()), action),
        "PrevActionWrapper": (taac_wrappers.PrevActionWrapper(Idle()), action),
        "KRepWrapper": (taac_wrappers.KRepWrapper(Idle(), REPEATS), {"action": action, "repeat": REPEATS}),
        "HybridActionWrapper": (taac_wrappers.HybridActionWrapper(Idle()), {"action": action, "switch": 0}),
        "RepeatStatisticsWrapper": (taac_wrappers.RepeatStatisticsWrapper(Idle()), action),
        "sync": (sync(), actions),
        "sync of PrevActionWrapper": (sync(taac_wrappers.PrevActionWrapper), actions),
        "vector.PrevActionWrapper": (vector.PrevActionWrapper(sync()), actions),
        "vector.HybridActionWrapper": (
            vector.HybridActionWrapper(sync()),
            {"action": actions, "switch": switches},
        ),
        "vector.ZetaRepeatWrapper": (vector.ZetaRepeatWrapper(sync(), epsilon=0.01), actions),
        "vector.RewardNormalizerWrapper": (vector.RewardNormalizerWrapper(sync()), actions),
        "vector.RepeatStatisticsWrapper": (vector.RepeatStatisticsWrapper(sync()), actions),
    }


def seconds_per_step(env: gym.Env | VectorEnv, action: Any, steps: int) -> float:
    step = env.step
    start = time.perf_counter()
    for _ in range(steps):
        step(action)
    return (time.perf_counter() - start) / steps


def measure(rounds: int, steps: int) -> dict[str, float]:
    """Microseconds per step of each candidate, its fastest round."""
    envs = candidates()
    best = dict.fromkeys(envs, float("inf"))
    gc.disable()
    for _ in range(rounds):
        for name, (env, action) in envs.items():
            share = max(1, steps // 16) if isinstance(env, VectorEnv) else steps
            env.reset(seed=0)  # the same random numbers in each round: the fastest one is not that with the least to do
            best[name] = min(best[name], 1e6 * seconds_per_step(env, action, share))
        gc.collect()
    gc.enable()
    return best


def table(best: dict[str, float]) -> list[str]:
    """The markdown rows: wrapper, what it adds, whom it is compared with, what that adds, and the ratio."""
    rows = []

    def add(name: str, bare: float, other: str = "") -> None:
        own = best[name] - bare
        theirs, ratio = "", ""
        if other:
            theirs, ratio = f"{best[other] - bare:.2f}", f"{own / (best[other] - bare):.2f}"
        rows.append(f"| {name} | {own:.2f} | {other} | {theirs} | {ratio} |")

    idle, repeats, sync_idle = best["idle"], REPEATS * best["idle"], best["sync"]
    add("NRepeatWrapper", repeats, "RepeatAction, checked and reported")
    add("NRepeatWrapper", repeats, "RepeatAction")
    add("ZetaRepeatWrapper", idle, "StickyAction")
    add("RewardNormalizerWrapper", idle, "NormalizeReward")
    add("PrevActionWrapper", idle, "TimeAwareObservation")
    add("KRepWrapper", repeats)
    add("HybridActionWrapper", idle)
    add("RepeatStatisticsWrapper", idle)
    add("vector.PrevActionWrapper", sync_idle, "sync of PrevActionWrapper")
    for name in ("HybridActionWrapper", "ZetaRepeatWrapper", "RewardNormalizerWrapper", "RepeatStatisticsWrapper"):
        add(f"vector.{name}", sync_idle)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Added cost per step of each wrapper, in microseconds.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--steps", type=int, default=300, help="steps per candidate and round; a vector step counts as 16"
    )
    args = parser.parse_args()
    rows = table(measure(args.rounds, args.steps))
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, Gymnasium {gym.__version__}; "
        f"repeats of {REPEATS} steps; vector: {NUM_ENVS} environments."
    )
    print()
    print("| wrapper | added µs per step | Gymnasium's nearest, or per env | added µs per step | ratio |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
