"""Passes through an agent's networks that remember what their gradients need, and those gradients spelled out.

``loss.backward()`` leads to the same numbers, and the tests compare them. But then torch records every operation,
visits it again, and cannot know that only the smaller critic has a gradient: an update of TAAC or SAC takes about 14 %
more time (docs/performance.md). A loss that is not worth the trouble can be left to torch: its ``backward()``, called
after the passes have written ``parameter.grad``, adds to it. Updates run in inference mode, so compute such a loss
under ``torch.inference_mode(False), torch.enable_grad()``, from a ``clone()`` of whatever the passes gave.

A script computes the derivatives of its loss by what a pass gave, and the pass takes them on to the weights. All of it
runs without autograd:

>>> from gymnasium.spaces import Box
>>> from taac_wrappers.agent import SACAgent
>>> agent, observation = SACAgent(Box(-1, 1, (3,)), Box(-1, 1, (2,))), torch.zeros(4, 3)
>>> with torch.inference_mode():
...     policy = PolicyPass(agent, observation)
...     q = ValuePass(agent.critics, observation, policy.action)
...     policy.write_gradients(action=-q.action_gradient() / 4, log_prob=torch.full((4,), 0.1 / 4))
>>> loss = (0.1 * policy.log_prob - q.minimum).mean()  # what these derivatives are of
>>> agent.actor.head.weight.grad.shape
torch.Size([256, 4])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.agent.distributions import log_density
from taac_wrappers.agent.networks import Linear, PrevActionActor, TwinCritics

_relu_gradient = torch.ops.aten.threshold_backward.grad_input


class PolicyPass:
    """One sample of the policy at every state.

    Attributes:
        action: ``[B, A]``.
        log_prob: its log density where the actor is trained, ``[trained]``.

    Args:
        agent: whose actor is asked.
        inputs: what it looks at: observations ``[B, d]``, and the previous actions ``[B, A]`` if it is TAAC's.
        trained: at how many of the first states densities and gradients are asked for; at all of them if not given.
    """

    def __init__(self, agent: ActorCriticAgent, *inputs: Tensor, trained: int | None = None):
        _require_no_grad()
        self._agent, self._inputs, self._trained = agent, inputs, slice(trained)
        actor = agent.actor
        self._layers = list(actor.hidden)
        self._activations = _activations(actor.join(*inputs), self._layers)
        mean, self._free_log_std = actor.head.forward(self._activations[-1]).chunk(2, dim=-1)
        self._log_std = self._free_log_std.clamp(actor.log_std_min, actor.log_std_max)
        noise = torch.randn_like(mean)
        self._deviation = self._log_std.exp() * noise
        raw = mean + self._deviation
        self._squashed = torch.tanh(raw)
        self.action = torch.addcmul(agent.action_center, agent.action_scale, self._squashed)
        rows = self._trained
        self.log_prob = log_density(raw[rows], noise[rows], self._log_std[rows], agent.density_constant)

    def write_gradients(self, *, action: Tensor, log_prob: Tensor) -> None:
        """Those of the actor, given a loss's gradients by ``action`` ``[trained, A]`` and by ``log_prob``."""
        actor, log_prob = self._agent.actor, log_prob.unsqueeze(-1)
        squashed, deviation, free, log_std = (
            values[self._trained] for values in (self._squashed, self._deviation, self._free_log_std, self._log_std)
        )
        # action = center + scale tanh(raw), raw = mean + std noise: d log_prob / d raw = 2 tanh(raw)
        by_squashed = action * self._agent.action_scale
        by_mean = by_squashed - (by_squashed * squashed - 2.0 * log_prob) * squashed
        by_log_std = (by_mean * deviation - log_prob) * (log_std == free)  # a clamped one does not move

        by_head = torch.cat([by_mean, by_log_std], dim=-1)
        activations = [activation[self._trained] for activation in self._activations]
        head = actor.head
        _write_linear(head, activations[-1], by_head)
        by_first_layer = _backward(by_head @ head.weight.t(), activations, self._layers, write=True)
        if isinstance(actor, PrevActionActor):
            embed = actor.embed
            by_embedding = by_first_layer @ self._layers[0].weight[-embed.out_features :].t()
            _write_linear(embed, self._inputs[1][self._trained], by_embedding)


