"""Evaluate a trained agent by its mode: score, length, success and how much it repeats.

python examples/evaluate.py examples/pretrained/MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --episodes 20 --video
python examples/evaluate.py agent.safetensors --env-id MountainCarContinuous-v0
python examples/evaluate.py runs/MY_RUN --env-id mymodule:MyEnv-v0
"""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from taac_wrappers.agent import HybridAgent, KRepAgent, NRepAgent, SACAgent, TAACAgent, load_agent
from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.training.arguments import bad_input, exit_with, parse
from taac_wrappers.training.config import refuse_unasked
from taac_wrappers.training.envs import Wrap, check_filming, make_env
from taac_wrappers.training.evaluation import LONGEST_EPISODE, LONGEST_FILM, evaluate
from taac_wrappers.training.files import read_config
from taac_wrappers.training.run import render_without_display, report
from taac_wrappers.training.structure import mapped

SCRIPTS = Path(__file__).parents[1] / "agents"
METHODS: dict[str, type[ActorCriticAgent]] = {
    "taac": TAACAgent,
    "sac": SACAgent,
    "sac_ntd": SACAgent,
    "sac_nrep": NRepAgent,
    "sac_krep": KRepAgent,
    "sac_ez": SACAgent,
    "sac_hybrid": HybridAgent,
}
"""What each script trains. A file that is alone is evaluated by the first script that trains such an agent."""


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
        file = args.path / "agent.safetensors" if args.path.is_dir() else args.path
        agent = load_agent(file)
        config = read_config(file.parent) if (file.parent / "config.json").is_file() else {}
        env_id, env_kwargs = environment(args, config, file)
        method = method_of(config, agent)
        wrap = wrap_of(method, agent, env_id)
        env = make_env(env_id, wrap, env_kwargs=env_kwargs, longest_episode=LONGEST_EPISODE)
        same_observations = shapes_of(env.observation_space) == shapes_of(agent.observation_space)
        same_spaces = same_observations and env.action_space == agent.action_space
        if not same_spaces or type(agent) is not METHODS[method]:
            raise ValueError(
                f"the agent in {str(file)!r} does not fit {env_id}: it was trained on other spaces or not by {method}"
            )
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {args.episodes}")
        if args.video:
            check_filming("--video", env_id, wrap, env_kwargs)
    result = evaluate(agent, env, args.episodes, seed=args.seed)
    print(f"{env_id}: mean length {result['length']:.1f} frames{report(result)}")
    if args.video:
        folder = file.parent / "videos"
        video_env = make_env(env_id, wrap, video_folder=folder, env_kwargs=env_kwargs, longest_episode=LONGEST_FILM)
        evaluate(agent, video_env, 1, seed=args.seed)
        video_env.close()
        print(f"video: {folder}")
    return 0


def environment(args: Args, config: dict[str, Any], file: Path) -> tuple[str, dict[str, Any]]:
    """The environment's id and arguments, by the command line or else by the config.json."""
    trained_in, trained_by = config.get("resolved_env_id"), config.get("args", {})
    env_id = args.env_id or trained_in
    if not isinstance(env_id, str):
        raise ValueError(f"no config.json beside {str(file)!r} names an environment: name it with --env-id")
    trained_with = trained_by.get("env_kwargs", {}) if isinstance(trained_by, dict) else None
    if not isinstance(trained_with, dict):
        raise ValueError(f"the config.json beside {str(file)!r} is not that of a run")
    env_kwargs = trained_with if args.env_kwargs is None else args.env_kwargs
    refuse_unasked("" if args.env_id else env_id, env_kwargs if args.env_kwargs is None else {})
    return env_id, env_kwargs


def method_of(config: dict[str, Any], agent: ActorCriticAgent) -> str:
    """The method that the config.json names, or else one that trains such agents."""
    method = config.get("method", next(name for name, kind in METHODS.items() if kind is type(agent)))
    if not isinstance(method, str) or method not in METHODS:  # its script is going to be imported
        raise ValueError(f"config.json names a method that is none of {sorted(METHODS)}: {method!r:.100}")
    return method


def wrap_of(method: str, agent: ActorCriticAgent, env_id: str) -> Wrap:
    """What the method's script puts around an environment to evaluate this agent in."""
    sys.path.insert(0, str(SCRIPTS))
    script = importlib.import_module(f"{method}_continuous")
    args = script.Args.for_task(env_id)
    if isinstance(agent, NRepAgent):
        args.window = agent.n
    if isinstance(agent, KRepAgent):
        args.window = agent.max_repeat
    return functools.partial(script.wrap, args=args)


def shapes_of(space: Any) -> Any:
    return mapped(lambda part: part.shape, space)


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
