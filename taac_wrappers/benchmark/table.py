"""What somebody sees of a comparison while it runs: a table that moves on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.running import Outcome
from taac_wrappers.benchmark.workplace import Progress, Workplace

WINDOW = 120.0
"""Seconds over which speed is measured: the first, random frames are fast, and have to be forgotten soon."""

ROWS = 20
"""Of the cells that run; of more only those that are farthest are shown."""


class Speedometer:
    """How far each cell is and how fast, and how long all of them will take."""

    def __init__(self, totals: dict[Cell, int], frames: dict[Cell, int]):
        self._totals, self._frames = dict(totals), dict(frames)
        self._seen: dict[Cell, deque[tuple[float, int]]] = {}

    def moved(self, cell: Cell, frame: int, now: float) -> None:
        """A cell that runs was seen at a frame."""
        self._frames[cell] = frame
        seen = self._seen.setdefault(cell, deque())
        seen.append((now, frame))
        while now - seen[0][0] > WINDOW and len(seen) > 2:
            seen.popleft()

    def ended(self, cell: Cell) -> None:
        """A cell is done, or has failed: nothing of it is left to run."""
        self._totals.pop(cell, None)
        self._seen.pop(cell, None)

    def eta(self, cell: Cell) -> float | None:
        """Seconds that a cell needs; None if it is not known to move."""
        speed = self._speed(cell)
        return self._left(cell) / speed if speed else None

    def eta_of_all(self) -> float | None:
        """Seconds until the last cell is done, if as many run as now: but no cell can be hurried."""
        speed = sum(map(self._speed, self._seen))
        if not speed:
            return None
        each = [eta for cell in self._seen if (eta := self.eta(cell)) is not None]
        return max(sum(map(self._left, self._totals)) / speed, *each)

    def _left(self, cell: Cell) -> int:
        return max(0, self._totals[cell] - self._frames[cell])

    def _speed(self, cell: Cell) -> float:
        if not (seen := self._seen.get(cell)):
            return 0.0
        (began, first), (ended, last) = seen[0], seen[-1]
        return (last - first) / (ended - began) if last > first else 0.0  # a resumed run begins before where it was


class Display:
    """Shows cells while they run; to be used in a ``with`` statement.

    Args:
        workplace: where they run.
        cells: all that are to be run.
        console: where to.
        interval: seconds between two looks; by default 1 on a terminal and 60 elsewhere.
    """

    def __init__(self, workplace: Workplace, cells: Collection[Cell], console: Console, interval: float | None = None):
        self._workplace, self._console = workplace, console
        self._totals = {cell: workplace.plan(cell).total_frames for cell in cells}
        self._speedometer = Speedometer(self._totals, {cell: workplace.progress(cell).frame for cell in cells})
        self._running: dict[Cell, Progress] = {}
        self._done = self._failed = 0
        self._started_at = self._shown_at = time.monotonic()
        self._interval = interval or (1.0 if console.is_terminal else 60.0)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, cell: Cell) -> None:
        self._running[cell] = self._workplace.progress(cell)
        self._say(f"{cell}: {self._where(cell)}, log {self._workplace.log(cell)}")

    def ended(self, outcome: Outcome) -> None:
        cell = outcome.cell
        self._running.pop(cell, None)
        self._speedometer.ended(cell)
        if outcome.problem is None:
            self._done += 1
            self._say(f"{cell}: done, score {_score(self._workplace.progress(cell))}")
        else:
            self._failed += 1
            self._say(f"{cell}: failed, {outcome.problem}")

    def time_passes(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < self._interval * max(1, len(self._running) / ROWS):  # each is a file to read
            return
        self._shown_at = now
        for cell in self._running:
            self._running[cell] = progress = self._workplace.progress(cell)
            self._speedometer.moved(cell, progress.frame, now)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        else:
            for cell in self._farthest():
                self._say(f"{cell}: {self._where(cell)}, ETA {_duration(self._speedometer.eta(cell))}")
            self._say(self._summary())

    def saving(self, cells: Collection[Cell]) -> None:
        self.__exit__()
        self._console.print(f"waiting for {len(cells)} runs to save; the same command goes on with them")

    def _table(self) -> Table:
        table = Table(caption=self._summary(), caption_justify="left")
        table.add_column("cell")
        for name in ("frames", "of", "newest score", "ETA"):
            table.add_column(name, justify="right")
        for cell in self._farthest():
            progress = self._running[cell]
            numbers = f"{progress.frame:,}", f"{self._totals[cell]:,}", _score(progress)
            table.add_row(escape(str(cell)), *numbers, _duration(self._speedometer.eta(cell)))
        return table

    def _farthest(self) -> Iterable[Cell]:
        return sorted(self._running, key=lambda cell: self._running[cell].frame, reverse=True)[:ROWS]

    def _where(self, cell: Cell) -> str:
        progress = self._running[cell]
        return f"frame {progress.frame:,} of {self._totals[cell]:,}, score {_score(progress)}"

    def _summary(self) -> str:
        waiting = len(self._totals) - self._done - self._failed - len(self._running)
        counts = f"{self._done} done, {len(self._running)} running, {waiting} waiting, {self._failed} failed"
        spent = _duration(time.monotonic() - self._started_at)
        return f"{counts}; {spent} so far, ETA {_duration(self._speedometer.eta_of_all())}"

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _score(progress: Progress) -> str:
    return "–" if progress.score is None else f"{progress.score:,.1f}"


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else str(timedelta(seconds=round(seconds)))
