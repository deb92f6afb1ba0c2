"""Run methods on tasks with several seeds, here or on a cluster, and put what comes of it among the results.

python examples/benchmark.py --methods taac sac --tasks simple-control Pendulum-v1 --seeds 3 --dry-run
python examples/benchmark.py --methods taac sac --tasks simple-control Pendulum-v1 --seeds 3
python examples/benchmark.py --methods taac --tasks mymodule:MyEnv-v0 -- --total-frames 50000 --hidden 64 64
python examples/benchmark.py --methods taac --tasks locomotion --engine ray --address auto

Methods: those of taac_wrappers/benchmark/methods.py. Tasks: simple-control, locomotion, terrain, manipulation, or any
environment's id. The same command goes on where it was stopped. docs/benchmark.md says more.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Annotated, Literal

import tyro
from rich.console import Console

from taac_wrappers.benchmark.cells import cells_of
from taac_wrappers.benchmark.engines import Engine, LocalEngine, RayEngine, SlurmEngine
from taac_wrappers.benchmark.estimate import print_estimate
from taac_wrappers.benchmark.running import Outcome
from taac_wrappers.benchmark.schedule import Schedule
from taac_wrappers.benchmark.table import Display
from taac_wrappers.benchmark.workplace import Workplace
from taac_wrappers.training.arguments import bad_input, exit_with, has_accelerator, parse

SCRIPTS = Path(__file__).resolve().parents[1] / "agents"
LINES = 12
"""Of a failed cell's log."""


@dataclass
class Args:
    methods: list[str]
    """such as taac, sac, sac-nrep"""
    tasks: list[str]
    """categories of the paper, or ids of environments"""
    seeds: int = 3
    """how many: 0, 1, ..."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """processes of this computer, a Ray cluster, or Slurm"""
    workers: int | None = None
    """cells at a time; by default as many as there are CPUs, and with Slurm all"""
    address: str = "auto"
    """of the Ray cluster: auto is the one of this computer, local a new one"""
    slurm: list[str] = field(default_factory=list)
    """options for submitit such as slurm_partition=cpu timeout_min=600 mem_gb=16"""
    slurm_cluster: Literal["slurm", "local"] = "slurm"
    """local: processes that behave like Slurm's jobs, to try things out"""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """measure each script for a short while, and print what the whole would take"""
    runs: Path = Path("runs")
    """folder of the runs"""
    results: Path = Path("results")
    """folder of the results, for examples/report.py"""
    script_args: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """after `--`: flags that every script is given, such as `-- --total-frames 50000`"""


def main(args: Args) -> int:
    console = Console()
    with bad_input():
        if args.workers is not None and args.workers < 1:
            raise ValueError(f"--workers must be at least 1, got {args.workers}")
        cells = cells_of(args.methods, args.tasks, args.seeds)
        workplace = workplace_of(args)
        workplace.check_script_args(cells)
        left = [cell for cell in cells if not workplace.is_done(cell)]
        console.print(
            f"{len(cells)} cells, {len(cells) - len(left)} of them done before: {workplace.results}", soft_wrap=True
        )
        if args.dry_run:
            workers = args.workers or os.cpu_count() or 1
            return 0 if print_estimate(workplace, left, workers, console) else 1
        engine = engine_of(args, workplace)
    with Display(workplace, left, console) as display:
        outcomes = Schedule(left, engine, display, args.workers).run()
    return report(workplace, outcomes)


def workplace_of(args: Args) -> Workplace:
    """With absolute paths, for workers that may be started elsewhere."""
    return Workplace(
        scripts=SCRIPTS,
        runs=args.runs.absolute(),
        results=args.results.absolute(),
        folder=Path.cwd(),
        python_path=os.pathsep.join(
            os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path
        ),
        script_args=args.script_args,
        has_accelerator=has_accelerator(),
    )


def engine_of(args: Args, workplace: Workplace) -> Engine:
    if args.engine == "ray":
        return RayEngine(workplace, args.address)
    if args.engine == "slurm":
        return SlurmEngine(workplace, args.slurm_cluster, args.slurm)
    return LocalEngine(workplace)


def report(workplace: Workplace, outcomes: list[Outcome]) -> int:
    """Say what has failed, with the end of its log, and what to do next; returns the exit code."""
    failures = [outcome for outcome in outcomes if outcome.problem is not None]
    for outcome in failures:
        print(f"\n{outcome.cell} failed: {outcome.problem}; the end of {workplace.log(outcome.cell)}:")
        print(indent(workplace.end_of_log(outcome.cell, LINES), "    "))
    if failures:
        print(f"\n{len(failures)} of {len(outcomes)} cells failed; the same command tries them again")
    print(f"the results: python examples/report.py {shlex.quote(str(workplace.results))} -o report")
    return 1 if failures else 0


if __name__ == "__main__":
    exit_with(lambda: main(parse(Args)))
