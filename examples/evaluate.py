"""Evaluate a trained agent by its mode: score, length, success and how much it repeats.

python examples/evaluate.py examples/pretrained/MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --episodes 20 --video
python examples/evaluate.py agent.safetensors --env-id MountainCarContinuous-v0
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from taac_wrappers.agent import load_agent
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.evaluation import evaluate
from taac_wrappers.training.run import bad_input, exit_with, refuse_module, report
from taac_wrappers.training.tracking import read_config


@dataclass
class Args:
    path: Annotated[Path, tyro.conf.Positional]
    """a run's folder, or an agent file"""
    episodes: int = 100
    """how many"""
    seed: int = 1
    """of the first episode's start"""
    env_id: str | None = None
    """the environment, if the agent file has no config.json beside it"""
    video: bool = False
    """film the first episode into a folder `videos` beside the agent"""


def main(args: Args) -> int:
    with bad_input():
        file = args.path / "agent.safetensors" if args.path.is_dir() else args.path
        agent = load_agent(file)
        env_id = args.env_id or trained_on(file)
        env = make_env(env_id)
        if env.observation_space.shape != agent.observation_space.shape or env.action_space != agent.action_space:
            raise ValueError(f"the agent in {str(file)!r} does not fit {env_id}: it was trained on other spaces")
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
    result = evaluate(agent.policy(), env, args.episodes, seed=args.seed)
    print(f"{env_id}: mean length {result['length']:.1f} frames{report(result)}")
    if args.video:
        os.environ.setdefault("MUJOCO_GL", "egl")  # films without a display
        video_env = make_env(env_id, video_folder=file.parent / "videos")
        evaluate(agent.policy(), video_env, 1, seed=args.seed)
        video_env.close()
        print(f"video: {file.parent / 'videos'}")
    return 0


def trained_on(file: Path) -> str:
    if not (file.parent / "config.json").is_file():
        raise ValueError(f"there is no config.json beside {str(file)!r}: name the environment with --env-id")
    env_id = read_config(file.parent).get("resolved_env_id")
    if not isinstance(env_id, str):
        raise ValueError(f"the config.json beside {str(file)!r} names no environment: name it with --env-id")
    refuse_module(env_id)
    return env_id


if __name__ == "__main__":
    exit_with(lambda: main(tyro.cli(Args)))
