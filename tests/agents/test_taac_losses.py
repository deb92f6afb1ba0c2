"""TAAC's targets, losses and their gradients, against loops over single windows and central differences."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import taac_continuous as script
import torch
from learners import (
    Scene,
    assert_ascends,
    assert_standard_normal,
    decided,
    filled_replay,
    gradients_of,
    noise_of,
    small_scene,
    squashed,
)
from slow_agents import ACTION_TEMPERATURE, SWITCH_TEMPERATURE, make_agent, slow_minimum

from taac_wrappers.agent import TAACAgent


def test_decisions_are_one_sample_of_the_policy_per_state():
    learner, _, batch = small_scene(script, double=True, batch_size=150)
    agent = learner.agent
    at = decided(script, agent, batch)
    mean, log_std = agent.actor(batch.state_observation, batch.state_prev_action)
    noise = noise_of(at.candidate.action, mean, log_std)
    assert_standard_normal(noise[: batch.acting])
    assert_standard_normal(noise[batch.acting :])
    candidate, log_prob = squashed(mean, log_std, noise)
    q_repeat = agent.critics(batch.state_observation, batch.state_prev_action).amin(0)
    q_new = agent.critics(batch.state_observation, candidate).amin(0)
    torch.testing.assert_close(at.candidate.action, candidate)
    torch.testing.assert_close(at.candidate.log_prob, log_prob[: batch.acting])
    torch.testing.assert_close(at.q_new.minimum, q_new[: batch.acting])
    torch.testing.assert_close(at.beta, torch.softmax(torch.stack([q_repeat, q_new]) / SWITCH_TEMPERATURE, dim=0)[1])


# --- Targets ---------------------------------------------------------------------------------------------------------


def slow_targets(scene: Scene, candidate: np.ndarray, seed: int) -> np.ndarray:
    """Every transition's target, ``[N, B]``, by following its window; nan beyond its end."""
    (learner, windows, batch), args = scene, scene.learner.args
    targets_agent = make_agent(TAACAgent)
    targets_agent.critics = learner.target_critics.double()
    length, batch_size = windows.reward.shape
    values = np.zeros((3, length, batch_size))  # beta, q_repeat, q_new
    for flat, observation, prev_action, new in zip(
        windows.node_index, windows.node_observation, windows.node_action, candidate[batch.first :], strict=True
    ):
        advantage = slow_minimum(learner.agent, observation, new) - slow_minimum(
            learner.agent, observation, prev_action
        )
        if args.clip_advantage:
            advantage = max(advantage, 0.0)
        q_repeat, q_new = (slow_minimum(targets_agent, observation, action) for action in (prev_action, new))
        values[:, flat // batch_size, flat % batch_size] = 1 / (1 + math.exp(-advantage / 0.5)), q_repeat, q_new
    torch.manual_seed(seed)
    coin = torch.bernoulli(torch.from_numpy(values[0])).numpy()

    target = np.full((length, batch_size), np.nan)
    for k in reversed(range(length)):
        for b in range(batch_size):
            if not windows.valid[k, b]:
                continue
            beta, q_repeat, q_new = values[:, k, b]
            mixture = beta * q_new + (1 - beta) * q_repeat
            recorded = k + 1 < length and windows.valid[k + 1, b]
            if args.td_operator == "n-step":
                future = target[k + 1, b] if recorded else mixture
            elif args.td_mode == "expected":
                future = beta * q_new + (1 - beta) * (target[k + 1, b] if windows.repeated[k, b] else q_repeat)
            elif windows.repeated[k, b] and not coin[k, b]:
                future = target[k + 1, b]
            elif args.td_mode == "alf":
                future = mixture
            else:
                future = q_new if coin[k, b] else q_repeat
            target[k, b] = windows.reward[k, b] + args.gamma * (not windows.terminated[k, b]) * future
    return target


@pytest.mark.parametrize("train_on", ["first", "all"])
@pytest.mark.parametrize(
    "changes",
    [
        {"window": 1},
        {"window": 4},
        {"window": 4, "clip_advantage": True},
        {"window": 4, "td_mode": "sampled"},
        {"window": 4, "td_mode": "alf"},
        {"window": 4, "td_operator": "n-step"},
        {"window": 4, "td_operator": "one-step"},
    ],
    ids=str,
)
def test_targets_equal_a_loop_over_every_window(changes: dict[str, Any], train_on):
    scene = small_scene(script, double=True, batch_size=40, train_on=train_on, **changes)
    learner, windows, batch = scene
    at = decided(script, learner.agent, batch)
    torch.manual_seed(11)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.target_critics, batch, at)
    slow = slow_targets(scene, at.candidate.action.numpy(), seed=11)
    expected = slow[windows.valid] if train_on == "all" else slow[0]  # of a matrix: row by row, as the nodes are
    np.testing.assert_allclose(target, expected, atol=1e-6)

    several = learner.args.td_operator != "one-step" and learner.args.window > 1
    assert windows.repeated.any() == several
    assert windows.terminated.any()
    assert (windows.truncated & ~windows.terminated).any()


def test_windows_of_one_transition_are_one_step():
    """TAAC with N = 1 and TAAC-1td are the same thing, to the bit."""
    agents = []
    for changes in ({"window": 1}, {"window": 4, "td_operator": "one-step"}):
        learner, replay = small_scene(script, **changes).learner, filled_replay()
        torch.manual_seed(0)
        for _ in range(5):
            learner.update(learner.sample(replay), script.Counters(num_envs=1))
        agents.append(learner.agent.state_dict())
    assert all(torch.equal(agents[0][name], agents[1][name]) for name in agents[0])


