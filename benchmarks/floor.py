"""The least time that an update's matrix products take: their arithmetic over the rate of this machine's products."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

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
    the target asks for the value of repeating (``stop_nodes``).

    ================  =============  ==========  ================  ======================================
    network           rows, TAAC     rows, SAC   weight gradients  input gradients
    ================  =============  ==========  ================  ======================================
    actor             M + F          M + F       yes               of every layer but the first
    actor             D
    critics           M              M           yes               of every layer but the first
    critics           M + F          M + F                         of every layer: they lead to the actor
    critics           2 D + M + F
    target critics    D + M + S      M
    ================  =============  ==========  ================  ======================================

    The critics' last layer has a single output, and is no matrix product but a weighted sum: it does not count.
    """
    observation, action = agent.observation_space.shape[0], agent.action_space.shape[0]
    trained, deeper, nodes, stops = batch.trained, batch.deeper, batch.nodes, len(batch.stop_nodes)
    acting = len(batch.acting_observation)

    actor = list(pairwise((observation, *agent.hidden, 2 * action)))
    critics = list(pairwise((observation + action, *agent.hidden)))
    without_gradient = nodes
    if isinstance(agent, TAACAgent):
        actor = [(action, observation), (2 * observation, agent.hidden[0]), *actor[1:]]  # embeds the previous action
        without_gradient = 2 * deeper + acting + nodes + stops
    actor_flops = _flops(actor, acting, weight_gradients=True, input_gradients="inner") + _flops(actor, deeper)
    critic_flops = (
        _flops(critics, trained, weight_gradients=True, input_gradients="inner")
        + _flops(critics, acting, input_gradients="all")
        + _flops(critics, without_gradient)
    )
    return Flops(actor_flops, 2 * critic_flops)


def _flops(
    layers: Sequence[tuple[int, int]],
    rows: int,
    *,
    weight_gradients: bool = False,
    input_gradients: Literal["none", "inner", "all"] = "none",
) -> int:
    """Of ``rows`` through ``layers`` of (inputs, outputs): each product and each of its gradients cost the same."""
    forward = [2 * rows * inputs * outputs for inputs, outputs in layers]
    back = {"none": 0, "inner": sum(forward[1:]), "all": sum(forward)}[input_gradients]
    return sum(forward) * (1 + weight_gradients) + back


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
