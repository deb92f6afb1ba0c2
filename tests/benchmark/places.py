"""Places to run cells in, with a script that learns nothing, and what real scripts are told to be quick."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.workplace import Workplace

HERE = Path(__file__).parent
LIGHT, REAL = Cell("sac-ez", "Pendulum-v1", 0), Cell("sac", "Pendulum-v1", 0)
TINY = (
    *(
        "--total-frames",
        "500",
        "--learning-starts",
        "50",
        "--frames-per-iteration",
        "10",
        "--checkpoint-interval",
        "50",
    ),
    *("--eval-interval", "200", "--eval-episodes", "1", "--final-episodes", "1"),
    *("--hidden", "8", "--batch-size", "8", "--device", "cpu"),
)


def place(folder: Path, *words: str) -> Workplace:
    """In a folder. The light script stands for that of sac-ez, that of sac is real; both are told some words."""
    scripts = folder / "scripts"
    if not scripts.exists():
        scripts.mkdir()
        (scripts / "sac_ez_continuous.py").symlink_to(HERE / "light_script.py")
        (scripts / "sac_continuous.py").symlink_to(HERE.parents[1] / "agents" / "sac_continuous.py")
    return Workplace(scripts, folder / "runs", folder / "results", folder, script_args=words)


def wait_until(happened: Callable[[], bool]) -> None:
    """Look again and again; what never happens is a failure."""
    ends_at = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def has_saved(workplace: Workplace, cell: Cell) -> bool:
    return any((workplace.run_dir(cell) / "checkpoint").glob("0*"))


def lines_of(result: Path) -> list[str]:
    """Of a CSV, but for the metric that measures time."""
    return [line for line in result.read_text().splitlines() if ",charts/SPS," not in line]


class Diary:
    """Remembers what a schedule tells it."""

    def __init__(self):
        self.lines = []
        self.at_a_time = self.running = 0
        self.when_time_passes = lambda: None

    def started(self, cell):
        self.lines.append(f"{cell.seed} started")
        self.running += 1
        self.at_a_time = max(self.at_a_time, self.running)

    def ended(self, outcome):
        self.lines.append(f"{outcome.cell.seed} {outcome.problem or 'done'}")
        self.running -= 1

    def time_passes(self):
        self.when_time_passes()

    def saving(self, cells):
        self.lines.append(f"{len(cells)} saving")
