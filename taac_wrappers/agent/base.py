"""What every agent here has in common: its spaces, its twin critics, and a file that holds it whole."""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from taac_wrappers.agent.distributions import density_constant
from taac_wrappers.agent.networks import Actor, TwinCritics

A = TypeVar("A", bound="ActorCriticAgent")


class ActorCriticAgent(nn.Module):
    """An actor with twin critics, for a one-dimensional Box of observations and a bounded one of actions.

    A subclass sets ``actor`` and everything else it learns, and names its file ``FORMAT``.
    """

    FORMAT: ClassVar[str]
    actor: Actor

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Box, *, hidden: Sequence[int]):
        super().__init__()
        _check_box("observation_space", observation_space)
        _check_box("action_space", action_space)
        if not action_space.is_bounded():
            raise ValueError(f"action_space must be bounded, got {action_space}")
        if not hidden or not all(isinstance(size, int) and size > 0 for size in hidden):
            raise ValueError(f"hidden must be a non-empty sequence of positive integers, got {hidden!r}")
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden = tuple(hidden)
        self.critics = TwinCritics(observation_space.shape[0], action_space.shape[0], hidden)
        # Temperatures are trained as logarithms, and start at 1.
        self.log_action_temperature = nn.Parameter(torch.zeros(()))
        low, high = torch.as_tensor(action_space.low), torch.as_tensor(action_space.high)
        self.action_center: Tensor
        self.action_scale: Tensor
        self.register_buffer("action_center", ((high + low) / 2).float(), persistent=False)
        self.register_buffer("action_scale", ((high - low) / 2).float(), persistent=False)
        self.density_constant = density_constant((high - low).double() / 2).item()
        self.action_low: Tensor
        self.action_high: Tensor
        self.register_buffer("action_low", low.float(), persistent=False)
        self.register_buffer("action_high", high.float(), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.log_action_temperature.device

    def initial_action(self, num_envs: int) -> np.ndarray:
        """What counts as the previous action at an episode's first step: zeros, clipped into the space."""
        zeros = np.zeros((num_envs, *self.action_space.shape), np.float32)
        return np.clip(zeros, self.action_space.low, self.action_space.high).astype(np.float32)

    def act(self, observation: Any, prev_action: Any, deterministic: bool = False) -> tuple[Any, Any]:
        """Actions for a batch, ``[B, A]``, and the switch, ``[B]``: False where the previous action is repeated.

        With ``deterministic`` every stage of the policy takes its mode. Arrays give arrays, tensors give tensors.
        """
        as_array = isinstance(observation, np.ndarray)
        with torch.inference_mode() if as_array else torch.no_grad():  # tensors may have a life in other modes
            action, switch = self._act(self._to_tensor(observation), prev_action, deterministic)
        return (action.cpu().numpy(), switch.cpu().numpy()) if as_array else (action, switch)

    def _act(self, observation: Tensor, prev_action: Any, deterministic: bool) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> AgentPolicy:
        """A callable that remembers the previous action: ``action = policy(observation)``."""
        return AgentPolicy(self, num_envs, deterministic=deterministic)

    def _to_tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32, device=self.device)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments beside the spaces, as JSON knows them."""
        log_std = {"log_std_min": self.actor.log_std_min, "log_std_max": self.actor.log_std_max}
        return {"hidden": self.hidden, **log_std}

    def save(self, path: str | os.PathLike) -> None:
        """Write weights and spaces to one safetensors file, all or nothing; equal agents give equal bytes."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        for name, space in (("observation", self.observation_space), ("action", self.action_space)):
            tensors[f"space.{name}.low"] = torch.as_tensor(space.low)
            tensors[f"space.{name}.high"] = torch.as_tensor(space.high)
        # A single entry: the format writes several in no particular order.
        header = json.dumps({"format": self.FORMAT, "config": self.config()}, sort_keys=True)
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        try:
            temporary.unlink(missing_ok=True)  # a link of this name must not lead the write elsewhere
            temporary.write_bytes(save(tensors, metadata={"agent": header}))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls: type[A], path: str | os.PathLike, device: str | torch.device = "cpu") -> A:
        """Read what :meth:`save` wrote. The format holds numbers and text only: loading never runs code."""
        return _build(path, {cls.FORMAT: cls}).to(device)


