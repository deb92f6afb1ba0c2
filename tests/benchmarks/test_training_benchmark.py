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
from synthetic import filled_replay, unit_box
from torch.utils.flop_counter import FlopCounterMode

from taac_wrappers.training.run import Counters
from taac_wrappers.training.tasks import SETTINGS

SCRIPTS = {"taac": taac_continuous, "sac": sac_continuous}


def test_flops_of_layers_by_hand():
    layers = [(3, 4), (4, 2)]  # 5 rows: 2 * 5 * 12 = 120 and 2 * 5 * 8 = 80
    assert floor._flops(layers, 5) == 200
    assert floor._flops(layers[1:], 5) == 80


@pytest.mark.parametrize("hidden", [(16, 16), (24, 16, 8)])
@pytest.mark.parametrize("method", SCRIPTS)
def test_flops_are_those_that_torch_counts(method, hidden):
    script = SCRIPTS[method]
    args = replace(script.Args.for_task("HalfCheetah-v5"), batch_size=64, hidden=hidden)
    replay = filled_replay(5, 3, repetition=0.5, frames=300, episode=6)
    agent = script.make_agent(args, unit_box(5), unit_box(3))
    learner = script.Learner(args, agent)
    batch = learner.sample(replay)
    assert batch.first > 0
    assert (batch.nodes > batch.trained) == (method == "taac")
    with FlopCounterMode(display=False) as counter:
        learner.update(batch, Counters(num_envs=1))
    assert floor.update_flops(agent, batch).total == counter.get_total_flops()


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
    assert watch.calls == {"sample": 1, "update": 1}


def test_shortest_iteration_keeps_the_updates_per_frame():
    shortest = {name: training.shortest_iteration(SETTINGS[name]) for name in ("Locomotion", "Terrain", "Manipulation")}
    counts = {name: (one.frames_per_iteration, one.updates_per_iteration) for name, one in shortest.items()}
    assert counts == {"Locomotion": (1, 1), "Terrain": (160, 1), "Manipulation": (190, 4)}


def test_random_actions_repeat_as_often_as_asked():
    rng, space = np.random.default_rng(0), unit_box(2)
    before = np.full((10_000, 2), 0.25, np.float32)
    action, switch = training.act_randomly(0.3, rng, space, before)
    assert 0.28 < np.mean(~switch) < 0.32
    assert (np.all(action == 0.25, axis=1) == ~switch).all()
    assert action.dtype == np.float32


def loop_body(source: str, end: str) -> str:
    """From acting to learning, without what is recorded on the way."""
    start = source.index("            # Act for one frame")
    lines = source[start : source.index(end)].replace("  # noqa: RUF059", "").splitlines()
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
    shapes = {"locomotion": replace(training.SHAPES["locomotion"], fill=600), "terrain": training.SHAPES["terrain"]}
    monkeypatch.setattr(training, "SHAPES", shapes | {"terrain": replace(shapes["terrain"], fill=640)})
    monkeypatch.setattr(training, "BURN_IN", 0)
    monkeypatch.setattr(training, "UPDATES", 1)
    monkeypatch.setattr(training, "WINDOW_FILL", 600)
    training.main(["--rounds", "2", "--frames", "3", "--repetition", "0.4", "--shapes", "locomotion", "terrain"])
    printed = capsys.readouterr().out
    assert "## locomotion: HalfCheetah-v5" in printed
    assert "Rounds: 2 of 160 frames." in printed  # Terrain's shortest round
    assert 25 < float(re.search(r"TAAC's replay: ([\d.]+)% repeated", printed)[1]) < 50

    speed, split, calls, floors, *_, windows, goals = tables_of(printed)
    assert [row[""] for row in speed] == [row[""] for row in split] == ["TAAC", "SAC", "SB3 SAC"]
    assert [row[""] for row in floors] == ["TAAC", "SAC"]
    assert [row["window"] for row in windows] == ["1", "10"]
    assert len(goals) == 6
    numbers = [
        float(number)
        for table in (speed, calls, floors, windows)
        for row in table
        for cell in list(row.values())[1:]
        for number in re.findall(r"[\d.]+", cell)
    ]
    assert all(0 < number < float("inf") for number in numbers)
    for row in split:
        shares = [float(re.search(r"\(([\d.]+)%\)", cell)[1]) for name, cell in row.items() if name]
        assert 90 < sum(shares) < 110  # medians need not add up exactly
    assert speed[2]["ratio to SB3 SAC"] == "1.00 [1.00, 1.00]"


@pytest.mark.parametrize(
    "flags", ["--rounds 0", "--frames -1", "--threads 0", "--repetition 1.0", "--repetition -0.1", "--shapes driving"]
)
def test_refuses_flags_that_mean_nothing(flags, capsys):
    with pytest.raises(SystemExit) as stop:
        training.main(flags.split())
    assert stop.value.code == 2
    assert flags.split()[1] in capsys.readouterr().err
