"""TAAC's agent: both stages of its policy against a slow loop, in their samples and in their modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from slow_agents import inputs, make_agent, slow_actor, slow_minimum, slow_squash

from taac_wrappers.agent import TAACAgent


@pytest.mark.parametrize("min_advantage", [None, 0.0])
def test_act_equals_a_slow_two_stage_loop_over_the_same_noise(min_advantage):
    agent, batch = make_agent(TAACAgent, min_advantage=min_advantage), 60
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    action, switch = agent.act(observation, prev_action)
    torch.manual_seed(5)
    noise, coin = torch.randn(batch, 2).numpy(), torch.rand(batch).numpy()
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        candidate = slow_squash(mean + std * noise[b])
        advantage = slow_minimum(agent, observation[b], candidate) - slow_minimum(agent, observation[b], prev_action[b])
        if min_advantage is not None:
            advantage = max(advantage, min_advantage)
        acts = coin[b] < 1 / (1 + math.exp(-advantage / 0.5))
        assert switch[b] == acts
        np.testing.assert_allclose(action[b], candidate if acts else prev_action[b], atol=1e-5)
    assert 10 < switch.sum() < 50


def test_deterministic_act_takes_the_mode_of_both_stages():
    agent, batch = make_agent(TAACAgent), 50
    observation, prev_action = inputs(batch)
    action, switch = agent.act(observation, prev_action, deterministic=True)
    for b in range(batch):
        candidate = slow_squash(slow_actor(agent, observation[b], prev_action[b])[0])
        acts = slow_minimum(agent, observation[b], candidate) > slow_minimum(agent, observation[b], prev_action[b])
        assert switch[b] == acts
        np.testing.assert_allclose(action[b], candidate if acts else prev_action[b], atol=1e-5)
    assert 0 < switch.sum() < batch
    again = agent.act(observation, prev_action, deterministic=True)
    np.testing.assert_array_equal(action, again[0])


def test_a_tie_repeats():
    agent = make_agent(TAACAgent)
    for critic in agent.critics.twins:
        torch.nn.init.zeros_(critic.head_weight)  # every action is worth the same
    observation, prev_action = inputs(10)
    action, switch = agent.act(observation, prev_action, deterministic=True)
    assert not switch.any()
    np.testing.assert_array_equal(action, prev_action)


def test_repeating_hands_back_the_previous_action_bit_for_bit():
    agent = make_agent(TAACAgent)
    observation, prev_action = inputs(50)
    action, switch = agent.act(observation, prev_action)
    np.testing.assert_array_equal(action[~switch], prev_action[~switch])
    assert (action[switch] != prev_action[switch]).all()
