"""Running one cell: a process that trains it, from the beginning or from its checkpoint, until its result is written.

Whoever runs a cell holds its log locked, and the process that writes the log inherits the lock. So any number of
runners, on any number of computers with one file system, may work on the same cells: each is run by one of them.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from taac_wrappers.benchmark import tied
from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.results import result_of_run, write_result
from taac_wrappers.benchmark.workplace import Workplace
from taac_wrappers.training.files import CONFIG, TEMPORARY
from taac_wrappers.training.signals import Interruption

TICK = 0.2
"""Seconds between two looks at a process."""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended."""

    cell: Cell
    problem: str | None = None
    """Why there is no result, if there is none."""


class Attempt:
    """A process that trains a cell, and what comes of it. Made by :func:`begin`, which has locked the log."""

    def __init__(self, workplace: Workplace, cell: Cell, log: IO[bytes]):
        self._workplace, self._cell, self._log = workplace, cell, log
        self._outcome: Outcome | None = None
        self._process: subprocess.Popen | None = None
        if not workplace.is_done(cell):  # else somebody has just run it
            self._process = self._start()

    def poll(self) -> Outcome | None:
        """How it ended; None while it goes on."""
        code = 0 if self._process is None else self._process.poll()
        if self._outcome is None and code is not None:
            self._outcome = Outcome(self._cell, self._collect(code))
            fcntl.flock(self._log, fcntl.LOCK_UN)  # whatever else may have inherited it
            self._log.close()
        return self._outcome

    def stop(self) -> None:
        """Ask it to save and end."""
        if self._process is not None:
            self._process.terminate()

    def has_stopped(self) -> bool:
        return self.poll() is not None

    def _start(self) -> subprocess.Popen:
        _remove_if_nothing_is_saved(self._workplace.run_dir(self._cell))
        command = self._workplace.command(self._cell)
        self._log.write(f"$ {shlex.join(['python', *command])}\n".encode())
        self._log.flush()
        # A session of its own: Ctrl-C in the terminal, and what a cluster sends, is for the runner, which asks once.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", tied.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self._workplace.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": self._workplace.python_path},
            start_new_session=True,
        )

    def _collect(self, code: int) -> str | None:
        """Write the result; returns what is wrong, if anything is."""
        if code != 0:
            return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        if self._process is not None:
            try:
                write_result(
                    self._workplace.results, result_of_run(self._workplace.run_dir(self._cell), self._cell.method)
                )
            except (OSError, ValueError) as error:
                return str(error)
        return None


def begin(workplace: Workplace, cell: Cell) -> Attempt | None:
    """Start to train a cell; None while somebody else is at it."""
    log = _locked(workplace.log(cell))
    return None if log is None else Attempt(workplace, cell, log)


def run_cell(workplace: Workplace, cell: Cell) -> Outcome:
    """Train a cell in this process's own time: what a worker of a cluster does."""
    with Interruption():
        while (attempt := begin(workplace, cell)) is None:  # the process of a worker that was killed is still saving
            time.sleep(TICK)
        try:
            while (outcome := attempt.poll()) is None:
                time.sleep(TICK)  # and no wait(), which Ray could not interrupt
            return outcome
        except BaseException:
            attempt.stop()
            while not attempt.has_stopped():
                time.sleep(TICK)
            raise


def is_at_work(workplace: Workplace, cell: Cell) -> bool:
    """Whether anybody, anywhere, is at a cell."""
    if not workplace.log(cell).exists():
        return False
    log = _locked(workplace.log(cell))
    if log is not None:
        log.close()
    return log is None


def _locked(path: Path) -> IO[bytes] | None:
    """The file for appending, locked until it is closed in every process that inherits it; None if it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115, it stays open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove_if_nothing_is_saved(run_dir: Path) -> None:
    """A run that was killed before its first checkpoint begins anew, whatever it was told then."""
    if (run_dir / CONFIG).is_file() and not any((run_dir / "checkpoint").glob("[0-9]*")):
        rubbish = run_dir.with_name(TEMPORARY + run_dir.name)  # at once; and if this is killed, the new run removes it
        shutil.rmtree(rubbish, ignore_errors=True)
        os.rename(run_dir, rubbish)
        shutil.rmtree(rubbish, ignore_errors=True)
