"""SAC-Hybrid's targets, losses and their gradients, against loops, central differences and many samples of b."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sac_hybrid_continuous as script
import torch
from learners import (
    Scene,
    assert_ascends,
    assert_mean,
    assert_standard_normal,
    filled_replay,
    gradients_of,
    noise_of,
    slow_log_prob,
    small_scene,
    squashed,
)
from slow_agents import (
    ACTION_TEMPERATURE,
    ACTIONS,
    SWITCH_TEMPERATURE,
    inputs,
    make_agent,
    slow_critics,
    slow_switch_probability,
)
from torch.distributions import Bernoulli

from taac_wrappers.agent import HybridAgent
from taac_wrappers.agent.distributions import SquashedGaussian

SAMPLES = 20_000


def slow_values(agent, state: np.ndarray, prev_action: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Of repeating and of acting anew, ``[2]``: the smaller one of both critics."""
    return np.minimum(*(slow_critics(agent, which, state, prev_action, action) for which in (0, 1)))


def slow_entropy(beta: float) -> float:
    return -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)


def test_decisions_are_one_sample_of_the_action_and_the_coin_of_every_state():
    learner, windows, batch = small_scene(script, double=True, batch_size=80)
    agent, states = learner.agent, batch.observation
    at = script.decide(agent, states)
    mean, log_std, _ = agent.actor(states)
    noise = noise_of(at.action, mean, log_std)
    assert_standard_normal(noise)
    action, log_prob = squashed(mean, log_std, noise)
    torch.testing.assert_close(at.action, action)
    torch.testing.assert_close(at.log_prob, log_prob)
    seen = zip(windows.observation["observation"], windows.observation["prev_action"], strict=True)
    slow = [slow_switch_probability(agent, *pair) for pair in seen]
    np.testing.assert_allclose(at.beta.detach(), slow, atol=1e-9)
    assert min(slow) < 0.3
    assert max(slow) > 0.7


# --- Targets ---------------------------------------------------------------------------------------------------------


def slow_trace(scene: Scene, number: int) -> float:
    """Of what was recorded at a next state: the ratio of both policies, at most 1, times lambda."""
    (learner, windows, _), args, recorded = scene, scene.learner.args, scene.windows.next_action
    seen = windows.next_observation["observation"][number], windows.next_observation["prev_action"][number]
    beta = slow_switch_probability(learner.agent, *seen)
    switched = recorded["switch"][number] == 1
    log_ratio = math.log(beta if switched else 1 - beta) - recorded["log_probs"][number, 1]
    if switched or args.trace_of == "joint":
        log_prob = slow_log_prob(learner.agent, *seen, recorded["action"][number])
        log_ratio += log_prob - recorded["log_probs"][number, 0]
    return args.retrace_lambda * min(1.0, math.exp(log_ratio))


def slow_targets(scene: Scene, at, traces: list[float]) -> list[float]:
    """Of every window by following it."""
    (learner, windows, _), args = scene, scene.learner.args
    targets_agent = make_agent(HybridAgent)
    targets_agent.critics = learner.target_critics
    batch_size = windows.reward.shape[1]
    numbers = {divmod(int(flat), batch_size): number for number, flat in enumerate(windows.index)}

    def target(k: int, b: int) -> float:
        number = numbers[k, b]
        seen = windows.next_observation["observation"][number], windows.next_observation["prev_action"][number]
        beta = slow_switch_probability(learner.agent, *seen)
        q_repeat, q_new = slow_values(targets_agent, *seen, at.action[number].numpy())
        if args.td_operator == "compare-through":
            keep = target(k + 1, b) if windows.repeated[k, b] else q_repeat
            value = beta * q_new + (1 - beta) * keep
        else:
            value = beta * q_new + (1 - beta) * q_repeat
            if (k + 1, b) in numbers:
                recorded = windows.next_action["action"][number], windows.next_action["switch"][number]
                q_recorded = slow_values(targets_agent, *seen, recorded[0])[recorded[1]]
                traces.append(slow_trace(scene, number))
                value += traces[-1] * (target(k + 1, b) - q_recorded)
        bonus = -ACTION_TEMPERATURE * at.log_prob[number].item() + SWITCH_TEMPERATURE * slow_entropy(beta)
        future = 0.0 if windows.terminated[k, b] else value
        return windows.reward[k, b] + windows.discount[k, b] * (future + bonus)

    return [target(0, b) for b in range(batch_size)]


