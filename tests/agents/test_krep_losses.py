"""SAC-Krep's targets, losses and their gradients, against loops, central differences and many samples of K."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sac_krep_continuous as script
import torch
from learners import (
    assert_ascends,
    assert_mean,
    assert_standard_normal,
    filled_replay,
    gradients_of,
    noise_of,
    small_scene,
    squashed,
)
from slow_agents import ACTION_TEMPERATURE, MAX_REPEAT, SWITCH_TEMPERATURE, inputs, make_agent, slow_critics

from taac_wrappers.agent import KRepAgent

SAMPLES = 20_000


def slow_values(agent, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Of every duration, ``[K]``: the smaller one of both critics."""
    return np.minimum(*(slow_critics(agent, which, state, action) for which in (0, 1)))


def slow_probabilities(agent, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    weights = np.exp(slow_values(agent, state, action) / SWITCH_TEMPERATURE)
    return weights / weights.sum()


def test_decisions_are_one_sample_of_the_policy_per_state_and_the_closed_form():
    learner, windows, batch = small_scene(script, double=True, batch_size=80)
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    mean, log_std = agent.actor(batch.observation)
    noise = noise_of(at.action, mean, log_std)
    assert_standard_normal(noise)
    action, log_prob = squashed(mean, log_std, noise)
    torch.testing.assert_close(at.action, action)
    torch.testing.assert_close(at.log_prob, log_prob)
    chosen = at.action.detach().numpy()
    for b, state in enumerate(windows.observation):
        np.testing.assert_allclose(at.q[b].detach(), slow_values(agent, state, chosen[b]), atol=1e-9)
        np.testing.assert_allclose(at.probability[b], slow_probabilities(agent, state, chosen[b]), atol=1e-9)
    assert not at.probability.requires_grad  # it is held fixed
    assert at.probability.max() > 0.6
    assert at.probability.min() < 0.05


def test_targets_are_those_of_a_decision_and_count_both_entropies():
    """y = R + gamma^k ((1 - terminated) sum_K p(K) min Q'(s', a', K) - alpha'' log pi(a') + alpha' H(p)): online p."""
    learner, windows, batch = small_scene(script, double=True, batch_size=60)
    torch.manual_seed(7)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(7)
        at = script.decide(learner.agent, batch.next_observation)
    targets_agent = make_agent(KRepAgent)
    targets_agent.critics = learner.target_critics
    assert target.shape == (60,)
    for b, state in enumerate(windows.next_observation):
        action = at.action[b].numpy()
        p = slow_probabilities(learner.agent, state, action)
        value = 0.0 if windows.terminated[0, b] else (p * slow_values(targets_agent, state, action)).sum()
        bonus = -ACTION_TEMPERATURE * at.log_prob[b].item() - SWITCH_TEMPERATURE * (p * np.log(p)).sum()
        slow = windows.reward[0, b] + windows.discount[0, b] * (value + bonus)
        assert target[b].item() == pytest.approx(slow, abs=1e-6)
    assert 0 < windows.terminated.sum() < 60
    assert (windows.truncated & ~windows.terminated).any()
    assert len(np.unique(windows.discount)) == 2


def test_the_sums_of_the_target_are_the_mean_over_many_samples_of_the_duration():
    learner, _, batch = small_scene(script, double=True, batch_size=16)
    torch.manual_seed(7)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(7)
        at = script.decide(learner.agent, batch.next_observation)
        q = learner.target_critics.minimum(batch.next_observation, at.action)
    sampled = torch.multinomial(at.probability, SAMPLES, replacement=True)  # [16, S]
    value = ~batch.terminated[0] * q.gather(1, sampled).T
    entropy = -SWITCH_TEMPERATURE * at.probability.log().gather(1, sampled).T - ACTION_TEMPERATURE * at.log_prob
    assert_mean(batch.reward[0] + batch.discount[0] * (value + entropy), target)


def test_the_actor_gradient_holds_the_probabilities_fixed_and_is_that_of_the_soft_value():
    """At the optimal choice of K both are the same: d/da alpha' logsumexp(Q / alpha') = sum_K p(K) dQ(K)/da."""
    learner, windows, batch = small_scene(script, double=True, hidden=(3,))
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    parameters = list(agent.actor.parameters())
    loss = script.actor_loss(agent, batch, at)
    gradients = gradients_of(loss, parameters)
    states = torch.from_numpy(windows.observation).double()
    noise = noise_of(at.action, *agent.actor(states))

    def terms():
        action, log_prob = squashed(*agent.actor(states), noise)
        return agent.critics(states, action).amin(0), ACTION_TEMPERATURE * log_prob

    fixed = torch.softmax(terms()[0] / SWITCH_TEMPERATURE, dim=-1).detach()

    def expected_value():
        q, weighed_log_prob = terms()
        return ((fixed * q).sum(-1) - weighed_log_prob).mean()

    def soft_value():
        q, weighed_log_prob = terms()
        return (SWITCH_TEMPERATURE * torch.logsumexp(q / SWITCH_TEMPERATURE, dim=-1) - weighed_log_prob).mean()

    assert loss.item() == pytest.approx(-expected_value().item())
    for objective in (expected_value, soft_value):
        assert_ascends(objective, parameters, gradients)


def test_the_actor_loss_is_the_mean_over_many_samples_of_the_duration():
    learner, _, batch = small_scene(script, double=True, batch_size=16)
    at = script.decide(learner.agent, batch.observation)
    loss = script.actor_loss(learner.agent, batch, at).detach()
    sampled = torch.multinomial(at.probability, SAMPLES, replacement=True)
    assert_mean((ACTION_TEMPERATURE * at.log_prob - at.q.gather(1, sampled).T).detach().mean(1), loss)


def test_the_temperature_gradient_is_the_mean_surplus_of_each_entropy():
    agent = make_agent(KRepAgent)
    probability = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]])
    at = script.Decisions(torch.zeros(2, 2), -torch.tensor([3.0, -0.5]), torch.zeros(2, 4), probability)
    temperatures = [agent.log_repeat_temperature, agent.log_action_temperature]
    repeat, action = gradients_of(script.temperature_loss(agent, at, (0.4, -1.0)), temperatures)
    assert repeat.item() == pytest.approx((math.log(4) + math.log(2)) / 2 - 0.4, abs=1e-6)
    assert action.item() == pytest.approx((3.0 - 0.5) / 2 + 1.0, abs=1e-6)


def test_the_entropy_target_of_the_duration_leaves_delta_to_all_but_the_favourite():
    agent = make_agent(KRepAgent)
    repeat, action = script.entropy_targets_of(script.Args(repeat_delta=0.2, action_delta=0.1), agent)
    distribution = np.array([0.8, 0.2 / 3, 0.2 / 3, 0.2 / 3])
    assert repeat == pytest.approx(-(distribution * np.log(distribution)).sum())
    assert action == pytest.approx(2 * math.log(0.1 * 2))


def test_what_is_recorded_is_the_action_and_the_duration_that_was_chosen():
    observation, action = inputs(3)
    answer = {"action": action, "repeat": np.array([4, 1, 2])}
    recorded = script.recorded_action(
        make_agent(KRepAgent), observation, answer, {"executed_action": action + 1}, False
    )
    np.testing.assert_array_equal(recorded["action"], action + 1)
    np.testing.assert_array_equal(recorded["repeat"], [4, 1, 2])
    drawn = filled_replay(script).sample(60).action["repeat"]
    assert drawn.dtype == np.int64
    assert set(drawn.tolist()) == set(range(1, MAX_REPEAT + 1))
