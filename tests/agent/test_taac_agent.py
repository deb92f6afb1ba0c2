"""TAAC's agent: networks, both stages, the stateful policy, its file; and the gradients of its training script."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import taac_continuous as script
import torch
from gymnasium import spaces
from safetensors.torch import load_file, save_file

from taac_wrappers.agent import TAACAgent, taac
from taac_wrappers.training.replay import SequenceReplay

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.5], np.float32))


def make_agent(seed: int = 1, **kwargs) -> TAACAgent:
    """A small agent whose critics have opinions: freshly made ones value everything near zero."""
    torch.manual_seed(seed)
    agent = TAACAgent(OBSERVATIONS, ACTIONS, **{"hidden": (8, 8), **kwargs})
    with torch.no_grad():
        agent.critics.head_weight.mul_(500)
        agent.log_switch_temperature.fill_(math.log(0.5))
        agent.log_action_temperature.fill_(math.log(0.3))
    return agent


def inputs(batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    observation = rng.uniform(-1, 1, (batch, 3)).astype(np.float32)
    return observation, rng.uniform(ACTIONS.low, ACTIONS.high, (batch, 2)).astype(np.float32)


# --- The networks, written out ---------------------------------------------------------------------------------------


def slow_actor(agent: TAACAgent, observation, prev_action) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of one state, layer by layer."""
    weights = {name: tensor.double().numpy() for name, tensor in agent.actor.state_dict().items()}
    embedded = weights["embed.weight"] @ prev_action + weights["embed.bias"]
    x = np.concatenate([observation, embedded])
    for layer in range(len(agent.hidden)):
        x = np.maximum(weights[f"hidden.{layer}.weight"] @ x + weights[f"hidden.{layer}.bias"], 0)
    head = weights["head.weight"] @ x + weights["head.bias"]
    return head[:2], np.exp(np.clip(head[2:], agent.actor.log_std_min, agent.actor.log_std_max))


def slow_critic(agent: TAACAgent, which: int, observation, action) -> float:
    weights = {name: tensor[which].double().numpy() for name, tensor in agent.critics.state_dict().items()}
    x = np.concatenate([observation, action])
    for layer in range(len(agent.hidden)):
        x = np.maximum(x @ weights[f"hidden.{layer}.weight"] + weights[f"hidden.{layer}.bias"][0], 0)
    return float(x @ weights["head_weight"][0] + weights["head_bias"][0])


def slow_minimum(agent: TAACAgent, observation, action) -> float:
    return min(slow_critic(agent, which, observation, action) for which in (0, 1))


def slow_squash(raw: np.ndarray) -> np.ndarray:
    return (ACTIONS.high + ACTIONS.low) / 2.0 + (ACTIONS.high - ACTIONS.low) / 2.0 * np.tanh(raw)


def test_actor_and_twin_critics_equal_explicit_networks():
    agent = make_agent(log_std_min=-0.05, log_std_max=0.05)  # so that both clamps are at work
    observation, action = inputs(20)
    mean, log_std = agent.actor(torch.from_numpy(observation), torch.from_numpy(action))
    q = agent.critics(torch.from_numpy(observation), torch.from_numpy(action))
    assert q.shape == (2, 20)
    for b in range(20):
        slow_mean, slow_std = slow_actor(agent, observation[b], action[b])
        np.testing.assert_allclose(mean[b].detach(), slow_mean, atol=1e-5)
        np.testing.assert_allclose(log_std[b].detach().exp(), slow_std, atol=1e-5)
        slow_q = [slow_critic(agent, which, observation[b], action[b]) for which in (0, 1)]
        np.testing.assert_allclose(q[:, b].detach(), slow_q, atol=1e-5)
    assert (log_std == -0.05).any()
    assert (log_std == 0.05).any()
    assert len(set(q.argmin(0).tolist())) == 2
    smaller = agent.critics.minimum(torch.from_numpy(observation), torch.from_numpy(action))
    assert torch.equal(smaller, torch.minimum(q[0], q[1]))


