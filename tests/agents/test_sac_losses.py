"""SAC's target, losses and their gradients, against loops over single transitions and central differences."""

from __future__ import annotations

import numpy as np
import pytest
import sac_continuous as script
import torch
from gymnasium.vector.utils import batch_space
from learners import assert_ascends, assert_standard_normal, gradients_of, noise_of, small_scene, squashed
from slow_agents import ACTION_TEMPERATURE, make_agent, slow_minimum

from taac_wrappers.agent import SACAgent


def test_decisions_are_one_sample_of_the_policy_per_state():
    learner, _, batch = small_scene(script, double=True, batch_size=80)
    at = script.decide(learner.agent, batch.observation)
    mean, log_std = learner.agent.actor(batch.observation)
    noise = noise_of(at.action, mean, log_std)
    assert_standard_normal(noise)
    candidate, log_prob = squashed(mean, log_std, noise)
    torch.testing.assert_close(at.action, candidate)
    torch.testing.assert_close(at.log_prob, log_prob)


def test_targets_count_the_entropy_also_where_the_episode_terminated():
    """y = r + gamma ((1 - terminated) min Q'(s', a') - alpha log pi(a' | s'))"""
    learner, windows, batch = small_scene(script, batch_size=60)
    torch.manual_seed(7)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(7)
        at_next = script.decide(learner.agent, torch.from_numpy(windows.next_observation))
    assert target.shape == (60,)
    targets_agent = make_agent(SACAgent)
    targets_agent.critics = learner.target_critics
    for b in range(60):
        future = 0.0
        if not windows.terminated[0, b]:
            future = slow_minimum(targets_agent, windows.next_observation[b], at_next.action[b].numpy())
        entropy = -at_next.log_prob[b].item()
        slow = windows.reward[0, b] + windows.discount[0, b] * (future + ACTION_TEMPERATURE * entropy)
        assert target[b].item() == pytest.approx(slow, abs=1e-4)
    assert 0 < windows.terminated.sum() < 60
    assert (windows.truncated & ~windows.terminated).any()
    assert len(np.unique(windows.discount)) == 2


def test_the_actor_gradient_is_that_of_the_soft_value():
    """At the state of every transition: Q(s, f(s)) - alpha log pi(f(s) | s)."""
    learner, windows, batch = small_scene(script, double=True, hidden=(3,))
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    parameters = list(agent.actor.parameters())
    gradients = gradients_of(script.actor_loss(agent, batch, at), parameters)

    states = torch.from_numpy(windows.observation).double()
    noise = noise_of(at.action, *agent.actor(states))

    def soft_value():
        action, log_prob = squashed(*agent.actor(states), noise)
        value = agent.critics(states, action).amin(0) - ACTION_TEMPERATURE * log_prob
        return value.mean()

    assert_ascends(soft_value, parameters, gradients)


def test_the_temperature_gradient_is_the_mean_surplus_of_entropy():
    agent = make_agent(SACAgent)
    at = script.Decisions(torch.zeros(2, 2), -torch.tensor([3.0, -0.5]))
    (gradient,) = gradients_of(script.temperature_loss(agent, at, -1.0), [agent.log_action_temperature])
    assert gradient.item() == pytest.approx(((3.0 + 1.0) + (-0.5 + 1.0)) / 2, abs=1e-6)  # it falls


def test_random_actions_are_uniform():
    rng = np.random.default_rng(0)
    box = make_agent(SACAgent).action_space
    space = batch_space(box, 4000)
    action = script.random_action(rng, space)
    assert space.contains(action)
    assert action.dtype == np.float32
    assert len(np.unique(action, axis=0)) == 4000
    share = (action - box.low) / (box.high - box.low)
    for quarter in range(4):
        inside = (share >= quarter / 4) & (share < (quarter + 1) / 4)
        np.testing.assert_allclose(inside.mean(0), 0.25, atol=0.03)


@pytest.mark.parametrize("window", [2, 5])
def test_longer_windows_are_refused(window):
    args = script.Args(window=window, total_frames=20_000)
    with pytest.raises(
        ValueError, match=f"--window must be 1, because a target of SAC spans one transition, got {window}"
    ):
        script.check(args)


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "BipedalWalkerHardcore-v2", "FetchPush-v2"])
def test_no_tasks_settings_ask_for_longer_windows(env_id):
    assert script.Args.for_task(env_id).window == 1
