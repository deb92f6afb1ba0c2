"""Core-hours, from the log of a short run."""

from __future__ import annotations

import io

import numpy as np
import pytest
from places import LIGHT, place
from rich.console import Console

from taac_wrappers.benchmark.cells import Cell, cells_of
from taac_wrappers.benchmark.estimate import EPISODES, Cost, cost_of, measure, print_estimate


def log(seconds: dict[int, float], length: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of a run that had passed so many seconds at these frames."""
    frames = np.array(list(seconds))
    return {
        "charts/SPS": (frames, frames / np.array(list(seconds.values()))),
        "eval/length": (np.array([1_500]), np.array([length])),
    }


def test_the_cost_of_frames():
    """1 s at random, 9 s to warm up, 5 s of learning, 5 + 2 s with an evaluation; half of it a processor was busy."""
    cost = cost_of(log({500: 1.0, 1000: 10.0, 1500: 15.0, 2000: 22.0}, length=50), part=500, busy=0.5)
    assert cost.random == pytest.approx(0.5 / 500)
    assert cost.learning == pytest.approx(2.5 / 500)
    assert cost.evaluation == pytest.approx(1.0 / (50 * EPISODES))


def test_a_round_of_updates_that_is_longer_than_the_log_s_interval():
    seconds = {500: 1.0, 1000: 2.0, 1500: 3.0, 2000: 8.0, 2500: 9.0, 3000: 14.0, 3500: 15.0, 4000: 24.0}
    cost = cost_of(log(seconds, length=100), part=1000, busy=1.0)
    assert cost == Cost(2 / 1000, 6 / 1000, 4 / 1000)


def test_an_evaluation_too_short_to_be_measured_costs_what_random_frames_do():
    cost = cost_of(log({500: 1.0, 1000: 10.0, 1500: 15.0, 2000: 22.0}, length=10), part=500, busy=1.0)
    assert cost.evaluation == cost.random


def test_a_script_is_measured_and_leaves_nothing_behind(tmp_path):
    hours = measure(place(tmp_path), LIGHT)
    assert 0 < hours < 1_000_000 / 1000 / 3600 + 1  # it says that it makes 1000 frames a second
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_all_of_it_is_printed(tmp_path, monkeypatch):
    hours = {"sac": 0.5, "taac": "exit code 2: no such file", "sac-ez": 0.25}
    monkeypatch.setattr("taac_wrappers.benchmark.estimate.measure", lambda _, cell: hours[cell.method])
    file = io.StringIO()
    cells = [*cells_of(["sac", "taac"], ["Pendulum-v1"], 3), Cell("sac-ez", "FetchReach-v4", 2)]
    assert not print_estimate(place(tmp_path), cells, 2, Console(file=file, width=100))
    rows = [[word.strip() for word in line.split("│")[1:-1]] for line in file.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["sac on Pendulum-v1", "3", "1,000,000", "0.50", "1.50"],
        ["taac on Pendulum-v1", "3", "1,000,000", "–", "–"],
        ["sac-ez on FetchReach-v4", "1", "1,000,000", "0.25", "0.25"],
    ]
    assert "1.8 core-hours; 0.9 hours with 2 cells at a time" in file.getvalue()
    assert "taac on Pendulum-v1 cannot be run: exit code 2: no such file" in file.getvalue()
