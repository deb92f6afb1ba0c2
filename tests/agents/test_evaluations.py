"""How often an update runs each network, and over how many rows: more than these would be waste that no test sees."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import sac_continuous
import taac_continuous
import torch
from gymnasium.spaces import Box
from slow_agents import observed, spaces_of

from taac_wrappers.agent import SACAgent, TAACAgent
from taac_wrappers.training.counters import Counters
from taac_wrappers.training.replay import SequenceReplay

OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,))
TWINS = 2  # every critic is a network of its own
SCRIPTS = {"taac": taac_continuous, "sac": sac_continuous}
AGENTS = {"taac": TAACAgent, "sac": SACAgent}


@dataclass(frozen=True, order=True)
class Call:
    """One way through a network."""

    network: str
    rows: int
    way: str  # "forward"; or "pass", a forward that remembers what the way back needs


def networks_of(learner) -> dict[str, list[torch.nn.Module]]:
    return {
        "actor": [learner.agent.actor],
        "critics": list(learner.agent.critics.twins),
        "target critics": list(learner.target_critics.twins),
    }


@contextlib.contextmanager
def calls_of(learner) -> Iterator[list[Call]]:
    """Record every use of the learner's networks."""
    calls: list[Call] = []

    def hook(name: str):
        def record(network, inputs, output):
            values = output if isinstance(output, torch.Tensor) else output[0]
            calls.append(Call(name, len(values), "pass" if values.requires_grad else "forward"))

        return record

    with contextlib.ExitStack() as stack:
        for name, members in networks_of(learner).items():
            for member in members:
                stack.callback(member.register_forward_hook(hook(name)).remove)
        yield calls


@contextlib.contextmanager
def gradients_of(learner) -> Iterator[Counter[str]]:
    """Count how often the gradient of every weight is computed."""
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for name, parameter in learner.agent.named_parameters():
            stack.callback(parameter.register_hook(lambda _, name=name: counts.update([name])).remove)
        yield counts


def recorded_replay(method: str, repetition: float = 0.5) -> SequenceReplay:
    """Episodes of 7 frames in which about half of the actions repeat; some end, some are cut."""
    rng = np.random.default_rng(0)
    kind = AGENTS[method]
    space = spaces_of(kind, OBSERVATIONS, ACTIONS)[0]
    replay = SequenceReplay(space, ACTIONS, capacity=400, num_envs=1, seed=0)
    for episode in range(40):
        action = np.zeros((1, 2))
        replay.start(observed(kind, rng.normal(size=(1, 3)), action))
        for frame in range(7):
            last = np.array([frame == 6])
            terminated, truncated = last & (episode % 2 == 0), last & (episode % 2 == 1)
            repeated = rng.random(1) < repetition
            action = action if repeated.item() else rng.uniform(-1, 1, (1, 2))
            replay.add(
                action,
                rng.normal(size=1),
                terminated,
                truncated,
                observed(kind, rng.normal(size=(1, 3)), action),
                repeated=repeated,
                discount=np.array([0.99]),
            )
    return replay


def made(method: str, **changes):
    script = SCRIPTS[method]
    args = replace(script.Args.for_task("HalfCheetah-v5"), batch_size=64, hidden=(8, 8), **changes)
    return script.Learner(args, script.make_agent(args, *spaces_of(AGENTS[method], OBSERVATIONS, ACTIONS)))


def test_sac_runs_each_network_once_per_use():
    learner = made("sac")
    batch = learner.sample(recorded_replay("sac"))
    trained = 64
    with calls_of(learner) as calls:
        learner.update(batch, Counters())
    assert sorted(calls) == sorted(
        [
            Call("actor", trained, "forward"),  # at the next states, for the target
            *TWINS * [Call("target critics", trained, "forward")],
            *TWINS * [Call("critics", trained, "pass")],  # at (s, a)
            Call("actor", trained, "pass"),
            *TWINS * [Call("critics", trained, "pass")],  # at (s, a_new)
        ]
    )


@pytest.mark.parametrize("window", [1, 3, 10])
def test_taac_adds_rows_only_where_the_behaviour_repeated(window):
    learner, replay = made("taac", window=window), recorded_replay("taac")
    # The sample that follows is the same one.
    windows = taac_continuous.draw_windows(learner.args, recorded_replay("taac"))
    batch = learner.sample(replay)
    # M transitions are trained on, whose next states are visited, and so are those that lie deeper in a window.
    trained, deeper = 64, int(windows.valid[1:].sum())
    assert deeper == int(windows.repeated.sum())
    assert (deeper > 0) == (window > 1)
    following = trained + deeper
    with calls_of(learner) as calls:
        learner.update(batch, Counters())
    assert sorted(calls) == sorted(
        [
            Call("actor", following, "forward"),
            *TWINS * [Call("critics", following, "forward")],  # Q(s', a_hat) and
            *TWINS * [Call("critics", following, "forward")],  # Q(s', a_prev), for beta
            *TWINS * [Call("target critics", following, "forward")],  # the values it chooses between
            *TWINS * [Call("target critics", following, "forward")],
            *TWINS * [Call("critics", trained, "pass")],  # at (s, a)
            Call("actor", trained, "pass"),
            *TWINS * [Call("critics", trained, "pass")],  # at (s, a_hat)
            *TWINS * [Call("critics", trained, "forward")],  # at (s, a_prev), for beta
        ]
    )


@pytest.mark.parametrize("method", SCRIPTS)
def test_every_gradient_is_computed_once(method):
    """On the way back from the actor's loss, critics are passed, but their own gradients are nobody's."""
    learner = made(method)
    batch = learner.sample(recorded_replay(method))
    with gradients_of(learner) as counts:
        learner.update(batch, Counters())
    assert counts == dict.fromkeys(dict(learner.agent.named_parameters()), 1)


def test_the_cost_of_a_window_is_that_of_its_repeats():
    """At no repetition, ten transitions per window cost what one costs."""

    def rows(window: int, repetition: float) -> int:
        learner = made("taac", window=window)
        batch = learner.sample(recorded_replay("taac", repetition))
        with calls_of(learner) as calls:
            learner.update(batch, Counters())
        return sum(call.rows for call in calls)

    assert rows(10, repetition=0.0) == rows(1, repetition=0.0)
    assert rows(10, repetition=0.5) > rows(1, repetition=0.5)


@pytest.mark.parametrize("method", SCRIPTS)
def test_sampling_runs_no_network(method):
    learner, replay = made(method), recorded_replay(method)
    with calls_of(learner) as calls:
        learner.sample(replay)
    assert calls == []
