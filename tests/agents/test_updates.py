"""One update of any script: each part gets the gradient of its own loss, Adam takes one step, the targets follow."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from learners import SCRIPTS, decided, filled_replay, small_scene
from slow_agents import slow_critic

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.agent.operators import binary_entropy
from taac_wrappers.training.run import Counters

BOTH = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)


def losses_of(script, learner, trained_critics, batch, seed: int) -> dict[str, torch.Tensor]:
    """Each part's own loss, for torch to differentiate: the equations, with the sample that ``decide`` takes.

    TAAC's actor is trained together with the critics, SAC's by those that the update has trained.
    """
    args, agent, deeper, weight = learner.args, learner.agent, batch.deeper, batch.acting_weight
    is_taac = script.METHOD == "taac"
    torch.manual_seed(seed)
    at = decided(script, agent, batch)
    with torch.no_grad():
        target = script.td_target(args, *([] if is_taac else [agent]), learner.target_critics, batch, at)
    torch.manual_seed(seed)
    policy = agent.policy_distribution(batch.state_observation, *([batch.state_prev_action] if is_taac else []))
    candidate, log_prob = policy.sample_with_log_prob()
    critics_of_actor = agent.critics if is_taac else trained_critics
    q_new, log_prob = critics_of_actor.minimum(batch.state_observation, candidate)[deeper:], log_prob[deeper:]
    beta = at.beta[deeper:] if is_taac else torch.ones(())

    critics = (agent.critics(batch.observation, batch.action) - target).square().sum(0).mean()
    actor = (weight * (agent.log_action_temperature.exp().detach() * log_prob - beta * q_new)).mean()
    temperatures, entropies = [agent.log_action_temperature], [-log_prob.detach()]
    if is_taac:
        temperatures, entropies = [agent.log_switch_temperature, *temperatures], [binary_entropy(beta), *entropies]
    targets = torch.as_tensor(learner.entropy_targets).reshape(-1)
    temperature = sum(
        log * (weight * (entropy - goal)).mean()
        for log, entropy, goal in zip(temperatures, entropies, targets, strict=True)
    )
    return {"critics.": critics, "actor.": actor, "log_": temperature}


@BOTH
def test_each_parameter_takes_one_step_along_the_gradient_of_its_own_loss(script):
    learner, _, batch = small_scene(script)
    before, targets_before = copy.deepcopy(learner.agent), copy.deepcopy(learner.target_critics)
    reference = copy.deepcopy(learner)
    torch.manual_seed(3)
    metrics = learner.update(batch, Counters(num_envs=1))
    losses = losses_of(script, reference, learner.agent.critics, batch, seed=3)

    parameters, seen = dict(learner.agent.named_parameters()), set()
    for part, loss in losses.items():
        own = {name: value for name, value in reference.agent.named_parameters() if name.startswith(part)}
        gradients = torch.autograd.grad(loss, list(own.values()), retain_graph=True)
        for name, gradient in zip(own, gradients, strict=True):
            assert (gradient != 0).any(), name
            torch.testing.assert_close(parameters[name].grad, gradient, rtol=1e-5, atol=1e-6)
            step = 1e-3 * gradient / (gradient.abs() + 1e-7)  # Adam's first one
            certain = gradient.abs() > 1e-4
            expected = before.get_parameter(name) - step
            torch.testing.assert_close(parameters[name][certain], expected[certain], rtol=0, atol=2e-5)
            seen.add(name)
    assert seen == parameters.keys()
    for name, moved in learner.target_critics.named_parameters():
        slow = targets_before.get_parameter(name) * 0.995 + parameters[f"critics.{name}"] * 0.005
        torch.testing.assert_close(moved, slow.detach())
        assert not torch.equal(moved, targets_before.get_parameter(name))
    named = {"losses/critic": "critics.", "losses/actor": "actor.", "losses/temperature": "log_"}
    for name, part in named.items():
        assert metrics[name].mean().item() == pytest.approx(losses[part].item(), rel=1e-5)
    assert not any(value.requires_grad for value in metrics.values())


@BOTH
def test_the_targets_follow_at_every_target_interval(script):
    learner, _, batch = small_scene(script, target_interval=3)
    counters, moved = Counters(num_envs=1), []
    for _ in range(6):
        before = learner.target_critics.twins[0].head_weight.clone()
        learner.update(batch, counters)
        moved.append(not torch.equal(before, learner.target_critics.twins[0].head_weight))
    assert moved == [False, False, True] * 2
    assert counters.updates == 6


@BOTH
def test_the_critic_loss_is_the_sum_of_both_squared_errors(script):
    learner, windows, batch = small_scene(script)
    target = torch.linspace(-1, 1, len(windows.action))
    slow = 0.0
    for b in range(len(target)):
        for which in (0, 1):
            q = slow_critic(learner.agent, which, windows.observation[b], windows.action[b])
            slow += (q - target[b].item()) ** 2 / len(target)
    with torch.no_grad():
        loss = script.critic_loss(learner.agent, batch, target).mean()
    assert loss.item() == pytest.approx(slow, rel=1e-5)


@BOTH
@pytest.mark.parametrize("reward_clip", [None, 0.5])
def test_rewards_are_normalized_by_what_was_drawn(script, reward_clip):
    learner, _, _ = small_scene(script, reward_clip=reward_clip)
    replay = filled_replay()
    same_draws = copy.deepcopy(replay)
    normalizer = AdaptiveNormalizer(clip=0.5)
    for _ in range(3):
        reward = script.draw_windows(learner.args, same_draws).reward
        if reward_clip is not None:
            normalizer.update(reward[0])
            reward = normalizer.normalize(reward)
            assert np.abs(reward).max() == np.float32(0.5)
        np.testing.assert_array_equal(learner.sample(replay).reward, reward)
