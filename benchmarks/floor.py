"""The least time that an update's matrix products take: their arithmetic over the rate of this machine's products."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.batch import Batch

PRODUCTS = 5  # of each kind per measurement


@dataclass(frozen=True)
class Flops:
    """Multiplications and additions in matrix products."""

    actor: int
    critics: int  # both of them, online and target

    @property
    def total(self) -> int:
        return self.actor + self.critics


def update_flops(agent: TAACAgent | SACAgent, batch: Batch) -> Flops:
    """What one update with the default settings needs, from the shapes alone.

    M transitions are trained on, F states start an episode, D states are deeper in a window, and at S of all nodes
    the target asks for the value of repeating (``stops``).

    ================  ===============  ==========  ================  =================================================
    network           rows, TAAC       rows, SAC   weight gradients  input gradients
    ================  ===============  ==========  ================  =================================================
    actor             D + M + F        M           yes, not at D     as many, of every layer but the first, which TAAC
                                                                     leads to the embedded previous action
    actor                              M
    critics           M                M           yes               of every layer but the first
    critics           M + F            M                             of one critic: they lead to the action
    critics           2 D + M + F
    target critics    D + M + S        M
    ================  ===============  ==========  ================  =================================================

    The critics' last layer has a single output, and is no matrix product but a weighted sum: it does not count.
    """
    observation, action = agent.observation_space.shape[0], agent.action_space.shape[0]
    trained, nodes, stops = batch.trained, batch.nodes, len(batch.stops)
    inner = list(pairwise(agent.hidden))
    to_head = [*inner, (agent.hidden[-1], 2 * action)]

    critics = [(observation + action, agent.hidden[0]), *inner]
    if isinstance(agent, TAACAgent):
        actor = [(action, observation), (2 * observation, agent.hidden[0]), *to_head]  # embeds the previous action
        actor_input_gradients = [(observation, agent.hidden[0]), *to_head]
        acting, deeper = batch.acting, nodes - trained
        decisions, without_gradient = deeper + acting, 2 * deeper + acting + nodes + stops
    else:
        actor = [(observation, agent.hidden[0]), *to_head]
        actor_input_gradients = to_head
        acting = trained
        decisions, without_gradient = nodes + acting, nodes
    actor_flops = (
        _flops(actor, decisions)
        + _flops(actor, acting)  # gradients of weights
        + _flops(actor_input_gradients, acting)
    )
    critic_flops = (
        2 * _flops(critics, trained + acting + without_gradient)
        + 2 * _flops(critics, trained)  # gradients of weights
        + 2 * _flops(inner, trained)
        + _flops([(action, agent.hidden[0]), *inner], acting)
    )
    return Flops(actor_flops, critic_flops)


def _flops(layers: Sequence[tuple[int, int]], rows: int) -> int:
    """Of ``rows`` through ``layers`` of (inputs, outputs), or of one of their gradients, which costs the same."""
    return sum(2 * rows * inputs * outputs for inputs, outputs in layers)


class Products:
    """A hidden layer's products, as the actor (one matrix) and the critics (two at once) do them."""

    def __init__(self, rows: int, width: int):
        self.single = torch.randn(rows, width), torch.randn(width, width), torch.empty(rows, width)
        self.twin = torch.randn(2, rows, width), torch.randn(2, width, width), torch.empty(2, rows, width)
        self.flops = 2 * rows * width * width

    def rates(self) -> tuple[float, float]:
        """Flop per second of processor time of the single product and of the twin product, now."""
        x, weight, out = self.single
        start = time.process_time()
        for _ in range(PRODUCTS):
            torch.mm(x, weight, out=out)
        single = time.process_time() - start
        x, weight, out = self.twin
        start = time.process_time()
        for _ in range(PRODUCTS):
            torch.bmm(x, weight, out=out)
        twin = time.process_time() - start
        return PRODUCTS * self.flops / single, 2 * PRODUCTS * self.flops / twin
