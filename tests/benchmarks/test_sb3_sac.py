"""Our SAC is Stable-Baselines3's: from the same random numbers, the same frames, the same batches, the same updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import sac_continuous
import torch
import training
from sb3_sac import linear_layers, make_model, take_our_density
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from synthetic import filled_replay

from taac_wrappers.agent import SACAgent
from taac_wrappers.training.batch import Batch
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.tasks import settings_for

OBSERVATION, ACTION, UPDATES = 5, 2, 10


class Fixed(gym.Env):
    """Spaces alone: nobody steps it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (OBSERVATION,))
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION,))


class OneBatch:
    """A replay buffer of Stable-Baselines3 that always draws what ours has drawn."""

    def __init__(self, batch: Batch):
        drawn = {
            "observations": batch.observation,
            "actions": batch.action,
            "next_observations": batch.next_observation,
            "dones": batch.terminated[0].float().unsqueeze(1),
            "rewards": batch.reward[0].unsqueeze(1),
        }
        # Copies, as its own are: products may round by where their operands lie.
        self.drawn = SimpleNamespace(**{name: value.clone() for name, value in drawn.items()}, discounts=None)

    def sample(self, batch_size: int, env: object = None) -> SimpleNamespace:
        return self.drawn


Part = Callable[[torch.nn.Parameter], torch.Tensor]


def weights_of(model: SAC, critic: str = "critic", part: Part = torch.Tensor.detach) -> dict[str, torch.Tensor]:
    """As our agent names them: the weights themselves, or what ``part`` makes of each."""
    head = [linear_layers(model.actor.mu)[0], linear_layers(model.actor.log_std)[0]]
    weights = {
        "log_action_temperature": part(model.log_ent_coef).squeeze(),
        "actor.head.weight": torch.cat([part(layer.weight) for layer in head]),
        "actor.head.bias": torch.cat([part(layer.bias) for layer in head]),
    }
    networks = {"actor": linear_layers(model.actor.latent_pi)}
    for number, q_network in enumerate(getattr(model, critic).q_networks):
        *hidden, output = linear_layers(q_network)
        networks[f"critics.twins.{number}"] = hidden
        weights[f"critics.twins.{number}.head.weight"] = part(output.weight)
        weights[f"critics.twins.{number}.head.bias"] = part(output.bias)
    for network, layers in networks.items():
        for number, layer in enumerate(layers):
            weights[f"{network}.hidden.{2 * number}.weight"] = part(layer.weight)  # a ReLU stands between two of them
            weights[f"{network}.hidden.{2 * number}.bias"] = part(layer.bias)
    return weights


def take_training_state(learner: sac_continuous.Learner, model: SAC) -> None:
    """Go on where SB3 stands: with its weights, its target critics, and what its optimizers remember."""
    agent, target_critics = learner.agent, learner.target_critics
    agent.load_state_dict(weights_of(model))
    target = weights_of(model, critic="critic_target")
    target_critics.load_state_dict({name: target[f"critics.{name}"] for name in target_critics.state_dict()})

    optimizers = model.actor.optimizer, model.critic.optimizer, model.ent_coef_optimizer
    remembered = {weight: state for optimizer in optimizers for weight, state in optimizer.state.items()}
    if not remembered:
        return
    moments = {
        moment: weights_of(model, part=lambda weight, moment=moment: remembered[weight][moment])
        for moment in ("exp_avg", "exp_avg_sq")
    }
    for name, parameter in agent.named_parameters():
        scale = 2 if name.startswith("critics.") else 1  # it halves the loss of its critics
        learner.optimizer.state[parameter] = {
            "step": torch.tensor(float(model._n_updates)),
            "exp_avg": moments["exp_avg"][name] * scale,
            "exp_avg_sq": moments["exp_avg_sq"][name] * scale**2,
        }


