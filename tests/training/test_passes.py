"""Passes that spell their gradients out, against the same networks differentiated by torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gymnasium import spaces

from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.passes import PolicyPass, ValuePass


@pytest.fixture(autouse=True)
def _without_autograd():
    """As in the scripts; what is compared with them asks for it."""
    with torch.no_grad():
        yield


HIDDEN = pytest.mark.parametrize("hidden", [(5,), (7, 4), (4, 6, 5)], ids=str)
ROWS = 30


def make_agent(kind: type, hidden: tuple[int, ...] = (7, 4)):
    """In float64, with weights and biases large enough that nothing is near zero and every relu is at work."""
    torch.manual_seed(0)
    agent = kind(
        spaces.Box(-1, 1, (3,)),
        spaces.Box(low=-1.0, high=3.0, shape=(2,)),
        hidden=hidden,
        log_std_min=-1.0,
        log_std_max=1.0,
    )
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return agent.double()


def rows(size: int, count: int = ROWS, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of these parameters, which have none afterwards."""
    found = []
    for parameter in parameters:
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def assert_same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
        assert (other != 0).any()


@HIDDEN
@pytest.mark.parametrize("trained", [ROWS, ROWS - 11])
@pytest.mark.parametrize("kind", [SACAgent, TAACAgent])
def test_a_policys_sample_and_its_gradients_are_those_of_torch(kind, trained, hidden):
    agent = make_agent(kind, hidden)
    observation, prev_action = rows(3), rows(2, seed=2)
    by_action, by_log_prob = rows(2, trained, seed=3), rows(1, trained, seed=4).squeeze(1)
    torch.manual_seed(5)
    inputs = [observation, prev_action] if kind is TAACAgent else [observation]
    policy = PolicyPass(agent, *inputs, trained=trained)
    torch.manual_seed(5)
    with torch.enable_grad():
        distribution = agent.policy_distribution(*inputs)
        action, log_prob = distribution.sample_with_log_prob()
        loss = (action[:trained] * by_action).sum() + (log_prob[:trained] * by_log_prob).sum()
    assert policy.action.shape == (ROWS, 2)
    assert_same([policy.action, policy.log_prob], [action.detach(), log_prob[:trained].detach()])
    clamped = (distribution.log_std.abs() == 1.0)[:trained]
    assert clamped.any()
    assert not clamped.all()

    parameters = list(agent.actor.parameters())
    policy.write_gradients(action=by_action, log_prob=by_log_prob)
    found = gradients(parameters)
    loss.backward()
    assert_same(found, gradients(parameters))
    assert all(parameter.grad is None for parameter in agent.critics.parameters())


@HIDDEN
def test_both_values_and_their_gradients_are_those_of_torch(hidden):
    agent = make_agent(SACAgent, hidden)
    observation, action, by_values = rows(3), rows(2, seed=2), rows(ROWS, 2, seed=3)
    q = ValuePass(agent.critics, observation, action)
    with torch.enable_grad():
        values = agent.critics(observation, action)
        loss = (values * by_values).sum()
    assert_same([q.values, q.minimum], [values.detach(), values.detach().amin(0)])
    parameters = list(agent.critics.parameters())
    q.write_gradients(by_values)
    found = gradients(parameters)
    loss.backward()
    assert_same(found, gradients(parameters))


@HIDDEN
def test_the_smaller_value_leads_to_the_action(hidden):
    agent = make_agent(SACAgent, hidden)
    observation, action = rows(3), rows(2, seed=2).requires_grad_()
    first, second = agent.critics(observation, action)
    agent.critics.twins[0].head_bias -= (first - second).mean()
    q = ValuePass(agent.critics, observation, action.detach())
    assert 0 < (q.values[0] < q.values[1]).sum() < ROWS  # each critic is the smaller one somewhere
    with torch.enable_grad():
        minimum = agent.critics.minimum(observation, action).sum()
    assert_same([q.action_gradient()], torch.autograd.grad(minimum, action))
    assert all(parameter.grad is None for parameter in agent.parameters())


@pytest.mark.parametrize("always", [0, 1])
def test_one_critic_may_be_the_smaller_one_everywhere(always):
    agent = make_agent(SACAgent)
    with torch.no_grad():
        agent.critics.twins[always].head_bias -= 1000
    observation, action = rows(3), rows(2, seed=2).requires_grad_()
    found = ValuePass(agent.critics, observation, action.detach()).action_gradient()
    with torch.enable_grad():
        value = agent.critics(observation, action)[always].sum()
    assert_same([found], torch.autograd.grad(value, action))


def test_where_both_values_are_equal_one_of_them_leads_to_the_action():
    agent = make_agent(SACAgent)
    with torch.no_grad():
        agent.critics.twins[1].load_state_dict(agent.critics.twins[0].state_dict())
    observation, action = rows(3), rows(2, seed=2).requires_grad_()
    found = ValuePass(agent.critics, observation, action.detach()).action_gradient()
    with torch.enable_grad():
        value = agent.critics(observation, action)[0].sum()
    assert_same([found], torch.autograd.grad(value, action))


@pytest.mark.parametrize("without_autograd", [torch.inference_mode, torch.no_grad])
def test_a_loss_that_is_left_to_torch_adds_to_what_was_written(without_autograd):
    agent = make_agent(TAACAgent)
    observation, action = rows(3), rows(2, seed=2)
    parameters = [*agent.critics.parameters(), *agent.actor.parameters()]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, torch.nan)  # of the update before: it is written over
    with without_autograd():
        q = ValuePass(agent.critics, observation, action)
        q.write_gradients(q.values.clone())
        torch.manual_seed(0)
        policy = PolicyPass(agent, observation, action)
        policy.write_gradients(action=torch.ones_like(action), log_prob=torch.ones(ROWS, dtype=torch.float64))
        written = [parameter.grad.clone() for parameter in parameters]
        torch.manual_seed(0)
        with torch.inference_mode(False), torch.enable_grad():
            weight = q.values.clone()  # what the passes gave, as a tensor that torch may remember
            sample, log_prob = agent.policy_distribution(observation, action).sample_with_log_prob()
            ((weight * agent.critics(observation, action)).sum() + sample.sum() + log_prob.sum()).backward()
    assert_same(gradients(parameters), [2 * gradient for gradient in written])


def test_passes_that_torch_would_record_are_refused():
    agent = make_agent(SACAgent)
    with torch.enable_grad():
        with pytest.raises(RuntimeError, match=r"torch\.inference_mode"):
            PolicyPass(agent, rows(3))
        with pytest.raises(RuntimeError, match=r"torch\.inference_mode"):
            ValuePass(agent.critics, rows(3), rows(2))
