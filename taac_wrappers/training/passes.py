"""Passes through an agent's networks that remember what their gradients need, and those gradients spelled out.

``loss.backward()`` would lead to the same numbers, and the tests compare them. But then torch records every operation
and visits it again, and cannot see that only the smaller critic has a gradient: updates of TAAC and SAC take 15 % more
time (docs/performance.md). A loss that is not worth the trouble may be left to torch: both add to ``parameter.grad``.

A script computes the derivatives of its loss by what a pass gave; ``backward`` takes them on to the weights:

>>> from gymnasium.spaces import Box
>>> from taac_wrappers.agent import SACAgent
>>> agent, observation = SACAgent(Box(-1, 1, (3,)), Box(-1, 1, (2,))), torch.zeros(4, 3)
>>> with torch.no_grad():
...     policy = PolicyPass(agent, observation)
...     q = ValuePass(agent.critics, observation, policy.action)
...     policy.backward(action=-q.action_gradient() / 4, log_prob=torch.full((4,), 0.1 / 4))
>>> loss = (0.1 * policy.log_prob - q.minimum).mean()  # what these derivatives are of
>>> agent.actor.head.weight.grad.shape
torch.Size([4, 256])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from taac_wrappers.agent.base import ActorCriticAgent
from taac_wrappers.agent.networks import Actor, PrevActionActor, TwinCritics

Layer = tuple[Tensor, Tensor]  # weight [in, out] and bias [out]

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_relu_gradient_ = torch.ops.aten.threshold_backward.grad_input


class PolicyPass:
    """One sample of the policy at every state.

    Attributes:
        action: ``[B, A]``.
        log_prob: its log density where there will be gradients, ``[B - first]``.

    Args:
        agent: whose actor is asked.
        inputs: what it looks at: observations ``[B, d]``, and the previous actions ``[B, A]`` if it is TAAC's.
        first: how many states come first at which nobody asks for densities and gradients.
    """

    @torch.no_grad()
    def __init__(self, agent: ActorCriticAgent, *inputs: Tensor, first: int = 0):
        self._agent, self._inputs, self._first = agent, inputs, first
        actor, center, scale = agent.actor, agent.action_center, agent.action_scale
        self._activations = _activations(actor.join(*inputs), _layers(actor))
        mean, self._free_log_std = actor.head(self._activations[-1]).chunk(2, dim=-1)
        log_std = self._free_log_std.clamp(actor.log_std_min, actor.log_std_max)
        noise = torch.randn_like(mean)
        self._deviation = log_std.exp() * noise
        raw = mean + self._deviation
        self._squashed = torch.tanh(raw)
        self.action = torch.addcmul(center, scale, self._squashed)
        # As in SquashedGaussian: the density of the noise, divided by all slopes on its way to the action.
        log_slope = 2.0 * (_LOG_2 - raw[first:] - softplus(-2.0 * raw[first:]))
        half_square = torch.addcmul(log_std[first:], noise[first:], noise[first:], value=0.5)
        self.log_prob = -(half_square + log_slope + (scale.log() + _HALF_LOG_2PI)).sum(-1)

    @torch.no_grad()
    def backward(self, *, action: Tensor, log_prob: Tensor) -> None:
        """Add a loss's gradients to the actor's, given those by ``action`` ``[B - first, A]`` and ``log_prob``."""
        actor, squashed, log_prob = self._agent.actor, self._squashed[self._first :], log_prob.unsqueeze(-1)
        # action = center + scale tanh(raw), raw = mean + std noise: d log_prob / d raw = 2 tanh(raw)
        by_mean = 2.0 * log_prob * squashed + action * self._agent.action_scale * (1.0 - squashed.square())
        free = self._free_log_std[self._first :]
        inside = (free >= actor.log_std_min) & (free <= actor.log_std_max)
        by_log_std = (by_mean * self._deviation[self._first :] - log_prob) * inside

        by_head = torch.cat([by_mean, by_log_std], dim=-1)
        *_, last = activations = [activation[self._first :] for activation in self._activations]
        gradients = [torch.empty_like(tensor) for layer in actor.hidden for tensor in (layer.weight, layer.bias)]
        by_first_layer = _backward(
            by_head @ actor.head.weight,
            activations,
            _layers(actor),
            [(weight.t(), bias) for weight, bias in zip(gradients[::2], gradients[1::2], strict=True)],
        )
        parameters = [tensor for layer in actor.hidden for tensor in (layer.weight, layer.bias)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            _add_gradient(parameter, gradient)
        _add_linear(actor.head, last, by_head)
        if isinstance(actor, PrevActionActor):
            by_embedding = by_first_layer @ actor.hidden[0].weight[:, -actor.embed.out_features :]
            _add_linear(actor.embed, self._inputs[1][self._first :], by_embedding)


class ValuePass:
    """Both critics' values of actions.

    Attributes:
        values: ``[2, B]``.
        minimum: the smaller ones, ``[B]``.

    Args:
        critics: who is asked.
        observation: ``[B, d]``.
        action: ``[B, A]``.
    """

    @torch.no_grad()
    def __init__(self, critics: TwinCritics, observation: Tensor, action: Tensor):
        self._critics, self._action_size = critics, action.shape[1]
        x = torch.cat([observation, action], dim=-1)
        self.values, self._activations = x.new_empty(2, len(x)), []
        for critic in (0, 1):
            self._activations.append(_activations(x, critics.layers(critic)))
            torch.mv(self._activations[critic][-1], critics.head_weight[critic, 0], out=self.values[critic])
        self.values += critics.head_bias
        self.minimum = self.values.amin(0)

    @torch.no_grad()
    def backward(self, values: Tensor) -> None:
        """Add a loss's gradients to the critics', given those by ``values`` ``[2, B]``."""
        critics = self._critics
        gradients = [torch.empty_like(tensor) for layer in critics.hidden for tensor in (layer.weight, layer.bias)]
        by_head = torch.empty_like(critics.head_weight)
        for critic, activations in enumerate(self._activations):
            torch.mv(activations[-1].t(), values[critic], out=by_head[critic, 0])
            _backward(
                values[critic].unsqueeze(1) * critics.head_weight[critic],
                activations,
                critics.layers(critic),
                [
                    (weight[critic], bias[critic, 0])
                    for weight, bias in zip(gradients[::2], gradients[1::2], strict=True)
                ],
            )
        parameters = [tensor for layer in critics.hidden for tensor in (layer.weight, layer.bias)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            _add_gradient(parameter, gradient)
        _add_gradient(critics.head_weight, by_head)
        _add_gradient(critics.head_bias, values.sum(1, keepdim=True))

    @torch.no_grad()
    def action_gradient(self) -> Tensor:
        """The derivatives of ``minimum`` by the action, ``[B, A]``; the larger value has no part in them."""
        by_action = self.values.new_empty(len(self.minimum), self._action_size)
        first_is_smaller = self.values[0] < self.values[1]
        for critic in (0, 1):
            rows = (first_is_smaller if critic == 0 else ~first_is_smaller).nonzero().squeeze(1)
            layers = self._critics.layers(critic)
            by_first_layer = _backward(
                self._critics.head_weight[critic].repeat(len(rows), 1),
                [activation.index_select(0, rows) for activation in self._activations[critic]],
                layers,
            )
            by_action.index_copy_(0, rows, by_first_layer @ layers[0][0][-self._action_size :].t())
        return by_action


def _layers(actor: Actor) -> list[Layer]:
    return [(layer.weight.t(), layer.bias) for layer in actor.hidden]


def _activations(x: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
    """``x``, and what every layer makes of the one before."""
    activations = [x]
    for weight, bias in layers:
        activations.append(torch.addmm(bias, activations[-1], weight).relu_())
    return activations


def _backward(
    by_last: Tensor, activations: Sequence[Tensor], layers: Sequence[Layer], gradients: Sequence[Layer] = ()
) -> Tensor:
    """From the derivative by the last activation, which is used up, to that by the first layer before its relu.

    On the way ``gradients`` of the layers' weights are written, if they are asked for.
    """
    by_sum = by_last
    for number in reversed(range(len(layers))):
        _relu_gradient_(by_sum, activations[number + 1], 0, grad_input=by_sum)
        if gradients:
            torch.mm(activations[number].t(), by_sum, out=gradients[number][0])
            torch.sum(by_sum, 0, out=gradients[number][1])
        if number:
            by_sum = by_sum @ layers[number][0].t()
    return by_sum


def _add_linear(layer: nn.Linear, x: Tensor, by_output: Tensor) -> None:
    _add_gradient(layer.weight, by_output.t() @ x)
    _add_gradient(layer.bias, by_output.sum(0))


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