class Noise:
    """What both programs take for the noise of their policies. Ours asks for that of the next states first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.ours: list[torch.Tensor] = []
        self.theirs: list[torch.Tensor] = []
        monkeypatch.setattr(torch, "randn_like", lambda like: self.ours.pop(0))
        monkeypatch.setattr(
            "torch.distributions.normal._standard_normal", lambda shape, **like: self.theirs.pop(0).view(shape)
        )

    def draw(self, rows: int) -> None:
        own, following = torch.randn(2, rows, ACTION)
        self.ours, self.theirs = [following, own], [own, following]

    def is_used_up(self) -> bool:
        return not self.ours and not self.theirs


def way_apart(
    monkeypatch: pytest.MonkeyPatch,
    *,
    our_density: bool,
    head_scale: float,
    trained: int = 0,
    halve_epsilon: bool = True,
    seed: int = 0,
) -> dict[str, float]:
    """How far the weights of both are apart after :data:`UPDATES`, over the way they went.

    Both begin where SB3 is after ``trained`` updates of its own. It halves the loss of its critics: with half of the
    epsilon too, Adam takes the same steps as without either.
    """
    torch.manual_seed(seed)
    settings = replace(settings_for("HalfCheetah-v5"), hidden=(32, 32), batch_size=64, buffer_size=100)
    model = make_model(Fixed(), settings, learning_starts=0, seed=seed)
    model.set_logger(configure(None, []))
    if our_density:
        take_our_density(model)
    if halve_epsilon:
        model.critic.optimizer.param_groups[0]["eps"] /= 2
    with torch.no_grad():
        model.log_ent_coef.fill_(-1.0)
        for layer in (*linear_layers(model.actor.mu), *linear_layers(model.actor.log_std)):
            layer.weight *= head_scale

    args = replace(sac_continuous.Args.for_task("HalfCheetah-v5"), hidden=(32, 32), batch_size=64)
    agent = sac_continuous.make_agent(args, Fixed.observation_space, Fixed.action_space)
    assert isinstance(agent, SACAgent)
    learner, counters = sac_continuous.Learner(args, agent), Counters()
    replay = filled_replay(Fixed.observation_space, ACTION, repetition=0.0, frames=500, episode=50)
    for _ in range(trained):
        model.replay_buffer = OneBatch(learner.sample(replay))
        model.train(gradient_steps=1, batch_size=args.batch_size)
    take_training_state(learner, model)
    before = {name: value.clone() for name, value in weights_of(model).items()}

    noise = Noise(monkeypatch)
    for _ in range(UPDATES):
        batch = learner.sample(replay)
        noise.draw(len(batch.action))
        model.replay_buffer = OneBatch(batch)
        model.train(gradient_steps=1, batch_size=len(batch.action))
        learner.update(batch, counters)
        assert noise.is_used_up()

    least_step = (0.02 if trained else 0.2) * args.learning_rate  # Adam's steps are shorter late in training
    ours, apart = agent.state_dict(), {}
    for name, theirs in weights_of(model).items():
        way, difference = (theirs - before[name]).abs().mean(), (ours[name] - theirs).abs().mean()
        assert way > UPDATES * least_step, name
        apart[name] = float(difference / way)
    return apart


@pytest.mark.parametrize("trained", [0, 300])
@pytest.mark.parametrize("head_scale", [1.0, 10.0])
def test_our_updates_are_those_of_stable_baselines3(head_scale, trained, monkeypatch):
    """While nothing terminates, and given our density; also near the bounds of actions, and late in training."""
    apart = way_apart(monkeypatch, our_density=True, head_scale=head_scale, trained=trained)
    assert max(apart.values()) < 0.00005, apart


@pytest.mark.parametrize(("head_scale", "trained"), [(1.0, 0), (1.0, 300), (10.0, 0), (10.0, 300)])
def test_with_its_own_epsilon_they_are_hardly_others(head_scale, trained, monkeypatch):
    """At the first of these settings, of the seeds 0 to 11 all but 0 are like this one.

    With that, a unit of a critic is almost never active: its gradients are below the epsilon, which matters (0.002).
    """
    change = {"halve_epsilon": False, "seed": 1}
    apart = way_apart(monkeypatch, our_density=True, head_scale=head_scale, trained=trained, **change)
    assert max(apart.values()) < 0.0008, apart


def test_the_density_of_stable_baselines3_is_another_one_near_the_bounds(monkeypatch):
    assert max(way_apart(monkeypatch, our_density=False, head_scale=1.0).values()) < 0.0008
    with monkeypatch.context() as again:
        apart = way_apart(again, our_density=False, head_scale=10.0)
    assert apart["actor.hidden.0.weight"] > 0.01


SEED, RANDOM_FRAMES, FRAMES, EPISODE = 0, 300, 500, 200  # episodes end before and after learning has begun


def seeded_model() -> SAC:
    """Small, for HalfCheetah; it seeds everything. Actions are in [-1, 1] and need no scaling, which would round."""
    settings = replace(settings_for("HalfCheetah-v5"), hidden=(16, 16), buffer_size=FRAMES)
    model = make_model(make_env("HalfCheetah-v5"), settings, learning_starts=RANDOM_FRAMES, seed=SEED)
    model.policy.scale_action = model.policy.unscale_action = lambda action: action
    return model


class Frames(BaseCallback):
    """Actions and rewards of all frames."""

    def __init__(self):
        super().__init__()
        self.actions: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.actions.append(self.locals["actions"])
        self.rewards.append(self.locals["rewards"])
        return True


def test_all_around_the_update_is_that_of_stable_baselines3(monkeypatch):
    """With its random numbers, policy and update, our environments, replay, batches and loop give its frames."""
    monkeypatch.setattr(gym.spec("HalfCheetah-v5"), "max_episode_steps", EPISODE)
    theirs = Frames()
    torch.set_num_threads(1)  # as ours does: sums of several threads round in another way
    seeded_model().learn(FRAMES, callback=theirs)

    shape = training.Shape("HalfCheetah-v5", fill=RANDOM_FRAMES)
    ours = training.Ours(sac_continuous, shape, settings_for(shape.env_id), repetition=0.0, compile=False)
    model = seeded_model()
    model.set_logger(configure(None, []))
    step, actions, rewards = ours.envs.step, [], []

    def recorded_step(action):
        results = step(action)
        actions.append(action)
        rewards.append(results[1].astype(np.float32))
        return results

    def draw_starts(batch_size):
        late = len(actions) > RANDOM_FRAMES  # they begin one frame later
        transition = np.random.randint(len(actions) if late else 1, size=batch_size)  # noqa: NPY002 (theirs)
        return np.zeros(batch_size, np.int64), transition + transition // EPISODE  # a final observation has a slot

    def update(batch, counters):
        counters.updates += 1
        if counters.updates > 1:
            model.replay_buffer = OneBatch(batch)
            model.train(gradient_steps=1, batch_size=len(batch.action))
        return {}

    monkeypatch.setattr(ours, "random_action", lambda *_: model.action_space.sample()[None])
    monkeypatch.setattr(ours.agent, "act", lambda observation: model.predict(observation)[0])
    monkeypatch.setattr(ours.envs, "step", recorded_step)
    monkeypatch.setattr(ours.state.replay, "_draw_starts", draw_starts)
    monkeypatch.setattr(ours.learner, "update", update)
    ours.train(FRAMES)

    np.testing.assert_array_equal(actions, theirs.actions)
    np.testing.assert_array_equal(rewards, theirs.rewards)