class AgentPolicy:
    """An agent that remembers each env's previous action, as ``policy(observation) -> action``.

    One env may pass its observation without a batch dimension and gets an action without one.

    Attributes:
        switch: what the last call decided, ``[num_envs]`` (True: acted anew).

    >>> from taac_wrappers.agent import TAACAgent
    >>> agent = TAACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> policy = agent.policy()
    >>> policy(np.zeros(3, np.float32)).shape
    (2,)
    >>> policy.reset()  # at the start of every episode
    """

    def __init__(self, agent: ActorCriticAgent, num_envs: int, *, deterministic: bool):
        if not isinstance(num_envs, int) or num_envs < 1:
            raise ValueError(f"num_envs must be a positive integer, got {num_envs!r}")
        self.agent, self.num_envs, self.deterministic = agent, num_envs, deterministic
        self.prev_action = agent.initial_action(num_envs)
        self.switch = np.ones(num_envs, bool)

    def reset(self, mask: np.ndarray | None = None) -> None:
        """Forget the previous action, of all envs or of those where ``mask`` ``[num_envs]`` is true."""
        mask = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask)
        if mask.shape != (self.num_envs,):
            raise ValueError(f"mask must have shape {(self.num_envs,)}, got {mask!r}")
        self.prev_action = np.where(mask[:, None], self.agent.initial_action(self.num_envs), self.prev_action)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        observation = np.asarray(observation)
        single = observation.ndim == 1
        batch = observation[None] if single else observation
        expected = (self.num_envs, *self.agent.observation_space.shape)
        if batch.shape != expected:
            raise ValueError(f"observation must have shape {expected}, got {observation.shape}")
        action, self.switch = self.agent.act(batch, self.prev_action, deterministic=self.deterministic)
        self.prev_action = action
        return action[0].copy() if single else action.copy()


def load_agent(path: str | os.PathLike, device: str | torch.device = "cpu") -> ActorCriticAgent:
    """Read an agent file of any kind."""
    return _build(path, {kind.FORMAT: kind for kind in ActorCriticAgent.__subclasses__()}).to(device)


def _build(path: str | os.PathLike, kinds: dict[str, type[A]]) -> A:
    header, tensors = _read(path)
    found = header.get("format")
    if not isinstance(found, str) or found not in kinds:
        raise ValueError(f"{str(path)!r} has format {reprlib.repr(found)}, expected {' or '.join(kinds)}")
    try:
        box = {
            name: spaces.Box(low.numpy(), tensors.pop(f"space.{name}.high").numpy(), dtype=low.numpy().dtype.type)
            for name, low in [(name, tensors.pop(f"space.{name}.low")) for name in ("observation", "action")]
        }
        _check_config(header["config"], box["observation"], box["action"], tensors)
        agent = kinds[found](box["observation"], box["action"], **header["config"])
        for name, tensor in agent.state_dict().items():
            if tensors[name].dtype != tensor.dtype:
                raise TypeError(f"{name} is {tensors[name].dtype}, not {tensor.dtype}")
        agent.load_state_dict(tensors)
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The right name, but not ours; the message may quote what the file claims, however long.
        raise ValueError(f"{str(path)!r} does not hold a complete agent: {repr(error)[:300]}") from error
    return agent


def _check_config(config: Any, observation: spaces.Box, action: spaces.Box, tensors: dict) -> None:
    """Refuse numbers that no network can have, and layers larger than the file, before memory is spent on them."""
    if not isinstance(config, dict):
        raise TypeError(f"config is {reprlib.repr(config)}")
    for name, value in config.items():
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    sizes = observation.shape[0] + action.shape[0], *config["hidden"], action.shape[0]
    if sum(before * after for before, after in pairwise(sizes)) > sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"its tensors are smaller than hidden layers of {reprlib.repr(config['hidden'])}")


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no agent file at {str(path)!r}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get("agent", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not a readable agent file: {str(error)[:300]}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{str(path)!r} is not a readable agent file: its header is a {type(header).__name__}")
    return header, tensors


def _check_box(name: str, space: spaces.Space) -> None:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise TypeError(f"{name} must be a one-dimensional Box, got {space}")
