"""All weights of a network in one vector, so that one call updates all of them."""

from __future__ import annotations

import torch
from torch import nn


def as_vector(module: nn.Module) -> nn.Parameter:
    """Move a module's parameters into one vector, of which they and their gradients become views.

    An optimizer of the vector trains the module. Moving the module to another device would part them.

    >>> layer = nn.Linear(2, 1)
    >>> vector = as_vector(layer)
    >>> with torch.no_grad():
    ...     _ = vector.fill_(3)
    >>> layer.weight.tolist(), layer.bias.tolist()
    ([[3.0, 3.0]], [3.0])
    """
    parameters = list(module.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    trained = any(parameter.requires_grad for parameter in parameters)
    vector = nn.Parameter(
        torch.cat([parameter.detach().reshape(-1) for parameter in parameters]), requires_grad=trained
    )
    for parameter, weights in zip(parameters, vector.detach().split(sizes), strict=True):
        parameter.data = weights.view_as(parameter)
    if trained:
        vector.grad = torch.zeros_like(vector)
        for parameter, gradient in zip(parameters, vector.grad.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
    return vector
