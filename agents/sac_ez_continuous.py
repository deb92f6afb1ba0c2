"""SAC-EZ: SAC with temporally extended epsilon-greedy exploration (Dabney et al., arXiv:2006.01782), in one file.

SAC, except that while it collects experience some actions are replaced by a random one that is held for a while: with
probability epsilon a uniform action is drawn and held for n frames, n from a zeta distribution cut at N. Epsilon falls
from 1 to 0.01 over the first tenth of the frames. What is learned, and how, is SAC's, from the actions as they were
executed; evaluation has no exploration. `diff agents/sac_continuous.py agents/sac_ez_continuous.py` shows all of it.

    python agents/sac_ez_continuous.py --env-id MountainCarContinuous-v0

What the paper leaves open (docs/sac_ez.md): epsilon is tested only when no exploratory action is running, as Dabney et
al. do. There is no code of the authors to compare with.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from taac_wrappers import AdaptiveNormalizer, RepeatStatisticsWrapper, ZetaRepeatWrapper
from taac_wrappers.agent import SACAgent, TwinCritics
from taac_wrappers.agent.operators import continuous_entropy_target
from taac_wrappers.training.arguments import bad_input, check_common, command_line, has_accelerator, pick_device
from taac_wrappers.training.batch import Batch
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.envs import make_vector_env, random_action
from taac_wrappers.training.finite import CHECK_INTERVAL, require_finite
from taac_wrappers.training.hindsight import make_replay
from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.run import Run
from taac_wrappers.training.state import TrainingState
from taac_wrappers.training.tasks import SettingsName, settings_by_default, settings_for

METHOD = "sac_ez"
LOG_INTERVAL = 500  # frames


@dataclass
class Args:
    env_id: str = "MountainCarContinuous-v0"
    """any Gymnasium id with Box actions, yours as mymodule:MyEnv-v0; the defaults below are the paper's for its kind"""
    settings: SettingsName = "paper"
    """the paper's defaults, or, where these take days on a CPU, such as learn there within an evening"""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """arguments of the environment as JSON, such as '{"frame_skip": 2}'"""
    seed: int = 0
    """of everything: networks, environments, replay, exploration"""
    total_frames: int = 0
    """frames (inner environment steps, all environments together) to train for"""
    num_envs: int = 1
    """environments stepped together"""
    env_engine: Literal["sync", "async", "envpool"] = "sync"
    """one after the other, each in a worker process, or by envpool (fast; its physics differ from evaluation's)"""
    env_timeout: float = 60.0
    """seconds that an environment of `--env-engine async` may take for one step"""
    on_env_error: Literal["stop", "restart"] = "stop"
    """if an environment fails: save and stop, or replace it and forget its unfinished episode"""
    batch_size: int = 256
    """transitions per update"""
    buffer_size: int = 100_000
    """frames kept in the replay, all environments together"""
    window: int = 3
    """N: the longest time, in frames, that an exploratory action is held"""
    gamma: float = 0.99
    """discount per frame"""
    tau: float = 0.005
    """how far each target update moves the target critics"""
    target_interval: int = 1
    """updates between target updates"""
    learning_rate: float = 1e-4
    """of the one Adam optimizer for everything"""
    learning_starts: int = 10_000
    """frames collected with random actions before the first update"""
    updates_per_iteration: int = 1
    """updates after every `frames-per-iteration` frames"""
    frames_per_iteration: int = 1
    """frames, all environments together, between rounds of updates"""
    hidden: tuple[int, ...] = (256, 256)
    """hidden layers of the actor and of each critic"""
    log_std_min: float = -20.0
    """lower clamp of the actor's log standard deviation"""
    reward_clip: float | None = 5.0
    """rewards are normalized and clipped to +- this; None: used as they are"""
    action_delta: float = 0.1
    """entropy target of the actor: uniform on this fraction of the action range"""
    her: float = 0.0
    """hindsight: share of the sampled windows that get a goal which was achieved later on (goal environments)"""
    eval_interval: int = 2_500
    """frames between evaluations"""
    eval_episodes: int = 10
    """episodes of each evaluation"""
    final_episodes: int = 100
    """episodes of the last evaluation"""
    stop_at_score: float | None = None
    """stop when two evaluations in a row reach this score"""
    checkpoint_interval: int = 10_000
    """frames between checkpoints"""
    run_dir: Path | None = None
    """the run's folder; runs/<env>__<method>__<seed>__<time> if not given"""
    resume: Path | None = None
    """the folder of a run to continue"""
    track: bool = False
    """log to Weights & Biases too (offline if there is no key or network)"""
    wandb_project: str = "taac_wrappers"
    """Weights & Biases project"""
    wandb_entity: str | None = None
    """Weights & Biases entity"""
    capture_video: bool = False
    """film one episode at every evaluation"""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU where there is one"""
    threads: int = 1
    """CPU threads of the learner"""
    compile: bool = False
    """compute gradients through torch.compile: half a minute at the start, then faster (needs a C++ compiler)"""

    @classmethod
    def for_task(cls, env_id: str, settings: SettingsName | None = None) -> Args:
        """The paper's settings for this task, those for a laptop, or sensible ones for another environment."""
        settings = settings or settings_by_default(env_id, has_accelerator())
        values = vars(settings_for(env_id, settings))
        known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        return cls(env_id=env_id, settings=settings, **known)