@pytest.mark.parametrize("which", [0, 1])
def test_the_twins_share_nothing(which):
    agent, other = make_agent(), 1 - which
    observation, action = map(torch.from_numpy, inputs(5))
    before = agent.critics(observation, action)
    gradients = torch.autograd.grad(before[which].sum(), list(agent.critics.parameters()))
    assert all((gradient[other] == 0).all() for gradient in gradients)
    assert all((gradient[which] != 0).any() for gradient in gradients)
    with torch.no_grad():
        for parameter in agent.critics.parameters():
            parameter[which] += 0.1
    after = agent.critics(observation, action)
    assert torch.equal(after[other], before[other])
    assert (after[which] != before[which]).all()


def test_the_networks_start_as_the_authors_did():
    torch.manual_seed(0)
    observation_size, action_size, hidden = 40, 20, (256, 128)
    agent = TAACAgent(spaces.Box(-1, 1, (observation_size,)), spaces.Box(-1, 1, (action_size,)), hidden=hidden)

    def uniform(weight: torch.Tensor, bound: float) -> None:
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)

    def truncated_normal(weight: torch.Tensor, std: float) -> None:
        assert 0.95 * 2 * std / 0.8796 < weight.abs().max() <= 2 * std / 0.8796
        assert weight.std().item() == pytest.approx(std, rel=0.05)

    actor, critics = agent.actor, agent.critics
    truncated_normal(actor.embed.weight, 1 / math.sqrt(action_size))
    truncated_normal(actor.head.weight, 0.3 / math.sqrt(hidden[-1]))
    uniform(actor.hidden[0].weight, math.sqrt(6 / (2 * observation_size + hidden[0])))
    uniform(actor.hidden[1].weight, math.sqrt(6 / (hidden[0] + hidden[1])))
    uniform(critics.hidden[0].weight, 1 / math.sqrt(observation_size + action_size))
    uniform(critics.hidden[1].weight, 1 / math.sqrt(hidden[0]))
    uniform(critics.head_weight, 0.003)
    biases = [parameter for name, parameter in agent.named_parameters() if "bias" in name]
    assert len(biases) == 4 + 3  # embedding, two hidden layers and head; two hidden layers and head of both critics
    assert all((bias == 0).all() for bias in biases)
    assert agent.log_switch_temperature == agent.log_action_temperature == 0

    observation, prev_action = torch.rand(500, observation_size) * 2 - 1, torch.rand(500, action_size) * 2 - 1
    std = agent.actor(observation, prev_action)[1].exp()
    assert std.median().item() == pytest.approx(1.0, abs=0.1)
    assert (agent.critics(observation, prev_action).abs() < 0.1).all()


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_advantage", [None, 0.0])
def test_act_equals_a_slow_two_stage_loop_over_the_same_noise(min_advantage):
    agent, batch = make_agent(min_advantage=min_advantage), 60
    observation, prev_action = inputs(batch)
    torch.manual_seed(5)
    action, switch = agent.act(observation, prev_action)
    torch.manual_seed(5)
    noise, coin = torch.randn(batch, 2).numpy(), torch.rand(batch).numpy()
    for b in range(batch):
        mean, std = slow_actor(agent, observation[b], prev_action[b])
        candidate = slow_squash(mean + std * noise[b])
        advantage = slow_minimum(agent, observation[b], candidate) - slow_minimum(agent, observation[b], prev_action[b])
        if min_advantage is not None:
            advantage = max(advantage, min_advantage)
        acts = coin[b] < 1 / (1 + math.exp(-advantage / 0.5))
        assert switch[b] == acts
        np.testing.assert_allclose(action[b], candidate if acts else prev_action[b], atol=1e-5)
    assert 10 < switch.sum() < 50


