"""The networks that SAC and TAAC are made of, initialised as in the authors' code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

CACHE_ROWS = 1024
"""So many rows of 256 numbers fit into a core's second cache."""


class Actor(nn.Module):
    """``pi(a | s)``: ``observation [B, d] -> mean [B, A], log_std [B, A]``."""

    hidden: Sequence[nn.Linear]

    def __init__(self, input_size: int, action_size: int, hidden: Sequence[int], log_std: tuple[float, float]):
        super().__init__()
        self.log_std_min, self.log_std_max = log_std
        if not self.log_std_min < self.log_std_max:
            raise ValueError(f"log_std_min must be below log_std_max, got {log_std[0]!r} and {log_std[1]!r}")
        sizes = (input_size, *hidden)
        layers = [nn.Linear(n_in, n_out) for n_in, n_out in pairwise(sizes)]
        self.hidden = nn.ModuleList(layers)  # type: ignore[assignment]
        self.head = nn.Linear(sizes[-1], 2 * action_size)
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        truncated_normal_(self.head, gain=0.3)  # small, so that the first standard deviations are near 1

    def join(self, *inputs: Tensor) -> Tensor:
        """What the first hidden layer is given."""
        (observation,) = inputs
        return observation

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.join(*inputs)
        for layer in self.hidden:
            x = torch.relu_(layer(x))
        mean, log_std = self.head(x).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)


class PrevActionActor(Actor):
    """``pi(a_hat | s, a_prev)``: ``(observation [B, d], previous action [B, A]) -> mean [B, A], log_std [B, A]``.

    The previous action is first embedded linearly to the size of the observation, so that both weigh alike.
    """

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int], log_std: tuple[float, float]):
        super().__init__(2 * observation_size, action_size, hidden, log_std)
        self.embed = nn.Linear(action_size, observation_size)
        truncated_normal_(self.embed, gain=1.0)

    def join(self, *inputs: Tensor) -> Tensor:
        """What the first hidden layer is given, ``[B, 2 d]``."""
        observation, prev_action = inputs
        return torch.cat([observation, self.embed(prev_action)], dim=-1)


class TwinLinear(nn.Module):
    """Two independent linear layers: ``weight [2, in, out]``, ``bias [2, 1, out]``."""

    def __init__(self, in_features: int, out_features: int, bound: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, 1, out_features))


class TwinCritics(nn.Module):
    """Two independent Q networks: ``(observation [B, d], action [B, A]) -> [2, B]``."""

    hidden: Sequence[TwinLinear]

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int]):
        super().__init__()
        sizes = (observation_size + action_size, *hidden)
        layers = [TwinLinear(n_in, n_out, 1 / math.sqrt(n_in)) for n_in, n_out in pairwise(sizes)]
        self.hidden = nn.ModuleList(layers)  # type: ignore[assignment]
        self.head_weight = nn.Parameter(torch.empty(2, 1, sizes[-1]).uniform_(-0.003, 0.003))  # values start near zero
        self.head_bias = nn.Parameter(torch.zeros(2, 1))

    def layers(self) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """Weights ``[in, out]`` and biases ``[1, out]`` of the hidden layers of each critic."""
        twins = [(*layer.weight.unbind(), *layer.bias.unbind()) for layer in self.hidden]
        return [(weight, bias) for weight, _, bias, _ in twins], [(weight, bias) for _, weight, _, bias in twins]

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """One critic and some rows after the other, so that all stays in the cache.

        Against batched products this saves 2 to 8 % of an update of TAAC with 256 windows and 14 % with 4096.
        """
        x = torch.cat([observation, action], dim=-1)
        if len(x) <= CACHE_ROWS:
            return self._values(x)
        return torch.cat([self._values(rows) for rows in x.split(CACHE_ROWS)], dim=1)

    def _values(self, x: Tensor) -> Tensor:
        values = []
        for layers, head_weight in zip(self.layers(), self.head_weight.squeeze(1).unbind(), strict=True):
            hidden = x
            for weight, bias in layers:
                hidden = torch.relu_(torch.addmm(bias, hidden, weight))
            values.append(hidden @ head_weight)
        return torch.stack(values) + self.head_bias

    def minimum(self, observation: Tensor, action: Tensor) -> Tensor:
        """The smaller of both values, ``[B]``: the pessimism that every use of a value shares."""
        return self(observation, action).amin(0)


def truncated_normal_(layer: nn.Linear, gain: float) -> None:
    """Normal weights cut at two standard deviations and widened to keep the variance ``gain^2 / fan_in``; no bias."""
    kept_std = 0.87962566  # standard deviation of a unit normal truncated to [-2, 2]
    std = gain / math.sqrt(layer.in_features) / kept_std
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
