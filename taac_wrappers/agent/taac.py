"""TAAC's two-stage policy: an actor proposes, the critics decide whether to act or to repeat.

Stage one samples a candidate ``a_hat ~ pi(. | s, a_prev)``; stage two compares ``Q(s, a_hat)`` with ``Q(s, a_prev)``
and executes the candidate with probability ``beta*_1`` (paper, Section 4.1). Networks and initialisation follow the
authors' code. How the agent is trained is spelled out in ``agents/taac_continuous.py``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from taac_wrappers.agent.distributions import SquashedGaussian
from taac_wrappers.agent.operators import switch_probability

FORMAT = "taac_wrappers.TAACAgent/1"


class Actor(nn.Module):
    """``pi(a_hat | s, a_prev)``: ``(observation [B, d], previous action [B, A]) -> mean [B, A], log_std [B, A]``.

    The previous action is first embedded linearly to the size of the observation, so that both weigh alike.
    """

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int], log_std: tuple[float, float]):
        super().__init__()
        self.log_std_min, self.log_std_max = log_std
        self.embed = nn.Linear(action_size, observation_size)
        sizes = (2 * observation_size, *hidden)
        layers = [nn.Linear(n_in, n_out) for n_in, n_out in pairwise(sizes)]
        self.hidden = nn.ModuleList(layers)
        self.head = nn.Linear(sizes[-1], 2 * action_size)
        _truncated_normal_(self.embed, gain=1.0)
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        _truncated_normal_(self.head, gain=0.3)  # small, so that the first standard deviations are near 1

    def forward(self, observation: Tensor, prev_action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([observation, self.embed(prev_action)], dim=-1)
        for layer in self.hidden:
            x = torch.relu_(layer(x))
        mean, log_std = self.head(x).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)


class TwinLinear(nn.Module):
    """Two independent linear layers in one batched product: ``[2, B, in] -> [2, B, out]``."""

    def __init__(self, in_features: int, out_features: int, bound: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, 1, out_features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class TwinCritics(nn.Module):
    """Two independent Q networks: ``(observation [B, d], action [B, A]) -> [2, B]``."""

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int]):
        super().__init__()
        sizes = (observation_size + action_size, *hidden)
        self.hidden = nn.ModuleList([TwinLinear(n_in, n_out, 1 / math.sqrt(n_in)) for n_in, n_out in pairwise(sizes)])
        self.head_weight = nn.Parameter(torch.empty(2, 1, sizes[-1]).uniform_(-0.003, 0.003))  # values start near zero
        self.head_bias = nn.Parameter(torch.zeros(2, 1))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([observation, action], dim=-1).expand(2, -1, -1)
        for layer in self.hidden:
            x = torch.relu_(layer(x))
        # A sum of products: a matrix product with a single column took six times as long.
        return (x * self.head_weight).sum(-1) + self.head_bias

    def minimum(self, observation: Tensor, action: Tensor) -> Tensor:
        """The smaller of both values, ``[B]``: the pessimism that every use of a value in TAAC shares."""
        return self(observation, action).amin(0)


class TAACAgent(nn.Module):
    """The closed-loop agent that learns when to act and when to repeat.

    Args:
        observation_space: a one-dimensional Box.
        action_space: a one-dimensional, bounded Box.
        hidden: sizes of the hidden layers of the actor and of each critic.
        log_std_min, log_std_max: clamp of the actor's log standard deviation.
        min_advantage: clip of ``Q(s, a_hat) - Q(s, a_prev)`` from below when deciding (0 in the paper's Locomotion).

    >>> _ = torch.manual_seed(0)
    >>> agent = TAACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> action, switch = agent.act(np.zeros((4, 3), np.float32), prev_action=np.zeros((4, 2), np.float32))
    >>> action.shape, switch.shape, action.dtype, switch.dtype
    ((4, 2), (4,), dtype('float32'), dtype('bool'))
    >>> bool(np.all(action[~switch] == 0))  # where it repeats, it executes the previous action
    True
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        min_advantage: float | None = None,
    ):
        super().__init__()
        _check_box("observation_space", observation_space)
        _check_box("action_space", action_space)
        if not action_space.is_bounded():
            raise ValueError(f"action_space must be bounded, got {action_space}")
        if not hidden or not all(isinstance(size, int) and size > 0 for size in hidden):
            raise ValueError(f"hidden must be a non-empty sequence of positive integers, got {hidden!r}")
        if not log_std_min < log_std_max:
            raise ValueError(f"log_std_min must be below log_std_max, got {log_std_min!r} and {log_std_max!r}")
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden, self.min_advantage = tuple(hidden), min_advantage
        observation_size, action_size = observation_space.shape[0], action_space.shape[0]
        self.actor = Actor(observation_size, action_size, hidden, (log_std_min, log_std_max))
        self.critics = TwinCritics(observation_size, action_size, hidden)
        # Temperatures are trained as logarithms: alpha' of the switch, alpha'' of the actor (both start at 1).
        self.log_switch_temperature = nn.Parameter(torch.zeros(()))
        self.log_action_temperature = nn.Parameter(torch.zeros(()))
        low, high = torch.as_tensor(action_space.low), torch.as_tensor(action_space.high)
        self.action_center: Tensor
        self.action_scale: Tensor
        self.register_buffer("action_center", ((high + low) / 2).float(), persistent=False)
        self.register_buffer("action_scale", ((high - low) / 2).float(), persistent=False)
        self.action_low: Tensor
        self.action_high: Tensor
        self.register_buffer("action_low", low.float(), persistent=False)
        self.register_buffer("action_high", high.float(), persistent=False)

    def policy_distribution(self, observation: Tensor, prev_action: Tensor) -> SquashedGaussian:
        """Stage one: the distribution of the candidate action, ``pi(a_hat | s, a_prev)``."""
        mean, log_std = self.actor(observation, prev_action)
        return SquashedGaussian(mean, log_std, self.action_center, self.action_scale)

    def switch_probability(self, q_repeat: Tensor, q_new: Tensor) -> Tensor:
        """Stage two: the probability beta*_1 of executing the candidate, without gradient."""
        with torch.no_grad():
            return switch_probability(q_repeat, q_new, self.log_switch_temperature.exp(), self.min_advantage)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.log_switch_temperature.device

    @torch.no_grad()
    def act(self, observation, prev_action, deterministic: bool = False):
        """Both stages for a batch: the action to execute, ``[B, A]``, and the switch, ``[B]`` (True: acted anew).

        With ``deterministic`` both stages take their mode; a tie repeats. Arrays give arrays, tensors give tensors.
        """
        as_array = isinstance(observation, np.ndarray)
        observation, prev_action = self._to_tensor(observation), self._to_tensor(prev_action)
        distribution = self.policy_distribution(observation, prev_action)
        candidate = distribution.mode() if deterministic else distribution.sample()
        candidate = candidate.clamp(self.action_low, self.action_high)  # rounding may step over a bound
        q_repeat = self.critics.minimum(observation, prev_action)
        q_new = self.critics.minimum(observation, candidate)
        if deterministic:
            switch = q_new > q_repeat
        else:
            beta = self.switch_probability(q_repeat, q_new)
            switch = torch.rand_like(beta) < beta
        action = torch.where(switch.unsqueeze(-1), candidate, prev_action)
        return (action.cpu().numpy(), switch.cpu().numpy()) if as_array else (action, switch)

    def initial_action(self, num_envs: int) -> np.ndarray:
        """What counts as the previous action at an episode's first step: zeros, clipped into the space."""
        zeros = np.zeros((num_envs, *self.action_space.shape), np.float32)
        return np.clip(zeros, self.action_space.low, self.action_space.high).astype(np.float32)

    def policy(self, num_envs: int = 1, *, deterministic: bool = True) -> TAACPolicy:
        """A callable that remembers the previous action: ``action = policy(observation)``."""
        return TAACPolicy(self, num_envs, deterministic=deterministic)

    def _to_tensor(self, value) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32, device=self.device)

    def save(self, path: str | os.PathLike) -> None:
        """Write weights and spaces to one safetensors file, all or nothing."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        for name, space in (("observation", self.observation_space), ("action", self.action_space)):
            tensors[f"space.{name}.low"] = torch.as_tensor(space.low)
            tensors[f"space.{name}.high"] = torch.as_tensor(space.high)
        config = {
            "hidden": self.hidden,
            "log_std_min": self.actor.log_std_min,
            "log_std_max": self.actor.log_std_max,
            "min_advantage": self.min_advantage,
        }
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        try:
            temporary.write_bytes(save(tensors, metadata={"format": FORMAT, "config": json.dumps(config)}))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | torch.device = "cpu") -> TAACAgent:
        """Read what :meth:`save` wrote. The format holds numbers and text only: loading never runs code."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"no agent file at {str(path)!r}")
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ValueError(f"{str(path)!r} is not a readable agent file: {error}") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{str(path)!r} has format {metadata.get('format')!r}, expected {FORMAT!r}")
        try:
            box = {
                name: spaces.Box(low.numpy(), tensors.pop(f"space.{name}.high").numpy(), dtype=low.numpy().dtype.type)
                for name, low in [(name, tensors.pop(f"space.{name}.low")) for name in ("observation", "action")]
            }
            agent = cls(box["observation"], box["action"], **json.loads(metadata["config"]))
            agent.load_state_dict(tensors)
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:  # the right name, but not ours
            raise ValueError(f"{str(path)!r} does not hold a complete agent: {error!r}") from error
        return agent.to(device)


class TAACPolicy:
    """A :class:`TAACAgent` that remembers each env's previous action, as ``policy(observation) -> action``.

    One env may pass its observation without a batch dimension and gets an action without one.

    Attributes:
        switch: what the last call decided, ``[num_envs]`` (True: acted anew).

    >>> agent = TAACAgent(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    >>> policy = agent.policy()
    >>> policy(np.zeros(3, np.float32)).shape
    (2,)
    >>> policy.reset()  # at the start of every episode
    """

    def __init__(self, agent: TAACAgent, num_envs: int, *, deterministic: bool):
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


def _truncated_normal_(layer: nn.Linear, gain: float) -> None:
    """Normal weights cut at two standard deviations and widened to keep the variance ``gain^2 / fan_in``; no bias."""
    kept_std = 0.87962566  # standard deviation of a unit normal truncated to [-2, 2]
    std = gain / math.sqrt(layer.in_features) / kept_std
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)


def _check_box(name: str, space: spaces.Space) -> None:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise TypeError(f"{name} must be a one-dimensional Box, got {space}")
