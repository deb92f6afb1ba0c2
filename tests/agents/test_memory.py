"""What an update leaves behind: nothing but numbers. Whatever keeps its graph keeps the graph of all updates before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sac_continuous
import taac_continuous
from gymnasium.spaces import Box
from slow_agents import observed, spaces_of

from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.replay import SequenceReplay


@pytest.mark.parametrize("script", [taac_continuous, sac_continuous], ids=["taac", "sac"])
def test_an_update_keeps_no_graph(script):
    kind, action_box = {"taac": TAACAgent, "sac": SACAgent}[script.METHOD], Box(-1.0, 1.0, (2,))
    observation_space, action_space = spaces_of(kind, Box(-1.0, 1.0, (3,)), action_box)
    args = replace(script.Args.for_task("Pendulum-v1"), hidden=(4, 4), batch_size=8)
    learner = script.Learner(args, script.make_agent(args, observation_space, action_space))
    replay = SequenceReplay(observation_space, action_box, capacity=50, num_envs=1, seed=0)
    rng, no, gamma = np.random.default_rng(0), np.zeros(1, bool), np.array([0.99])
    replay.start(observed(kind, rng.random((1, 3), np.float32), np.zeros((1, 2), np.float32)))
    for _ in range(40):
        action, observation = rng.random((1, 2), np.float32), rng.random((1, 3), np.float32)
        replay.add(action, rng.random(1), no, no, observed(kind, observation, action), repeated=no, discount=gamma)
    before = [target.clone() for target in learner.target_critics.parameters()]
    metrics = learner.update(learner.sample(replay), Counters())
    after = list(learner.target_critics.parameters())
    assert all((old != new).any() for old, new in zip(before, after, strict=True))
    adam = [value for state in learner.optimizer.state.values() for value in state.values()]
    gradients = [parameter.grad for parameter in learner.policy_parameters]
    kept = [*after, *learner.agent.parameters(), *metrics.values(), *adam, *gradients]
    assert all(value.grad_fn is None for value in kept)
    assert not any(value.requires_grad for value in [*after, *metrics.values(), *adam, *gradients])
