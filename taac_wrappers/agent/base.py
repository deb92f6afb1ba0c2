"""What every agent here has in common: the spaces of its environment, an actor, twin critics, and a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from taac_wrappers.agent.distributions import SquashedGaussian
from taac_wrappers.agent.files import read_agent, write_agent
from taac_wrappers.agent.networks import Actor, Observation, TwinCritics
from taac_wrappers.agent.policy import AgentPolicy

A = TypeVar("A", bound="ActorCriticAgent")


class ActorCriticAgent(nn.Module):
    """An actor with twin critics, for an environment as its method's wrappers make it.

    A subclass sets ``actor`` and everything else it learns, chooses by :meth:`_choose`, and names its file ``FORMAT``.

    Args:
        observation_space: a one-dimensional Box, or a Dict of such.
        action_space: of the environment.
        action_box: the bounded, one-dimensional Box that actions are drawn from, in ``action_space`` or all of it.
        hidden: sizes of the hidden layers of the actor and of each critic.
        unseen: entries of a Dict observation that a network looks at in its own way.
        seen_by_critics: those of them that the critics join to the others nevertheless.
        choices: for how many discrete choices the critics have a value each, if for any.

    Attributes:
        keys: the other entries, which all networks join. A goal environment's ``achieved_goal`` is not among them: its
            ``observation`` holds that already.
    """

    FORMAT: ClassVar[str]
    actor: Actor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        action_box: spaces.Box,
        *,
        hidden: Sequence[int],
        unseen: Sequence[str] = (),
        seen_by_critics: Sequence[str] = (),
        choices: int | None = None,
    ):
        super().__init__()
        self.keys, self._unseen = _seen_keys(observation_space, unseen), unseen
        self.observation_size = _size(observation_space, self.keys)
        require_vector("action_space", action_box)
        if not action_box.is_bounded():
            raise ValueError(f"action_space must be bounded, got {action_box}")
        if not hidden or not all(isinstance(size, int) and size > 0 for size in hidden):
            raise ValueError(f"hidden must be a non-empty sequence of positive integers, got {hidden!r}")
        self.observation_space, self.action_space, self.action_box = observation_space, action_space, action_box
        self.hidden = tuple(hidden)
        critic_keys = [*self.keys, *seen_by_critics]
        self.critics = TwinCritics(
            _size(observation_space, critic_keys), action_box.shape[0], hidden, critic_keys, choices
        )
        self.log_action_temperature = nn.Parameter(torch.zeros(()))  # trained as a logarithm, starts at 1
        low, high = torch.as_tensor(action_box.low), torch.as_tensor(action_box.high)
        self.action_center: Tensor
        self.action_scale: Tensor
        self.register_buffer("action_center", ((high + low) / 2).float(), persistent=False)
        self.register_buffer("action_scale", ((high - low) / 2).float(), persistent=False)
        self.action_low: Tensor
        self.action_high: Tensor
        self.register_buffer("action_low", low.float(), persistent=False)
        self.register_buffer("action_high", high.float(), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.log_action_temperature.device

    def policy_distribution(self, observation: Observation) -> SquashedGaussian:
        """What the actor draws actions from: ``pi(a | s)``, of TAAC ``pi(a_hat | s, a_prev)``."""
        mean, log_std = self.actor(observation)
        return SquashedGaussian(mean, log_std, self.action_center, self.action_scale)

    def draw(self, observation: Observation, deterministic: bool) -> Tensor:
        """An action of the actor, or its mode, ``[B, A]``."""
        return self.draw_from(self.policy_distribution(observation), deterministic)

    def draw_from(self, distribution: SquashedGaussian, deterministic: bool) -> Tensor:
        """An action, or the mode, ``[B, A]``."""
        action = distribution.mode() if deterministic else distribution.sample()
        return action.clamp(self.action_low, self.action_high)  # rounding may step over a bound

    def act(self, observation: Any, deterministic: bool = False) -> Any:
        """Actions of the wrapped environment for a batch of its observations ``[n, ...]``.

        With ``deterministic`` every stage of the policy takes its mode. Arrays give arrays, tensors give tensors.
        """
        return self._answer(lambda looked_at: self._choose(looked_at, deterministic), observation)

    def log_prob(self, observation: Any, action: Any) -> Any:
        """Log density ``[n]`` of actions ``[n, A]`` of the Box, such as executed ones, for a batch of observations."""
        return self._answer(
            lambda looked_at: self.policy_distribution(looked_at).log_prob(
                self._batch("action", action, self.action_box)
            ),
            observation,
        )

    def _answer(self, function: Callable[[Observation], Any], observation: Any) -> Any:
        """``function`` of what the networks look at, without gradients; arrays give arrays, tensors give tensors."""
        part = next(iter(observation.values())) if isinstance(observation, Mapping) else observation
        as_array = isinstance(part, np.ndarray)
        with torch.inference_mode() if as_array else torch.no_grad():  # tensors may have a life in other modes
            answer = function(self._looked_at(observation))
        return _as_arrays(answer) if as_array else answer

    def _choose(self, observation: Observation, deterministic: bool) -> Any:
        """The action of the wrapped environment, as tensors."""
        raise NotImplementedError

    def _looked_at(self, observation: Any) -> Observation:
        """The parts of an observation that matter to the networks, as tensors."""
        if not isinstance(self.observation_space, spaces.Dict):
            return self._batch("observation", observation, self.observation_space)
        keys = [*self.keys, *self._unseen]
        if not isinstance(observation, Mapping) or not all(key in observation for key in keys):
            got = list(observation) if isinstance(observation, Mapping) else type(observation).__name__
            raise ValueError(
                f"observation must be a dict of {keys}, got {got} (for an environment without wrappers, see policy())"
            )
        return {key: self._batch(key, observation[key], self.observation_space[key]) for key in keys}

    def _batch(self, name: str, value: Any, space: spaces.Space) -> Tensor:
        tensor = self._to_tensor(value)
        if tensor.shape[1:] != space.shape:
            size = spaces.flatdim(space)
            raise ValueError(f"{name} must be a batch of shape [n, {size}], got shape {list(tensor.shape)}")
        return tensor

    def _to_tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32, device=self.device)

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> AgentPolicy:
        """For an environment without the method's wrappers: ``action = policy(observation)``."""
        return AgentPolicy(self, num_envs, deterministic=deterministic)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments beside the spaces, as JSON knows them."""
        log_std = {"log_std_min": self.actor.log_std_min, "log_std_max": self.actor.log_std_max}
        return {"hidden": self.hidden, **log_std}

    @classmethod
    def action_space_of(cls, action_box: spaces.Box, weights: Mapping[str, Any]) -> spaces.Space:
        """The action space of the wrapped environment, of the actions' Box and the weights of a file."""
        return action_box

    @classmethod
    def observation_space_of(cls, observation_box: spaces.Box, action_box: spaces.Box) -> spaces.Space:
        """The observation space of the wrapped environment if nothing else is observed than ``observation_box``."""
        return observation_box

    def save(self, path: str | os.PathLike) -> None:
        """Write weights and spaces to one safetensors file, all or nothing; equal agents give equal bytes."""
        write_agent(self, path)

    @classmethod
    def load(cls: type[A], path: str | os.PathLike, device: str | torch.device = "cpu") -> A:
        """Read what :meth:`save` wrote. The format holds numbers and text only: loading never runs code."""
        return read_agent(path, [cls]).to(device)


