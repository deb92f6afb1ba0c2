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
from taac_wrappers.training.envs import make_vector_env
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
    """the run's folder; runs/<env>__taac__<seed>__<time> if not given"""
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


# --- Learning: every function below is one block of the paper -------------------------------------------------------


@dataclass
class Decisions:
    """Both stages of the current policy at states where it acts: one sample of a_hat serves every loss."""

    candidate: Tensor  # [S, A] a_hat ~ pi(. | s, a_prev)
    log_prob: Tensor  # [S] log pi(a_hat | s, a_prev)
    q_new: Tensor  # [S] Q(s, a_hat), twin minimum of the online critics; has a gradient to the actor
    beta: Tensor  # [S] probability beta*_1 of executing a_hat, Eq. 13; no gradient


def decide(agent: TAACAgent, observation: Tensor, prev_action: Tensor) -> Decisions:
    candidate, log_prob = agent.policy_distribution(observation, prev_action).sample_with_log_prob()
    q_new = agent.critics.minimum(observation, candidate)
    with torch.no_grad():
        q_repeat = agent.critics.minimum(observation, prev_action)
    return Decisions(candidate, log_prob, q_new, agent.switch_probability(q_repeat, q_new))


@torch.no_grad()
def td_target(args: Args, agent: TAACAgent, target_critics: TwinCritics, batch: Batch, at_trained: Decisions) -> Tensor:
    """Targets of the trained transitions, [M].

    The policy's decisions are needed at the next state of every transition in a window. Those next to trained
    transitions are known already (`at_trained`); what is left are the states deeper in a window, where the behaviour
    repeated.
    """
    trained = len(batch.action)
    decisions = [at_trained]
    if len(batch.node_observation) > trained:
        decisions.append(decide(agent, batch.node_observation[trained:], batch.node_action[trained:]))
    candidate = torch.cat([d.candidate for d in decisions])
    beta = torch.cat([d.beta for d in decisions])
    # beta is the online policy's, but the values it chooses between are the target critics' (Eq. 3).
    q_new = target_critics.minimum(batch.node_observation, candidate)
    q_repeat = torch.zeros_like(q_new)
    if args.td_operator == "n-step" or args.td_mode == "alf":  # mixes both values at every state
        q_repeat = target_critics.minimum(batch.node_observation, batch.node_action)
    else:  # where the behaviour repeated, the recorded future stands in for the value of repeating
        stops = batch.stop_nodes
        q_repeat[stops] = target_critics.minimum(batch.node_observation[stops], batch.node_action[stops])

    beta, q_repeat, q_new = to_rows(torch.stack([beta, q_repeat, q_new]), batch)
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
    return target.view(-1)[batch.node_index[:trained]]


def to_rows(nodes: Tensor, batch: Batch) -> Tensor:
    """Spread values per node, [k, nodes], over time-major rows, [k, N, B]; zero where a window has no transition."""
    rows = nodes.new_zeros(len(nodes), batch.reward.numel())
    return rows.index_copy_(1, batch.node_index, nodes).view(len(nodes), *batch.reward.shape)


def critic_loss(agent: TAACAgent, batch: Batch, target: Tensor) -> Tensor:
    """Squared TD error of both critics, Eq. 3 with the target of Eq. 4."""
    q = agent.critics(batch.observation, batch.action)
    assert q.shape == (2, len(target))
    return (q - target).square().sum(0).mean()


def actor_loss(agent: TAACAgent, at: Decisions, acting: Tensor) -> Tensor:
    """Eq. 7: SAC's loss, except that Q counts only as often as the switch lets the new action through."""
    temperature = agent.log_action_temperature.detach().exp()
    loss = temperature * at.log_prob - at.beta * at.q_new
    assert loss.shape == acting.shape
    return (loss * acting).mean()


def temperature_loss(agent: TAACAgent, at: Decisions, acting: Tensor, entropy_targets: tuple[float, float]) -> Tensor:
    """Eq. 8: each temperature falls while its entropy is above the target and rises while it is below."""
    switch_target, action_target = entropy_targets
    switch_surplus = ((binary_entropy(at.beta) - switch_target) * acting).mean()
    action_surplus = ((-at.log_prob.detach() - action_target) * acting).mean()
    return agent.log_switch_temperature * switch_surplus + agent.log_action_temperature * action_surplus


class Batch:
    """A replay sample as tensors. `acting_*` are the states the actor is trained at.

    These are the next states of the trained transitions, where a forward pass serves the target as well, except those
    at which an episode was over; and the first states of episodes, which are nobody's next state. So every state at
    which somebody acted counts once.
    """

    def __init__(self, windows: Windows, reward: np.ndarray, device: torch.device):
        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.observation, self.action = tensor(windows.observation), tensor(windows.action)  # [M, ...]
        self.reward = tensor(reward)  # [N, B], normalized
        self.terminated, self.truncated = tensor(windows.terminated), tensor(windows.truncated)
        self.repeated = tensor(windows.repeated)
        self.goes_on = tensor(np.concatenate([windows.valid[1:], windows.valid[:1]]))  # row k + 1 belongs to the window
        self.node_index = tensor(windows.node_index)
        self.stop_nodes = tensor(np.flatnonzero(~windows.repeated.reshape(-1)[windows.node_index]))
        self.node_observation, self.node_action = tensor(windows.node_observation), tensor(windows.node_action)
        trained, first = len(windows.action), np.flatnonzero(windows.first)
        self.acting_observation = torch.cat([self.node_observation[:trained], tensor(windows.observation[first])])
        self.acting_prev_action = torch.cat([self.node_action[:trained], tensor(windows.prev_action[first])])
        acting = np.concatenate([~windows.node_ended[:trained], np.ones(len(first), bool)])
        self.acting = tensor(acting.astype(np.float32))