def test_deterministic_act_takes_the_mode_of_both_stages():
    agent, batch = make_agent(), 50
    observation, prev_action = inputs(batch)
    action, switch = agent.act(observation, prev_action, deterministic=True)
    for b in range(batch):
        candidate = slow_squash(slow_actor(agent, observation[b], prev_action[b])[0])
        acts = slow_minimum(agent, observation[b], candidate) > slow_minimum(agent, observation[b], prev_action[b])
        assert switch[b] == acts
        np.testing.assert_allclose(action[b], candidate if acts else prev_action[b], atol=1e-5)
    assert 0 < switch.sum() < batch
    again = agent.act(observation, prev_action, deterministic=True)
    np.testing.assert_array_equal(action, again[0])


def test_a_tie_repeats():
    agent = make_agent()
    torch.nn.init.zeros_(agent.critics.head_weight)  # every action is worth the same
    observation, prev_action = inputs(10)
    action, switch = agent.act(observation, prev_action, deterministic=True)
    assert not switch.any()
    np.testing.assert_array_equal(action, prev_action)


def test_repeating_hands_back_the_previous_action_bit_for_bit():
    agent = make_agent()
    observation, prev_action = inputs(50)
    action, switch = agent.act(observation, prev_action)
    np.testing.assert_array_equal(action[~switch], prev_action[~switch])
    assert (action[switch] != prev_action[switch]).all()


def test_arrays_give_arrays_and_tensors_give_tensors():
    agent = make_agent()
    observation, prev_action = inputs(4)
    action, switch = agent.act(observation.astype(np.float64), prev_action, deterministic=True)
    assert isinstance(action, np.ndarray)
    assert (action.shape, action.dtype, switch.shape, switch.dtype) == ((4, 2), np.float32, (4,), bool)
    same = agent.act(torch.from_numpy(observation), torch.from_numpy(prev_action), deterministic=True)
    assert all(isinstance(output, torch.Tensor) and not output.requires_grad for output in same)
    np.testing.assert_array_equal(same[0].numpy(), action)
    np.testing.assert_array_equal(same[1].numpy(), switch)


def test_actions_never_leave_the_space_however_the_bounds_round():
    rng = np.random.default_rng(0)
    low = rng.uniform(-3, 0, 200).astype(np.float32)
    space = spaces.Box(low, low + rng.uniform(0.1, 3, 200).astype(np.float32))
    agent = TAACAgent(OBSERVATIONS, space, hidden=(4,))
    torch.nn.init.zeros_(agent.critics.head_weight)
    for saturated in (-50.0, 50.0):
        torch.nn.init.constant_(agent.actor.head.bias, saturated)
        torch.manual_seed(0)
        action, switch = agent.act(np.zeros((8, 3), np.float32), agent.initial_action(8))
        assert switch.any()
        assert all(space.contains(one) for one in action)


# --- The stateful policy ---------------------------------------------------------------------------------------------


def test_policy_feeds_back_what_it_executed():
    agent = make_agent()
    policy, prev_action = agent.policy(num_envs=3), np.clip(np.zeros((3, 2)), ACTIONS.low, ACTIONS.high)
    switches = []
    for step in range(6):
        observation, _ = inputs(3, seed=step)
        expected, switch = agent.act(observation, prev_action, deterministic=True)
        action = policy(observation)
        np.testing.assert_array_equal(action, expected)
        np.testing.assert_array_equal(policy.switch, switch)
        prev_action = expected
        action[:] = 99.0  # what the caller does with it must not reach the memory
        switches.append(switch)
    assert 0 < np.mean(switches) < 1


