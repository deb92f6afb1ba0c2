"""A small learner of any script, with windows to learn from that have seen everything a replay can hold."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import sac_continuous
import sac_ez_continuous
import sac_hybrid_continuous
import sac_krep_continuous
import sac_nrep_continuous
import sac_ntd_continuous
import taac_continuous
import torch
from slow_agents import ACTIONS, MAX_REPEAT, inputs, make_agent, observed, slow_actor, spaces_of

from taac_wrappers.agent import KRepAgent
from taac_wrappers.agent.repeating import RepeatingAgent
from taac_wrappers.training.batch import Batch
from taac_wrappers.training.replay import SequenceReplay, Windows
from taac_wrappers.training.structure import mapped

GAMMA = 0.99
SCRIPTS = {
    "taac": taac_continuous,
    "sac": sac_continuous,
    "sac_ntd": sac_ntd_continuous,
    "sac_nrep": sac_nrep_continuous,
    "sac_krep": sac_krep_continuous,
    "sac_ez": sac_ez_continuous,
    "sac_hybrid": sac_hybrid_continuous,
}
AGENTS = {name: get_type_hints(script.make_agent)["return"] for name, script in SCRIPTS.items()}


class Scene(NamedTuple):
    """A learner, and one sample of its replay in both forms."""

    learner: Any
    windows: Windows
    batch: Batch


def filled_replay(script: ModuleType, behaviour: Any = None) -> SequenceReplay:
    """Two environments whose short episodes begin, repeat, terminate and are cut off; half of the frames repeat.

    Some decisions take several frames: what follows them counts less. Scripts that record how likely an action was are
    told that ``behaviour`` chose it; if not given, another agent than the learner's, after some random frames.
    """
    rng, durations = np.random.default_rng(0), np.random.default_rng(1)
    kind = AGENTS[script.METHOD]
    random_frames = 0 if behaviour else 20
    behaviour = behaviour or make_agent(kind, seed=31)
    replay = SequenceReplay(spaces_of(kind)[0], script.recorded_space(behaviour), capacity=200, num_envs=2, seed=0)
    initial = np.clip(np.zeros((2, 2), np.float32), ACTIONS.low, ACTIONS.high)
    if not issubclass(kind, RepeatingAgent):  # nothing repeats an initial action, on a bound, that was never chosen
        initial = np.tile((ACTIONS.low + ACTIONS.high) / 2, (2, 1))
    action = initial
    at = observed(kind, inputs(2)[0], initial)
    replay.start(at)
    for step in range(90):
        observation, candidate = inputs(2, seed=step)
        repeated = rng.random(2) < 0.5
        action = np.where(repeated[:, None], action, candidate)
        terminated, truncated = rng.random(2) < 0.1, rng.random(2) < 0.1
        answer: Any = action
        if issubclass(kind, RepeatingAgent):
            answer = {"action": candidate, "switch": (~repeated).astype(np.int64)}
        elif kind is KRepAgent:
            answer = {"action": action, "repeat": durations.integers(1, MAX_REPEAT + 1, 2)}
        following = observed(kind, observation, action)
        replay.add(
            script.recorded_action(behaviour, at, answer, {"executed_action": action}, is_random=step < random_frames),
            rng.normal(size=2),
            terminated,
            truncated,
            following,
            repeated=repeated,
            discount=np.where(rng.random(2) < 0.2, GAMMA**3, GAMMA),
        )
        at = following
        if (ended := terminated | truncated).any():
            action = np.where(ended[:, None], initial, action)
            first = observed(kind, inputs(2, seed=1000 + step)[0], action)
            replay.start(first, ended)
            at = mapped(lambda new, old: np.where(ended[:, None], new, old), first, following)
    return replay


def small_scene(
    script: ModuleType,
    *,
    double: bool = False,
    on_policy: bool = False,
    hidden: tuple[int, ...] = (8, 8),
    **changes: Any,
) -> Scene:
    """With ``double``, networks and floating tensors are float64, precise enough for differences.

    With ``on_policy``, the learner's agent is the one that chose what is recorded.
    """
    clip_advantage = {"min_advantage": 0.0} if changes.get("clip_advantage") else {}
    agent = make_agent(AGENTS[script.METHOD], hidden=hidden, **clip_advantage)
    replay = filled_replay(script, agent if on_policy else None)
    settings = {"batch_size": 32, "hidden": hidden, "reward_clip": None, "learning_rate": 1e-3, **changes}
    learner = script.Learner(script.Args(**settings), agent.double() if double else agent)
    torch.manual_seed(3)
    for parameter in learner.target_critics.parameters():
        parameter += 0.1 * torch.randn_like(parameter)  # or nobody would see which critics were asked
    windows = script.draw_windows(learner.args, replay)
    batch = Batch(windows, windows.reward, torch.device("cpu"))
    if double:
        for name, value in vars(batch).items():
            setattr(batch, name, mapped(lambda part: part.double() if part.is_floating_point() else part, value))
    return Scene(learner, windows, batch)


def own_parameters(agent: Any) -> dict[str, list[torch.Tensor]]:
    """What each loss trains."""
    return {
        "critics": list(agent.critics.parameters()),
        "actor": list(agent.actor.parameters()),
        "temperatures": list(agent.parameters(recurse=False)),
    }


def gradients_of(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """None where the loss does not depend on a parameter."""
    return torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)


def noise_of(candidate: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """The standard normal noise that a candidate action was made of."""
    center, scale = (torch.from_numpy(ACTIONS.high + sign * ACTIONS.low).double() / 2 for sign in (1, -1))
    return ((torch.atanh((candidate - center) / scale) - mean) / log_std.exp()).detach()


def squashed(mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The action that the noise becomes, and its log density by the change of variables."""
    raw = mean + log_std.exp() * noise
    center, scale = (torch.from_numpy(ACTIONS.high + sign * ACTIONS.low).double() / 2 for sign in (1, -1))
    normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
    log_prob = (normal - torch.log(scale * (1 - torch.tanh(raw) ** 2))).sum(-1)
    return center + scale * torch.tanh(raw), log_prob


