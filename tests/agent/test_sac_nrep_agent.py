"""SAC-Nrep's agent: SAC's, but for how long its policy holds an action (the policy itself: test_agents.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_agents import inputs, make_agent, spaces_of

from taac_wrappers.agent import NRepAgent, SACAgent


@pytest.mark.parametrize("deterministic", [True, False])
def test_it_acts_as_sac_does(deterministic):
    agents = make_agent(NRepAgent), make_agent(SACAgent)
    actions = []
    for agent in agents:
        torch.manual_seed(5)
        actions.append(agent.act(inputs(20)[0], deterministic))
    np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_policy_holds_for_n_frames(n):
    policy = make_agent(NRepAgent, n=n).policy()
    actions = [tuple(policy(inputs(1, seed=step)[0][0])) for step in range(3 * n)]
    assert [actions.count(action) for action in dict.fromkeys(actions)] == [n, n, n]


@pytest.mark.parametrize("n", [0, -2, 2.0, "3", None])
def test_a_bad_n_is_named(n):
    with pytest.raises(ValueError, match=f"n must be a positive integer, got {n!r}"):
        NRepAgent(*spaces_of(NRepAgent), n=n)
