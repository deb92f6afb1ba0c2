"""Stable-Baselines3's SAC with the settings of `agents/sac_continuous.py`, evaluated and recorded as ours is.

    python benchmarks/sb3_sac.py --env-id HalfCheetah-v5 --seed 0 --run-dir runs/sb3

What differs is Stable-Baselines3's own: the weights that training starts from, unless ``--our-start`` is given; 1e-6 in
the density of actions near their bounds, unless ``--our-density`` is given; the clamp of the log standard deviation;
and no entropy at a termination. With both flags, and while nothing terminates, its updates are ours
(``tests/benchmarks/test_sb3_sac.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import DiagGaussianDistribution, SquashedDiagGaussianDistribution
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.nn.functional import softplus

from taac_wrappers import RepeatStatisticsWrapper
from taac_wrappers.agent.networks import truncated_normal_
from taac_wrappers.agent.operators import continuous_entropy_target
from taac_wrappers.training.envs import make_env
from taac_wrappers.training.evaluation import evaluate
from taac_wrappers.training.tasks import Settings, settings_for
from taac_wrappers.training.tracking import Tracker


@dataclass
class Args:
    run_dir: Path
    """where metrics.csv goes"""
    env_id: str = "HalfCheetah-v5"
    seed: int = 0
    total_frames: int = 100_000
    learning_starts: int = 10_000
    eval_interval: int = 10_000
    eval_episodes: int = 10
    final_episodes: int = 20
    our_start: bool = False
    """begin with weights drawn as ours are (the TAAC authors'), not as Stable-Baselines3 (PyTorch) draws them"""
    our_density: bool = False
    """take the exact density of a squashed action, as ours is, without 1e-6 inside the logarithm"""
    threads: int = 1


class Trained:
    """The trained model as :func:`evaluate` wants an agent."""

    def __init__(self, model: BaseAlgorithm):
        self.model = model

    def act(self, observation: np.ndarray, deterministic: bool = False) -> np.ndarray:
        return self.model.predict(observation, deterministic=deterministic)[0]


class Recorder(BaseCallback):
    """Evaluates on our schedule and records what our scripts record."""

    def __init__(self, args: Args, tracker: Tracker):
        super().__init__()
        self.args, self.tracker, self.eval_env = args, tracker, make_env(args.env_id, RepeatStatisticsWrapper)

    def _on_step(self) -> bool:
        frame = self.num_timesteps
        for info in self.locals["infos"]:
            if "episode" in info:
                self.tracker.log(frame, {"charts/episodic_return": info["episode"]["r"]})
        if frame % self.args.eval_interval == 0 and frame > self.args.learning_starts:
            self.record("eval", self.args.eval_episodes, self.args.seed)
        return True

    def record(self, prefix: str, episodes: int, seed: int) -> None:
        result = evaluate(Trained(self.model), self.eval_env, episodes, seed=seed)
        self.tracker.log(self.num_timesteps, {f"{prefix}/{name}": result[name] for name in ("score", "score_std")})
        self.tracker.flush()
        print(f"frame {self.num_timesteps}: {prefix} score {result['score']:.1f}", flush=True)


def make_model(env: gym.Env | VecEnv, settings: Settings, **changes: Any) -> SAC:
    """SB3's SAC with a task's settings: networks, optimizer, replay, target updates, entropy target."""
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    arguments: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "buffer_size": settings.buffer_size,
        "learning_starts": settings.learning_starts,
        "batch_size": settings.batch_size,
        "tau": settings.tau,
        "gamma": settings.gamma,
        "train_freq": settings.frames_per_iteration,
        "gradient_steps": settings.updates_per_iteration,
        "target_update_interval": settings.target_interval,
        "target_entropy": continuous_entropy_target(space.low, space.high, settings.action_delta),
        "ent_coef": "auto_1.0",
        "policy_kwargs": {"net_arch": list(settings.hidden), "optimizer_kwargs": {"eps": 1e-7}},
        "device": "cpu",
    }
    return SAC("MlpPolicy", env, **arguments | changes)


def start_like_ours(model: SAC) -> None:
    """Draw the weights of SB3's networks as :mod:`taac_wrappers.agent.networks` does."""
    for layer in linear_layers(model.actor.latent_pi):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    for head in [*linear_layers(model.actor.mu), *linear_layers(model.actor.log_std)]:
        truncated_normal_(head, gain=0.3)
    for network in model.critic.q_networks:
        *hidden, output = linear_layers(network)
        for layer, bound in [*((layer, 1 / math.sqrt(layer.in_features)) for layer in hidden), (output, 0.003)]:
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)
    model.critic_target.load_state_dict(model.critic.state_dict())


class ExactlySquashed(SquashedDiagGaussianDistribution):
    """SB3's squashed Gaussian, but an action near the bounds has its own density, however large."""

    def log_prob(self, actions: Tensor, gaussian_actions: Tensor | None = None) -> Tensor:
        assert gaussian_actions is not None  # tanh cannot be inverted there
        log_slope = 2 * (math.log(2) - gaussian_actions - softplus(-2 * gaussian_actions))
        return DiagGaussianDistribution.log_prob(self, gaussian_actions) - log_slope.sum(-1)


def take_our_density(model: SAC) -> None:
    """Exact, as ours is (:mod:`taac_wrappers.agent.distributions`)."""
    model.actor.action_dist = ExactlySquashed(model.actor.action_dist.action_dim)  # type: ignore[assignment]


def linear_layers(network: Any) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    args.run_dir.mkdir(parents=True)
    tracker = Tracker(args.run_dir, {"method": "sb3_sac"})
    model = make_model(
        make_env(args.env_id), settings_for(args.env_id), learning_starts=args.learning_starts, seed=args.seed
    )
    if args.our_start:
        start_like_ours(model)
    if args.our_density:
        take_our_density(model)
    recorder = Recorder(args, tracker)
    model.learn(args.total_frames, callback=recorder)
    recorder.record("final", args.final_episodes, args.seed + 1)
    tracker.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
