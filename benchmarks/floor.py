"""The least time that an update's matrix products take: their arithmetic over the rate of this machine's products."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.batch import Batch

PRODUCTS = 10  # per measurement


def update_flops(agent: TAACAgent | SACAgent, batch: Batch) -> int:
    """Multiplications and additions in the matrix products of one update, from the shapes alone.

    M transitions are trained on, and their targets look at K next states.

    ==============  ==========  =========  ================  =========================================================
    network         rows, TAAC  rows, SAC  weight gradients  input gradients
    ==============  ==========  =========  ================  =========================================================
    actor           K + M       K + M      at M              at M, of every layer but the first
    each critic     2 K + 3 M   2 M        at M              at M, of every layer but the first; for the actor's loss,
                                                             at M again, of every layer
    target critics  2 K         K
    ==============  ==========  =========  ================  =========================================================
    """
    observation, action = agent.observation_size, agent.action_box.shape[0]
    trained, following = len(batch.action), int(batch.valid.sum())
    inner = list(pairwise(agent.hidden))
    critic = [(observation + action, agent.hidden[0]), *inner, (agent.hidden[-1], 1)]
    actor = [(observation, agent.hidden[0]), *inner, (agent.hidden[-1], 2 * action)]
    critic_rows = 2 * trained + following
    if isinstance(agent, TAACAgent):
        actor = [(action, observation), (2 * observation, agent.hidden[0]), *actor[1:]]  # embeds the previous action
        critic_rows = 3 * trained + 4 * following
    actor_flops = _flops(actor, following + trained) + _flops(actor, trained) + _flops(actor[1:], trained)
    critic_flops = _flops(critic, critic_rows + trained) + _flops(critic[1:], trained) + _flops(critic, trained)
    return actor_flops + 2 * critic_flops


def _flops(layers: Sequence[tuple[int, int]], rows: int) -> int:
    """Of ``rows`` through ``layers`` of (inputs, outputs), or of one of their gradients, which costs the same."""
    return sum(2 * rows * inputs * outputs for inputs, outputs in layers)


class Products:
    """A hidden layer's matrix product."""

    def __init__(self, rows: int, width: int):
        self.operands = torch.randn(rows, width), torch.randn(width, width)
        self.out = torch.empty(rows, width)
        self.flops = 2 * rows * width * width

    def rate(self) -> float:
        """Flop per second of processor time, now."""
        start = time.process_time()
        for _ in range(PRODUCTS):
            torch.mm(*self.operands, out=self.out)
        return PRODUCTS * self.flops / (time.process_time() - start)