class Learner:
    """The networks' training state, and one update of it."""

    def __init__(self, args: Args, agent: TAACAgent):
        self.args, self.agent = args, agent
        self.target_critics = copy.deepcopy(agent.critics).requires_grad_(False)
        self.critic_parameters: list[Tensor] = list(agent.critics.parameters())
        self.target_parameters: list[Tensor] = list(self.target_critics.parameters())
        temperatures = [agent.log_switch_temperature, agent.log_action_temperature]
        self.policy_parameters: list[Tensor] = [*agent.actor.parameters(), *temperatures]
        self.optimizer = torch.optim.Adam(
            self.critic_parameters + self.policy_parameters, lr=args.learning_rate, eps=1e-7, fused=True
        )
        self.normalizer = None if args.reward_clip is None else AdaptiveNormalizer(clip=args.reward_clip)
        self.entropy_targets = (
            discrete_entropy_target(2, args.switch_delta),
            continuous_entropy_target(agent.action_space.low, agent.action_space.high, args.action_delta),
        )

    def sample(self, replay: SequenceReplay) -> Batch:
        args = self.args
        window = 1 if args.td_operator == "one-step" else args.window
        follow: Literal["repeats", "episode"] = (
            "repeats" if args.td_operator == "compare-through" and args.train_on == "first" else "episode"
        )
        windows = replay.sample(args.batch_size, window, follow=follow, train_on=args.train_on)
        reward = windows.reward
        if self.normalizer is not None:
            self.normalizer.update(reward[0])  # the starts are a uniform sample of the replay, deeper rows are not
            reward = self.normalizer.normalize(reward)
        return Batch(windows, reward, self.agent.device)

    def update(self, batch: Batch, counters: Counters) -> dict[str, Tensor]:
        args, agent = self.args, self.agent
        at = decide(agent, batch.acting_observation, batch.acting_prev_action)
        trained = len(batch.action)
        at_trained = Decisions(at.candidate[:trained], at.log_prob[:trained], at.q_new[:trained], at.beta[:trained])
        target = td_target(args, agent, self.target_critics, batch, at_trained)

        loss_q = critic_loss(agent, batch, target)
        loss_pi = actor_loss(agent, at, batch.acting)
        loss_alpha = temperature_loss(agent, at, batch.acting, self.entropy_targets)
        self.optimizer.zero_grad()
        loss_q.backward(inputs=self.critic_parameters)
        (loss_pi + loss_alpha).backward(inputs=self.policy_parameters)  # through the critics, not into them
        self.optimizer.step()
        with torch.no_grad():
            agent.log_switch_temperature.clamp_(min=math.log(MIN_SWITCH_TEMPERATURE))
        counters.updates += 1
        if counters.updates % args.target_interval == 0:
            torch._foreach_lerp_(self.target_parameters, self.critic_parameters, args.tau)
        return {
            "losses/critic": loss_q.detach(),
            "losses/actor": loss_pi.detach(),
            "losses/temperature": loss_alpha.detach(),
            "losses/q_values": target.mean(),
            "losses/switch_probability": at.beta.mean(),
            "losses/switch_entropy": binary_entropy(at.beta).mean(),
            "losses/action_entropy": -at.log_prob.detach().mean(),
            "losses/switch_temperature": agent.log_switch_temperature.detach().exp(),
            "losses/action_temperature": agent.log_action_temperature.detach().exp(),
        }


# --- Training --------------------------------------------------------------------------------------------------------


def main(args: Args) -> int:
    """Train; returns the exit code. The run's folder holds everything that came of it."""
    with bad_input():  # nothing is written before all of this has worked
        check(args)
        run = Run(args, METHOD)
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.threads)
        envs = make_vector_env(run.env_id, args.num_envs)
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
            # Act for one frame in every environment: at random at first, then by both stages of the policy.
            if counters.frames < args.learning_starts:
                switch = state.rng.random(args.num_envs) < 0.5
                candidate = state.rng.uniform(action_space.low, action_space.high, state.prev_action.shape)
                action = np.where(switch[:, None], candidate, state.prev_action).astype(np.float32)
            else:
                action, switch = agent.act(observation, state.prev_action)
            observation, reward, terminated, truncated, infos = envs.step(action)
            replay.add(action, switch, reward, terminated, truncated, observation)
            counters.count(switch)
            state.prev_action = action
            if (done := terminated | truncated).any():
                run.log_episodes(counters.frames, infos)
                observation, _ = envs.reset(options={"reset_mask": done})
                replay.start(observation, done)
                state.prev_action = np.where(done[:, None], agent.initial_action(args.num_envs), action)

            # Learn: as many updates as these frames call for.
            if counters.frames >= args.learning_starts:
                for _ in range(counters.due(args.frames_per_iteration) * args.updates_per_iteration):
                    state.metrics = learner.update(learner.sample(replay), counters)

            if counters.due(LOG_INTERVAL):
                run.log_progress(counters, state.metrics)
            if counters.due(args.eval_interval) and counters.updates:
                run.evaluate(counters, agent.policy())
            if counters.due(args.checkpoint_interval):
                run.save(state, agent)

        return run.finish(state, agent)


if __name__ == "__main__":
    command_line(Args, main)
