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


def losses_of_taac(learner, trained_critics, batch) -> dict[str, torch.Tensor]:
    """Each part's own loss, for torch to differentiate: the equations, with the sample that ``decide`` takes."""
    args, agent, acting, weight = learner.args, learner.agent, batch.acting, batch.acting_weight
    seed = torch.initial_seed()
    at = decided(SCRIPTS["taac"], agent, batch)
    with torch.no_grad():
        target = SCRIPTS["taac"].td_target(args, learner.target_critics, batch, at)
    torch.manual_seed(seed)
    policy = agent.policy_distribution(batch.state_observation, batch.state_prev_action)
    candidate, log_prob = policy.sample_with_log_prob()
    q_new, log_prob = agent.critics.minimum(batch.state_observation, candidate)[:acting], log_prob[:acting]
    beta = at.beta[:acting]
    actor = (weight * (agent.log_action_temperature.exp().detach() * log_prob - beta * q_new)).mean()
    switch_target, action_target = learner.entropy_targets.flatten()
    temperature = agent.log_switch_temperature * (weight * (binary_entropy(beta) - switch_target)).mean()
    temperature += agent.log_action_temperature * (weight * (-log_prob.detach() - action_target)).mean()
    return {"critics.": critic_loss_of(agent, batch, target), "actor.": actor, "log_": temperature}


def losses_of_sac(learner, trained_critics, batch) -> dict[str, torch.Tensor]:
    """As above; but the actor is trained after the critics, by what they have become, and takes a sample of its own."""
    agent = learner.agent
    with torch.no_grad():
        target = SCRIPTS["sac"].td_target(learner.args, agent, learner.target_critics, batch)
    action, log_prob = agent.policy_distribution(batch.observation).sample_with_log_prob()
    q_new = trained_critics.minimum(batch.observation, action)
    actor = (agent.log_action_temperature.exp().detach() * log_prob - q_new).mean()
    temperature = agent.log_action_temperature * (-log_prob.detach() - learner.entropy_targets).mean()
    return {"critics.": critic_loss_of(agent, batch, target), "actor.": actor, "log_": temperature}


def critic_loss_of(agent, batch, target: torch.Tensor) -> torch.Tensor:
    return (agent.critics(batch.observation, batch.action) - target).square().sum(0).mean()


LOSSES = {"taac": losses_of_taac, "sac": losses_of_sac}


@BOTH
def test_each_parameter_takes_one_step_along_the_gradient_of_its_own_loss(script):
    learner, _, batch = small_scene(script)
    before, targets_before = copy.deepcopy(learner.agent), copy.deepcopy(learner.target_critics)
    reference = copy.deepcopy(learner)
    torch.manual_seed(3)
    metrics = learner.update(batch, Counters(num_envs=1))
    torch.manual_seed(3)
    losses = LOSSES[script.METHOD](reference, learner.agent.critics, batch)

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
