"""Running many cells, so many at a time, until each has ended or somebody asks to stop."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Protocol

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.engines import Engine, Job
from taac_wrappers.benchmark.running import TICK, Outcome
from taac_wrappers.training.signals import Interruption


class Watcher(Protocol):
    """Whoever is told what happens."""

    def started(self, cell: Cell) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...

    def time_passes(self) -> None: ...

    def saving(self, cells: Collection[Cell]) -> None:
        """These were asked to save and end, and are waited for."""


class Schedule:
    """Cells that wait, cells that run, and how the others ended.

    Args:
        cells: what to run.
        engine: where.
        watcher: is told what happens.
        workers: cells at a time, if not as many as the engine can run.
    """

    def __init__(self, cells: Iterable[Cell], engine: Engine, watcher: Watcher, workers: int | None = None):
        self._waiting, self._running = list(cells), dict[Cell, Job]()
        self._engine, self._watcher, self._workers = engine, watcher, workers
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        """Run every cell; one that fails does not stop the others. Interrupted, wait until all that run have saved."""
        with Interruption():  # here, because Ray takes the signals for itself
            try:
                while self._waiting or self._running:
                    self._start_what_fits()
                    self._collect_what_ended()
                    self._watcher.time_passes()
                    time.sleep(TICK)
            except BaseException:
                self._stop()
                raise
        return self.outcomes

    def _start_what_fits(self) -> None:
        limit = self._workers or self._engine.workers()
        for cell in list(self._waiting):
            if limit is not None and len(self._running) >= limit:
                return
            try:
                job = self._engine.start(cell)
            except OSError as error:
                self._waiting.remove(cell)
                self._end(Outcome(cell, str(error)))
                continue
            if job is not None:  # else somebody else is at it: it stays until that is done
                self._waiting.remove(cell)
                self._running[cell] = job
                self._watcher.started(cell)

    def _collect_what_ended(self) -> None:
        for cell, job in list(self._running.items()):
            if (outcome := job.poll()) is not None:
                del self._running[cell]
                self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._watcher.ended(outcome)

    def _stop(self) -> None:
        self._watcher.saving(self._running)
        for job in self._running.values():
            job.stop()
        while not all(job.has_stopped() for job in self._running.values()):
            time.sleep(TICK)
