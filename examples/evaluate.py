"""Evaluate a trained agent by its mode: score, length, success and how much it repeats.

python examples/evaluate.py examples/pretrained/MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --episodes 20 --video
python examples/evaluate.py agent.safetensors --env-id MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --env-id mymodule:MyEnv-v0
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from trained_agent import find_agent

from taac_wrappers.training.arguments import bad_input, exit_with, parse
from taac_wrappers.training.envs import check_filming
from taac_wrappers.training.evaluation import LONGEST_EPISODE, LONGEST_FILM, evaluate
from taac_wrappers.training.run import render_without_display, report


@dataclass
class Args:
    path: Annotated[Path, tyro.conf.Positional]
    """a run's folder, or an agent file"""
    episodes: int = 100
    """how many"""
    seed: int = 1
    """of the first episode's start"""
    env_id: str | None = None
    """the environment, if no config.json beside the agent names it, or if it has to be imported from a module"""
    env_kwargs: dict[str, Any] | None = None
    """its arguments as JSON, if they are not those that the config.json names"""
    video: bool = False
    """film the first episode into a folder `videos` beside the agent"""


def main(args: Args) -> int:
    if args.video:
        render_without_display()  # before anything imports MuJoCo
    with bad_input():
        trained = find_agent(args.path, args.env_id, args.env_kwargs)
        env = trained.make_env(longest_episode=LONGEST_EPISODE)
        trained.check_fit(env)
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
        if args.video:
            check_filming("--video", trained.env_id, trained.wrap, trained.env_kwargs)
    result = evaluate(trained.agent, env, args.episodes, seed=args.seed)
    print(f"{trained.env_id}: mean length {result['length']:.1f} frames{report(result)}")
    if args.video:
        folder = trained.file.parent / "videos"
        video_env = trained.make_env(video_folder=folder, longest_episode=LONGEST_FILM)
        evaluate(trained.agent, video_env, 1, seed=args.seed)
        video_env.close()
        print(f"video: {folder}")
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
