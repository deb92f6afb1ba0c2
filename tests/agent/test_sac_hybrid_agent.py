"""SAC-Hybrid's agent: both parts of its policy against a slow loop, in their samples, modes and likelihoods."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from slow_agents import inputs, make_agent, slow_actor, slow_squash, slow_switch_probability

from taac_wrappers.agent import HybridAgent


def seen(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    return dict(zip(("observation", "prev_action"), inputs(batch, seed), strict=True))


def test_both_parts_are_drawn_as_the_networks_say_and_independently():
    agent, count = make_agent(HybridAgent), 20_000
    for b in range(3):
        one = {key: part[b] for key, part in seen(3).items()}
        mean, std = slow_actor(agent, **one)
        beta = slow_switch_probability(agent, **one)
        torch.manual_seed(b)
        chosen = agent.act({key: np.tile(part, (count, 1)) for key, part in one.items()})
        low, high = agent.action_box.low, agent.action_box.high
        raw = np.arctanh(((chosen["action"] - low) / (high - low) * 2 - 1).clip(-1 + 1e-6, 1 - 1e-6))
        np.testing.assert_allclose(raw.mean(0), mean, atol=0.04)
        np.testing.assert_allclose(raw.std(0), std, rtol=0.04)
        assert 0.02 < beta < 0.98
        assert chosen["switch"].mean() == pytest.approx(beta, abs=0.015)
        assert np.abs(np.corrcoef(raw.T, chosen["switch"])[-1, :-1]).max() < 0.03


def test_deterministic_act_takes_the_mode_of_both_parts():
    agent, batch = make_agent(HybridAgent), 50
    observation, prev_action = inputs(batch)
    chosen = agent.act(seen(batch), deterministic=True)
    for b in range(batch):
        mean, _ = slow_actor(agent, observation[b], prev_action[b])
        np.testing.assert_allclose(chosen["action"][b], slow_squash(mean), atol=1e-5)
        assert chosen["switch"][b] == (slow_switch_probability(agent, observation[b], prev_action[b]) > 0.5)
    assert 0 < chosen["switch"].sum() < batch


def test_a_tie_repeats():
    agent = make_agent(HybridAgent)
    for parameter in agent.actor.switch_head.parameters():
        torch.nn.init.zeros_(parameter)
    assert not agent.act(seen(10), deterministic=True)["switch"].any()


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_log_probs_are_those_of_the_action_and_of_the_switch(convert):
    agent, batch = make_agent(HybridAgent), 20
    observation = {key: convert(part) for key, part in seen(batch).items()}
    switch = np.arange(batch) % 2
    action = {"action": convert(inputs(batch, seed=1)[1]), "switch": convert(switch)}
    log_probs = agent.log_probs(observation, action)
    assert type(log_probs) is type(action["action"])
    assert log_probs.shape == (batch, 2)
    np.testing.assert_array_equal(log_probs[:, 0], agent.log_prob(observation, action["action"]))  # by hand elsewhere
    for b in range(batch):
        beta = slow_switch_probability(agent, *(part[b] for part in seen(batch).values()))
        assert float(log_probs[b, 1]) == pytest.approx(math.log(beta if switch[b] else 1 - beta), abs=1e-5)


def test_log_probs_name_actions_that_are_no_batch():
    with pytest.raises(ValueError, match=r"action must be a batch of shape \[n, 2\], got shape \[2\]"):
        make_agent(HybridAgent).log_probs(seen(4), {"action": inputs(1)[1][0], "switch": np.zeros(4, int)})


@pytest.mark.parametrize("certain", [-200.0, 200.0])
def test_an_improbable_switch_has_a_finite_likelihood(certain):
    agent = make_agent(HybridAgent)
    torch.nn.init.zeros_(agent.actor.switch_head.weight)
    torch.nn.init.constant_(agent.actor.switch_head.bias, certain)
    for switch in (0, 1):
        action = {"action": inputs(3)[1], "switch": np.full(3, switch)}
        expected = 0.0 if switch == (certain > 0) else -200.0
        np.testing.assert_allclose(agent.log_probs(seen(3), action)[:, 1], expected, atol=1e-6)