def slow_log_prob(agent: Any, observation: np.ndarray, prev_action: np.ndarray, action: np.ndarray) -> float:
    """Log density of one action in one state."""
    mean, std = slow_actor(agent, observation, prev_action)
    center, scale = (ACTIONS.high + ACTIONS.low) / 2.0, (ACTIONS.high - ACTIONS.low) / 2.0
    raw = np.arctanh((action - center) / scale)
    normal = -0.5 * ((raw - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return (normal - np.log(scale * (1 - np.tanh(raw) ** 2))).sum().item()


def assert_mean(samples: torch.Tensor, expected: torch.Tensor) -> None:
    """The mean of many samples ``[S, ...]`` is what is expected, as far as their number can tell."""
    error = samples.std(0) / len(samples) ** 0.5
    assert (error > 0).any()
    assert ((samples.mean(0) - expected).abs() <= 5 * error + 1e-9).all()


def assert_standard_normal(noise: torch.Tensor) -> None:
    assert noise.numel() > 100
    assert noise.unique().numel() == noise.numel()
    assert abs(noise.mean().item()) < 3.5 / noise.numel() ** 0.5
    assert 0.8 < noise.std().item() < 1.2


def slope(objective, parameter: torch.Tensor, direction: torch.Tensor, step: float = 1e-6) -> float:
    """The objective's derivative along one direction of one parameter, by central differences."""
    sides = []
    for shift in (step, -step):
        parameter += shift * direction
        sides.append(objective().item())
        parameter -= shift * direction
    return (sides[0] - sides[1]) / (2 * step)


def assert_ascends(objective, parameters: list[torch.Tensor], gradients: tuple[torch.Tensor, ...]) -> None:
    """The gradients of a loss are those of ``objective``, with the other sign."""
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            direction = torch.randn_like(parameter)
            derivative = slope(objective, parameter, direction)
            assert abs(derivative) > 1e-5
            assert abs(derivative + (gradient * direction).sum().item()) < 1e-7