def targets_of(scene: Scene):
    """The script's, and the sample that they took."""
    learner, _, batch = scene
    torch.manual_seed(7)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(7)
        return target, script.decide(learner.agent, batch.next_observation)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 1},
        {"window": 4},
        {"window": 4, "trace_of": "joint"},
        {"window": 4, "retrace_lambda": 0.5},
        {"window": 4, "td_operator": "compare-through"},
    ],
    ids=str,
)
def test_targets_equal_a_loop_over_every_window(changes):
    scene = small_scene(script, double=True, batch_size=40, **changes)
    windows, traces = scene.windows, []
    target, at = targets_of(scene)
    np.testing.assert_allclose(target, slow_targets(scene, at, traces), atol=1e-5)
    assert windows.terminated.any()
    assert (windows.truncated & ~windows.terminated).any()
    assert len(np.unique(windows.discount[windows.valid])) == 2
    if scene.learner.args.td_operator == "compare-through":
        np.testing.assert_array_equal(windows.valid[1:], windows.repeated[:-1])  # only what it needs was drawn
        assert windows.valid[2:].any()
    elif scene.learner.args.window > 1:
        assert scene.learner.args.retrace_lambda in traces
        assert min(traces) < 0.4
        assert (windows.valid[1:] & ~windows.repeated[:-1]).any()


@pytest.mark.parametrize("trace_of", ["executed", "joint"])
def test_while_the_policy_is_the_recorded_one_nothing_is_cut(trace_of):
    learner, windows, batch = small_scene(script, on_policy=True, window=4, trace_of=trace_of)
    followed = np.append(windows.valid[1:], np.zeros((1, 32), bool), axis=0)[windows.valid]
    with torch.no_grad():
        trace = script.trace(learner.args, script.decide(learner.agent, batch.next_observation), batch.next_action)
    assert followed.sum() > 40
    np.testing.assert_allclose(trace[followed], 1.0, atol=1e-4)


@pytest.mark.parametrize(
    ("trace_of", "expected"),
    [
        ("executed", [0.5 * 0.25 / 1.0, 0.75 / 0.8, 0.25 / 0.5]),
        ("joint", [0.5 * 0.25 / 1.0, 0.5 * 0.75 / 0.8, 1.0]),  # the last ratio is 3 * 0.25 / 0.5
    ],
)
def test_a_trace_by_hand(trace_of, expected):
    """Of a new action and of two repeats; the policy's densities are half, half, and three times the recorded ones."""
    still = torch.zeros(3, 2)
    policy = SquashedGaussian(still, still, center=torch.zeros(2), scale=torch.ones(2))
    switch = Bernoulli(probs=torch.tensor([0.25, 0.25, 0.75]))
    density = policy.log_prob(still)
    recorded = {
        "action": still,
        "switch": torch.tensor([1, 0, 0]),
        "log_probs": torch.stack(
            [density - torch.tensor([0.5, 0.5, 3.0]).log(), torch.tensor([1.0, 0.8, 0.5]).log()], dim=-1
        ),
    }
    at = script.Decisions(policy, switch, still, density)
    trace = script.trace(script.Args(trace_of=trace_of), at, recorded)
    np.testing.assert_allclose(trace, expected, rtol=1e-5)
    half = script.trace(script.Args(trace_of=trace_of, retrace_lambda=0.5), at, recorded)
    np.testing.assert_allclose(half, 0.5 * trace)


def test_the_sums_of_the_target_are_the_mean_over_many_samples_of_the_coin():
    scene = small_scene(script, double=True, batch_size=16, window=1)
    learner, _, batch = scene
    target, at = targets_of(scene)
    with torch.no_grad():
        q = learner.target_critics.minimum(batch.next_observation, at.action)
        coin = at.switch.sample((SAMPLES,))  # [S, 16]
        value = ~batch.terminated[0] * torch.where(coin == 1, q[:, 1], q[:, 0])
        entropy = -SWITCH_TEMPERATURE * at.switch.log_prob(coin) - ACTION_TEMPERATURE * at.log_prob
    assert_mean(batch.reward[0] + batch.discount[0] * (value + entropy), target)


# --- Losses ----------------------------------------------------------------------------------------------------------


def test_the_actor_gradient_is_that_of_the_soft_value():
    """sum_b pi(b) Q(s, a_prev, f(s), b) - alpha'' log pi(f(s)) + alpha' H(b): nothing held fixed, by both parts."""
    learner, windows, batch = small_scene(script, double=True, hidden=(3,))
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    parameters = list(agent.actor.parameters())
    gradients = gradients_of(script.actor_loss(agent, batch, at), parameters)
    states = {name: torch.from_numpy(values).double() for name, values in windows.observation.items()}
    noise = noise_of(at.action, *agent.actor(states)[:2])

    def soft_value():
        mean, log_std, logit = agent.actor(states)
        action, log_prob = squashed(mean, log_std, noise)
        beta = torch.sigmoid(logit)
        q = agent.critics(states, action).amin(0)
        entropy = -beta * beta.log() - (1 - beta) * (1 - beta).log()
        value = beta * q[:, 1] + (1 - beta) * q[:, 0]
        return (value - ACTION_TEMPERATURE * log_prob + SWITCH_TEMPERATURE * entropy).mean()

    assert_ascends(soft_value, parameters, gradients)


