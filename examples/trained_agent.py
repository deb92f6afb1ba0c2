"""What the programs here share: a trained agent, found by its run's folder or its file, and the environment for it."""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from taac_wrappers.agent import HybridAgent, KRepAgent, NRepAgent, SACAgent, TAACAgent, load_agent
from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.training.config import refuse_unasked
from taac_wrappers.training.envs import Wrap, make_env
from taac_wrappers.training.files import read_config
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


@dataclass(frozen=True)
class TrainedAgent:
    """An agent, and what its environment is made of."""

    agent: ActorCriticAgent
    method: str
    file: Path
    env_id: str
    env_kwargs: dict[str, Any]
    wrap: Wrap
    """What the method puts around the environment to evaluate this agent in."""

    def make_env(self, **how: Any) -> gym.Env:
        """The environment that the agent acts in, built by `make_env` with these arguments."""
        return make_env(self.env_id, self.wrap, env_kwargs=self.env_kwargs, **how)

    def check_fit(self, env: gym.Env) -> None:
        """Raise ``ValueError`` if the agent cannot act in ``env``, or would be made to hold actions it was not."""
        same_observations = shapes_of(env.observation_space) == shapes_of(self.agent.observation_space)
        same_spaces = same_observations and env.action_space == self.agent.action_space
        if not same_spaces or type(self.agent) is not METHODS[self.method]:
            raise ValueError(
                f"the agent in {str(self.file)!r} does not fit {self.env_id}: "
                f"it was trained on other spaces or not by {self.method}"
            )


def find_agent(path: Path, env_id: str | None, env_kwargs: dict[str, Any] | None) -> TrainedAgent:
    """The agent of a run's folder or of a file.

    ``env_id`` and ``env_kwargs`` go before what the config.json beside it names.
    """
    file = path / "agent.safetensors" if path.is_dir() else path
    agent = load_agent(file)
    config = read_config(file.parent) if (file.parent / "config.json").is_file() else {}
    env_id, env_kwargs = environment(env_id, env_kwargs, config, file)
    method = method_of(config, agent)
    return TrainedAgent(agent, method, file, env_id, env_kwargs, wrap_of(method, agent, env_id))


def environment(
    env_id: str | None, env_kwargs: dict[str, Any] | None, config: dict[str, Any], file: Path
) -> tuple[str, dict[str, Any]]:
    """The environment's id and arguments, as given or else by the config.json."""
    trained_in, trained_by = config.get("resolved_env_id"), config.get("args", {})
    chosen_id = env_id or trained_in
    if not isinstance(chosen_id, str):
        raise ValueError(f"no config.json beside {str(file)!r} names an environment: name it with --env-id")
    trained_with = trained_by.get("env_kwargs", {}) if isinstance(trained_by, dict) else None
    if not isinstance(trained_with, dict):
        raise ValueError(f"the config.json beside {str(file)!r} is not that of a run")
    chosen_kwargs = trained_with if env_kwargs is None else env_kwargs
    refuse_unasked("" if env_id else chosen_id, chosen_kwargs if env_kwargs is None else {})
    return chosen_id, chosen_kwargs


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
