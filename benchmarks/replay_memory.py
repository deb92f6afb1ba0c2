"""Memory of the replay beside Stable-Baselines3's: a million HalfCheetah transitions, and every task of the paper.

    python benchmarks/replay_memory.py

TAAC's observation holds the previous action too. The buffers are really made, at full size; their arrays are counted,
not their untouched pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Space, flatdim
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

import sac_continuous
import taac_continuous

from taac_wrappers.training.envs import make_env
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.structure import named
from taac_wrappers.training.tasks import SETTINGS, TASKS

MILLION = 1_000_000
EPISODE = 1000  # frames of HalfCheetah's; each one's final observation takes a slot more in our replay
MEGABYTE = 1e6


def spaces(env_id: str) -> tuple[Space, Space, Box]:
    """What SAC observes, what TAAC observes, and the action that is executed."""
    sac, taac = make_env(env_id, sac_continuous.wrap), make_env(env_id, taac_continuous.wrap)
    sac.close()
    taac.close()
    assert isinstance(sac.action_space, Box)
    return sac.observation_space, taac.observation_space, sac.action_space


def our_bytes(observations: Space, actions: Box, frames: int, num_envs: int) -> int:
    return SequenceReplay(observations, actions, capacity=frames, num_envs=num_envs, seed=0).nbytes


def sb3_bytes(observations: Space, actions: Box, frames: int, num_envs: int, *, optimized: bool = False) -> int:
    """``optimized`` keeps each observation once, but then it cannot tell a time limit from a true end."""
    kind: type[ReplayBuffer] = DictReplayBuffer if isinstance(observations, Dict) else ReplayBuffer
    buffer = kind(
        frames,
        observations,
        actions,
        n_envs=num_envs,
        optimize_memory_usage=optimized,
        handle_timeout_termination=not optimized,
    )
    return sum(array.nbytes for array in named("", vars(buffer)).values() if isinstance(array, np.ndarray))


def half_cheetah() -> dict[str, int]:
    """Bytes of a million transitions. Gymnasium's HalfCheetah observes float64; `make_env` makes it float32."""
    single, with_previous, actions = spaces("HalfCheetah-v5")
    double = Box(-np.inf, np.inf, single.shape, np.float64)
    kept = MILLION + MILLION // EPISODE
    return {
        "SAC's replay": our_bytes(single, actions, kept, 1),
        "TAAC's replay": our_bytes(with_previous, actions, kept, 1),
        "SB3 ReplayBuffer, float32 observations": sb3_bytes(single, actions, MILLION, 1),
        "SB3 ReplayBuffer, float32, optimize_memory_usage": sb3_bytes(single, actions, MILLION, 1, optimized=True),
        "SB3 ReplayBuffer, the environment's float64": sb3_bytes(double, actions, MILLION, 1),
        "SB3 ReplayBuffer, float64, optimize_memory_usage": sb3_bytes(double, actions, MILLION, 1, optimized=True),
    }


def tasks() -> dict[str, tuple[int, int, int, int, int, int]]:
    """Of every task whose observation is made of vectors: how many numbers are observed, how many an action has, frames
    kept, and the bytes of SAC's replay, of TAAC's and of SB3's, all of float32."""
    rows = {}
    for task in TASKS.values():
        if task.observation_size is None:
            continue
        settings = SETTINGS[task.category]
        kept = settings.buffer_size, settings.num_envs
        single, with_previous, actions = spaces(task.env_id)
        sac, taac = (our_bytes(observed, actions, *kept) for observed in (single, with_previous))
        sb3 = sb3_bytes(single, actions, *kept)
        rows[task.env_id] = flatdim(single), flatdim(actions), settings.buffer_size, sac, taac, sb3
    return rows


def main() -> None:
    cheetah = half_cheetah()
    sac, taac, *_ = cheetah.values()
    print("One million transitions of HalfCheetah (17 observations, 6 actions).\n")
    print("| buffer | MB | bytes per transition | SAC's in % of it | TAAC's in % of it |\n|---|---|---|---|---|")
    for name, size in cheetah.items():
        print(f"| {name} | {size / MEGABYTE:.1f} | {size / MILLION:.1f} | {sac / size:.1%} | {taac / size:.1%} |")
    print("\nThe paper's tasks with their buffers, float32 observations in all.")
    print("In ours, the final observation of an episode takes the place of a frame.\n")
    print("| task | observations | actions | frames kept | SAC, MB | TAAC, MB | SB3, MB | SAC : SB3 | TAAC : SB3 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for env_id, (observations, actions, frames, sac, taac, sb3) in tasks().items():
        megabytes = " | ".join(f"{size / MEGABYTE:.1f}" for size in (sac, taac, sb3))
        print(
            f"| {env_id} | {observations} | {actions} | {frames:,} | {megabytes} | {sac / sb3:.1%} | {taac / sb3:.1%} |"
        )


if __name__ == "__main__":
    main()