def check(args: Args) -> None:
    check_common(args)


def wrap(env: gym.Env, args: Args, explore: bool = False) -> gym.Env:
    """The method's environment side: exploration, in training only."""
    if explore:
        frames = max(1, args.total_frames // args.num_envs // 10)
        env = ZetaRepeatWrapper(env, epsilon=(1.0, 0.01, frames), mu=2.0, max_repeat=args.window)
    return RepeatStatisticsWrapper(env)


def make_agent(args: Args, observation_space, action_space) -> SACAgent:
    return SACAgent(observation_space, action_space, hidden=args.hidden, log_std_min=args.log_std_min)


def recorded_space(agent: SACAgent) -> gym.Space:
    return agent.action_box


def recorded_action(agent: SACAgent, observation, action, infos: Mapping[str, Any], is_random: bool):
    """What the replay keeps of an action, beside what followed: what the environment executed."""
    return infos["executed_action"]


# --- Learning: every function below is one block of the paper --------------------------------------------------------


@dataclass
class Decisions:
    """One sample of the current policy at every state."""

    action: Tensor  # [B, A] a ~ pi(. | s)
    log_prob: Tensor  # [B] its log density


def decide(agent: SACAgent, observation: Tensor | Mapping[str, Tensor]) -> Decisions:
    return Decisions(*agent.policy_distribution(observation).sample_with_log_prob())


def td_target(args: Args, agent: SACAgent, target_critics: TwinCritics, batch: Batch) -> Tensor:
    """One-step targets, [M]. Entropy is a reward like any other: as in the authors' code, also at the last state."""
    at = decide(agent, batch.next_observation)
    q_new = target_critics.minimum(batch.next_observation, at.action)
    entropy_bonus = agent.log_action_temperature.exp() * -at.log_prob
    goes_on = ~batch.terminated[0]
    return batch.reward[0] + batch.discount[0] * (goes_on * q_new + entropy_bonus)


def critic_loss(agent: SACAgent, batch: Batch, target: Tensor) -> Tensor:
    """Squared TD error of both critics."""
    q = agent.critics(batch.observation, batch.action)
    assert q.shape == (2, *target.shape)
    return (q - target).square().sum(0).mean()


def actor_loss(agent: SACAgent, batch: Batch, at: Decisions) -> Tensor:
    """High values, and an entropy that the temperature weighs."""
    temperature = agent.log_action_temperature.detach().exp()
    q_new = agent.critics.minimum(batch.observation, at.action)
    assert q_new.shape == at.log_prob.shape
    return (temperature * at.log_prob - q_new).mean()


def temperature_loss(agent: SACAgent, at: Decisions, entropy_target: float) -> Tensor:
    """The temperature falls while the entropy is above the target and rises while it is below."""
    surplus = -at.log_prob.detach().mean() - entropy_target
    return agent.log_action_temperature * surplus


def entropy_targets_of(args: Args, agent: SACAgent) -> float:
    return continuous_entropy_target(agent.action_box.low, agent.action_box.high, args.action_delta)


def figures_of(agent: SACAgent, at: Decisions) -> dict[str, Tensor]:
    """What to log of the policy."""
    return {
        "losses/action_entropy": -at.log_prob,
        "losses/action_temperature": agent.log_action_temperature.exp(),
    }


def draw_windows(args: Args, replay: SequenceReplay) -> Windows:
    return replay.sample(args.batch_size)


def learned_reward(args: Args, normalizer: AdaptiveNormalizer | None, windows: Windows) -> np.ndarray:
    """Rewards as they are learned from, [N, B]."""
    if normalizer is None:
        return windows.reward
    normalizer.update(windows.reward[0])  # the starts are a uniform sample of the replay, deeper rows are not
    return normalizer.normalize(windows.reward)


class Learner:
    """The networks' training state, and one update of it."""

    def __init__(self, args: Args, agent: SACAgent):
        self.args, self.agent = args, agent
        self.target_critics = copy.deepcopy(agent.critics).requires_grad_(False)
        self.policy_parameters = [*agent.actor.parameters(), *agent.parameters(recurse=False)]  # and the temperatures
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-7, fused=True)
        self.normalizer = None if args.reward_clip is None else AdaptiveNormalizer(clip=args.reward_clip)
        self.entropy_targets = entropy_targets_of(args, agent)
        if args.compile:
            from taac_wrappers.training.compilation import compiled

            self.critic_gradients = compiled(self.critic_gradients)  # type: ignore[method-assign]
            self.policy_gradients = compiled(self.policy_gradients)  # type: ignore[method-assign]

    def sample(self, replay: SequenceReplay) -> Batch:
        windows = draw_windows(self.args, replay)
        require_finite({"a reward in the replay": windows.reward})
        return Batch(windows, learned_reward(self.args, self.normalizer, windows), self.agent.device)

    def update(self, batch: Batch, counters: Counters) -> dict[str, Tensor]:
        """One step of everything; what it returns is averaged by whoever looks at it."""
        self.optimizer.zero_grad()
        metrics = self.critic_gradients(batch)
        self.optimizer.step()  # of whatever has a gradient: here the critics, below all others

        # The policy is trained by what the critics have become, where they were just trained (docs/sac.md says why).
        self.optimizer.zero_grad()
        metrics |= self.policy_gradients(batch)
        self.optimizer.step()

        counters.updates += 1
        if counters.updates % self.args.target_interval == 0:
            with torch.no_grad():
                online = self.agent.critics.parameters()
                for target_weight, weight in zip(self.target_critics.parameters(), online, strict=True):
                    target_weight.lerp_(weight, self.args.tau)
        return metrics

    def critic_gradients(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            target = td_target(self.args, self.agent, self.target_critics, batch)
        loss_q = critic_loss(self.agent, batch, target)
        loss_q.backward()
        return {"losses/critic": loss_q.detach(), "losses/q_values": target}

    def policy_gradients(self, batch: Batch) -> dict[str, Tensor]:
        at = decide(self.agent, batch.observation)
        loss_pi = actor_loss(self.agent, batch, at)
        loss_alpha = temperature_loss(self.agent, at, self.entropy_targets)
        (loss_pi + loss_alpha).backward(inputs=self.policy_parameters)  # not those of the critics
        figures = {"losses/actor": loss_pi, "losses/temperature": loss_alpha, **figures_of(self.agent, at)}
        return {name: value.detach() for name, value in figures.items()}


# --- Training --------------------------------------------------------------------------------------------------------


def main(args: Args) -> int:
    """Train; returns the exit code. The run's folder holds everything that came of it."""
    with bad_input():  # nothing is written before all of this has worked
        check(args)
        run = Run(args, METHOD, partial(wrap, args=args))
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.threads)
        envs = make_vector_env(
            run.env_id,
            args.num_envs,
            partial(wrap, args=args, explore=True),
            engine=args.env_engine,
            on_error=args.on_env_error,
            timeout=args.env_timeout,
            seed=args.seed,
            env_kwargs=args.env_kwargs,
        )
        observation_space = envs.single_observation_space
        agent = make_agent(args, observation_space, envs.single_action_space).to(pick_device(args.device))
        learner = Learner(args, agent)
        state = TrainingState(
            modules={"agent": agent, "target_critics": learner.target_critics},
            optimizer=learner.optimizer,
            normalizer=learner.normalizer,
            replay=make_replay(
                observation_space,
                recorded_space(agent),
                hindsight=args.her,
                goal_env=run.make_env,
                capacity=args.buffer_size,
                num_envs=args.num_envs,
                seed=args.seed,
            ),
            envs=envs,
            rng=np.random.default_rng([args.seed, 1]),
        )
        observation = run.start(state)

    replay, counters = state.replay, state.counters
    discount = np.full(args.num_envs, args.gamma)  # unless a wrapper reports that of a decision of several frames
    with run:
        run.catch_up(counters, agent)
        while run.goes_on(counters):
            # Act once in every environment: at random at first, then by the policy.
            is_random = counters.frames < args.learning_starts
            action = random_action(state.rng, envs.action_space) if is_random else agent.act(observation)
            next_observation, reward, terminated, truncated, infos = envs.step(action)
            replay.add(
                recorded_action(agent, observation, action, infos, is_random),
                reward,
                terminated,
                truncated,
                next_observation,
                repeated=infos["repeated"],
                discount=infos.get("discount", discount),
            )
            observation = next_observation
            counters.count(infos["frames"])
            if (done := terminated | truncated | envs.faulty).any():
                run.log_episodes(counters.frames, infos)
                replay.forget(envs.faulty)  # failed in the middle of an episode
                observation, _ = envs.reset(options={"reset_mask": done})
                replay.start(observation, done)

            # Learn: as many updates as these frames call for.
            if counters.frames >= args.learning_starts and not replay.empty:
                for _ in range(counters.due(args.frames_per_iteration) * args.updates_per_iteration):
                    state.metrics = learner.update(learner.sample(replay), counters)
                    if counters.updates % CHECK_INTERVAL == 0:
                        state.check_finite()

            if counters.due(LOG_INTERVAL):
                run.log_progress(counters, state.averages())
            if counters.due(args.eval_interval) and counters.updates:
                run.evaluate(counters, agent)
            if counters.due(args.checkpoint_interval):
                run.save(state, agent)

        return run.finish(state, agent)


if __name__ == "__main__":
    command_line(Args, main)
