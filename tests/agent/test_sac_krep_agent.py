"""SAC-Krep's agent: both stages of its policy against a slow loop, in their samples and in their modes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_agents import (
    ACTIONS,
    MAX_REPEAT,
    OBSERVATIONS,
    SWITCH_TEMPERATURE,
    inputs,
    make_agent,
    slow_actor,
    slow_critics,
    slow_squash,
)

from taac_wrappers.agent import KRepAgent


def slow_values(agent: KRepAgent, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Of every duration, the smaller one of both critics."""
    return np.minimum(*(slow_critics(agent, which, observation, action) for which in (0, 1)))


def slow_probabilities(agent: KRepAgent, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    weights = np.exp(slow_values(agent, observation, action) / SWITCH_TEMPERATURE)
    return weights / weights.sum()


def test_act_equals_a_slow_two_stage_loop_over_the_same_noise():
    agent, batch = make_agent(KRepAgent), 60
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    chosen = agent.act(observation)
    torch.manual_seed(5)
    noise = torch.randn(batch, 2).numpy()
    probabilities = []
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        action = slow_squash(mean + std * noise[b])
        np.testing.assert_allclose(chosen["action"][b], action, atol=1e-5)
        probabilities.append(slow_probabilities(agent, observation[b], action))
    drawn = torch.multinomial(torch.tensor(np.array(probabilities), dtype=torch.float32), 1).squeeze(-1)
    np.testing.assert_array_equal(chosen["repeat"], 1 + drawn)
    assert set(chosen["repeat"]) == set(range(1, 1 + MAX_REPEAT))


def test_durations_are_as_frequent_as_they_are_probable():
    agent = make_agent(KRepAgent, log_std_max=-19.0)  # one action in one state
    observation = inputs(1)[0]
    torch.manual_seed(0)
    chosen = agent.act(np.repeat(observation, 20_000, axis=0))
    assert chosen["action"].std(0).max() < 1e-4
    frequency = np.bincount(chosen["repeat"], minlength=1 + MAX_REPEAT)[1:] / 20_000
    expected = slow_probabilities(agent, observation[0], chosen["action"][0])
    assert 0.01 < expected.min() < expected.max() < 0.9
    np.testing.assert_allclose(frequency, expected, atol=0.015)


def test_deterministic_act_takes_the_mode_of_both_stages():
    agent, batch = make_agent(KRepAgent), 50
    observation, prev_action = inputs(batch)
    chosen = agent.act(observation, deterministic=True)
    for b in range(batch):
        action = slow_squash(slow_actor(agent, observation[b], prev_action[b])[0])
        np.testing.assert_allclose(chosen["action"][b], action, atol=1e-5)
        assert chosen["repeat"][b] == 1 + slow_values(agent, observation[b], action).argmax()
    assert len(set(chosen["repeat"])) > 1


def test_of_equal_durations_it_takes_the_shortest():
    agent = make_agent(KRepAgent)
    for critic in agent.critics.twins:
        torch.nn.init.zeros_(critic.head.weight)
        torch.nn.init.zeros_(critic.head.bias)
    assert (agent.act(inputs(10)[0], deterministic=True)["repeat"] == 1).all()


def test_the_probabilities_are_a_softmax_that_the_temperature_sharpens():
    agent, q = make_agent(KRepAgent), torch.tensor([[0.0, 1.0, 2.0, -1e6]])
    expected = torch.softmax(q / SWITCH_TEMPERATURE, dim=-1)
    torch.testing.assert_close(agent.repeat_probabilities(q).detach(), expected)
    with torch.no_grad():
        agent.log_repeat_temperature.fill_(-20.0)
    assert agent.repeat_probabilities(q).tolist() == [[0.0, 0.0, 1.0, 0.0]]


def durations(repeat: spaces.Space, action: spaces.Space = ACTIONS) -> spaces.Dict:
    return spaces.Dict({"action": action, "repeat": repeat})


@pytest.mark.parametrize(
    ("message", "action_space"),
    [
        (r"action_space must be that of KRepWrapper, Dict\(action, repeat\), got Box", ACTIONS),
        (
            r"action_space must be that of KRepWrapper, .*, got Dict\('action': .*'switch'",
            spaces.Dict({"action": ACTIONS, "switch": spaces.Discrete(2)}),
        ),
        (r"action_space\['repeat'\] must be Discrete\(K, start=1\), got Discrete\(4\)", durations(spaces.Discrete(4))),
        (r"action_space\['repeat'\] must be Discrete\(K, start=1\), got Box", durations(ACTIONS)),
        (
            r"action_space\['action'\] must be a one-dimensional Box, got Box",
            durations(spaces.Discrete(4, start=1), spaces.Box(-1, 1, (2, 2))),
        ),
    ],
)
def test_spaces_of_other_wrappers_are_named(message, action_space):
    with pytest.raises(TypeError, match=message):
        KRepAgent(OBSERVATIONS, action_space)
