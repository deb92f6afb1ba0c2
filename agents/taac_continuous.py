"""TAAC: Temporally Abstract Actor-Critic (Yu, Xu, Zhang, NeurIPS 2021, arXiv:2104.06521), in one readable file.

At every frame the actor proposes a new action a_hat, and a switch decides between it and the previous action a_prev
by comparing their Q values (Eq. 2). Repeating on and on is temporal abstraction; deciding anew at every frame keeps
the loop closed. Policy evaluation follows recorded repetitions through several frames (compare-through, Eq. 4),
policy improvement is SAC's with a factor beta (Eq. 7), and two temperatures hold the two entropies at their targets
(Eq. 8).

    python agents/taac_continuous.py --env-id MountainCarContinuous-v0
    python agents/taac_continuous.py --env-id FetchPush-v2 --seed 1 --track

Where this differs from the authors' code (all listed in docs/taac.md): the target is the exact expectation over the
policy's coin, which is unbiased (theirs is `--td-mode alf`); by default only the first transition of each window is
trained on (theirs is `--train-on all`); the switch temperature has a floor.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from taac_wrappers import AdaptiveNormalizer
from taac_wrappers.agent import TAACAgent, TwinCritics
from taac_wrappers.agent.operators import (
    TDMode,
    binary_entropy,
    compare_through,
    continuous_entropy_target,
    discrete_entropy_target,
    n_step,
)
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

METHOD = "taac"
MIN_SWITCH_TEMPERATURE = 1e-4
"""With clipped advantages the switch's entropy can stay above its target for good, and alpha' would fall to 0."""
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
    """windows per update"""
    buffer_size: int = 100_000
    """frames kept in the replay, all environments together"""
    window: int = 3
    """N: the most transitions that one target may span"""
    gamma: float = 0.99
    """discount per frame"""
    tau: float = 0.005
    """how far each target update moves the target critics"""
    target_interval: int = 1
    """updates between target updates"""
    learning_rate: float = 1e-4
    """of the one Adam optimizer for everything"""
    learning_starts: int = 10_000
    """frames collected with random actions and switches before the first update"""
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
    switch_delta: float = 0.05
    """entropy target of the switch: this much probability for its less likely choice"""
    clip_advantage: bool = False
    """clip Q(s, a_hat) - Q(s, a_prev) to at least 0 in the switch, as the paper does in Locomotion"""
    td_operator: Literal["compare-through", "one-step", "n-step"] = "compare-through"
    """TAAC, TAAC-1td or TAAC-Ntd"""
    td_mode: TDMode = "expected"
    """compare-through by its exact expectation, by the paper's sampled estimate, or as in the authors' code (biased)"""
    train_on: Literal["first", "all"] = "first"
    """train on the first transition of every window, or on all of them as the authors' code does"""
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
        settings = vars(settings_for(env_id))
        return cls(
            env_id=env_id, **{name: value for name, value in settings.items() if name in cls.__dataclass_fields__}
        )


def check(args: Args) -> None:
    check_common(args)
    if args.td_operator != "compare-through" and args.td_mode != "expected":
        raise ValueError(f"--td-mode {args.td_mode} belongs to --td-operator compare-through, got {args.td_operator}")


def make_agent(args: Args, observation_space, action_space) -> TAACAgent:
    return TAACAgent(
        observation_space,
        action_space,
        hidden=args.hidden,
        log_std_min=args.log_std_min,
        min_advantage=0.0 if args.clip_advantage else None,
    )


# --- Learning: every function below is one block of the paper, and every loss writes its own gradients --------------
# (taac_wrappers/training/passes.py says why, and the tests compare them with torch's).


@dataclass
class Decisions:
    """Both stages of the current policy: one sample of a_hat at a state serves every loss."""

    candidate: PolicyPass  # [F + M + D] a_hat ~ pi(. | s, a_prev); where the actor is trained, its density
    q_new: ValuePass  # [F + M] Q(s, a_hat), where the actor is trained
    beta: Tensor  # [F + M + D] probability beta*_1 of executing a_hat, Eq. 13


def decide(agent: TAACAgent, batch: Batch) -> Decisions:
    """What the current policy would do at the batch's states."""
    observation, prev_action, acting = batch.state_observation, batch.state_prev_action, batch.acting
    candidate = PolicyPass(agent, observation, prev_action, trained=acting)
    q_new = ValuePass(agent.critics, observation[:acting], candidate.action[:acting])
    # All values that the actor is not trained by in one call: Q(s, a_prev), and Q(s, a_hat) at the deeper states.
    q_repeat, q_new_deeper = agent.critics.minimum(
        torch.cat([observation, observation[acting:]]), torch.cat([prev_action, candidate.action[acting:]])
    ).tensor_split([len(observation)])
    beta = agent.switch_probability(q_repeat, torch.cat([q_new.minimum, q_new_deeper]))
    return Decisions(candidate, q_new, beta)


