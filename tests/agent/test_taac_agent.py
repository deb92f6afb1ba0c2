"""TAAC's agent: both stages of its policy against a slow loop, in their samples and in their modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_agents import ACTIONS, OBSERVATIONS, inputs, make_agent, slow_actor, slow_minimum, slow_squash, spaces_of

from taac_wrappers.agent import HybridAgent, TAACAgent


def seen(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    return dict(zip(("observation", "prev_action"), inputs(batch, seed), strict=True))


@pytest.mark.parametrize("min_advantage", [None, 0.0])
def test_act_equals_a_slow_two_stage_loop_over_the_same_noise(min_advantage):
    agent, batch = make_agent(TAACAgent, min_advantage=min_advantage), 60
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    chosen = agent.act({"observation": observation, "prev_action": prev_action})
    torch.manual_seed(5)
    noise, coin = torch.randn(batch, 2).numpy(), torch.rand(batch).numpy()
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        candidate = slow_squash(mean + std * noise[b])
        advantage = slow_minimum(agent, observation[b], candidate) - slow_minimum(agent, observation[b], prev_action[b])
        if min_advantage is not None:
            advantage = max(advantage, min_advantage)
        acts = coin[b] < 1 / (1 + math.exp(-advantage / 0.5))
        assert chosen["switch"][b] == acts
        np.testing.assert_allclose(chosen["action"][b], candidate, atol=1e-5)
    assert 10 < chosen["switch"].sum() < 50


def test_deterministic_act_takes_the_mode_of_both_stages():
    agent, batch = make_agent(TAACAgent), 50
    observation, prev_action = inputs(batch)
    chosen = agent.act(seen(batch), deterministic=True)
    for b in range(batch):
        candidate = slow_squash(slow_actor(agent, observation[b], prev_action[b])[0])
        acts = slow_minimum(agent, observation[b], candidate) > slow_minimum(agent, observation[b], prev_action[b])
        assert chosen["switch"][b] == acts
        np.testing.assert_allclose(chosen["action"][b], candidate, atol=1e-5)
    assert 0 < chosen["switch"].sum() < batch
    again = agent.act(seen(batch), deterministic=True)
    for name in ("action", "switch"):
        np.testing.assert_array_equal(chosen[name], again[name])


def test_a_tie_repeats():
    agent = make_agent(TAACAgent)
    for critic in agent.critics.twins:
        torch.nn.init.zeros_(critic.head.weight)  # every action is worth the same
    assert not agent.act(seen(10), deterministic=True)["switch"].any()
    policy = agent.policy(num_envs=10)
    policy.prev_action = inputs(10)[1]
    np.testing.assert_array_equal(policy(inputs(10)[0]), inputs(10)[1])


def test_repeating_hands_back_the_previous_action_bit_for_bit():
    agent = make_agent(TAACAgent)
    observation, prev_action = inputs(50)
    policy = agent.policy(num_envs=50, deterministic=False)
    policy.prev_action = prev_action.copy()
    torch.manual_seed(0)
    action = policy(observation)
    torch.manual_seed(0)
    chosen = agent.act(seen(50))
    switch = chosen["switch"] == 1
    assert 0 < switch.sum() < 50
    np.testing.assert_array_equal(policy.switch, switch)
    np.testing.assert_array_equal(action[~switch], prev_action[~switch])
    np.testing.assert_array_equal(action[switch], chosen["action"][switch])
    assert (action[switch] != prev_action[switch]).all()


BARE = spaces.Dict({"observation": OBSERVATIONS})
NO_CHOICE = spaces.Dict({"action": ACTIONS, "switch": spaces.Discrete(3)})
SCALAR = spaces.Dict({"observation": OBSERVATIONS, "prev_action": spaces.Box(-1, 1, (1,))})
ALONE = spaces.Dict({"prev_action": ACTIONS})


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"action_space must be that of HybridActionWrapper, .*, got Box", {"action_space": ACTIONS}),
        (TypeError, r"action_space must be that of HybridActionWrapper, .*, got Dict", {"action_space": BARE}),
        (TypeError, r"action_space\['switch'\] must be Discrete\(2\), got Discrete\(3\)", {"action_space": NO_CHOICE}),
        (TypeError, r"must be that of PrevActionWrapper\(flatten=False\), .* got Box", {"observation_space": ACTIONS}),
        (TypeError, r"must be that of PrevActionWrapper\(flatten=False\), .* got Dict", {"observation_space": BARE}),
        (ValueError, r"must have the action's shape \(2,\), got Box.*\(1,\)", {"observation_space": SCALAR}),
        (TypeError, "observation_space must hold something to look at, got Dict", {"observation_space": ALONE}),
    ],
)
@pytest.mark.parametrize("kind", [TAACAgent, HybridAgent])
def test_spaces_of_other_wrappers_are_named(error, message, arguments, kind):
    """SAC-Hybrid has the same wrappers."""
    observation_space, action_space = spaces_of(kind)
    with pytest.raises(error, match=message):
        kind(**{"observation_space": observation_space, "action_space": action_space, **arguments})
