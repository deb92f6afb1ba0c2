"""SAC-Ntd's targets against a loop over single windows and against SAC's, and the likelihoods that they rely on.

Its other losses are SAC's: test_updates.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sac_continuous
import sac_ntd_continuous as script
import torch
from learners import Scene, filled_replay, slow_log_prob, small_scene
from slow_agents import ACTION_TEMPERATURE, ACTIONS, inputs, make_agent, slow_minimum

from taac_wrappers.agent import SACAgent
from taac_wrappers.training.batch import Batch

NOTHING = np.empty(0)  # in the place of the previous action, which SAC does not see


def slow_targets(scene: Scene, at, trace) -> list[float]:
    """Of every window by following it; ``trace(number)`` is that of the action recorded at a next state."""
    learner, windows, _ = scene
    targets_agent = make_agent(SACAgent)
    targets_agent.critics = learner.target_critics
    batch_size = windows.reward.shape[1]
    numbers = {divmod(int(flat), batch_size): number for number, flat in enumerate(windows.index)}

    def target(k: int, b: int) -> float:
        number = numbers[k, b]
        state = windows.next_observation[number]
        value = slow_minimum(targets_agent, state, at.action[number].numpy())
        if (k + 1, b) in numbers:
            q_recorded = slow_minimum(targets_agent, state, windows.next_action["action"][number])
            value += trace(number) * (target(k + 1, b) - q_recorded)
        future = 0.0 if windows.terminated[k, b] else value
        entropy = -at.log_prob[number].item()
        return windows.reward[k, b] + windows.discount[k, b] * (future + ACTION_TEMPERATURE * entropy)

    return [target(0, b) for b in range(batch_size)]


def targets_of(scene: Scene):
    """The script's, and the sample that they took."""
    learner, _, batch = scene
    torch.manual_seed(7)
    with torch.no_grad():
        target = script.td_target(learner.args, learner.agent, learner.target_critics, batch)
        torch.manual_seed(7)
        return target, script.decide(learner.agent, batch.next_observation)


@pytest.mark.parametrize("changes", [{"window": 1}, {"window": 4}, {"window": 4, "retrace_lambda": 0.5}], ids=str)
def test_targets_equal_a_loop_over_every_window(changes):
    scene = small_scene(script, double=True, batch_size=40, **changes)
    learner, windows, _ = scene
    target, at = targets_of(scene)
    traces = []

    def trace(number: int) -> float:
        state, recorded = windows.next_observation[number], windows.next_action
        log_ratio = slow_log_prob(learner.agent, state, NOTHING, recorded["action"][number])
        traces.append(min(1.0, np.exp(log_ratio - recorded["log_prob"][number])))
        return learner.args.retrace_lambda * traces[-1]

    np.testing.assert_allclose(target, slow_targets(scene, at, trace), atol=1e-5)
    assert windows.terminated.any()
    assert (windows.truncated & ~windows.terminated).any()
    assert len(np.unique(windows.discount[windows.valid])) == 2
    if learner.args.window > 1:
        assert 1.0 in traces
        assert min(traces) < 0.6
        assert windows.valid[-1].any()
        assert not windows.valid.all()


def test_while_the_policy_is_the_recorded_one_nothing_is_cut():
    scene = small_scene(script, double=True, on_policy=True, window=4)
    target, at = targets_of(scene)
    np.testing.assert_allclose(target, slow_targets(scene, at, trace=lambda number: 1.0), atol=1e-4)


@pytest.mark.parametrize("changes", [{"window": 1}, {"window": 4, "retrace_lambda": 0.0}], ids=str)
def test_without_a_second_step_or_without_traces_it_is_sac(changes, monkeypatch):
    learner, windows, batch = small_scene(script, double=True, **changes)
    noise = torch.randn(len(windows.index), 2, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise[: len(like)])
    rows = {name: getattr(windows, name)[:1] for name in ("reward", "discount", "terminated", "truncated", "repeated")}
    first = replace(windows, **rows, valid=windows.valid[:1], next_observation=windows.next_observation[:32])
    sacs = Batch(first, first.reward, torch.device("cpu"))
    sacs.next_observation = sacs.next_observation.double()
    networks = learner.agent, learner.target_critics
    with torch.no_grad():
        target = script.td_target(learner.args, *networks, batch)
        torch.testing.assert_close(target, sac_continuous.td_target(learner.args, *networks, sacs))


def test_what_is_recorded_of_an_action_is_its_density():
    """That of a uniform draw as long as actions are random."""
    agent = make_agent(SACAgent)
    observation, action = inputs(6)
    infos = {"executed_action": action}
    recorded = script.recorded_action(agent, observation, None, infos, is_random=False)
    np.testing.assert_array_equal(recorded["action"], action)
    slow = [slow_log_prob(agent, *pair) for pair in zip(observation, [NOTHING] * 6, action, strict=True)]
    np.testing.assert_allclose(recorded["log_prob"], slow, atol=1e-5)
    uniform = script.recorded_action(agent, observation, None, infos, is_random=True)
    np.testing.assert_allclose(uniform["log_prob"], np.full(6, -np.log((ACTIONS.high - ACTIONS.low).prod())), rtol=1e-6)


def test_windows_follow_the_episode_whatever_it_repeats():
    windows = script.draw_windows(script.Args(batch_size=60, window=3), filled_replay(script))
    assert (windows.valid[1:] & ~windows.repeated[:-1]).any()
