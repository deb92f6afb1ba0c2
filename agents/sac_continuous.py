"""SAC: Soft Actor-Critic (Haarnoja et al., arXiv:1812.05905) as the TAAC paper uses it, in one readable file.

The backbone that TAAC is built on and compared with: the actor is trained towards high Q values and an entropy that a
temperature holds at its target, the twin critics towards one-step targets that count entropy as reward. There is no
previous action, no switch and no multi-step target; `diff agents/sac_continuous.py agents/taac_continuous.py` shows
where TAAC differs, and nothing else.

    python agents/sac_continuous.py --env-id HalfCheetah-v5
    python agents/sac_continuous.py --env-id FetchPush-v2 --seed 1 --track

Where this differs from the authors' code (all listed in docs/sac.md): random actions before learning starts are
uniform, as TAAC's are; the actor is trained at the states of the sampled transitions, after the critics.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.agent import SACAgent, TwinCritics
from taac_wrappers.agent.operators import continuous_entropy_target
from taac_wrappers.training.batch import Batch
from taac_wrappers.training.envs import make_vector_env
from taac_wrappers.training.finite import CHECK_INTERVAL, require_finite
from taac_wrappers.training.passes import PolicyPass, ValuePass
from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.run import (
    Counters,
    Run,
    TrainingState,
    bad_input,
    check_common,
    command_line,
    pick_device,
)
from taac_wrappers.training.tasks import settings_for
from taac_wrappers.training.weights import adam_step, as_vector

METHOD = "sac"
LOG_INTERVAL = 500  # frames


@dataclass
class Args:
    env_id: str = "MountainCarContinuous-v0"
    """any Gymnasium id with a Box action space; the defaults below are those of the paper for its kind of task"""
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
    window: int = 1
    """N: a target of SAC spans one transition"""
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

    @classmethod
    def for_task(cls, env_id: str) -> Args:
        """The paper's settings for this task, or sensible ones for an environment it did not use."""
        settings = vars(settings_for(env_id)) | {"window": 1}
        return cls(
            env_id=env_id, **{name: value for name, value in settings.items() if name in cls.__dataclass_fields__}
        )


def check(args: Args) -> None:
    check_common(args)
    if args.window != 1:
        raise ValueError(f"--window must be 1, because a target of SAC spans one transition, got {args.window}")


def make_agent(args: Args, observation_space, action_space) -> SACAgent:
    return SACAgent(observation_space, action_space, hidden=args.hidden, log_std_min=args.log_std_min)


# --- Learning: every function below is one block of the paper, and every loss writes its own gradients --------------
# (taac_wrappers/training/passes.py says why, and the tests compare them with torch's).


Decisions = PolicyPass
"""The current policy at some states: a ~ pi(. | s) and its density, [M]."""


def decide(agent: SACAgent, observation: Tensor) -> Decisions:
    """One sample of the current policy at every state."""
    return PolicyPass(agent, observation)


def td_target(args: Args, agent: SACAgent, target_critics: TwinCritics, batch: Batch) -> Tensor:
    """One-step targets, [M]. Entropy is a reward like any other: as in the authors' code, also at the last state."""
    next_observation = batch.state_observation[batch.first :]
    at_next = decide(agent, next_observation)
    entropy_bonus = agent.log_action_temperature.exp() * -at_next.log_prob
    q_new = target_critics.minimum(next_observation, at_next.action)
    goes_on = ~batch.terminated[0]
    return batch.reward[0] + args.gamma * (goes_on * q_new + entropy_bonus)


def critic_loss(agent: SACAgent, batch: Batch, target: Tensor) -> Tensor:
    """Squared TD error of both critics; [M], before the mean."""
    q = ValuePass(agent.critics, batch.observation, batch.action)
    error = q.values - target
    assert error.shape == (2, len(target))
    q.write_gradients(error * (2 / len(target)))
    return error.square().sum(0)


def actor_loss(agent: SACAgent, batch: Batch, at: Decisions) -> Tensor:
    """High values, and an entropy that the temperature weighs; [M], before the mean."""
    temperature = agent.log_action_temperature.exp()
    q_new = ValuePass(agent.critics, batch.observation, at.action)
    loss = temperature * at.log_prob - q_new.minimum
    assert loss.shape == (len(batch.observation),)
    at.write_gradients(action=-q_new.action_gradient() / len(loss), log_prob=(temperature / len(loss)).expand_as(loss))
    return loss


def temperature_loss(agent: SACAgent, entropy: Tensor, entropy_target: float) -> Tensor:
    """The temperature falls while the entropy is above the target and rises while it is below."""
    assert entropy.ndim == 1
    surplus = entropy.mean() - entropy_target
    agent.log_action_temperature.grad = surplus
    return agent.log_action_temperature * surplus


def entropy_targets_of(args: Args, agent: SACAgent) -> float:
    space = agent.action_space
    return continuous_entropy_target(space.low, space.high, args.action_delta)


def draw_windows(args: Args, replay: SequenceReplay) -> Windows:
    return replay.sample(args.batch_size, args.window)


