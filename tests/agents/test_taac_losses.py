"""TAAC's targets, losses and their gradients, against loops over single windows and central differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import taac_continuous as script
import torch
from gymnasium.vector.utils import batch_space
from learners import (
    Scene,
    assert_ascends,
    assert_standard_normal,
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
    for states in (batch.observation, batch.next_observation):
        at = script.decide(agent, states)
        mean, log_std = agent.actor(states)
        noise = noise_of(at.action, mean, log_std)
        assert_standard_normal(noise)
        candidate, log_prob = squashed(mean, log_std, noise)
        q_repeat = agent.critics(states, states["prev_action"]).amin(0)
        q_new = agent.critics(states, candidate).amin(0)
        torch.testing.assert_close(at.action, candidate)
        torch.testing.assert_close(at.log_prob, log_prob)
        torch.testing.assert_close(at.q_new, q_new)
        beta = torch.softmax(torch.stack([q_repeat, q_new]) / SWITCH_TEMPERATURE, dim=0)[1]
        torch.testing.assert_close(at.beta, beta.detach())
        assert not at.beta.requires_grad  # it is held fixed


# --- Targets ---------------------------------------------------------------------------------------------------------


def slow_targets(scene: Scene, candidate: np.ndarray, coins: torch.Tensor) -> np.ndarray:
    """Every transition's target, ``[N, B]``, by following its window; nan beyond its end."""
    (learner, windows, _), args = scene, scene.learner.args
    targets_agent = make_agent(TAACAgent)
    targets_agent.critics = learner.target_critics.double()
    length, batch_size = windows.reward.shape
    values = np.zeros((3, length, batch_size))  # beta, q_repeat, q_new
    states = windows.next_observation["observation"], windows.next_observation["prev_action"]
    for number, (observation, prev_action, new) in enumerate(zip(*states, candidate, strict=True)):
        advantage = slow_minimum(learner.agent, observation, new) - slow_minimum(
            learner.agent, observation, prev_action
        )
        if args.clip_advantage:
            advantage = max(advantage, 0.0)
        q_repeat, q_new = (slow_minimum(targets_agent, observation, action) for action in (prev_action, new))
        beta = 1 / (1 + math.exp(-advantage / 0.5))
        values[:, windows.valid & (windows.next_of == number)] = np.array([[beta], [q_repeat], [q_new]])
    torch.set_rng_state(coins)
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
            target[k, b] = windows.reward[k, b] + windows.discount[k, b] * (not windows.terminated[k, b]) * future
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
    torch.manual_seed(11)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(11)  # the same candidates, and then the same coins
        candidate = script.decide(learner.agent, batch.next_observation).action.numpy()
    slow = slow_targets(scene, candidate, coins=torch.get_rng_state())
    expected = slow[windows.valid] if train_on == "all" else slow[0]  # of a matrix: row by row, as the next states are
    np.testing.assert_allclose(target, expected, atol=1e-6)

    several = learner.args.td_operator != "one-step" and learner.args.window > 1
    assert windows.repeated.any() == several
    assert windows.terminated.any()
    assert (windows.truncated & ~windows.terminated).any()
    assert len(np.unique(windows.discount[windows.valid])) == 2


@pytest.mark.parametrize("train_on", ["first", "all"])
def test_what_was_executed_is_the_previous_action_at_the_next_state(train_on):
    """The value of repeating is asked for at ``next_observation``, which holds the action to be repeated."""
    _, windows, _ = small_scene(script, window=4, train_on=train_on)
    trained = len(windows.action)
    np.testing.assert_array_equal(windows.next_observation["prev_action"][:trained], windows.action)


def test_windows_of_one_transition_are_one_step():
    """TAAC with N = 1 and TAAC-1td are the same thing, to the bit."""
    agents = []
    for changes in ({"window": 1}, {"window": 4, "td_operator": "one-step"}):
        learner, replay = small_scene(script, **changes).learner, filled_replay(script)
        torch.manual_seed(0)
        for _ in range(5):
            learner.update(learner.sample(replay), script.Counters())
        agents.append(learner.agent.state_dict())
    assert all(torch.equal(agents[0][name], agents[1][name]) for name in agents[0])


# --- Losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train_on", ["first", "all"])
def test_the_actor_gradient_is_the_papers(train_on):
    learner, windows, batch = small_scene(script, double=True, hidden=(3,), train_on=train_on)
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    parameters = list(agent.actor.parameters())
    gradients = gradients_of(script.actor_loss(agent, batch, at), parameters)

    # At the transitions' own states, with the previous actions that were recorded there.
    states = {name: torch.from_numpy(values).double() for name, values in windows.observation.items()}
    assert len(states["observation"]) == (windows.valid.sum() if train_on == "all" else 32)
    noise = noise_of(at.action, *agent.actor(states))

    def terms():
        candidate, log_prob = squashed(*agent.actor(states), noise)
        q = [agent.critics(states, action).amin(0) for action in (states["prev_action"], candidate)]
        return torch.stack(q), ACTION_TEMPERATURE * log_prob

    beta = torch.softmax(terms()[0] / SWITCH_TEMPERATURE, dim=0)[1].detach()

    def eq_6():
        """beta* Q(s, f_phi) - alpha'' log pi_phi(f_phi), whose gradient holds beta* fixed."""
        q, weighed_log_prob = terms()
        return (beta * q[1] - weighed_log_prob).mean()

    def soft_value():
        """The objective that the paper derives it from, with beta* at its optimum for every candidate."""
        q, weighed_log_prob = terms()
        value = SWITCH_TEMPERATURE * torch.logsumexp(q / SWITCH_TEMPERATURE, dim=0)
        return (value - weighed_log_prob).mean()

    for objective in (eq_6, soft_value):
        assert_ascends(objective, parameters, gradients)


