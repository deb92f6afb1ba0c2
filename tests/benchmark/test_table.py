"""What is shown of cells while they run."""

from __future__ import annotations

import io
import re

from places import LIGHT, place
from rich.console import Console

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.running import Outcome
from taac_wrappers.benchmark.table import WINDOW, Display, Speedometer

A, B, C = (Cell("taac", "Pendulum-v1", seed) for seed in range(3))


def test_times_of_arrival():
    """Of two that run at different speeds, and one that waits."""
    speedometer = Speedometer({A: 1_000, B: 1_000, C: 1_000}, {A: 0, B: 0, C: 400})
    assert speedometer.eta(A) is speedometer.eta_of_all() is None
    for now, cell, frame in [(0.0, A, 0), (0.0, B, 100), (10.0, A, 200), (10.0, B, 400)]:
        speedometer.moved(cell, frame, now)
    assert speedometer.eta(A) == 800 / 20
    assert speedometer.eta(B) == 600 / 30
    assert speedometer.eta_of_all() == (800 + 600 + 600) / (20 + 30)
    speedometer.ended(B)
    assert speedometer.eta_of_all() == (800 + 600) / 20
    speedometer.ended(C)
    assert speedometer.eta_of_all() == 800 / 20


def test_the_slowest_is_waited_for():
    speedometer = Speedometer({A: 1_000, B: 1_000}, {A: 0, B: 0})
    for now, cell, frame in [(0.0, A, 0), (0.0, B, 0), (10.0, A, 10), (10.0, B, 990)]:
        speedometer.moved(cell, frame, now)
    assert speedometer.eta_of_all() == 990


def test_speed_long_ago_is_forgotten():
    speedometer = Speedometer({A: 10_000}, {A: 0})
    for now, frame in [(0.0, 0), (1.0, 1_000), (WINDOW, 1_120), (2 * WINDOW, 1_240)]:
        speedometer.moved(A, frame, now)
    assert speedometer.eta(A) == (10_000 - 1_240) * WINDOW / 120


def shown(workplace, is_terminal: bool) -> str:
    """All that is written while two cells run, of which one is done and one fails."""
    file, other = io.StringIO(), Cell("sac-ez", "Pendulum-v1", 1)
    folder = workplace.run_dir(LIGHT)
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("frame,metric,value\n2500,eval/score,-12.25\n3000,charts/SPS,9.0\n")
    console = Console(file=file, force_terminal=is_terminal, width=100)
    with Display(workplace, [LIGHT, other], console, interval=1e-9) as display:
        display.started(LIGHT)
        display.time_passes()
        display.started(other)
        display.ended(Outcome(other, "exit code 1 [bold]"))
        display.ended(Outcome(LIGHT))
        display.time_passes()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_on_a_terminal_there_is_a_table(tmp_path):
    text = shown(place(tmp_path, "--total-frames", "4000"), is_terminal=True)
    assert re.search(r"sac-ez on Pendulum-v1, seed 0 +│ +3,000 │ +4,000 │ +-12\.2 │", text)
    assert "0 done, 1 running, 1 waiting, 0 failed" in text
    assert "sac-ez on Pendulum-v1, seed 1: failed, exit code 1 [bold]" in text


def test_elsewhere_there_are_lines(tmp_path):
    workplace = place(tmp_path, "--total-frames", "4000")
    logs = [workplace.log(Cell("sac-ez", "Pendulum-v1", seed)) for seed in (0, 1)]
    assert [line for line in shown(workplace, is_terminal=False).splitlines() if "so far" not in line] == [
        f"sac-ez on Pendulum-v1, seed 0: frame 3,000 of 4,000, score -12.2, log {logs[0]}",
        "sac-ez on Pendulum-v1, seed 0: frame 3,000 of 4,000, score -12.2, ETA –",
        f"sac-ez on Pendulum-v1, seed 1: frame 0 of 4,000, score –, log {logs[1]}",
        "sac-ez on Pendulum-v1, seed 1: failed, exit code 1 [bold]",
        "sac-ez on Pendulum-v1, seed 0: done, score -12.2",
    ]
