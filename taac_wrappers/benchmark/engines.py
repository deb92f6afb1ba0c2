"""Where cells are run: in processes of this computer, on a Ray cluster, or as jobs of Slurm.

What is done for a cell is the same everywhere (``running``). A cluster's workers need the same file system, with
everything installed: a run's folder is where it goes on after a worker has died, and where its progress is read from.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from typing import Any, Protocol

from taac_wrappers.benchmark.cells import Cell
from taac_wrappers.benchmark.running import Attempt, Outcome, begin, is_at_work, run_cell
from taac_wrappers.benchmark.workplace import Workplace

RETRIES = 100
"""How often a cluster goes on with a cell whose worker has died, or whose time was over."""

SLURM_DEFAULTS = {"cpus_per_task": 1, "mem_gb": 8, "timeout_min": 24 * 60, "name": "taac-benchmark"}
"""After its time, a job is queued again and goes on from its checkpoint."""


class Job(Protocol):
    """A cell that an engine has been given."""

    def poll(self) -> Outcome | None:
        """How it ended; None while it goes on."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def has_stopped(self) -> bool:
        """Whether it has, once it was asked."""


class Engine(Protocol):
    """Something that runs cells."""

    def start(self, cell: Cell) -> Job | None:
        """Begin with a cell; None if somebody else is at it."""

    def workers(self) -> int | None:
        """How many cells it can run at a time; None if it does not matter, because it has a queue."""


class LocalEngine:
    """Processes of this computer."""

    def __init__(self, workplace: Workplace):
        self._workplace = workplace

    def start(self, cell: Cell) -> Attempt | None:
        return begin(self._workplace, cell)

    def workers(self) -> int:
        return os.cpu_count() or 1


class RayEngine:
    """Tasks on a Ray cluster, with one CPU each.

    Args:
        workplace: on a file system that all its nodes share.
        address: of the cluster; ``"auto"`` is the one that this computer belongs to, ``"local"`` a new one here.
    """

    def __init__(self, workplace: Workplace, address: str):
        try:
            import ray
        except ImportError as error:
            raise ImportError(f'--engine ray needs Ray ({error}): pip install "taac-wrappers[ray]"') from error
        try:
            _check_reachable(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"--address {address}: cannot connect to Ray: {error}") from error
        self._workplace = workplace
        self._run_cell = ray.remote(num_cpus=1, max_retries=RETRIES)(run_cell)

    def start(self, cell: Cell) -> Job:
        return _RayJob(self._workplace, cell, self._run_cell.remote(self._workplace, cell))

    def workers(self) -> int:
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 0)))  # nodes come and go


class _RayJob:
    def __init__(self, workplace: Workplace, cell: Cell, outcome: Any):
        self._workplace, self._cell, self._outcome = workplace, cell, outcome

    def poll(self) -> Outcome | None:
        import ray

        if not ray.wait([self._outcome], timeout=0)[0]:
            return None
        try:
            return ray.get(self._outcome)
        except ray.exceptions.RayError as error:  # it died too often, or this process failed to run it
            return Outcome(self._cell, _last_line(error))

    def stop(self) -> None:
        import ray

        ray.cancel(self._outcome)

    def has_stopped(self) -> bool:
        return not is_at_work(self._workplace, self._cell)


class SlurmEngine:
    """Jobs of Slurm, by submitit.

    Args:
        workplace: on a file system that all nodes share.
        cluster: ``"slurm"``, or ``"local"`` for processes that behave like its jobs, to try things out.
        options: ``name=value``, as submitit's ``AutoExecutor.update_parameters`` takes them.
    """

    def __init__(self, workplace: Workplace, cluster: str, options: Iterable[str]):
        try:
            import submitit
        except ImportError as error:
            raise ImportError(f'--engine slurm needs submitit ({error}): pip install "taac-wrappers[slurm]"') from error
        parameters = SLURM_DEFAULTS | dict(map(_parameter, options))
        try:
            for name in ("debug", cluster):  # the first refuses wrong parameters before the second makes its folder
                self._executor = submitit.AutoExecutor(
                    workplace.runs / "slurm",
                    cluster=name,
                    **({"slurm_max_num_timeout": RETRIES} if name == "slurm" else {}),
                )
                self._executor.update_parameters(**parameters)
        except (AssertionError, NameError, RuntimeError) as error:
            raise ValueError(f"--engine slurm: {error}") from error
        self._workplace = workplace

    def start(self, cell: Cell) -> Job:
        from submitit.core.utils import FailedJobError

        try:
            return _SlurmJob(self._workplace, cell, self._executor.submit(_Resubmitted(self._workplace, cell)))
        except FailedJobError as error:
            raise OSError(f"sbatch: {_last_line(error)}") from error

    def workers(self) -> None:
        return None


class _Resubmitted:
    """Runs a cell; when its job's time is over, or it is preempted, submitit queues what ``checkpoint`` gives it."""

    def __init__(self, workplace: Workplace, cell: Cell):
        self._workplace, self._cell = workplace, cell

    def __call__(self) -> Outcome:
        return run_cell(self._workplace, self._cell)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _SlurmJob:
    def __init__(self, workplace: Workplace, cell: Cell, job: Any):
        self._workplace, self._cell, self._job = workplace, cell, job

    def poll(self) -> Outcome | None:
        if not self._job.done():
            return None
        error = self._job.exception()
        return self._job.result() if error is None else Outcome(self._cell, _last_line(error))

    def stop(self) -> None:
        self._job.cancel(check=False)  # it may have ended by now

    def has_stopped(self) -> bool:
        return not is_at_work(self._workplace, self._cell)


def _check_reachable(address: str) -> None:
    """Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


def _parameter(text: str) -> tuple[str, Any]:
    """``name=value``, with a number where it is one."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--slurm takes name=value such as slurm_partition=cpu, got {text!r}")
    return name, int(value) if value.isdecimal() else value


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[-1]
