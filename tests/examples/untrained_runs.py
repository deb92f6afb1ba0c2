"""Folders of runs of every method, as far as the programs of examples/ look at them; the agents are not trained."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from taac_wrappers.training.config import plain
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.files import write_config

ROOT = Path(__file__).parents[2]
METHODS = sorted(path.stem.removesuffix("_continuous") for path in (ROOT / "agents").glob("*_continuous.py"))
ENV, WINDOW = "Pendulum-v1", 5


def write_run(folder: Path, method: str) -> None:
    script = importlib.import_module(f"{method}_continuous")
    args = script.Args.for_task(ENV)
    args.hidden, args.window = (8, 8), 1 if method == "sac" else WINDOW
    env = make_env(ENV, lambda env: script.wrap(env, args))
    torch.manual_seed(0)
    agent = script.make_agent(args, env.observation_space, env.action_space)
    with torch.no_grad():
        for critic in agent.critics.twins:
            critic.head.weight.mul_(1000)  # opinions about when to repeat, and for how long
    folder.mkdir()
    agent.save(folder / "agent.safetensors")
    write_config(folder, {"method": method, "resolved_env_id": ENV, "args": plain(vars(args))})
