"""SAC's agent: it acts anew at every frame, by a sample or by the mode, and never looks at the previous action."""

from __future__ import annotations

import numpy as np
import torch
from slow_agents import inputs, make_agent, slow_actor, slow_squash

from taac_wrappers.agent import SACAgent


def test_act_equals_a_slow_loop_over_the_same_noise():
    agent, batch = make_agent(SACAgent), 40
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    action, switch = agent.act(observation, prev_action)
    torch.manual_seed(5)
    noise = torch.randn(batch, 2).numpy()
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        np.testing.assert_allclose(action[b], slow_squash(mean + std * noise[b]), atol=1e-5)
    assert switch.all()


def test_deterministic_act_takes_the_mode():
    agent, batch = make_agent(SACAgent), 20
    observation, prev_action = inputs(batch)
    action, switch = agent.act(observation, prev_action, deterministic=True)
    for b in range(batch):
        np.testing.assert_allclose(
            action[b], slow_squash(slow_actor(agent, observation[b], prev_action[b])[0]), atol=1e-5
        )
    assert switch.all()


def test_the_previous_action_is_not_looked_at():
    agent = make_agent(SACAgent)
    observation, prev_action = inputs(10)
    actions = [
        agent.act(observation, previous, deterministic=True)[0] for previous in (prev_action, -prev_action, None)
    ]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    np.testing.assert_array_equal(agent.act(observation, deterministic=True)[0], actions[0])
