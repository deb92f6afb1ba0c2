"""The networks of all agents against explicit ones: values, gradients, and how they start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_agents import KINDS as EVERY_KIND
from slow_agents import (
    MAX_REPEAT,
    inputs,
    make_agent,
    observed,
    own_arguments,
    slow_actor,
    slow_critic,
    slow_critics,
    slow_switch_probability,
    spaces_of,
)

from taac_wrappers.agent import HybridAgent, KRepAgent, SACAgent
from taac_wrappers.agent.repeating import RepeatingAgent

KINDS = pytest.mark.parametrize("kind", EVERY_KIND)
CHOOSY = pytest.mark.parametrize(("kind", "choices"), [(KRepAgent, MAX_REPEAT), (HybridAgent, 2)])


def as_tensors(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    observation, action = inputs(batch)
    return torch.from_numpy(observation), torch.from_numpy(action)


@KINDS
def test_the_actor_equals_an_explicit_network(kind):
    agent = make_agent(kind, log_std_min=-0.02, log_std_max=0.02)  # so that both clamps are at work
    observation, action = as_tensors(40)
    mean, log_std, *switch = agent.actor(observed(kind, observation, action))
    assert mean.shape == log_std.shape == (40, 2)
    for b in range(40):
        slow_mean, slow_std = slow_actor(agent, observation[b].numpy(), action[b].numpy())
        np.testing.assert_allclose(mean[b].detach(), slow_mean, atol=1e-5)
        np.testing.assert_allclose(log_std[b].detach().exp(), slow_std, atol=1e-5)
        if kind is HybridAgent:
            beta = slow_switch_probability(agent, observation[b].numpy(), action[b].numpy())
            assert switch[0][b].sigmoid().item() == pytest.approx(beta, abs=1e-5)
    assert (log_std == -0.02).any()
    assert (log_std == 0.02).any()
    assert (log_std.abs() < 0.02).any()


def test_the_twin_critics_equal_explicit_networks():
    agent = make_agent(SACAgent)
    observation, action = as_tensors(20)
    with torch.no_grad():
        first, second = agent.critics(observation, action)
        agent.critics.twins[0].head.bias -= (first - second).mean()  # so that each is the smaller one somewhere
    q = agent.critics(observation, action)
    assert q.shape == (2, 20)
    for b in range(20):
        slow_q = [slow_critic(agent, which, observation[b].numpy(), action[b].numpy()) for which in (0, 1)]
        np.testing.assert_allclose(q[:, b].detach(), slow_q, atol=1e-5)
    assert len(set(q.argmin(0).tolist())) == 2
    assert torch.equal(agent.critics.minimum(observation, action), torch.minimum(q[0], q[1]))


@CHOOSY
def test_critics_have_a_value_for_every_choice(kind, choices):
    """And SAC-Hybrid's look at the previous action, too."""
    agent, prev_action = make_agent(kind), torch.from_numpy(inputs(20, seed=1)[1])
    observation, action = as_tensors(20)
    seen = observed(kind, observation, prev_action)
    q = agent.critics(seen, action)
    assert q.shape == (2, 20, choices)
    for b in range(20):
        looked_at = [part[b].numpy() for part in (observation, prev_action, action)]
        if kind is KRepAgent:
            del looked_at[1]
        slow_q = [slow_critics(agent, which, *looked_at) for which in (0, 1)]
        np.testing.assert_allclose(q[:, b].detach(), slow_q, atol=1e-5)
    assert torch.equal(agent.critics.minimum(seen, action), torch.minimum(q[0], q[1]))


@CHOOSY
def test_every_choice_has_a_value_of_its_own(kind, choices):
    agent = make_agent(kind)
    observation, action = as_tensors(5)
    seen = observed(kind, observation, action)
    before = agent.critics(seen, action)
    for choice in range(choices):
        agent.zero_grad()
        agent.critics(seen, action)[..., choice].sum().backward()
        for critic in agent.critics.twins:
            of_others = [other for other in range(choices) if other != choice]
            assert (critic.head.weight.grad[choice] != 0).any()
            assert (critic.head.weight.grad[of_others] == 0).all()
            with torch.no_grad():
                critic.head.bias[choice] += 1.0 + choice
    expected = before + torch.arange(1.0, choices + 1)
    torch.testing.assert_close(agent.critics(seen, action), expected)


def test_only_sac_hybrids_critics_see_the_previous_action():
    observation, action = as_tensors(5)
    other = torch.from_numpy(inputs(5, seed=1)[1])
    for kind in EVERY_KIND:
        agent = make_agent(kind)
        values = [agent.critics(observed(kind, observation, prev_action), action) for prev_action in (action, other)]
        assert (values[0] == values[1]).all() == (kind is not HybridAgent)


