"""A script that learns next to nothing, a number that random rewards push around: the tests of a run's life run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from taac_wrappers import AdaptiveNormalizer, HybridActionWrapper, PrevActionWrapper, RepeatStatisticsWrapper
from taac_wrappers.training import run as run_module
from taac_wrappers.training.arguments import bad_input, check_common
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.envs import make_vector_env, random_action
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import Run
from taac_wrappers.training.state import TrainingState


class Drift(gym.Env):
    """A point that drifts by the action and by chance; episodes of ``length`` frames, or without an end if that is 0.

    ``luck`` is chance no seed reaches.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    luck = 0.0

    def __init__(self, render_mode: str | None = None, broken_camera: bool = False, length: int = 7):
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (1,)), Box(-1.0, 1.0, (1,))
        self.render_mode, self.broken_camera, self.length = render_mode, broken_camera, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.place, self.frame = self.np_random.normal(), 0
        return self._observe(), {}

    def step(self, action: np.ndarray):
        self.place += action.item() + self.np_random.normal() + self.luck
        self.frame += 1
        return self._observe(), -abs(self.place), False, self.frame == self.length, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def render(self) -> np.ndarray:
        if self.broken_camera:
            raise RuntimeError("no light")
        return np.zeros((32, 32, 3), np.uint8)


gym.register("test_run/Drift-v0", Drift)
gym.register("test_run/DarkDrift-v0", Drift, kwargs={"broken_camera": True})


@dataclass
class Args:
    env_id: str = "test_run/Drift-v0"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    settings: str = "paper"
    her: float = 0.0
    seed: int = 0
    total_frames: int = 40
    num_envs: int = 1
    batch_size: int = 4
    buffer_size: int = 30
    window: int = 2
    gamma: float = 0.9
    tau: float = 0.1
    target_interval: int = 1
    learning_rate: float = 0.1
    learning_starts: int = 3
    updates_per_iteration: int = 1
    frames_per_iteration: int = 1
    hidden: tuple[int, ...] = (4, 4)
    eval_interval: int = 10
    eval_episodes: int = 1
    final_episodes: int = 2
    stop_at_score: float | None = None
    checkpoint_interval: int = 15
    run_dir: Path | None = None
    resume: Path | None = None
    track: bool = False
    wandb_project: str = "tests"
    wandb_entity: str | None = None
    capture_video: bool = False
    device: str = "cpu"
    threads: int = 1
    compile: bool = False

    @classmethod
    def for_task(cls, env_id: str, settings: str | None = None) -> Args:
        return cls(env_id=env_id)


class Number(nn.Module):
    """The agent: one number. It always answers with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.rand(()))

    def act(self, observation: Any, deterministic: bool = False) -> Any:
        return {"action": np.zeros((1, 1), np.float32), "switch": np.ones(1, np.int64)}

    def save(self, path: Path) -> None:
        path.write_text(repr(self.value.item()))


def wrap(env: gym.Env) -> gym.Env:
    """As TAAC has it."""
    return RepeatStatisticsWrapper(PrevActionWrapper(HybridActionWrapper(env), flatten=False))


def main(
    args: Args,
    at_frame: Callable[[Counters], object] = lambda counters: None,
    wrap: Callable[[gym.Env], gym.Env] = wrap,
) -> int:
    """Train a number; ``at_frame`` is called after every step."""
    with bad_input():
        check_common(args)
        run = Run(args, "number", wrap)
        torch.manual_seed(args.seed)
        envs = make_vector_env(run.env_id, args.num_envs, wrap, env_kwargs=args.env_kwargs)
        agent = Number()
        state = TrainingState(
            modules={"agent": agent},
            optimizer=torch.optim.Adam(agent.parameters(), lr=args.learning_rate),
            normalizer=AdaptiveNormalizer(),
            replay=SequenceReplay(
                envs.single_observation_space,
                envs.executed_action_space,
                capacity=args.buffer_size,
                num_envs=args.num_envs,
                seed=args.seed,
            ),
            envs=envs,
            rng=np.random.default_rng(args.seed),
        )
        observation = run.start(state)
    counters = state.counters
    with run:
        run.catch_up(counters, agent)
        while run.goes_on(counters):
            action = random_action(state.rng, envs.action_space)
            observation, reward, terminated, truncated, infos = envs.step(action)
            state.replay.add(
                infos["executed_action"],
                reward,
                terminated,
                truncated,
                observation,
                repeated=infos["repeated"],
                discount=infos.get("discount", np.full(args.num_envs, args.gamma)),
            )
            counters.count(infos["frames"])
            if (done := terminated | truncated).any():
                run.log_episodes(counters.frames, infos)
                observation, _ = envs.reset(options={"reset_mask": done})
                state.replay.start(observation, done)
            for _ in range(counters.due(args.frames_per_iteration)):
                reward = state.replay.sample(args.batch_size).reward[0]
                state.normalizer.update(reward)
                loss = agent.value * (float(state.normalizer.normalize(reward).mean()) + torch.rand(()))
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
                counters.updates += 1
                state.metrics = {"losses/number": loss.detach()}
            if counters.due(5):
                run.log_progress(counters, state.averages())
            if counters.due(args.eval_interval):
                run.evaluate(counters, agent)
            if counters.due(args.checkpoint_interval):
                run.save(state, agent)
            at_frame(counters)
        return run.finish(state, agent)


def record(run_dir: Path) -> tuple[str, list[str]]:
    """What a run leaves behind that must not depend on interruptions: its agent, and its metrics but for the speed."""
    return (run_dir / "agent.safetensors").read_text(), metric_lines(run_dir)


def metric_lines(run_dir: Path) -> list[str]:
    return [line for line in (run_dir / "metrics.csv").read_text().splitlines() if "charts/SPS" not in line]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


plot_curve = run_module.plot_curve
