"""Where the cells of a comparison are run, what their scripts are told, and how far each of them is."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.results import env_name_of
from taac_wrappers.training.tasks import SETTINGS_NAMES, SettingsName, settings_by_default, settings_for
from taac_wrappers.training.tracking import METRICS

OF_THE_RUNNER = ("--env-id", "--seed", "--run-dir", "--resume")
"""Flags of the scripts that a cell decides."""

FINAL_EPISODES = 100
"""Of the last evaluation: the scripts' default."""

TAIL = 256 * 2**10
"""Bytes of a file that are looked at for what is newest in it."""


@dataclass(frozen=True)
class Plan:
    """What decides how long a run takes, in frames and episodes."""

    total_frames: int
    learning_starts: int
    eval_interval: int
    eval_episodes: int
    final_episodes: int


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    frame: int = 0
    score: float | None = None
    """Of its newest evaluation."""


@dataclass(frozen=True)
class Workplace:
    """Where cells are run and what their scripts are told. All paths are absolute: a worker may be anywhere."""

    scripts: Path
    """The folder ``agents/``."""
    runs: Path
    """Folder of the runs, which every worker can write to."""
    results: Path
    """Folder of the results of cells that are done."""
    folder: Path
    """Where scripts are started: an environment of one's own is imported from there."""
    python_path: str = ""
    """``PYTHONPATH`` of the scripts."""
    script_args: tuple[str, ...] = ()
    """What every script is told beside its environment, seed and method."""
    has_accelerator: bool = False
    """Decides between the settings of a task: for all workers alike, so that cells can be compared."""

    def run_dir(self, cell: Cell) -> Path:
        return self.runs / env_name_of(cell.env_id) / f"{cell.method}_s{cell.seed}"

    def log(self, cell: Cell) -> Path:
        """What its script prints, in all its attempts."""
        return self.run_dir(cell).with_suffix(".log")

    def result(self, cell: Cell) -> Path:
        return self.results / env_name_of(cell.env_id) / f"{cell.method}_s{cell.seed}.csv"

    def is_done(self, cell: Cell) -> bool:
        return self.result(cell).is_file()

    def command(self, cell: Cell) -> list[str]:
        """What Python is started with to train a cell, from the beginning or, if there is a run, from where it is."""
        _, *words = METHODS[cell.method].command(cell.env_id, cell.seed)
        run_dir = self.run_dir(cell)
        where = ["--resume"] if run_dir.exists() else ["--settings", self._settings_name(cell), "--run-dir"]
        script = str(self.scripts / METHODS[cell.method].script)
        return [script, *words, "--threads", "1", *where, str(run_dir), *self.script_args]

    def plan(self, cell: Cell) -> Plan:
        """That of its settings, as far as ``script_args`` do not say otherwise."""
        said = self._said()
        settings = settings_for(cell.env_id, self._settings_name(cell))
        numbers = {name: getattr(settings, name, FINAL_EPISODES) for name in Plan.__dataclass_fields__}
        numbers |= {name: int(number) for name in numbers if (number := getattr(said, name)) is not None}
        return Plan(**numbers)

    def frames_per_round(self, cell: Cell) -> int:
        """Frames between two rounds of updates."""
        return settings_for(cell.env_id, self._settings_name(cell)).frames_per_iteration

    def end_of_log(self, cell: Cell, lines: int) -> str:
        """The last lines that its script has printed; of a bar that is drawn again and again, its last state."""
        text = _tail(self.log(cell))
        shown = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
        return "\n".join([line for line in shown if line][-lines:])

    def check_script_args(self, cells: Iterable[Cell]) -> None:
        """Refuse what would make of a cell something that it is not called."""
        self._said()
        flags = {word.partition("=")[0].replace("_", "-") for word in self.script_args if word.startswith("--")}
        for cell in cells:
            for flag in (*OF_THE_RUNNER, *METHODS[cell.method].flags[::2]):
                if flag in flags:
                    raise ValueError(f"{flag} is no flag to pass on: {cell} decides it")

    def progress(self, cell: Cell) -> Progress:
        """By the end of its ``metrics.csv``."""
        lines = _tail(self.run_dir(cell) / METRICS).split("\n")[1:-1]  # the first and the last may be torn
        frame, score = 0, None
        for line in lines:
            with contextlib.suppress(ValueError):
                number, metric, value = line.split(",")
                frame = int(number)
                score = float(value) if metric in ("eval/score", "final/score") else score
        return Progress(frame, score)

    def _settings_name(self, cell: Cell) -> SettingsName:
        return self._said().settings or settings_by_default(cell.env_id, self.has_accelerator)

    def _said(self) -> argparse.Namespace:
        """Those of ``script_args`` that decide how long a run takes."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--settings", choices=SETTINGS_NAMES)
        for name in Plan.__dataclass_fields__:
            parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", type=float)
        try:
            return parser.parse_known_args(self.script_args)[0]
        except argparse.ArgumentError as error:
            raise ValueError(str(error)) from error


def _tail(path: Path) -> str:
    """The end of a text; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
