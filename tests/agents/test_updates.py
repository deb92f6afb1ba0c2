"""One update of any script: each part gets the gradient of its own loss, Adam takes one step, the targets follow."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from learners import SCRIPTS, filled_replay, gradients_of, own_parameters, small_scene
from slow_agents import slow_critics

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.agent.operators import binary_entropy
from taac_wrappers.training.counters import Counters

EVERY = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)


def choice_of(script, recorded):
    """Which of the critics' values belongs to a recorded action, ``[M]``; None if they have one only."""
    if script.METHOD == "sac_krep":
        return recorded["repeat"] - 1
    return recorded["switch"] if script.METHOD == "sac_hybrid" else None


def critic_loss_of(script, learner, batch) -> torch.Tensor:
    """For torch to differentiate: the equation, with the sample that ``td_target`` takes."""
    agent = learner.agent
    with torch.no_grad():
        target = script.td_target(learner.args, agent, learner.target_critics, batch)
    action = batch.action["action"] if isinstance(batch.action, dict) else batch.action
    q, choice = agent.critics(batch.observation, action), choice_of(script, batch.action)
    if choice is not None:
        q = q[:, torch.arange(len(choice)), choice]
    return (q - target).square().sum(0).mean()


def policy_losses_of_taac(learner, critics, batch) -> dict[str, torch.Tensor]:
    """Each part's own loss, with a sample of its own, judged by these critics."""
    agent, states = learner.agent, batch.observation
    action, log_prob = agent.policy_distribution(states).sample_with_log_prob()
    q = torch.stack([critics.minimum(states, each) for each in (states["prev_action"], action)])
    beta = torch.softmax(q / agent.log_switch_temperature.exp(), dim=0)[1].detach()
    actor = (agent.log_action_temperature.exp().detach() * log_prob - beta * q[1]).mean()
    switch_target, action_target = learner.entropy_targets
    temperature = agent.log_switch_temperature * (binary_entropy(beta) - switch_target).mean()
    temperature = temperature + agent.log_action_temperature * (-log_prob.detach() - action_target).mean()
    return {"actor.": actor, "log_": temperature}


def policy_losses_of_sac(learner, critics, batch) -> dict[str, torch.Tensor]:
    agent = learner.agent
    action, log_prob = agent.policy_distribution(batch.observation).sample_with_log_prob()
    q_new = critics.minimum(batch.observation, action)
    actor = (agent.log_action_temperature.exp().detach() * log_prob - q_new).mean()
    temperature = agent.log_action_temperature * (-log_prob.detach() - learner.entropy_targets).mean()
    return {"actor.": actor, "log_": temperature}


def policy_losses_of_krep(learner, critics, batch) -> dict[str, torch.Tensor]:
    agent = learner.agent
    action, log_prob = agent.policy_distribution(batch.observation).sample_with_log_prob()
    q = critics.minimum(batch.observation, action)
    probability = torch.softmax(q / agent.log_repeat_temperature.exp(), dim=-1).detach()
    actor = (agent.log_action_temperature.exp().detach() * log_prob - (probability * q).sum(-1)).mean()
    repeat_target, action_target = learner.entropy_targets
    repeat_entropy = -(probability * probability.log()).sum(-1)
    temperature = agent.log_repeat_temperature * (repeat_entropy - repeat_target).mean()
    temperature = temperature + agent.log_action_temperature * (-log_prob.detach() - action_target).mean()
    return {"actor.": actor, "log_": temperature}


