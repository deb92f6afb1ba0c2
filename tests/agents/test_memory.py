"""What an update leaves behind: nothing but numbers. Whatever keeps its graph keeps the graph of all updates before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sac_continuous
import taac_continuous
from gymnasium.spaces import Box

from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import Counters


@pytest.mark.parametrize("script", [taac_continuous, sac_continuous], ids=["taac", "sac"])
def test_an_update_keeps_no_graph(script):
    observation_space, action_space = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,))
    args = replace(script.Args.for_task("Pendulum-v1"), hidden=(4, 4), batch_size=8)
    learner = script.Learner(args, script.make_agent(args, observation_space, action_space))
    replay = SequenceReplay(observation_space, action_space, capacity=50, num_envs=1, seed=0)
    rng, no = np.random.default_rng(0), np.zeros(1, bool)
    replay.start(rng.random((1, 3), np.float32))
    for _ in range(40):
        action, observation = rng.random((1, 2), np.float32), rng.random((1, 3), np.float32)
        replay.add(action, ~no, rng.random(1), no, no, observation)
    before = [target.clone() for target in learner.target_critics.parameters()]
    metrics = learner.update(learner.sample(replay), Counters(1))
    after = list(learner.target_critics.parameters())
    assert all((old != new).any() for old, new in zip(before, after, strict=True))
    kept = [learner.target_weights, learner.critic_weights, *after, *learner.agent.parameters(), *metrics.values()]
    assert all(value.grad_fn is None for value in kept)
    assert not any(value.requires_grad for value in [learner.target_weights, *after, *metrics.values()])