TARGETS = (0.2, -1.0)  # of the switch's entropy and of the action's
MIDDLE, CERTAIN = 0.3, 0.001  # coins whose entropies are above and below that


def surplus_gradients(agent: TAACAgent, beta: list[float], entropies: list[float]) -> tuple[float, float]:
    """Of both temperatures, where the switch's coins and the action's entropies are these."""
    nothing = torch.zeros(len(beta))
    at = script.Decisions(nothing, -torch.tensor(entropies), nothing, torch.tensor(beta))
    loss = script.temperature_loss(agent, at, TARGETS)
    switch, action = gradients_of(loss, [agent.log_switch_temperature, agent.log_action_temperature])
    return switch.item(), action.item()


@pytest.mark.parametrize(
    ("beta", "entropy", "falls"),
    [
        (MIDDLE, 2.0, (True, True)),  # both above their targets
        (CERTAIN, 2.0, (False, True)),
        (MIDDLE, -3.0, (True, False)),
        (CERTAIN, -3.0, (False, False)),
    ],
)
def test_temperatures_fall_above_their_target_and_rise_below(beta, entropy, falls):
    gradients = surplus_gradients(make_agent(TAACAgent), [beta, beta], [entropy, entropy])
    assert all(gradient != 0 for gradient in gradients)
    assert tuple(gradient > 0 for gradient in gradients) == falls  # descent goes against the gradient


def test_the_temperature_gradient_is_the_mean_surplus_of_entropy():
    switch, action = surplus_gradients(make_agent(TAACAgent), [0.5, 0.0, 0.25], [-1.0, -2.0, 3.0])
    of_quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert switch == pytest.approx((math.log(2) + 0.0 + of_quarter) / 3 - 0.2, abs=1e-6)
    assert action == pytest.approx((-1.0 - 2.0 + 3.0) / 3 + 1.0, abs=1e-6)


# --- The floor of the switch temperature -----------------------------------------------------------------------------

FLOOR = math.log(1e-4)


@pytest.mark.parametrize("below", [0.0, 0.01, 5.0], ids=["at the floor", "just below", "far below"])
def test_at_or_below_its_floor_the_switch_temperature_may_only_rise(below):
    agent = make_agent(TAACAgent)
    elsewhere = [surplus_gradients(agent, [beta], [2.0]) for beta in (MIDDLE, CERTAIN)]
    with torch.no_grad():
        agent.log_switch_temperature.fill_(FLOOR - below)
    falling, rising = (surplus_gradients(agent, [beta], [2.0]) for beta in (MIDDLE, CERTAIN))
    assert falling == (0.0, elsewhere[0][1])  # the action's temperature has no floor
    assert rising == elsewhere[1]
    assert rising[0] < 0


def test_just_above_its_floor_it_falls_as_everywhere():
    agent = make_agent(TAACAgent)
    elsewhere = surplus_gradients(agent, [MIDDLE], [2.0])
    with torch.no_grad():
        agent.log_switch_temperature.fill_(FLOOR + 1e-5)
    assert surplus_gradients(agent, [MIDDLE], [2.0]) == elsewhere
    assert elsewhere[0] > 0


def test_the_switch_temperature_does_not_sink_below_its_floor_over_many_updates():
    """All actions are worth the same: the switch is a fair coin for good, its entropy above the target at every update.

    Without gradients, Adam goes on for a moment: steps that shrink by 0.9 each, about ten of them in sum.
    """
    learner, _, batch = small_scene(script, learning_rate=0.1)
    for critic in learner.agent.critics.twins:
        torch.nn.init.zeros_(critic.head.weight)
        torch.nn.init.zeros_(critic.head.bias)
    history = []
    for _ in range(600):
        learner.optimizer.zero_grad()
        metrics = learner.policy_gradients(batch)
        learner.optimizer.step()
        assert (metrics["losses/switch_probability"] == 0.5).all()
        history.append(learner.agent.log_switch_temperature.item())
    assert history[10] > history[50] > FLOOR  # it fell,
    assert min(history) <= FLOOR  # arrived,
    assert min(history) > FLOOR - 11 * 0.1  # went no farther than Adam's last steps,
    np.testing.assert_allclose(history[300:], history[-1], atol=1e-5)  # and stayed.


def test_the_switch_temperature_comes_back_from_below_its_floor():
    """So cold, every switch is certain: there is less entropy than there should be."""
    learner, _, batch = small_scene(script)
    with torch.no_grad():
        learner.agent.log_switch_temperature.fill_(math.log(1e-6))
    history = [learner.agent.log_switch_temperature.item()]
    for _ in range(20):
        learner.update(batch, script.Counters())
        history.append(learner.agent.log_switch_temperature.item())
    assert (np.diff(history) > 0).all()


def test_random_behaviour_repeats_half_of_the_time():
    rng = np.random.default_rng(0)
    agent = make_agent(TAACAgent)
    space = batch_space(agent.action_space, 4000)
    chosen = script.random_action(rng, space)
    assert space.contains(chosen)
    assert chosen["action"].dtype == np.float32
    assert set(chosen["switch"].tolist()) == {0, 1}
    assert chosen["switch"].mean() == pytest.approx(0.5, abs=0.03)
    low, high = agent.action_box.low, agent.action_box.high
    share = (chosen["action"] - low) / (high - low)
    for quarter in range(4):
        inside = (share >= quarter / 4) & (share < (quarter + 1) / 4)
        np.testing.assert_allclose(inside.mean(0), 0.25, atol=0.04)
        assert inside[chosen["switch"] == 1].mean() == pytest.approx(0.25, abs=0.04)  # whatever the switch
