"""SAC's target, losses and their gradients, against loops over single transitions and central differences."""

from __future__ import annotations

import numpy as np
import pytest
import sac_continuous as script
import torch
from learners import assert_ascends, assert_standard_normal, decided, gradients_of, noise_of, small_scene, squashed
from slow_agents import ACTION_TEMPERATURE, make_agent, slow_minimum

from taac_wrappers.agent import SACAgent


def test_decisions_are_one_sample_of_the_policy_per_state():
    learner, _, batch = small_scene(script, double=True, batch_size=80)
    at = decided(script, learner.agent, batch)
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
        at_next = script.decide(learner.agent, torch.from_numpy(windows.node_observation))
    assert target.shape == (60,)
    targets_agent = make_agent(SACAgent)
    targets_agent.critics = learner.target_critics
    for b in range(60):
        future = 0.0
        if not windows.terminated[0, b]:
            future = slow_minimum(targets_agent, windows.node_observation[b], at_next.action[b].numpy())
        entropy = -at_next.log_prob[b].item()
        slow = windows.reward[0, b] + 0.99 * (future + ACTION_TEMPERATURE * entropy)
        assert target[b].item() == pytest.approx(slow, abs=1e-4)
    assert 0 < windows.terminated.sum() < 60
    assert (windows.truncated & ~windows.terminated).any()


def test_the_actor_gradient_is_that_of_the_soft_value():
    """At the state of every transition: Q(s, f(s)) - alpha log pi(f(s) | s)."""
    learner, windows, batch = small_scene(script, double=True, hidden=(3,))
    agent = learner.agent
    at = decided(script, agent, batch)
    parameters = list(agent.actor.parameters())
    gradients = gradients_of(script.actor_loss, parameters, agent, batch, at)

    states = torch.from_numpy(windows.observation).double()
    noise = noise_of(at.action, *agent.actor(states))

    def soft_value():
        action, log_prob = squashed(*agent.actor(states), noise)
        value = agent.critics(states, action).amin(0) - ACTION_TEMPERATURE * log_prob
        return value.mean()

    assert_ascends(soft_value, parameters, gradients)


def test_the_actor_loss_trains_the_actor_alone():
    learner, _, batch = small_scene(script)
    agent = learner.agent
    others = [*agent.critics.parameters(), agent.log_action_temperature]
    gradients = gradients_of(script.actor_loss, others, agent, batch, decided(script, agent, batch))
    assert gradients == (None,) * len(others)


def test_the_temperature_gradient_is_the_mean_surplus_of_entropy():
    agent = make_agent(SACAgent)
    entropies = torch.tensor([3.0, -0.5])
    (gradient,) = gradients_of(script.temperature_loss, [agent.log_action_temperature], agent, entropies, -1.0)
    assert gradient.item() == pytest.approx(((3.0 + 1.0) + (-0.5 + 1.0)) / 2, abs=1e-6)  # it falls


def test_random_actions_are_uniform_and_always_new():
    rng = np.random.default_rng(0)
    space = make_agent(SACAgent).action_space
    action, switch = script.act_randomly(rng, space, np.zeros((4000, 2), np.float32))
    assert (action.dtype, switch.dtype) == (np.float32, bool)
    assert switch.all()
    share = (action - space.low) / (space.high - space.low)
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