class Learner:
    """The networks' training state, and one update of it."""

    def __init__(self, args: Args, agent: SACAgent):
        self.args, self.agent = args, agent
        self.target_critics = copy.deepcopy(agent.critics).requires_grad_(False)
        self.critic_weights, self.target_weights = as_vector(agent.critics), as_vector(self.target_critics)
        self.policy_weights = [as_vector(agent.actor), *agent.parameters(recurse=False)]  # and the temperatures
        everything = [self.critic_weights, *self.policy_weights]
        self.optimizer = torch.optim.Adam(everything, lr=args.learning_rate, eps=1e-7)
        self.normalizer = None if args.reward_clip is None else AdaptiveNormalizer(clip=args.reward_clip)
        self.entropy_targets = entropy_targets_of(args, agent)

    def sample(self, replay: SequenceReplay) -> Batch:
        windows = draw_windows(self.args, replay)
        reward = windows.reward
        require_finite({"a reward in the replay": reward})
        if self.normalizer is not None:
            self.normalizer.update(reward[0])  # the starts are a uniform sample of the replay, deeper rows are not
            reward = self.normalizer.normalize(reward)
        return Batch(windows, reward, self.agent.device)

    @torch.inference_mode()  # every loss writes its own gradients
    def update(self, batch: Batch, counters: Counters) -> dict[str, Tensor]:
        """One step of everything; what it returns is averaged by whoever looks at it."""
        args, agent = self.args, self.agent
        target = td_target(args, agent, self.target_critics, batch)
        loss_q = critic_loss(agent, batch, target)
        adam_step(self.optimizer, [self.critic_weights])

        # The actor is trained by what the critics have become, where they were just trained (docs/sac.md says why).
        at = decide(agent, batch.observation)
        entropy = -at.log_prob
        loss_pi = actor_loss(agent, batch, at)
        loss_alpha = temperature_loss(agent, entropy, self.entropy_targets)
        adam_step(self.optimizer, self.policy_weights)
        counters.updates += 1
        if counters.updates % args.target_interval == 0:
            self.target_weights.lerp_(self.critic_weights, args.tau)
        return {
            "losses/critic": loss_q,
            "losses/actor": loss_pi,
            "losses/temperature": loss_alpha,
            "losses/q_values": target,
            "losses/action_entropy": entropy,
            "losses/action_temperature": agent.log_action_temperature.exp(),
        }


def act_randomly(rng: np.random.Generator, space: Box, prev_action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Before learning starts: uniform actions."""
    action = rng.uniform(space.low, space.high, prev_action.shape).astype(np.float32)
    return action, np.ones(len(action), bool)


# --- Training --------------------------------------------------------------------------------------------------------


def main(args: Args) -> int:
    """Train; returns the exit code. The run's folder holds everything that came of it."""
    with bad_input():  # nothing is written before all of this has worked
        check(args)
        run = Run(args, METHOD)
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.threads)
        envs = make_vector_env(
            run.env_id,
            args.num_envs,
            engine=args.env_engine,
            on_error=args.on_env_error,
            timeout=args.env_timeout,
            seed=args.seed,
        )
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        assert isinstance(observation_space, Box)
        assert isinstance(action_space, Box)
        agent = make_agent(args, observation_space, action_space).to(pick_device(args.device))
        learner = Learner(args, agent)
        state = TrainingState(
            modules={"agent": agent, "target_critics": learner.target_critics},
            optimizer=learner.optimizer,
            normalizer=learner.normalizer,
            replay=SequenceReplay(
                observation_space, action_space, capacity=args.buffer_size, num_envs=args.num_envs, seed=args.seed
            ),
            envs=envs,
            rng=np.random.default_rng([args.seed, 1]),
            prev_action=agent.initial_action(args.num_envs),
        )
        observation = run.start(state)

    replay, counters = state.replay, state.counters
    with run:
        while run.goes_on(counters):
            # Act for one frame in every environment: at random at first, then by the policy.
            if counters.frames < args.learning_starts:
                action, switch = act_randomly(state.rng, action_space, state.prev_action)
            else:
                action, switch = agent.act(observation, state.prev_action)
            observation, reward, terminated, truncated, infos = envs.step(action)
            replay.add(action, switch, reward, terminated, truncated, observation)
            counters.count(switch)
            state.prev_action = action
            if (done := terminated | truncated | envs.faulty).any():
                run.log_episodes(counters.frames, infos)
                replay.forget(envs.faulty)  # failed in the middle of an episode
                observation, _ = envs.reset(options={"reset_mask": done})
                replay.start(observation, done)
                state.prev_action = np.where(done[:, None], agent.initial_action(args.num_envs), action)

            # Learn: as many updates as these frames call for.
            if counters.frames >= args.learning_starts and not replay.empty:
                for _ in range(counters.due(args.frames_per_iteration) * args.updates_per_iteration):
                    state.metrics = learner.update(learner.sample(replay), counters)
                    if counters.updates % CHECK_INTERVAL == 0:
                        state.check_finite()

            if counters.due(LOG_INTERVAL):
                run.log_progress(counters, state.averages())
            if counters.due(args.eval_interval) and counters.updates:
                run.evaluate(counters, agent.policy())
            if counters.due(args.checkpoint_interval):
                run.save(state, agent)

        return run.finish(state, agent)


if __name__ == "__main__":
    command_line(Args, main)