def policy_losses_of_hybrid(learner, critics, batch) -> dict[str, torch.Tensor]:
    """Two losses of two policies: each is trained while the other is held fixed. What is logged counts values once."""
    agent = learner.agent
    policy, switch = agent.policies(batch.observation)
    action, log_prob = policy.sample_with_log_prob()
    q, beta = critics.minimum(batch.observation, action), switch.probs
    probabilities = torch.stack([1 - beta, beta], -1)
    temperatures = agent.log_action_temperature.exp().detach(), agent.log_switch_temperature.exp().detach()
    of_action = temperatures[0] * log_prob - (probabilities.detach() * q).sum(-1)
    of_switch = -temperatures[1] * binary_entropy(beta) - (probabilities * q.detach()).sum(-1)
    actor = (of_action + of_switch).mean() + (probabilities * q).sum(-1).mean().detach()
    switch_target, action_target = learner.entropy_targets
    temperature = agent.log_switch_temperature * (binary_entropy(beta).detach() - switch_target).mean()
    temperature = temperature + agent.log_action_temperature * (-log_prob.detach() - action_target).mean()
    return {"actor.": actor, "log_": temperature}


POLICY_LOSSES = {
    **dict.fromkeys(("sac", "sac_ntd", "sac_nrep", "sac_ez"), policy_losses_of_sac),
    "sac_krep": policy_losses_of_krep,
    "sac_hybrid": policy_losses_of_hybrid,
    "taac": policy_losses_of_taac,
}


@EVERY
def test_each_parameter_takes_one_step_along_the_gradient_of_its_own_loss(script):
    """The actor and the temperatures along that of a loss whose critics have taken theirs."""
    learner, _, batch = small_scene(script)
    before, targets_before = copy.deepcopy(learner.agent), copy.deepcopy(learner.target_critics)
    reference = copy.deepcopy(learner)
    torch.manual_seed(3)
    metrics = learner.update(batch, Counters())
    torch.manual_seed(3)
    losses = {"critics.": critic_loss_of(script, reference, batch)}
    losses |= POLICY_LOSSES[script.METHOD](reference, learner.agent.critics, batch)

    parameters, seen = dict(learner.agent.named_parameters()), set()
    for part, loss in losses.items():
        own = {name: value for name, value in reference.agent.named_parameters() if name.startswith(part)}
        gradients = torch.autograd.grad(loss, list(own.values()), retain_graph=True)
        for name, gradient in zip(own, gradients, strict=True):
            assert (gradient != 0).any(), name
            adam = learner.optimizer.state[parameters[name]]
            assert adam["step"].item() == 1
            torch.testing.assert_close(10 * adam["exp_avg"], gradient, rtol=1e-5, atol=1e-6)  # a tenth of the first one
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


@EVERY
def test_several_updates_are_those_of_an_optimizer_for_each_part(script):
    """The one optimizer steps twice per update: neither step moves the other's part, by momentum least of all."""
    learner, _, batch = small_scene(script, double=True)
    reference, start = copy.deepcopy(learner), copy.deepcopy(learner.agent)
    torch.manual_seed(5)
    for _ in range(6):
        learner.update(batch, Counters())

    agent, critics = reference.agent, reference.agent.critics
    optimizers = [
        torch.optim.Adam(part, lr=1e-3, eps=1e-7) for part in own_parameters(agent).values()
    ]  # critics, actor, temperatures
    torch.manual_seed(5)
    for _ in range(6):
        losses = [critic_loss_of(script, reference, batch)]
        _step(optimizers[:1], losses)
        _step(optimizers[1:], list(POLICY_LOSSES[script.METHOD](reference, critics, batch).values()))
        with torch.no_grad():
            for target, weight in zip(reference.target_critics.parameters(), critics.parameters(), strict=True):
                target.copy_(0.995 * target + 0.005 * weight)
    for name, parameter in learner.agent.named_parameters():
        torch.testing.assert_close(parameter, agent.get_parameter(name), rtol=1e-7, atol=1e-9)
        assert (parameter - start.get_parameter(name)).abs().max() > 3e-3, name