@pytest.mark.parametrize(
    ("observation_size", "action_size", "hidden"), [(2, 1, (256, 256)), (27, 8, (256, 256)), (28, 4, (256, 256, 256))]
)
def test_all_agents_have_about_as_many_weights(observation_size, action_size, hidden):
    """In the paper's tasks, so that no method is better for being larger."""
    boxes = spaces.Box(-1, 1, (observation_size,)), spaces.Box(-1, 1, (action_size,))
    counts = {}
    for kind in EVERY_KIND:
        agent = kind(*spaces_of(kind, *boxes), hidden=hidden, **own_arguments(kind))
        counts[kind.__name__] = sum(parameter.numel() for parameter in agent.parameters())
    assert max(counts.values()) < 1.15 * min(counts.values()), counts


@pytest.mark.parametrize("rows", [1, 127, 128, 1024, 1025, 2500])
def test_values_without_a_gradient_are_the_same(rows):
    agent = make_agent(SACAgent)
    observation, action = as_tensors(rows)
    q = agent.critics(observation, action)
    assert q.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(agent.critics(observation, action), q.detach())
        torch.testing.assert_close(agent.critics.minimum(observation, action), q.detach().amin(0))


@pytest.mark.parametrize("which", [0, 1])
def test_the_twins_share_nothing(which):
    agent, other = make_agent(SACAgent), 1 - which
    observation, action = as_tensors(5)
    before = agent.critics(observation, action)
    own, others = (list(agent.critics.twins[index].parameters()) for index in (which, other))
    before[which].sum().backward()
    assert all((parameter.grad != 0).any() for parameter in own)
    assert all((parameter.grad == 0).all() for parameter in others)
    with torch.no_grad():
        for parameter in own:
            parameter += 0.1
    after = agent.critics(observation, action)
    assert torch.equal(after[other], before[other])
    assert (after[which] != before[which]).all()


@KINDS
def test_the_networks_start_as_the_authors_did(kind):
    torch.manual_seed(0)
    observation_size, action_size, hidden = 40, 20, (256, 128)
    boxes = spaces.Box(-1, 1, (observation_size,)), spaces.Box(-1, 1, (action_size,))
    agent = kind(*spaces_of(kind, *boxes), hidden=hidden, **own_arguments(kind))
    with_prev_action = issubclass(kind, RepeatingAgent)

    def uniform(weight: torch.Tensor, bound: float) -> None:
        assert 0.95 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)

    def truncated_normal(weight: torch.Tensor, std: float) -> None:
        assert 0.95 * 2 * std / 0.8796 < weight.abs().max() <= 2 * std / 0.8796
        assert weight.std().item() == pytest.approx(std, rel=0.05)

    actor, critics = agent.actor, agent.critics
    if with_prev_action:
        truncated_normal(actor.embed.weight, 1 / math.sqrt(action_size))
    truncated_normal(actor.head.weight, 0.3 / math.sqrt(hidden[-1]))
    if kind is HybridAgent:
        assert 0 < actor.switch_head.weight.abs().max() <= 2 * 0.3 / math.sqrt(hidden[-1]) / 0.8796  # too few for more
    uniform(actor.hidden[0].weight, math.sqrt(6 / ((2 if with_prev_action else 1) * observation_size + hidden[0])))
    uniform(actor.hidden[2].weight, math.sqrt(6 / (hidden[0] + hidden[1])))
    for critic in critics.twins:
        seen_actions = 2 if kind is HybridAgent else 1
        uniform(critic.hidden[0].weight, 1 / math.sqrt(observation_size + seen_actions * action_size))
        uniform(critic.hidden[2].weight, 1 / math.sqrt(hidden[0]))
        uniform(critic.head.weight, 0.003)
    biases = [parameter for name, parameter in agent.named_parameters() if "bias" in name]
    # the embedding, SAC-Hybrid's switch; two hidden layers and a head of the actor and of each critic
    assert len(biases) == with_prev_action + (kind is HybridAgent) + 3 * 3
    assert all((bias == 0).all() for bias in biases)
    temperatures = [parameter for name, parameter in agent.named_parameters() if "temperature" in name]
    has_choice = with_prev_action or kind is KRepAgent
    assert [temperature.item() for temperature in temperatures] == [0.0] * (2 if has_choice else 1)

    observation, action = torch.rand(500, observation_size) * 2 - 1, torch.rand(500, action_size) * 2 - 1
    std = actor(observed(kind, observation, action))[1].exp()
    assert std.median().item() == pytest.approx(1.0, abs=0.1)
    assert (critics(observed(kind, observation, action), action).abs() < 0.1).all()
    if kind is HybridAgent:
        beta = actor(observed(kind, observation, action))[2].sigmoid()
        assert beta.median().item() == pytest.approx(0.5, abs=0.1)
