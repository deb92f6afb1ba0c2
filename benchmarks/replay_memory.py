"""Memory of the replay beside Stable-Baselines3's: a million HalfCheetah transitions, and every task of the paper.

    python benchmarks/replay_memory.py

The buffers are really made, at full size; their arrays are counted, not their untouched pages.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer

from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.tasks import SETTINGS, TASKS, Settings, Task

MILLION = 1_000_000
EPISODE = 1000  # frames of HalfCheetah's; each one's final observation takes a slot more in our replay
MEGABYTE = 1e6


def spaces(observation_size: int, action_size: int, dtype: type = np.float32) -> tuple[Box, Box]:
    return Box(-np.inf, np.inf, (observation_size,), dtype), Box(-1.0, 1.0, (action_size,), np.float32)


def our_bytes(observations: Box, actions: Box, frames: int, num_envs: int) -> int:
    return SequenceReplay(observations, actions, capacity=frames, num_envs=num_envs, seed=0).nbytes


def sb3_bytes(observations: Box, actions: Box, frames: int, num_envs: int, *, optimized: bool = False) -> int:
    """``optimized`` keeps each observation once, but then it cannot tell a time limit from a true end."""
    buffer = ReplayBuffer(
        frames,
        observations,
        actions,
        n_envs=num_envs,
        optimize_memory_usage=optimized,
        handle_timeout_termination=not optimized,
    )
    return sum(array.nbytes for array in vars(buffer).values() if isinstance(array, np.ndarray))


def half_cheetah() -> dict[str, int]:
    """Bytes of a million transitions. Gymnasium's HalfCheetah observes float64; `make_env` makes it float32."""
    single, double = spaces(17, 6), spaces(17, 6, np.float64)
    return {
        "SequenceReplay": our_bytes(*single, MILLION + MILLION // EPISODE, 1),
        "SB3 ReplayBuffer, float32 observations": sb3_bytes(*single, MILLION, 1),
        "SB3 ReplayBuffer, float32, optimize_memory_usage": sb3_bytes(*single, MILLION, 1, optimized=True),
        "SB3 ReplayBuffer, the environment's float64": sb3_bytes(*double, MILLION, 1),
        "SB3 ReplayBuffer, float64, optimize_memory_usage": sb3_bytes(*double, MILLION, 1, optimized=True),
    }


def tasks() -> list[tuple[Task, Settings, int, int]]:
    """Every task whose observation is a vector, with the bytes of our replay and of SB3's, both of float32."""
    rows = []
    for task in TASKS.values():
        if task.observation_size is None:
            continue
        settings = SETTINGS[task.category]
        sizes = *spaces(task.observation_size, task.action_size), settings.buffer_size, settings.num_envs
        rows.append((task, settings, our_bytes(*sizes), sb3_bytes(*sizes)))
    return rows


def main() -> None:
    cheetah = half_cheetah()
    ours = cheetah["SequenceReplay"]
    print("One million transitions of HalfCheetah (17 observations, 6 actions).\n")
    print("| buffer | MB | bytes per transition | ours in % of it |\n|---|---|---|---|")
    for name, size in cheetah.items():
        print(f"| {name} | {size / MEGABYTE:.1f} | {size / MILLION:.1f} | {ours / size:.1%} |")
    print("\nThe paper's tasks with their buffers, float32 observations in both.")
    print("In ours, the final observation of an episode takes the place of a frame.\n")
    print("| task | observations | actions | frames kept | ours, MB | SB3, MB | ratio |\n|---|---|---|---|---|---|---|")
    for task, settings, own, theirs in tasks():
        print(
            f"| {task.env_id} | {task.observation_size} | {task.action_size} | {settings.buffer_size:,} "
            f"| {own / MEGABYTE:.1f} | {theirs / MEGABYTE:.1f} | {own / theirs:.1%} |"
        )


if __name__ == "__main__":
    main()