def test_policy_reset_forgets_the_masked_envs_only():
    agent = make_agent()
    policy = agent.policy(num_envs=3)
    remembered = inputs(3)[1]
    policy.prev_action = remembered.copy()
    policy.reset(np.array([False, True, False]))
    np.testing.assert_array_equal(policy.prev_action[[0, 2]], remembered[[0, 2]])
    np.testing.assert_array_equal(policy.prev_action[1], [0.0, 0.5])  # zero, clipped into the space
    policy.reset()
    np.testing.assert_array_equal(policy.prev_action, [[0.0, 0.5]] * 3)
    for mask in (np.array([True]), np.array(True)):
        with pytest.raises(ValueError, match=r"mask must have shape \(3,\), got array"):
            policy.reset(mask)


def test_a_single_env_needs_no_batch_dimension():
    agent = make_agent()
    policy, batched = agent.policy(), agent.policy(num_envs=1)
    for step in range(3):
        observation, _ = inputs(1, seed=step)
        action = policy(observation[0])
        assert action.shape == (2,)
        np.testing.assert_array_equal(action, batched(observation)[0])


def test_a_policy_can_be_stochastic():
    policy = make_agent().policy(deterministic=False)
    torch.manual_seed(0)
    actions = set()
    for _ in range(10):
        policy.reset()
        actions.add(tuple(policy(np.zeros(3, np.float32)).tolist()))
    assert len(actions) > 1


def test_policy_names_bad_input():
    agent = make_agent()
    for num_envs in (0, 1.5):
        with pytest.raises(ValueError, match=f"num_envs must be a positive integer, got {num_envs}"):
            agent.policy(num_envs)
    policy = agent.policy(num_envs=2)
    for shape in ((3,), (3, 3), (2, 4)):
        with pytest.raises(ValueError, match=r"observation must have shape \(2, 3\), got"):
            policy(np.zeros(shape, np.float32))


def test_the_initial_action_is_float32_whatever_the_space():
    agent = TAACAgent(OBSERVATIONS, spaces.Box(0.5, 1.0, (2,), np.float64), hidden=(4,))
    assert agent.initial_action(3).dtype == np.float32
    np.testing.assert_array_equal(agent.initial_action(3), np.full((3, 2), 0.5))


# --- Construction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "observation_space must be a one-dimensional Box, got Discrete", {"observation_space": 1}),
        (TypeError, "observation_space must be a one-dimensional Box, got Box", {"observation_space": (2, 2)}),
        (TypeError, "action_space must be a one-dimensional Box, got Discrete", {"action_space": 1}),
        (ValueError, "action_space must be bounded, got Box", {"action_space": None}),
        (ValueError, r"hidden must be .*positive integers, got \(\)", {"hidden": ()}),
        (ValueError, r"hidden must be .*positive integers, got \(8, 0\)", {"hidden": (8, 0)}),
        (ValueError, r"hidden must be .*positive integers, got \(2.5,\)", {"hidden": (2.5,)}),
        (ValueError, "log_std_min must be below log_std_max, got 2.0 and 2.0", {"log_std_min": 2.0}),
    ],
)
def test_bad_constructor_arguments_are_named(error, message, arguments):
    made = {1: spaces.Discrete(3), (2, 2): spaces.Box(-1, 1, (2, 2)), None: spaces.Box(-np.inf, np.inf, (2,))}
    arguments = {name: made[value] if "space" in name else value for name, value in arguments.items()}
    with pytest.raises(error, match=message):
        TAACAgent(**{"observation_space": OBSERVATIONS, "action_space": ACTIONS, **arguments})


# --- The file --------------------------------------------------------------------------------------------------------


