"""SAC's agent: it acts anew at every frame, by a sample or by the mode."""

from __future__ import annotations

import numpy as np
import torch
from slow_agents import inputs, make_agent, slow_actor, slow_squash

from taac_wrappers.agent import SACAgent


def test_act_equals_a_slow_loop_over_the_same_noise():
    agent, batch = make_agent(SACAgent), 40
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    action = agent.act(observation)
    torch.manual_seed(5)
    noise = torch.randn(batch, 2).numpy()
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        np.testing.assert_allclose(action[b], slow_squash(mean + std * noise[b]), atol=1e-5)


def test_deterministic_act_takes_the_mode():
    agent, batch = make_agent(SACAgent), 20
    observation, prev_action = inputs(batch)
    action = agent.act(observation, deterministic=True)
    for b in range(batch):
        np.testing.assert_allclose(
            action[b], slow_squash(slow_actor(agent, observation[b], prev_action[b])[0]), atol=1e-5
        )