# --- Losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train_on", ["first", "all"])
def test_the_actor_gradient_is_the_papers(train_on):
    learner, windows, batch = small_scene(script, double=True, hidden=(3,), train_on=train_on)
    agent = learner.agent
    at = decided(script, agent, batch)
    parameters = list(agent.actor.parameters())
    gradients = gradients_of(script.actor_loss, parameters, agent, batch, at)

    # The next states of the trained transitions, unless the episode was over there, and the first states.
    trained = len(windows.action)
    counts = torch.from_numpy(np.concatenate([np.ones(windows.first.sum(), bool), ~windows.node_ended[:trained]]))
    states, prev_actions = (
        torch.from_numpy(np.concatenate([own[windows.first], node[:trained]])).double()
        for own, node in (
            (windows.observation, windows.node_observation),
            (windows.prev_action, windows.node_action),
        )
    )
    noise = noise_of(at.candidate.action[: batch.acting], *agent.actor(states, prev_actions))
    assert windows.first.sum() > 0
    assert not counts.all()

    def terms():
        candidate, log_prob = squashed(*agent.actor(states, prev_actions), noise)
        q = [agent.critics(states, action).amin(0) for action in (prev_actions, candidate)]
        return torch.stack(q), ACTION_TEMPERATURE * log_prob

    beta = torch.softmax(terms()[0] / SWITCH_TEMPERATURE, dim=0)[1].detach()

    def eq_6():
        """beta* Q(s, f_phi) - alpha'' log pi_phi(f_phi), whose gradient holds beta* fixed."""
        q, weighed_log_prob = terms()
        return (beta * q[1] - weighed_log_prob)[counts].sum() / len(counts)

    def soft_value():
        """The objective that the paper derives it from, with beta* at its optimum for every candidate."""
        q, weighed_log_prob = terms()
        value = SWITCH_TEMPERATURE * torch.logsumexp(q / SWITCH_TEMPERATURE, dim=0)
        return (value - weighed_log_prob)[counts].sum() / len(counts)

    for objective in (eq_6, soft_value):
        assert_ascends(objective, parameters, gradients)


def test_the_actor_loss_trains_the_actor_alone():
    learner, _, batch = small_scene(script)
    agent = learner.agent
    others = [*agent.critics.parameters(), agent.log_switch_temperature, agent.log_action_temperature]
    gradients = gradients_of(script.actor_loss, others, agent, batch, decided(script, agent, batch))
    assert gradients == (None,) * len(others)


TARGETS = torch.tensor([[0.2], [-1.0]])


@pytest.mark.parametrize(
    ("entropies", "falls"),
    [
        ([[0.6, 0.6], [2.0, 2.0]], (True, True)),  # both above their targets
        ([[0.01, 0.01], [2.0, 2.0]], (False, True)),
        ([[0.6, 0.6], [-3.0, -3.0]], (True, False)),
        ([[0.01, 0.01], [-3.0, -3.0]], (False, False)),
    ],
)
def test_temperatures_fall_above_their_target_and_rise_below(entropies, falls):
    agent, batch = make_agent(TAACAgent), SimpleNamespace(acting_share=torch.ones(2) / 2)
    temperatures = agent.log_switch_temperature, agent.log_action_temperature
    gradients = gradients_of(script.temperature_loss, temperatures, agent, batch, torch.tensor(entropies), TARGETS)
    assert tuple(gradient.item() > 0 for gradient in gradients) == falls  # descent goes against the gradient


def test_the_temperature_gradient_is_the_mean_surplus_of_entropy_where_somebody_acts():
    agent, batch = make_agent(TAACAgent), SimpleNamespace(acting_share=torch.tensor([1.0, 1.0, 0.0]) / 3)
    entropies = torch.tensor([[0.6, 0.0, 50.0], [-1.0, -2.0, 50.0]])
    temperatures = agent.log_switch_temperature, agent.log_action_temperature
    switch, action = gradients_of(script.temperature_loss, temperatures, agent, batch, entropies, TARGETS)
    assert switch.item() == pytest.approx(((0.6 - 0.2) + (0.0 - 0.2)) / 3, abs=1e-6)
    assert action.item() == pytest.approx(((-1.0 + 1.0) + (-2.0 + 1.0)) / 3, abs=1e-6)


def test_the_switch_temperature_does_not_fall_below_its_floor():
    learner, _, batch = small_scene(script)
    with torch.no_grad():
        learner.agent.log_switch_temperature.fill_(math.log(1e-6))
    learner.update(batch, script.Counters(num_envs=1))
    assert learner.agent.log_switch_temperature.exp().item() == pytest.approx(1e-4)


def test_random_behaviour_repeats_half_of_the_time():
    rng = np.random.default_rng(0)
    agent = make_agent(TAACAgent)
    prev_action = agent.initial_action(4000)
    action, switch = script.act_randomly(rng, agent.action_space, prev_action)
    assert (action.dtype, switch.dtype) == (np.float32, bool)
    assert switch.mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(action[~switch], prev_action[~switch])
    low, high = agent.action_space.low, agent.action_space.high
    share = (action[switch] - low) / (high - low)
    for quarter in range(4):
        inside = (share >= quarter / 4) & (share < (quarter + 1) / 4)
        np.testing.assert_allclose(inside.mean(0), 0.25, atol=0.04)
