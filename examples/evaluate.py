"""Evaluate a trained agent by its mode: score, length, success and how much it repeats.

python examples/evaluate.py examples/pretrained/MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --episodes 20 --video
python examples/evaluate.py agent.safetensors --env-id MountainCarContinuous-v0
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from taac_wrappers.agent import SACAgent, TAACAgent, load_agent
from taac_wrappers.training.arguments import bad_input, exit_with
from taac_wrappers.training.config import refuse_module
from taac_wrappers.training.envs import Wrap, make_env
from taac_wrappers.training.evaluation import evaluate
from taac_wrappers.training.files import read_config
from taac_wrappers.training.run import report
from taac_wrappers.training.structure import mapped

SCRIPTS = Path(__file__).parents[1] / "agents"
METHODS = {TAACAgent: "taac", SACAgent: "sac"}


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
        config = read_config(file.parent) if (file.parent / "config.json").is_file() else {}
        env_id = args.env_id or trained_on(config, file)
        wrap = wrap_of(config.get("method", METHODS[type(agent)]))
        env = make_env(env_id, wrap)
        same_observations = shapes_of(env.observation_space) == shapes_of(agent.observation_space)
        if not same_observations or env.action_space != agent.action_space:
            raise ValueError(f"the agent in {str(file)!r} does not fit {env_id}: it was trained on other spaces")
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
    result = evaluate(agent, env, args.episodes, seed=args.seed)
    print(f"{env_id}: mean length {result['length']:.1f} frames{report(result)}")
    if args.video:
        os.environ.setdefault("MUJOCO_GL", "egl")  # films without a display
        video_env = make_env(env_id, wrap, video_folder=file.parent / "videos")
        evaluate(agent, video_env, 1, seed=args.seed)
        video_env.close()
        print(f"video: {file.parent / 'videos'}")
    return 0


def trained_on(config: dict[str, Any], file: Path) -> str:
    env_id = config.get("resolved_env_id")
    if not isinstance(env_id, str):
        raise ValueError(f"no config.json beside {str(file)!r} names an environment: name it with --env-id")
    refuse_module(env_id)
    return env_id


def wrap_of(method: Any) -> Wrap:
    """What the method's script puts around an environment; whatever else a file names is not imported."""
    scripts = {path.stem.removesuffix("_continuous"): path.stem for path in SCRIPTS.glob("*_continuous.py")}
    if not isinstance(method, str) or method not in scripts:
        raise ValueError(f"config.json names a method that is none of {sorted(scripts)}: {method!r:.100}")
    sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module(scripts[method]).wrap


def shapes_of(space: Any) -> Any:
    return mapped(lambda part: part.shape, space)


if __name__ == "__main__":
    exit_with(lambda: main(tyro.cli(Args)))
