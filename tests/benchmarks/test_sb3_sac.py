"""Our SAC beside Stable-Baselines3's: from the same weights, by the same batches, both become the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import sac_continuous
import torch
from sb3_sac import linear_layers, make_model
from stable_baselines3 import SAC
from stable_baselines3.common.logger import configure
from synthetic import filled_replay

from taac_wrappers.agent import SACAgent
from taac_wrappers.training.batch import Batch
from taac_wrappers.training.run import Counters
from taac_wrappers.training.tasks import settings_for

OBSERVATION, ACTION, UPDATES = 5, 2, 10


class Fixed(gym.Env):
    """Spaces alone: nobody steps it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (OBSERVATION,))
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION,))


class OneBatch:
    """A replay buffer of Stable-Baselines3 that always draws what ours has drawn."""

    def __init__(self, batch: Batch):
        self.drawn = SimpleNamespace(
            observations=batch.observation,
            actions=batch.action,
            next_observations=batch.state_observation[batch.first :],
            dones=batch.terminated[0].float().unsqueeze(1),
            rewards=batch.reward[0].unsqueeze(1),
            discounts=None,
        )

    def sample(self, batch_size: int, env: object = None) -> SimpleNamespace:
        return self.drawn


def weights_of(model: SAC) -> dict[str, torch.Tensor]:
    """As our agent names them."""
    head = [linear_layers(model.actor.mu)[0], linear_layers(model.actor.log_std)[0]]
    weights = {
        "log_action_temperature": model.log_ent_coef.squeeze(),
        "actor.head.weight": torch.cat([layer.weight for layer in head]).t(),
        "actor.head.bias": torch.cat([layer.bias for layer in head]),
    }
    networks = {"actor": linear_layers(model.actor.latent_pi)}
    for number, q_network in enumerate(model.critic.q_networks):
        *hidden, output = linear_layers(q_network)
        networks[f"critics.twins.{number}"] = hidden
        weights[f"critics.twins.{number}.head_weight"] = output.weight[0]
        weights[f"critics.twins.{number}.head_bias"] = output.bias[0]
    for network, layers in networks.items():
        for number, layer in enumerate(layers):
            weights[f"{network}.hidden.{number}.weight"] = layer.weight.t()
            weights[f"{network}.hidden.{number}.bias"] = layer.bias
    return {name: value.detach() for name, value in weights.items()}


def test_our_updates_are_those_of_stable_baselines3(monkeypatch):
    """But for 1e-6 in the logarithm of its density, while nothing terminates. Both policies sample without noise."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **like: torch.zeros(shape, **like))
    torch.manual_seed(0)
    settings = replace(settings_for("HalfCheetah-v5"), hidden=(32, 32), batch_size=64, buffer_size=100)
    model = make_model(Fixed(), settings, learning_starts=0, seed=0)
    model.set_logger(configure(None, []))
    with torch.no_grad():
        model.log_ent_coef.fill_(-1.0)

    args = replace(sac_continuous.Args.for_task("HalfCheetah-v5"), hidden=(32, 32), batch_size=64)
    agent = sac_continuous.make_agent(args, Fixed.observation_space, Fixed.action_space)
    assert isinstance(agent, SACAgent)
    before = {name: value.clone() for name, value in weights_of(model).items()}
    agent.load_state_dict(before)
    learner, counters = sac_continuous.Learner(args, agent), Counters(num_envs=1)

    replay = filled_replay(OBSERVATION, ACTION, repetition=0.0, frames=500, episode=50)
    for _ in range(UPDATES):
        batch = learner.sample(replay)
        model.replay_buffer = OneBatch(batch)
        model.train(gradient_steps=1, batch_size=len(batch.action))
        learner.update(batch, counters)

    ours = agent.state_dict()
    for name, theirs in weights_of(model).items():
        way, difference = (theirs - before[name]).abs().mean(), (ours[name] - theirs).abs().mean()
        assert way > 0.2 * UPDATES * args.learning_rate, name
        assert difference < 0.0008 * way, name
