"""How often an update runs each network, and over how many rows: more than these would be waste that no test sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import sac_continuous
import taac_continuous
from gymnasium.spaces import Box
from torch import nn

from taac_wrappers.training.passes import PolicyPass, ValuePass
from taac_wrappers.training.replay import SequenceReplay
from taac_wrappers.training.run import Counters

OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,))
TWINS = 2  # every critic is a network of its own, but one pass is through both
SCRIPTS = {"taac": taac_continuous, "sac": sac_continuous}


@dataclass(frozen=True, order=True)
class Call:
    """One way through a network."""

    network: str
    rows: int
    way: str  # "forward"; "pass": a forward that remembers; or one of the ways back that a pass may go


@contextlib.contextmanager
def calls_of(learner) -> Iterator[list[Call]]:
    """Record every use of the learner's networks."""
    calls: list[Call] = []

    def after(method: Callable, network: str, way: str, rows: Callable[[Any], int]) -> Callable:
        def recorded(self, *args, **kwargs):
            result = method(self, *args, **kwargs)
            calls.append(Call(network, rows(self), way))
            return result

        return recorded

    def forward(network: nn.Module, name: str) -> Callable:
        """Instead of a hook, which sees no direct call."""
        original = network.forward

        def recorded(*inputs):
            calls.append(Call(name, len(inputs[0]), "forward"))
            return original(*inputs)

        return recorded

    networks = {"actor": [learner.agent.actor], "critics": learner.agent.critics.twins}
    networks["target critics"] = learner.target_critics.twins
    with pytest.MonkeyPatch.context() as patch:
        for name, members in networks.items():
            for member in members:
                patch.setattr(member, "forward", forward(member, name))
        for kind, network, way, method, rows in (
            (PolicyPass, "actor", "pass", "__init__", lambda policy: len(policy.action)),
            (PolicyPass, "actor", "to weights", "write_gradients", lambda policy: len(policy.log_prob)),
            (ValuePass, "critics", "pass", "__init__", lambda values: len(values.minimum)),
            (ValuePass, "critics", "to weights", "write_gradients", lambda values: len(values.minimum)),
            (ValuePass, "critics", "to actions", "action_gradient", lambda values: len(values.minimum)),
        ):
            patch.setattr(kind, method, after(getattr(kind, method), network, way, rows))
        yield calls


def recorded_replay() -> SequenceReplay:
    """Episodes of 7 frames in which about half of the actions repeat; some end, some are cut."""
    rng = np.random.default_rng(0)
    replay = SequenceReplay(OBSERVATIONS, ACTIONS, capacity=400, num_envs=1, seed=0)
    for episode in range(40):
        replay.start(rng.normal(size=(1, 3)))
        for frame in range(7):
            last = np.array([frame == 6])
            terminated, truncated = last & (episode % 2 == 0), last & (episode % 2 == 1)
            action, switch = rng.uniform(-1, 1, (1, 2)), rng.random(1) < 0.5
            replay.add(action, switch, rng.normal(size=1), terminated, truncated, rng.normal(size=(1, 3)))
    return replay


def made(method: str, **changes):
    script = SCRIPTS[method]
    args = replace(script.Args.for_task("HalfCheetah-v5"), batch_size=64, hidden=(8, 8), **changes)
    return script.Learner(args, script.make_agent(args, OBSERVATIONS, ACTIONS))


def test_sac_runs_each_network_once_per_use():
    learner = made("sac")
    batch = learner.sample(recorded_replay())
    trained = 64
    with calls_of(learner) as calls:
        learner.update(batch, Counters(num_envs=1))
    assert sorted(calls) == sorted(
        [
            Call("actor", trained, "pass"),  # at the next states, for the target
            Call("actor", trained, "pass"),
            Call("actor", trained, "to weights"),
            Call("critics", trained, "pass"),
            Call("critics", trained, "to weights"),
            Call("critics", trained, "pass"),
            Call("critics", trained, "to actions"),
            *TWINS * [Call("target critics", trained, "forward")],
        ]
    )


@pytest.mark.parametrize("window", [1, 3, 10])
def test_taac_adds_rows_only_where_the_behaviour_repeated(window):
    learner = made("taac", window=window)
    windows = taac_continuous.draw_windows(learner.args, recorded_replay())  # the sample that follows is the same one
    batch = learner.sample(recorded_replay())
    # M transitions are trained on, D next states lie deeper, F states are first ones; at S nodes a backup ends.
    trained, deeper, first = 64, int(windows.valid[1:].sum()), int(windows.first.sum())
    stops = int((windows.valid & ~windows.repeated).sum())
    assert stops == trained  # every window ends once
    assert (deeper > 0) == (window > 1)
    assert first > 0
    with calls_of(learner) as calls:
        learner.update(batch, Counters(num_envs=1))
    assert sorted(calls) == sorted(
        [
            Call("actor", deeper + trained + first, "pass"),
            Call("actor", trained + first, "to weights"),
            Call("critics", trained, "pass"),
            Call("critics", trained, "to weights"),
            Call("critics", trained + first, "pass"),
            Call("critics", trained + first, "to actions"),
            *TWINS * [Call("critics", deeper + trained + first + deeper, "forward")],
            *TWINS * [Call("target critics", deeper + trained + stops, "forward")],
        ]
    )


def test_the_cost_of_a_window_is_that_of_its_repeats():
    """At no repetition, ten transitions per window cost what one costs."""

    def rows(window: int) -> int:
        replay = SequenceReplay(OBSERVATIONS, ACTIONS, capacity=400, num_envs=1, seed=0)
        replay.start(np.zeros((1, 3)))
        always, never = np.ones(1, bool), np.zeros(1, bool)
        for frame in range(300):
            replay.add(np.full((1, 2), frame / 300), always, np.zeros(1), never, never, np.zeros((1, 3)))
        learner = made("taac", window=window)
        batch = learner.sample(replay)
        with calls_of(learner) as calls:
            learner.update(batch, Counters(num_envs=1))
        return sum(call.rows for call in calls)

    assert rows(10) == rows(1)


@pytest.mark.parametrize("method", SCRIPTS)
def test_sampling_runs_no_network(method):
    learner, replay = made(method), recorded_replay()
    with calls_of(learner) as calls:
        learner.sample(replay)
    assert calls == []