def load_agent(path: str | os.PathLike, device: str | torch.device = "cpu") -> ActorCriticAgent:
    """Read an agent file of any kind that has been imported."""
    return read_agent(path, _kinds(ActorCriticAgent)).to(device)


def _kinds(kind: type[ActorCriticAgent]) -> list[type[ActorCriticAgent]]:
    """Its subclasses, and theirs, as far as they have files."""
    every = [each for child in kind.__subclasses__() for each in (child, *_kinds(child))]
    return [each for each in every if hasattr(each, "FORMAT")]


def require_vector(name: str, space: spaces.Space) -> None:
    """Raise ``TypeError`` for anything but a one-dimensional Box."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise TypeError(f"{name} must be a one-dimensional Box, got {space}")


def _seen_keys(space: spaces.Space, unseen: Sequence[str]) -> list[str]:
    if not isinstance(space, spaces.Dict):
        return []
    is_goal = "desired_goal" in space.spaces
    seen = [key for key in space if key not in unseen and not (is_goal and key == "achieved_goal")]
    return sorted(seen)  # the order is part of the networks, and a file does not keep that of the space


def _size(space: spaces.Space, keys: Sequence[str]) -> int:
    """How many numbers the networks see of an observation."""
    if not isinstance(space, spaces.Dict):
        require_vector("observation_space", space)
        return space.shape[0]  # type: ignore[index]
    for key in keys:
        require_vector(f"observation_space[{key!r}]", space[key])
    if not keys:
        raise TypeError(f"observation_space must hold something to look at, got {space}")
    return sum(spaces.flatdim(space[key]) for key in keys)


def _as_arrays(action: Any) -> Any:
    if isinstance(action, Mapping):
        return {key: value.cpu().numpy() for key, value in action.items()}
    return action.cpu().numpy()