def _step(optimizers: list[torch.optim.Adam], losses: list[torch.Tensor]) -> None:
    """Each along the gradient of its own loss."""
    own = [[parameter for group in optimizer.param_groups for parameter in group["params"]] for optimizer in optimizers]
    gradients = [gradients_of(loss, parameters) for loss, parameters in zip(losses, own, strict=True)]
    for optimizer, parameters, values in zip(optimizers, own, gradients, strict=True):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.grad = value
        optimizer.step()


@EVERY
def test_the_critics_loss_trains_the_critics_alone(script):
    learner, _, batch = small_scene(script)
    learner.critic_gradients(batch)
    own = own_parameters(learner.agent)
    assert all((parameter.grad != 0).any() for parameter in own["critics"])
    assert all(parameter.grad is None for parameter in [*own["actor"], *own["temperatures"]])
    assert all(parameter.grad is None for parameter in learner.target_critics.parameters())


@EVERY
def test_the_policys_losses_leave_the_critics_alone(script):
    learner, _, batch = small_scene(script)
    learner.policy_gradients(batch)
    own = own_parameters(learner.agent)
    assert all((parameter.grad != 0).any() for parameter in [*own["actor"], *own["temperatures"]])
    assert all(parameter.grad is None for parameter in own["critics"])


@EVERY
def test_actor_and_temperatures_do_not_learn_from_each_others_loss(script):
    learner, _, batch = small_scene(script)
    agent = learner.agent
    own, at = own_parameters(agent), script.decide(agent, batch.observation)
    for_actor = script.actor_loss(agent, batch, at)
    for_temperatures = script.temperature_loss(agent, at, learner.entropy_targets)
    assert for_actor.shape == for_temperatures.shape == ()
    assert set(gradients_of(for_actor, own["temperatures"])) == {None}
    assert set(gradients_of(for_temperatures, [*own["actor"], *own["critics"]])) == {None}


@EVERY
def test_the_targets_follow_at_every_target_interval(script):
    learner, _, batch = small_scene(script, target_interval=3)
    counters, moved = Counters(), []
    for _ in range(6):
        before = learner.target_critics.twins[0].head.weight.clone()
        learner.update(batch, counters)
        moved.append(not torch.equal(before, learner.target_critics.twins[0].head.weight))
    assert moved == [False, False, True] * 2
    assert counters.updates == 6


@EVERY
def test_the_critic_loss_is_the_sum_of_both_squared_errors(script):
    learner, windows, batch = small_scene(script)
    state, action, choice = windows.observation, windows.action, choice_of(script, windows.action)
    action = action["action"] if isinstance(action, dict) else action
    seen = [state["observation"] if isinstance(state, dict) else state]
    seen += [state["prev_action"]] if script.METHOD == "sac_hybrid" else []
    target = torch.linspace(-1, 1, len(action))
    slow = 0.0
    for b in range(len(target)):
        for which in (0, 1):
            q = slow_critics(learner.agent, which, *(part[b] for part in [*seen, action]))
            slow += (q[0 if choice is None else choice[b]] - target[b].item()) ** 2 / len(target)
    with torch.no_grad():
        loss = script.critic_loss(learner.agent, batch, target)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize("script", [SCRIPTS[name] for name in SCRIPTS if name not in ("sac_nrep", "sac_krep")])
@pytest.mark.parametrize("reward_clip", [None, 0.5])
def test_rewards_are_normalized_by_what_was_drawn(script, reward_clip):
    """But for sums of rewards: test_decisions_of_several_frames.py."""
    learner, _, _ = small_scene(script, reward_clip=reward_clip)
    replay = filled_replay(script)
    same_draws = copy.deepcopy(replay)
    normalizer = AdaptiveNormalizer(clip=0.5)
    for _ in range(3):
        reward = script.draw_windows(learner.args, same_draws).reward
        if reward_clip is not None:
            normalizer.update(reward[0])
            reward = normalizer.normalize(reward)
            assert np.abs(reward).max() == np.float32(0.5)
        np.testing.assert_array_equal(learner.sample(replay).reward, reward)