def td_target(args: Args, target_critics: TwinCritics, batch: Batch, at: Decisions) -> Tensor:
    """Targets of the trained transitions, [M]: compare-through (Eq. 4), or the operator it is compared with."""
    observation, prev_action, candidate, beta = (
        values[batch.first :]
        for values in (batch.state_observation, batch.state_prev_action, at.candidate.action, at.beta)
    )
    # Where the behaviour repeated, the recorded future stands in for the value of repeating, unless all is mixed.
    mixes = args.td_operator == "n-step" or args.td_mode == "alf"
    stops = torch.arange(batch.nodes, device=observation.device) if mixes else batch.stops
    stop_of = batch.nodes + batch.node_of if mixes else batch.stop_of
    # beta is the online policy's, but the values it chooses between are the target critics' (Eq. 3).
    q = target_critics.minimum(
        torch.cat([observation, observation.index_select(0, stops)]),
        torch.cat([candidate, prev_action.index_select(0, stops)]),
    )
    beta, q_new = batch.to_rows(beta, batch.node_of), batch.to_rows(q, batch.node_of)
    q_repeat = batch.to_rows(q, stop_of)
    if args.td_operator == "n-step":
        window_ends = batch.truncated | ~batch.goes_on
        target = n_step(batch.reward, batch.terminated, window_ends, beta * q_new + (1 - beta) * q_repeat, args.gamma)
    else:  # one-step is compare-through with windows of one transition
        target = compare_through(
            batch.reward,
            batch.terminated,
            batch.truncated,
            batch.repeated,
            beta,
            q_repeat,
            q_new,
            args.gamma,
            args.td_mode,
        )
    return batch.of_trained(target)


def critic_loss(agent: TAACAgent, batch: Batch, target: Tensor) -> Tensor:
    """Squared TD error of both critics, Eq. 3 with the target of Eq. 4; [M], before the mean."""
    q = ValuePass(agent.critics, batch.observation, batch.action)
    error = q.values - target
    assert error.shape == (2, len(target))
    q.write_gradients(error * (2 / len(target)))
    return error.square().sum(0)


def actor_loss(agent: TAACAgent, batch: Batch, at: Decisions) -> Tensor:
    """Eq. 7: SAC's loss, except that Q counts only as often as the switch lets the new action through."""
    temperature, beta = agent.log_action_temperature.exp(), at.beta[: batch.acting]
    loss = temperature * at.candidate.log_prob - beta * at.q_new.minimum
    assert loss.shape == batch.acting_weight.shape
    share = batch.acting_share  # of each state in the mean
    at.candidate.write_gradients(
        action=(-share * beta).unsqueeze(1) * at.q_new.action_gradient(), log_prob=share * temperature
    )
    return batch.acting_weight * loss


def temperature_loss(agent: TAACAgent, batch: Batch, entropies: Tensor, entropy_targets: Tensor) -> Tensor:
    """Eq. 8: each temperature falls while its entropy is above the target and rises while it is below."""
    assert entropies.shape == (2, *batch.acting_share.shape)
    switch_surplus, action_surplus = (entropies - entropy_targets) @ batch.acting_share
    agent.log_switch_temperature.grad, agent.log_action_temperature.grad = switch_surplus, action_surplus
    return agent.log_switch_temperature * switch_surplus + agent.log_action_temperature * action_surplus


def entropy_targets_of(args: Args, agent: TAACAgent) -> Tensor:
    """Of the switch and of the action, [2, 1]."""
    space = agent.action_space
    targets = (
        discrete_entropy_target(2, args.switch_delta),
        continuous_entropy_target(space.low, space.high, args.action_delta),
    )
    return torch.tensor(targets, device=agent.device).unsqueeze(1)


def draw_windows(args: Args, replay: SequenceReplay) -> Windows:
    """Compare-through needs what follows a transition only while the behaviour repeated its action."""
    window = 1 if args.td_operator == "one-step" else args.window
    repeats_suffice = args.td_operator == "compare-through" and args.train_on == "first"
    follow: Literal["repeats", "episode"] = "repeats" if repeats_suffice else "episode"
    return replay.sample(args.batch_size, window, follow=follow, train_on=args.train_on)


class Learner:
    """The networks' training state, and one update of it."""

    def __init__(self, args: Args, agent: TAACAgent):
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
        at = decide(agent, batch)
        target = td_target(args, self.target_critics, batch, at)
        entropies = torch.stack([binary_entropy(at.beta[: batch.acting]), -at.candidate.log_prob])
        loss_q = critic_loss(agent, batch, target)
        loss_pi = actor_loss(agent, batch, at)
        loss_alpha = temperature_loss(agent, batch, entropies, self.entropy_targets)

        adam_step(self.optimizer, [self.critic_weights, *self.policy_weights])
        agent.log_switch_temperature.clamp_(min=math.log(MIN_SWITCH_TEMPERATURE))
        counters.updates += 1
        if counters.updates % args.target_interval == 0:
            self.target_weights.lerp_(self.critic_weights, args.tau)
        return {
            "losses/critic": loss_q,
            "losses/actor": loss_pi,
            "losses/temperature": loss_alpha,
            "losses/q_values": target,
            "losses/switch_probability": at.beta[: batch.acting],
            "losses/switch_entropy": entropies[0],
            "losses/action_entropy": entropies[1],
            "losses/switch_temperature": agent.log_switch_temperature.exp(),
            "losses/action_temperature": agent.log_action_temperature.exp(),
        }


def act_randomly(rng: np.random.Generator, space: Box, prev_action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Before learning starts: a fair coin decides between a uniform action and the previous one."""
    switch = rng.random(len(prev_action)) < 0.5
    candidate = rng.uniform(space.low, space.high, prev_action.shape)
    return np.where(switch[:, None], candidate, prev_action).astype(np.float32), switch


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
