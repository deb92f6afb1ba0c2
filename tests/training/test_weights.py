"""A module's weights in one vector: the same network, trained and saved as before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from taac_wrappers.training.weights import adam_step, as_vector


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


def test_a_step_of_adam_is_that_of_torch_to_the_bit():
    """From the first step on, with the state that torch would keep, whatever the settings and whoever comes first."""
    torch.manual_seed(0)
    start = [torch.randn(1000), torch.randn(())]
    settings = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "fused": True}
    gradients = [[torch.randn_like(vector) for vector in start] for _ in range(5)]
    ours, theirs = ([nn.Parameter(vector.clone()) for vector in start] for _ in range(2))
    our_adam, their_adam = (torch.optim.Adam(weights, **settings) for weights in (ours, theirs))
    for number, step in enumerate(gradients):
        for weights in (ours, theirs):
            for vector, gradient in zip(weights, step, strict=True):
                vector.grad = gradient
        with torch.inference_mode():  # as the scripts do
            if number % 2:
                adam_step(our_adam, ours)
            else:
                adam_step(our_adam, ours[1:])
                adam_step(our_adam, ours[:1])
        their_adam.step()
        for our_vector, their_vector in zip(ours, theirs, strict=True):
            assert torch.equal(our_vector, their_vector)
            for name, value in their_adam.state[their_vector].items():
                assert torch.equal(our_adam.state[our_vector][name], value), name
                assert our_adam.state[our_vector][name].dtype == value.dtype
    assert our_adam.state[ours[0]]["step"].item() == 5
