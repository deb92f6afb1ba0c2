"""The cells of a comparison: every method on every task with every seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.results import env_name_of
from taac_wrappers.training.simulators import check_simulators
from taac_wrappers.training.tasks import TASKS, resolve_env_id

CATEGORIES = {
    "simple-control": "SimpleControl",
    "locomotion": "Locomotion",
    "terrain": "Terrain",
    "manipulation": "Manipulation",
}
"""The paper's categories by their names on the command line; there is no environment for its fifth, Driving."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    method: str
    env_id: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method} on {self.env_id}, seed {self.seed}"


def cells_of(methods: Iterable[str], tasks: Iterable[str], seeds: int) -> list[Cell]:
    """Every method on every task with the seeds 0, 1, ...; a task is a category or any environment's id.

    >>> [str(cell) for cell in cells_of(["sac-ez"], ["Pendulum-v1"], seeds=2)]
    ['sac-ez on Pendulum-v1, seed 0', 'sac-ez on Pendulum-v1, seed 1']
    >>> [cell.env_id for cell in cells_of(["taac"], ["terrain"], seeds=1)]
    ['BipedalWalker-v3', 'BipedalWalkerHardcore-v3']
    >>> cells_of(["tac"], ["terrain"], seeds=1)
    Traceback (most recent call last):
      ...
    ValueError: --methods must be among taac, taac-1td, taac-ntd, sac, sac-ntd, sac-nrep, sac-krep, sac-ez, sac-hybrid,
    sac-hybrid-compthr, got 'tac'
    """
    methods = list(dict.fromkeys(methods))
    for name in methods:
        if name not in METHODS:
            raise ValueError(f"--methods must be among {', '.join(METHODS)}, got {name!r}")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    env_ids = list(dict.fromkeys(env_id for task in tasks for env_id in _env_ids_of(task)))
    if not methods or not env_ids:
        raise ValueError("--methods and --tasks must name at least one each")
    _refuse_equal_names(env_ids)
    return [Cell(method, env_id, seed) for env_id in env_ids for method in methods for seed in range(seeds)]


def _env_ids_of(task: str) -> list[str]:
    if task in CATEGORIES:
        env_ids = [of_paper.env_id for of_paper in TASKS.values() if of_paper.category == CATEGORIES[task]]
    else:
        try:
            env_ids = [resolve_env_id(task)]
        except ValueError as error:
            raise ValueError(f"--tasks: {error}; or one of {', '.join(CATEGORIES)}") from error
    for env_id in env_ids:
        check_simulators(env_id)
    return env_ids


def _refuse_equal_names(env_ids: list[str]) -> None:
    """Their runs and results would be in the same place."""
    names: dict[str, str] = {}
    for env_id in env_ids:
        other = names.setdefault(env_name_of(env_id), env_id)
        if other != env_id:
            raise ValueError(f"--tasks: {other!r} and {env_id!r} would have the same results, {env_name_of(env_id)}")