def test_the_actor_loss_and_its_gradient_are_the_mean_over_many_samples_of_the_coin():
    """Of the coin's part by the likelihood ratio: the mean of grad log pi(b) (alpha' log pi(b) - Q(b))."""
    learner, _, batch = small_scene(script, double=True, batch_size=16)
    agent = learner.agent
    at = script.decide(agent, batch.observation)
    loss = script.actor_loss(agent, batch, at)
    (gradient,) = gradients_of(loss, [at.switch.logits])
    with torch.no_grad():
        q = agent.critics.minimum(batch.observation, at.action)
        coin = at.switch.sample((SAMPLES,))
        of_coin = SWITCH_TEMPERATURE * at.switch.log_prob(coin) - torch.where(coin == 1, q[:, 1], q[:, 0])
        of_action = ACTION_TEMPERATURE * at.log_prob
        assert_mean((of_coin + of_action).mean(1), loss)
        assert_mean((coin - at.beta) * of_coin / 16, gradient)


def test_the_action_learns_nothing_through_the_coin_nor_the_coin_through_the_action():
    """Where acting anew is worth as much as repeating, the coin's gradient is that of its entropy alone."""
    learner, _, batch = small_scene(script, double=True)
    agent = learner.agent
    with torch.no_grad():
        for critic in agent.critics.twins:
            critic.head.weight[1], critic.head.bias[1] = critic.head.weight[0], critic.head.bias[0]
    at = script.decide(agent, batch.observation)
    (gradient,) = gradients_of(script.actor_loss(agent, batch, at), [at.switch.logits])
    beta = at.beta.detach()
    of_entropy = SWITCH_TEMPERATURE * at.switch.logits.detach() * beta * (1 - beta) / len(beta)
    torch.testing.assert_close(gradient, of_entropy)


def test_the_temperature_gradient_is_the_mean_surplus_of_each_entropy():
    agent = make_agent(HybridAgent)
    nothing = torch.zeros(2, 2)
    policy = SquashedGaussian(nothing, nothing, center=torch.zeros(2), scale=torch.ones(2))
    at = script.Decisions(policy, Bernoulli(probs=torch.tensor([0.5, 0.25])), nothing, -torch.tensor([3.0, -0.5]))
    temperatures = [agent.log_switch_temperature, agent.log_action_temperature]
    switch, action = gradients_of(script.temperature_loss(agent, at, (0.2, -1.0)), temperatures)
    assert switch.item() == pytest.approx((math.log(2) + slow_entropy(0.25)) / 2 - 0.2, abs=1e-6)
    assert action.item() == pytest.approx((3.0 - 0.5) / 2 + 1.0, abs=1e-6)


def test_the_entropy_targets_are_the_papers():
    switch, action = script.entropy_targets_of(script.Args(), make_agent(HybridAgent))
    assert switch == pytest.approx(0.1985, abs=1e-4)
    assert action == pytest.approx(2 * math.log(0.1 * 2))


# --- What is recorded ------------------------------------------------------------------------------------------------


def test_what_is_recorded_of_an_action_are_the_densities_of_both_parts():
    """Also of an action that was not executed; uniform ones as long as actions are random."""
    agent = make_agent(HybridAgent)
    (state, prev_action), action = inputs(6), inputs(6, seed=1)[1]
    switch = np.array([0, 1, 0, 1, 1, 0])
    observation, answer = {"observation": state, "prev_action": prev_action}, {"action": action, "switch": switch}
    infos = {"executed_action": np.where(switch[:, None] == 1, action, prev_action)}
    recorded = script.recorded_action(agent, observation, answer, infos, is_random=False)
    np.testing.assert_array_equal(recorded["action"], action)
    np.testing.assert_array_equal(recorded["switch"], switch)
    for b in range(6):
        beta = slow_switch_probability(agent, state[b], prev_action[b])
        slow = slow_log_prob(agent, state[b], prev_action[b], action[b]), math.log(beta if switch[b] else 1 - beta)
        np.testing.assert_allclose(recorded["log_probs"][b], slow, atol=1e-5)
    uniform = script.recorded_action(agent, observation, answer, infos, is_random=True)["log_probs"]
    expected = -np.log((ACTIONS.high - ACTIONS.low).prod()), np.log(0.5)
    np.testing.assert_allclose(uniform, np.tile(expected, (6, 1)), rtol=1e-6)


def test_the_replay_keeps_the_proposal_where_the_behaviour_repeated():
    windows = script.draw_windows(script.Args(batch_size=60), filled_replay(script))
    executed = windows.next_observation["prev_action"][:60]
    same = (windows.action["action"] == executed).all(1)
    np.testing.assert_array_equal(same, windows.action["switch"] == 1)
    assert 0 < same.sum() < 60
