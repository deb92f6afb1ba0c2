"""The training benchmark: its arithmetic by hand and against torch's own count, and a run of a few frames."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import replace

import floor
import numpy as np
import pytest
import sac_continuous
import taac_continuous
import training
from gymnasium.spaces import Box, Dict, MultiDiscrete
from synthetic import filled_replay, wrapped_spaces
from torch.utils.flop_counter import FlopCounterMode

from taac_wrappers.training.counters import Counters
from taac_wrappers.training.tasks import SETTINGS, settings_for

SCRIPTS = training.SCRIPTS


def test_flops_of_layers_by_hand():
    layers = [(3, 4), (4, 2)]  # 5 rows: 2 * 5 * 12 = 120 and 2 * 5 * 8 = 80
    assert floor._flops(layers, 5) == 200
    assert floor._flops(layers[1:], 5) == 80


@pytest.mark.parametrize("hidden", [(16, 16), (24, 16, 8)])
@pytest.mark.parametrize("method", SCRIPTS)
def test_flops_are_those_that_torch_counts(method, hidden):
    script = SCRIPTS[method]
    args = replace(script.Args.for_task("HalfCheetah-v5"), batch_size=64, hidden=hidden)
    spaces = wrapped_spaces(script, 5, 3)
    agent = script.make_agent(args, *spaces)
    learner = script.Learner(args, agent)
    batch = learner.sample(filled_replay(spaces[0], 3, repetition=0.5, frames=300, episode=6))
    assert (batch.valid.sum() > len(batch.action)) == (method == "TAAC")
    with FlopCounterMode(display=False) as counter:
        learner.update(batch, Counters())
    assert floor.update_flops(agent, batch) == counter.get_total_flops()


def test_stopwatch_gives_nested_time_to_the_inner_method(monkeypatch):
    class Program:
        def outer(self):
            return self.inner() + 1

        def inner(self):
            return 1

    clock = iter([10.0, 12.0, 15.0, 20.0])  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(clock))
    program, watch = Program(), training.Stopwatch()
    watch.attach(program, "outer", "update")
    watch.attach(program, "inner", "sample")
    assert program.outer() == 2
    assert watch.seconds == {"sample": 3.0, "update": 7.0}


def test_a_turn_takes_the_wrappers_out_of_the_environment_s_part(monkeypatch):
    class Fake:
        watch = training.Stopwatch()

        def train(self, frames):
            self.watch.seconds.update(act=1.0, env=6.0, sample=2.0, update=8.0)

        def wrapper_seconds(self, frames):
            return 1.5

    wall, processor = iter([100.0, 120.0]), iter([50.0, 62.0])
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(training.time, "process_time", lambda: next(processor))
    parts = {"act": 1.0, "env": 4.5, "wrappers": 1.5, "sample": 2.0, "update": 8.0, "rest": 3.0}
    assert training.turn(Fake(), 40) == {"seconds": 20.0, "processor": 12.0, **parts}


def test_wrapper_cost_is_what_the_wrapped_steps_take_longer(monkeypatch):
    cost = training.WrapperCost("Pendulum-v1", 2, taac_continuous.wrap)
    # Three steps: 5, 4 and 30 seconds with wrappers, 2, 3 and 1 without; the last was interrupted.
    clock = iter([0.0, 5.0, 7.0, 10.0, 14.0, 17.0, 20.0, 50.0, 51.0])
    with monkeypatch.context() as patch:
        patch.setattr(training.time, "perf_counter", lambda: next(clock))
        assert cost.seconds(3) == 3 * (5 - 2)
    cost.seconds(300)  # through the end of an episode
    with_wrappers, rewards, *_, infos = cost.wrapped.step(cost.wrapped.action_space.sample())
    without, bare_rewards, *_ = cost.bare.step(infos["executed_action"])
    assert np.array_equal(with_wrappers["observation"], without)
    assert np.array_equal(rewards, bare_rewards)
    cost.close()


def test_shortest_iteration_keeps_the_updates_per_frame():
    shortest = {name: training.shortest_iteration(SETTINGS[name]) for name in ("Locomotion", "Terrain", "Manipulation")}
    counts = {name: (one.frames_per_iteration, one.updates_per_iteration) for name, one in shortest.items()}
    assert counts == {"Locomotion": (1, 1), "Terrain": (160, 1), "Manipulation": (190, 4)}


def test_random_actions_repeat_as_often_as_asked():
    space = Dict(action=Box(-1, 1, (10_000, 2)), switch=MultiDiscrete(np.full(10_000, 2)))
    action = training.repeating_action(0.3, np.random.default_rng(0), space)
    assert space.contains(action)
    assert 0.28 < np.mean(action["switch"] == 0) < 0.32
    assert space["action"].contains(training.repeating_action(0.3, np.random.default_rng(0), space["action"]))


def test_sb3_sees_what_our_networks_see():
    env = training.make_env("FetchPush-v4", training.one_vector)
    ours = training.make_env("FetchPush-v4")
    agent = sac_continuous.make_agent(sac_continuous.Args(), ours.observation_space, ours.action_space)
    observation, seen = env.reset(seed=0)[0], ours.reset(seed=0)[0]
    assert np.array_equal(observation, np.concatenate([seen[key] for key in agent.keys]))
    assert env.observation_space.shape == (agent.observation_size,)
    env.close()
    ours.close()


def loop_body(source: str, end: str) -> str:
    """From acting to learning, without what is recorded on the way."""
    start = source.index("            # Act once in every environment")
    lines = source[start : source.index(end)].splitlines()
    return textwrap.dedent("\n".join(line for line in lines if not line.strip().startswith("run."))).strip()


@pytest.mark.parametrize("method", SCRIPTS)
def test_the_loop_is_that_of_the_script(method):
    theirs = loop_body(inspect.getsource(SCRIPTS[method].main), end="            if counters.due(LOG_INTERVAL)")
    assert loop_body(inspect.getsource(training.Ours.train), end="        self.observation = observation") == theirs


def tables_of(text: str) -> list[list[dict[str, str]]]:
    """Every markdown table as rows of named cells."""
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        header, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        assert rule == ["---"] * len(header)
        assert all(len(row) == len(header) for row in rows)
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def test_runs_and_prints_tables(monkeypatch, capsys):
    def small(env_id, settings="paper"):
        return replace(settings_for(env_id), batch_size=32, hidden=(16, 16))

    for module in (training, taac_continuous, sac_continuous):
        monkeypatch.setattr(module, "settings_for", small)
    shapes = {"locomotion": replace(training.SHAPES["locomotion"], fill=600), "terrain": training.SHAPES["terrain"]}
    monkeypatch.setattr(training, "SHAPES", shapes | {"terrain": replace(shapes["terrain"], fill=640)})
    monkeypatch.setattr(training, "BURN_IN", 0)
    monkeypatch.setattr(training, "UPDATES", 10)  # enough for a clock that may tick in hundredths of a second
    monkeypatch.setattr(training, "VARIANT_FILL", 600)
    monkeypatch.setattr(floor, "PRODUCTS", 1000)
    flags = "--rounds 2 --frames 3 --repetition 0.4 --no-compile --shapes locomotion terrain"
    training.main(flags.split())
    printed = capsys.readouterr().out
    assert "## locomotion: HalfCheetah-v5" in printed
    assert "Rounds: 2 of 160 frames." in printed  # Terrain's shortest round
    assert 25 < float(re.search(r"TAAC's replay: ([\d.]+)% repeated", printed)[1]) < 50

    speed, split, floors, *_, variants = tables_of(printed)
    assert [row[""] for row in speed] == [row[""] for row in split] == ["TAAC", "SAC", "SB3 SAC"]
    assert list(split[0]) == ["", "act", "env", "wrappers", "sample", "update", "rest"]
    assert [row[""] for row in floors] == ["TAAC", "SAC"]
    assert [row[""] for row in variants] == list(training.VARIANTS)
    states = [float(row["next states per window"]) for row in variants]
    assert states[0] == 1 < states[1] < 2 < states[3] <= 3  # at most 1 of each, its repeats, all of 3
    numbers = [
        float(number)
        for table in (speed, floors, variants)
        for row in table
        for cell in list(row.values())[1:]
        for number in re.findall(r"[\d.]+", cell)
    ]
    assert all(0 < number < float("inf") for number in numbers)
    for row in split:
        shares = [float(re.search(r"\((-?[\d.]+)%\)", cell)[1]) for name, cell in row.items() if name]
        assert 90 < sum(shares) < 110  # medians need not add up exactly
    assert split[2]["wrappers"] == "0.000 (0.0%)"
    assert speed[2]["ratio to SB3 SAC"] == "1.00 [1.00, 1.00]"


@pytest.mark.parametrize(
    "flags", ["--rounds 0", "--frames -1", "--threads 0", "--repetition 1.0", "--repetition -0.1", "--shapes driving"]
)
def test_refuses_flags_that_mean_nothing(flags, capsys):
    with pytest.raises(SystemExit) as stop:
        training.main(flags.split())
    assert stop.value.code == 2
    assert flags.split()[1] in capsys.readouterr().err
