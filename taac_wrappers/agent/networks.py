"""The networks that the agents are made of, initialised as in the authors' code.

An observation is what the environment gives: a tensor ``[B, d]``, or a dict of such tensors. Every network joins the
entries that it looks at, its ``keys``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Observation = Tensor | Mapping[str, Tensor]


def joined(observation: Observation, keys: Sequence[str]) -> Tensor:
    """What a network looks at, ``[B, d]``: these entries of a Dict observation, or all of any other.

    >>> joined({"observation": torch.tensor([[1.0, 2.0]]), "desired_goal": torch.tensor([[3.0]])}, ["observation"])
    tensor([[1., 2.]])
    """
    if isinstance(observation, Tensor):
        return observation
    parts = [observation[key] for key in keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def hidden_layers(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from each size to the next, every one followed by a ReLU; biases start at zero."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        linear = nn.Linear(n_in, n_out)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def weights_of(layers: nn.Sequential) -> list[Tensor]:
    """The weight matrices of hidden layers."""
    return [layer.weight for layer in layers if isinstance(layer, nn.Linear)]


class Actor(nn.Module):
    """``pi(a | s)``: ``observation -> mean [B, A], log_std [B, A]``."""

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std: tuple[float, float],
        keys: Sequence[str] = (),
    ):
        super().__init__()
        self.keys = keys
        self.log_std_min, self.log_std_max = log_std
        if not self.log_std_min < self.log_std_max:
            raise ValueError(f"log_std_min must be below log_std_max, got {log_std[0]!r} and {log_std[1]!r}")
        self.hidden = hidden_layers((input_size, *hidden))
        self.head = nn.Linear(hidden[-1], 2 * action_size)
        for weight in weights_of(self.hidden):
            nn.init.xavier_uniform_(weight)
        truncated_normal_(self.head, gain=0.3)  # small, so that the first standard deviations are near 1

    def join(self, observation: Observation) -> Tensor:
        """What the first hidden layer is given."""
        return joined(observation, self.keys)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(self.hidden(self.join(observation))).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)


class PrevActionActor(Actor):
    """``pi(a_hat | s, a_prev)``: as :class:`Actor`, of an observation with the entry ``prev_action``.

    The previous action is first embedded linearly to the size of the observation, so that both weigh alike.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std: tuple[float, float],
        keys: Sequence[str],
    ):
        super().__init__(2 * observation_size, action_size, hidden, log_std, keys)
        self.embed = nn.Linear(action_size, observation_size)
        truncated_normal_(self.embed, gain=1.0)

    def join(self, observation: Observation) -> Tensor:
        """What the first hidden layer is given, ``[B, 2 d]``."""
        assert isinstance(observation, Mapping)
        return torch.cat([joined(observation, self.keys), self.embed(observation["prev_action"])], dim=-1)


class HybridActor(PrevActionActor):
    """``pi(a_hat | s, a_prev)`` and ``pi(b | s, a_prev)`` side by side, which share their hidden layers.

    ``observation -> mean [B, A], log_std [B, A], switch_logit [B]``, the last one of acting anew.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std: tuple[float, float],
        keys: Sequence[str],
    ):
        super().__init__(observation_size, action_size, hidden, log_std, keys)
        self.switch_head = nn.Linear(hidden[-1], 1)
        truncated_normal_(self.switch_head, gain=0.3)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        features = self.hidden(self.join(observation))
        mean, log_std = self.head(features).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max), self.switch_head(features).squeeze(-1)


class Critic(nn.Module):
    """``Q(s, a)``: ``[B, d + A] -> [B]``, or one value for each of a number of discrete choices: ``[B, choices]``."""

    def __init__(self, input_size: int, hidden: Sequence[int], choices: int | None = None):
        super().__init__()
        self.choices = choices
        self.hidden = hidden_layers((input_size, *hidden))
        self.head = nn.Linear(hidden[-1], choices or 1)
        for weight in weights_of(self.hidden):
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))
        nn.init.uniform_(self.head.weight, -0.003, 0.003)  # values start near zero
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        value = self.head(self.hidden(x))
        return value if self.choices else value.squeeze(-1)


class TwinCritics(nn.Module):
    """Two independent Q networks: ``(observation, action [B, A]) -> [2, B]``, or ``[2, B, choices]``."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        keys: Sequence[str] = (),
        choices: int | None = None,
    ):
        super().__init__()
        self.keys = keys
        self.twins = nn.ModuleList(Critic(observation_size + action_size, hidden, choices) for _ in range(2))

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        x = torch.cat([joined(observation, self.keys), action], dim=-1)
        return torch.stack([critic(x) for critic in self.twins])

    def minimum(self, observation: Observation, action: Tensor) -> Tensor:
        """The smaller of both values, ``[B]`` or ``[B, choices]``: the pessimism that every use of a value shares."""
        return torch.minimum(*self(observation, action))


def truncated_normal_(layer: nn.Linear, gain: float) -> None:
    """Normal weights cut at two standard deviations and widened to keep the variance ``gain^2 / fan_in``; no bias."""
    kept_std = 0.87962566  # standard deviation of a unit normal truncated to [-2, 2]
    std = gain / math.sqrt(layer.in_features) / kept_std
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