class ValuePass:
    """Both critics' values of actions.

    Attributes:
        values: ``[2, B]``.

    Args:
        critics: who is asked.
        observation: ``[B, d]``.
        action: ``[B, A]``.
    """

    def __init__(self, critics: TwinCritics, observation: Tensor, action: Tensor):
        _require_no_grad()
        self._twins, self._action_size = list(critics.twins), action.shape[1]
        self._layers = [list(critic.hidden) for critic in self._twins]
        x = torch.cat([observation, action], dim=-1)
        self._activations = [_activations(x, layers) for layers in self._layers]
        heads = zip(self._twins, self._activations, strict=True)
        self.values = torch.stack([critic.value(activations[-1]) for critic, activations in heads])

    @cached_property
    def minimum(self) -> Tensor:
        """The smaller ones, ``[B]``."""
        return self.values.amin(0)

    def write_gradients(self, values: Tensor) -> None:
        """Those of both critics, given a loss's gradients by ``values`` ``[2, B]``."""
        parts = zip(self._twins, self._layers, self._activations, values.unbind(), strict=True)
        for critic, layers, activations, by_value in parts:
            head = critic.head_weight
            torch.mv(activations[-1].t(), by_value, out=_gradient_of(head))
            torch.sum(by_value, 0, out=_gradient_of(critic.head_bias))
            _backward(torch.outer(by_value, head), activations, layers, write=True)

    def action_gradient(self) -> Tensor:
        """The derivatives of ``minimum`` by the action, ``[B, A]``; the larger value has no part in them."""
        by_action = self.values.new_empty(*self.minimum.shape, self._action_size)
        first_is_smaller = self.values[0] < self.values[1]
        smaller_ones = first_is_smaller, ~first_is_smaller
        parts = zip(self._twins, self._layers, self._activations, smaller_ones, strict=True)
        for critic, layers, activations, smaller in parts:
            rows = smaller.nonzero().squeeze(1)
            chosen = [activation.index_select(0, rows) for activation in activations[1:]]
            by_last = critic.head_weight.expand_as(chosen[-1])
            by_first_layer = _backward(by_last, [activations[0], *chosen], layers)
            by_action.index_copy_(0, rows, by_first_layer @ layers[0].weight[-self._action_size :].t())
        return by_action


def _activations(x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
    """``x``, and what every layer makes of the one before."""
    activations = [x]
    for layer in layers:
        activations.append(layer.forward(activations[-1]).relu_())
    return activations


def _backward(
    by_activation: Tensor, activations: Sequence[Tensor], layers: Sequence[Linear], *, write: bool = False
) -> Tensor:
    """From the derivative by the last activation to that by the first layer before its relu.

    On the way the layers' gradients are written, if they are asked for. Derivatives take the place of activations:
    memory that was just read is in the cache, which saves 4 % of an update. So a pass goes back only once.
    """
    for number in reversed(range(len(layers))):
        after = activations[number + 1]
        by_sum = _relu_gradient(by_activation, after, 0, grad_input=after)
        layer = layers[number]
        if write:
            _write_linear(layer, activations[number], by_sum)
        if number:
            by_activation = by_sum @ layer._parameters["weight"].t()
    return by_sum


def _write_linear(layer: Linear, x: Tensor, by_output: Tensor) -> None:
    kept = layer._parameters
    torch.mm(x.t(), by_output, out=_gradient_of(kept["weight"]))
    torch.sum(by_output, 0, out=_gradient_of(kept["bias"]))


def _require_no_grad() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a pass computes its gradients itself: call it under torch.inference_mode() or torch.no_grad()"
        )


def _gradient_of(parameter: Tensor) -> Tensor:
    """Where to write it."""
    gradient = parameter.grad
    if gradient is None:
        gradient = parameter.grad = torch.empty_like(parameter)
    return gradient
