"""Raw results: one CSV file a run, ``exp_name,env_name,seed,metric,env_step,value``, and beside it what made it.

``results/MountainCarContinuous-v0/taac_s0.csv`` holds the metrics, ``taac_s0.json`` the command, the settings and the
versions of everything that decides how a run goes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taac_wrappers.benchmark.commands import NOT_LEARNED_FROM, command_of, method_of
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.training.files import TEMPORARY, read_config, read_json, write_atomically
from taac_wrappers.training.tracking import METRICS, read_metrics

Curve = tuple[np.ndarray, np.ndarray]
"""Frames int64 ``[n]`` and values float64 ``[n]``."""

COLUMNS = ("exp_name", "env_name", "seed", "metric", "env_step", "value")
KEPT = ("charts/episodic_return", "charts/decisions", "charts/SPS", "eval/", "final/")
"""How metrics begin that are kept: the others are many, and only of use while a run is looked after."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunResult:
    """What one run left behind."""

    exp_name: str
    env_name: str
    seed: int
    metrics: dict[str, Curve]
    made_by: dict[str, Any] = field(default_factory=dict)
    """``command``, ``args`` and ``versions``; what was not recorded is None."""

    def curve(self, metric: str) -> Curve:
        """The metric over frames; of length 0 if it was never logged."""
        return self.metrics.get(metric, (np.empty(0, np.int64), np.empty(0)))

    def last(self, metric: str) -> float | None:
        """Its last value, or None if it was never logged."""
        _, values = self.curve(metric)
        return float(values[-1]) if len(values) else None


def write_result(folder: Path, result: RunResult) -> Path:
    """Write a run's two files below ``folder``; returns the CSV's path.

    >>> import tempfile
    >>> curve = np.array([100, 200]), np.array([1.5, 2.5])
    >>> folder = Path(tempfile.mkdtemp())
    >>> path = write_result(folder, RunResult("taac", "Pendulum-v1", 0, {"eval/score": curve}))
    >>> path.relative_to(folder).as_posix()
    'Pendulum-v1/taac_s0.csv'
    >>> print(path.read_text().rstrip())
    exp_name,env_name,seed,metric,env_step,value
    taac,Pendulum-v1,0,eval/score,100,1.5
    taac,Pendulum-v1,0,eval/score,200,2.5
    >>> [run.last("eval/score") for run in read_results(folder)]
    [2.5]
    """
    for name, value in (("exp_name", result.exp_name), ("env_name", result.env_name)):
        if not _NAME.fullmatch(value):
            raise ValueError(f"{name} must be letters, digits, dots, dashes and underscores, got {value!r}")
    path = Path(folder) / result.env_name / f"{result.exp_name}_s{result.seed}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for metric, (frames, values) in result.metrics.items():
        for frame, value in zip(frames.tolist(), values.tolist(), strict=True):
            writer.writerow((result.exp_name, result.env_name, result.seed, metric, frame, value))
    made_by = json.dumps(result.made_by, indent=1, sort_keys=True) + "\n"
    write_atomically(path.with_suffix(".json"), made_by.encode())
    write_atomically(path, text.getvalue().encode())  # last: where it is, the run is done
    return path


def env_name_of(env_id: str) -> str:
    """The name of its results: a module to import, or a namespace, is no part of a file's name.

    >>> env_name_of("mymodule:mine/Walk-v0")
    'mine-Walk-v0'
    """
    return env_id.rpartition(":")[2].replace("/", "-")


def result_of_run(run_dir: Path, exp_name: str) -> RunResult:
    """What a finished run's folder (``config.json``, ``metrics.csv``) says, as far as it is kept.

    Args:
        run_dir: the folder.
        exp_name: the method's name. One of ``METHODS`` has to be what the run was made by.
    """
    config = read_config(run_dir)
    args, env_id = config.get("args"), config.get("resolved_env_id")
    if not isinstance(args, dict) or not isinstance(env_id, str) or not isinstance(args.get("seed"), int):
        raise ValueError(f"{run_dir}: config.json is not that of a run")
    made_by = method_of(config)
    if exp_name in METHODS and exp_name != made_by:
        raise ValueError(f"{run_dir} is a run of {made_by or config.get('method')}, got {exp_name!r}")
    metrics = read_metrics(Path(run_dir) / METRICS)
    if "final/score" not in metrics:
        raise ValueError(f"{run_dir} has no final/score yet: the run is not finished")
    return RunResult(
        exp_name,
        env_name_of(env_id),
        args["seed"],
        {name: curve for name, curve in metrics.items() if name.startswith(KEPT)},
        {
            "command": command_of(exp_name, args) if exp_name in METHODS else None,
            "args": {name: value for name, value in args.items() if name not in NOT_LEARNED_FROM},
            "versions": config.get("versions"),
        },
    )


def read_result(path: Path) -> RunResult:
    """Read one CSV file, and the JSON beside it if there is one."""
    columns: dict[str, tuple[list[np.int64], list[float]]] = {}
    runs: set[tuple[str, str, int]] = set()
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file)
        if (header := next(rows, None)) != list(COLUMNS):
            raise ValueError(f"{path}: line 1 must be {','.join(COLUMNS)!r}, got {header!r:.100}")
        for row in rows:
            try:
                exp_name, env_name, seed, metric, frame, value = row
                frames, values = columns.setdefault(metric, ([], []))
                frames.append(np.int64(int(frame)))
                values.append(_finite(value))
                runs.add((exp_name, env_name, int(seed)))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{path}: line {rows.line_num} must be {','.join(COLUMNS)!r}, got {row!r:.100}"
                ) from None
    if len(runs) != 1:
        raise ValueError(f"{path} must hold one run, got {len(runs)}")
    exp_name, env_name, number = runs.pop()
    if (path.parent.name, path.name) != (env_name, f"{exp_name}_s{number}.csv"):
        raise ValueError(f"{path} holds {exp_name} on {env_name}, seed {number}, which its name does not say")
    metrics = {name: (np.array(f, np.int64), np.array(v, np.float64)) for name, (f, v) in columns.items()}
    beside = path.with_suffix(".json")
    return RunResult(exp_name, env_name, number, metrics, read_json(beside) if beside.is_file() else {})


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"must be finite, got {text!r}")
    return value


def read_results(folder: Path) -> Iterator[RunResult]:
    """Every run below ``folder``, ordered by environment, method and seed."""
    if not Path(folder).is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder of results")
    paths = (path for path in Path(folder).glob("*/*.csv") if not path.name.startswith(TEMPORARY))
    yield from sorted(map(read_result, paths), key=lambda run: (run.env_name, run.exp_name, run.seed))