def test_save_and_load_bring_everything_back(tmp_path):
    infinite = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    torch.manual_seed(0)
    agent = TAACAgent(infinite, ACTIONS, hidden=(5, 7), log_std_min=-10.0, log_std_max=1.5, min_advantage=0.0)
    with torch.no_grad():
        agent.log_switch_temperature.fill_(-1.25)
        agent.log_action_temperature.fill_(-3.5)
    agent.save(tmp_path / "agent.safetensors")
    loaded = TAACAgent.load(str(tmp_path / "agent.safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["agent.safetensors"]
    before, after = agent.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (loaded.observation_space, loaded.action_space) == (infinite, ACTIONS)
    assert (loaded.hidden, loaded.min_advantage) == ((5, 7), 0.0)
    assert (loaded.actor.log_std_min, loaded.actor.log_std_max) == (-10.0, 1.5)
    outputs = []
    for each in (agent, loaded):
        torch.manual_seed(1)
        outputs.append(each.act(*inputs(20)))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "agent.safetensors"
    make_agent(seed=1).save(path)
    before = path.read_bytes()

    def fail(target, _):
        if step == "write":
            with open(target, "wb") as file:
                file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(*((Path, "write_bytes") if step == "write" else (taac.os, "replace")), fail)
    with pytest.raises(OSError, match="disk full"):
        make_agent(seed=2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Payload:
    """What a hostile pickle looks like: reading it creates a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("dump", ["pickle", "torch.save"])
def test_load_never_runs_code(tmp_path, dump):
    marker, path = tmp_path / "ran", tmp_path / "agent.safetensors"
    if dump == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
        pickle.loads(path.read_bytes())
    else:
        file = io.BytesIO()
        torch.save(Payload(marker), file)
        path.write_bytes(file.getvalue())
        torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert marker.exists()  # the payload works where pickle is trusted
    marker.unlink()
    with pytest.raises(ValueError, match=r"agent\.safetensors' is not a readable agent file"):
        TAACAgent.load(path)
    assert not marker.exists()


def test_load_names_a_missing_file(tmp_path):
    for path in (tmp_path / "nowhere.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError, match=str(path)):
            TAACAgent.load(path)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_load_refuses_a_truncated_file(tmp_path, kept):
    path = tmp_path / "agent.safetensors"
    make_agent().save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"agent\.safetensors' is not a readable agent file"):
        TAACAgent.load(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "taac_wrappers.TAACAgent/2"}])
def test_load_refuses_another_format(tmp_path, metadata):
    path = tmp_path / "agent.safetensors"
    save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"agent\.safetensors' has format .*, expected 'taac_wrappers\.TAACAgent/1'"):
        TAACAgent.load(path)


def damage_config(tensors, metadata, **changes):
    metadata["config"] = json.dumps(json.loads(metadata["config"]) | changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors, metadata: tensors.pop("space.action.low"),
        lambda tensors, metadata: tensors.pop("actor.head.weight"),
        lambda tensors, metadata: tensors.update(extra=torch.zeros(1)),
        lambda tensors, metadata: tensors.update({"actor.head.weight": torch.zeros(3, 3)}),
        lambda tensors, metadata: tensors.update({"space.action.high": torch.full((2,), torch.inf)}),
        lambda tensors, metadata: tensors.update({"space.action.high": torch.zeros(3)}),
        lambda tensors, metadata: metadata.pop("config"),
        lambda tensors, metadata: metadata.update(config="{"),
        lambda tensors, metadata: metadata.update(config="[]"),
        lambda tensors, metadata: damage_config(tensors, metadata, hidden=[8]),
        lambda tensors, metadata: damage_config(tensors, metadata, hidden="wide"),
        lambda tensors, metadata: damage_config(tensors, metadata, unknown=1),
    ],
)
def test_load_refuses_what_only_looks_like_an_agent(tmp_path, damage):
    path = tmp_path / "agent.safetensors"
    make_agent().save(path)
    with taac.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    save_file(tensors, path, metadata=metadata)
    TAACAgent.load(path)  # rewriting it alone does no harm
    damage(tensors, metadata)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"agent\.safetensors' does not hold a complete agent"):
        TAACAgent.load(path)


# --- The training script's gradients ---------------------------------------------------------------------------------


@pytest.fixture
def scene():
    """A float64 agent, states to train the actor at (one of them an episode's end), and the noise's seed."""
    agent = make_agent(hidden=(3,)).double()
    observation, prev_action = (torch.from_numpy(array).double() for array in inputs(5))
    return agent, observation, prev_action, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)


def slow_policy_terms(agent: TAACAgent, observation, prev_action, seed: int):
    """``Q(s, a_prev)``, ``Q(s, a_hat)`` and ``log pi(a_hat)`` for given noise, by the change of variables."""
    mean, log_std = agent.actor(observation, prev_action)
    torch.manual_seed(seed)
    raw = mean + log_std.exp() * torch.randn_like(mean)
    center, scale = (torch.from_numpy(ACTIONS.high + sign * ACTIONS.low).double() / 2 for sign in (1, -1))
    squashed = torch.tanh(raw)
    normal = -0.5 * ((raw - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = (normal - torch.log(scale * (1 - squashed**2))).sum(-1)
    candidate = center + scale * squashed
    q = [agent.critics(observation, action).min(0).values for action in (prev_action, candidate)]
    return *q, log_prob


def slope(objective, parameter: torch.Tensor, direction: torch.Tensor, step: float = 1e-6) -> float:
    """The objective's derivative along one direction of one parameter, by central differences."""
    sides = []
    for shift in (step, -step):
        parameter += shift * direction
        sides.append(objective().item())
        parameter -= shift * direction
    return (sides[0] - sides[1]) / (2 * step)


def test_the_actor_gradient_is_the_papers(scene):
    agent, observation, prev_action, acting = scene
    torch.manual_seed(7)
    decisions = script.decide(agent, observation, prev_action)
    parameters = list(agent.actor.parameters())
    gradients = torch.autograd.grad(script.actor_loss(agent, decisions, acting), parameters)

    q_repeat, q_new, log_prob = slow_policy_terms(agent, observation, prev_action, seed=7)
    beta = torch.softmax(torch.stack([q_repeat, q_new]) / 0.5, dim=0)[1].detach()
    torch.testing.assert_close(decisions.beta, beta, rtol=0, atol=1e-6)
    torch.testing.assert_close(decisions.log_prob, log_prob, rtol=0, atol=1e-6)

    def eq_6():
        """beta* Q(s, f_phi) - alpha'' log pi_phi(f_phi), whose gradient holds beta* fixed."""
        _, q_new, log_prob = slow_policy_terms(agent, observation, prev_action, seed=7)
        return ((beta * q_new - 0.3 * log_prob) * acting).mean()

    def soft_value():
        """The objective that the paper derives it from, with beta* at its optimum for every candidate."""
        q_repeat, q_new, log_prob = slow_policy_terms(agent, observation, prev_action, seed=7)
        value = 0.5 * torch.logsumexp(torch.stack([q_repeat, q_new]) / 0.5, dim=0)
        return ((value - 0.3 * log_prob) * acting).mean()

    with torch.no_grad():
        for objective in (eq_6, soft_value):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                direction = torch.randn_like(parameter)
                derivative = slope(objective, parameter, direction)
                assert abs(derivative) > 1e-4
                assert derivative == pytest.approx(-(gradient * direction).sum().item(), abs=1e-8)


def test_no_gradient_of_the_actor_loss_reaches_a_temperature(scene):
    agent, observation, prev_action, acting = scene
    loss = script.actor_loss(agent, script.decide(agent, observation, prev_action), acting)
    temperatures = [agent.log_switch_temperature, agent.log_action_temperature]
    assert torch.autograd.grad(loss, temperatures, allow_unused=True) == (None, None)


@pytest.mark.parametrize(
    ("beta", "log_prob", "falls"),
    [
        ([0.5, 0.5], [-2.0, -2.0], (True, True)),  # both entropies above their targets
        ([0.999, 0.001], [-2.0, -2.0], (False, True)),
        ([0.5, 0.5], [3.0, 3.0], (True, False)),
        ([0.999, 0.001], [3.0, 3.0], (False, False)),
    ],
)
def test_temperatures_fall_above_their_target_and_rise_below(beta, log_prob, falls):
    agent = make_agent()
    at = script.Decisions(torch.zeros(2, 2), torch.tensor(log_prob), torch.zeros(2), torch.tensor(beta))
    loss = script.temperature_loss(agent, at, torch.ones(2), entropy_targets=(0.2, -1.0))
    gradients = torch.autograd.grad(loss, [agent.log_switch_temperature, agent.log_action_temperature])
    assert tuple(gradient.item() > 0 for gradient in gradients) == falls  # descent goes against the gradient


def test_the_temperature_gradient_is_the_mean_surplus_of_entropy_where_somebody_acts():
    agent = make_agent()
    log_prob = torch.tensor([1.0, 2.0, 50.0], requires_grad=True)
    at = script.Decisions(torch.zeros(3, 2), log_prob, torch.zeros(3), torch.tensor([0.5, 1.0, 0.3]))
    loss = script.temperature_loss(agent, at, torch.tensor([1.0, 1.0, 0.0]), entropy_targets=(0.2, -1.0))
    parameters = (agent.log_switch_temperature, agent.log_action_temperature, log_prob)
    switch, action, policy = torch.autograd.grad(loss, parameters, allow_unused=True)
    assert switch.item() == pytest.approx(((math.log(2) - 0.2) + (0.0 - 0.2)) / 3, abs=1e-6)
    assert action.item() == pytest.approx(((-1.0 + 1.0) + (-2.0 + 1.0)) / 3, abs=1e-6)
    assert policy is None


def small_learner():
    args = script.Args(batch_size=16, hidden=(8, 8), window=3, reward_clip=None, learning_rate=1e-3)
    agent = make_agent()
    replay = SequenceReplay(OBSERVATIONS, ACTIONS, capacity=60, num_envs=1, seed=0)
    rng = np.random.default_rng(0)
    replay.start(rng.normal(size=(1, 3)))
    for step in range(50):
        observation, action = inputs(1, seed=step)
        ended = np.array([step % 9 == 8])
        replay.add(action, rng.random(1) < 0.5, rng.normal(size=1), ended & (step % 2 == 0), ended, observation)
        if ended[0]:
            replay.start(inputs(1, seed=100 + step)[0])
    learner = script.Learner(args, agent)
    return args, agent, learner, learner.sample(replay)


def test_an_update_gives_the_critics_the_gradient_of_their_own_loss_alone():
    args, agent, learner, batch = small_learner()
    before, trained = copy.deepcopy(agent), len(batch.action)
    torch.manual_seed(3)
    learner.update(batch, script.Counters(num_envs=1))

    torch.manual_seed(3)
    at = script.decide(before, batch.acting_observation, batch.acting_prev_action)
    first = script.Decisions(*(getattr(at, name)[:trained] for name in ("candidate", "log_prob", "q_new", "beta")))
    target = script.td_target(args, before, copy.deepcopy(before.critics), batch, first)
    assert not target.requires_grad
    losses = {
        "critics": script.critic_loss(before, batch, target),
        "actor": script.actor_loss(before, at, batch.acting),
    }
    for part, loss in losses.items():
        expected = torch.autograd.grad(loss, list(getattr(before, part).parameters()), retain_graph=True)
        for parameter, gradient in zip(getattr(agent, part).parameters(), expected, strict=True):
            assert (gradient != 0).any()
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


def test_the_critic_loss_is_the_sum_of_both_squared_errors():
    _, agent, _, batch = small_learner()
    target = torch.linspace(-1, 1, len(batch.action))
    slow = 0.0
    for b in range(len(target)):
        for which in (0, 1):
            q = slow_critic(agent, which, batch.observation[b].numpy(), batch.action[b].numpy())
            slow += (q - target[b].item()) ** 2 / len(target)
    assert script.critic_loss(agent, batch, target).item() == pytest.approx(slow, rel=1e-5)
