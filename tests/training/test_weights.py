"""A module's weights in one vector: the same network, trained and saved as before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from taac_wrappers.training.weights import as_vector


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_an_optimizer_of_the_vector_trains_the_module_as_one_of_its_parameters_does():
    network, reference = make_network(), make_network()
    vector = as_vector(network)
    assert vector.shape == (3 * 4 + 4 + 4 * 2 + 2,)
    for weights, parameters in (([vector], network), (list(reference.parameters()), reference)):
        optimizer = torch.optim.Adam(weights, lr=0.1)
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            parameters(torch.full((5, 3), 0.5 + step)).square().sum().backward()
            optimizer.step()
    for ours, theirs in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.equal(network[0].weight, make_network()[0].weight)


def test_what_is_loaded_into_the_module_is_in_the_vector():
    network = make_network()
    vector = as_vector(network)
    state = {name: torch.full_like(value, index) for index, (name, value) in enumerate(network.state_dict().items())}
    network.load_state_dict(state)
    assert vector.tolist() == pytest.approx([0.0] * 12 + [1.0] * 4 + [2.0] * 8 + [3.0] * 2)


def test_a_copy_has_weights_of_its_own():
    network = make_network()
    vector = as_vector(network)
    other = copy.deepcopy(network)
    with torch.no_grad():
        vector.zero_()
    assert torch.equal(other[0].weight, make_network()[0].weight)


def test_weights_that_nobody_trains_have_no_gradients():
    network = make_network().requires_grad_(False)
    vector = as_vector(network)
    assert not vector.requires_grad
    assert vector.grad is None
    assert all(parameter.grad is None for parameter in network.parameters())
    assert vector[:12].tolist() == network[0].weight.flatten().tolist()
