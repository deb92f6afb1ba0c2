"""What can be said of methods by their raw results: the paper's n-score and n-AUC, and robust aggregates of them.

A number of a category exists only for a method that was run on all its tasks, for as many frames as in the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.results import RunResult, read_results
from taac_wrappers.training.files import read_json
from taac_wrappers.training.metrics import iqm, n_auc, n_score
from taac_wrappers.training.tasks import SETTINGS, TASKS, Task

RANDOM = "random.json"

GOALS = {
    "MountainCarContinuous-v0": 90.0,
    "LunarLanderContinuous-v3": 200.0,
    "InvertedDoublePendulum-v5": 9000.0,
    "HalfCheetah-v5": 3000.0,
}
"""Scores by which runs are timed."""


def tasks_of(category: str) -> list[Task]:
    """The paper's tasks of a category; of all of them for ``"All"``."""
    return [task for task in TASKS.values() if category in (task.category, "All")]


@dataclass(frozen=True)
class Spread:
    """A mean over tasks, the mean over these tasks of the standard deviation over seeds, and the seeds of each."""

    mean: float
    std: float
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Robust:
    """Interquartile mean of the n-scores of a number of runs, with its 95 % interval."""

    iqm: float
    low: float
    high: float
    runs: int


class Comparison:
    """Runs beside each other.

    Args:
        runs: finished ones.
        random_scores: the score of a uniformly random policy (Z0) by environment.
    """

    def __init__(self, runs: Iterable[RunResult], random_scores: Mapping[str, float]):
        self.runs = list(runs)
        self.random_scores = dict(random_scores)
        for run in self.runs:
            if run.last("final/score") is None or not len(run.curve("eval/score")[0]):
                name = f"{run.exp_name}_s{run.seed}.csv of {run.env_name}"
                raise ValueError(f"{name} must hold eval/score and final/score: the run is not finished")

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """All results below a folder, and its ``random.json``."""
        path = folder / RANDOM
        runs = list(read_results(folder))
        if not runs:
            raise ValueError(f"{str(folder)!r} holds no results: no file is named <env id>/<method>_s<seed>.csv")
        scores = read_json(path).get("scores") if path.is_file() else {}
        try:
            return cls(runs, {env_id: float(measured["score"]) for env_id, measured in scores.items()})  # type: ignore[union-attr]
        except (AttributeError, KeyError, TypeError):
            raise ValueError(f'{path} must hold {{"scores": {{env id: {{"score": number}}}}}}') from None

    @property
    def env_names(self) -> list[str]:
        """Environments with runs, the paper's first and in its order."""
        order = [task.env_id for task in TASKS.values()]
        found = {run.env_name for run in self.runs}
        return [name for name in order if name in found] + sorted(found - set(order))

    def methods_on(self, env_name: str) -> list[str]:
        """Methods with runs there, the paper's first."""
        found = {run.exp_name for run in self.runs if run.env_name == env_name}
        return [name for name in METHODS if name in found] + sorted(found - METHODS.keys())

    def of(self, exp_name: str, env_name: str) -> list[RunResult]:
        """The runs of a method on a task, by seed."""
        runs = [run for run in self.runs if (run.exp_name, run.env_name) == (exp_name, env_name)]
        return sorted(runs, key=lambda run: run.seed)

    @functools.cache  # noqa: B019, one comparison lives as long as the report that it is made for
    def best_score(self, env_name: str) -> float | None:
        """Z1: the highest of the paper's methods' average scores there; None if there is none above random."""
        means = [np.mean(scores_of(runs)) for name in METHODS if (runs := self.of(name, env_name))]
        random = self.random_scores.get(env_name)
        return float(max(means)) if means and random is not None and max(means) > random else None

    def n_scores(self, exp_name: str, env_name: str) -> np.ndarray | None:
        """Of every run of a method on a task; None if there are no runs, or nothing to normalize them by."""
        runs, best = self.of(exp_name, env_name), self.best_score(env_name)
        if not runs or best is None:
            return None
        return np.asarray(n_score(scores_of(runs), self.random_scores[env_name], best))

    def n_aucs(self, exp_name: str, env_name: str) -> np.ndarray | None:
        """The same for the mean of the curve of evaluations."""
        runs, best = self.of(exp_name, env_name), self.best_score(env_name)
        if not runs or best is None:
            return None
        random = self.random_scores[env_name]
        return np.array([n_auc(n_score(run.curve("eval/score")[1], random, best)) for run in runs])

    def has_all_frames(self, exp_name: str, task: Task) -> bool:
        """Whether a method was run there, and every run for as many frames as in the paper."""
        runs = self.of(exp_name, task.env_id)
        return bool(runs) and all(frames_of(run) >= SETTINGS[task.category].total_frames for run in runs)

    def run_tasks(self, exp_name: str, category: str) -> list[Task]:
        """The tasks of a category that count as run by a method."""
        return [task for task in tasks_of(category) if self.has_all_frames(exp_name, task)]

    def is_complete(self, exp_name: str, category: str) -> bool:
        """Whether a method has a number for a category: all its tasks were run and can be normalized."""
        tasks = tasks_of(category)
        can_be_normalized = all(self.best_score(task.env_id) is not None for task in tasks)
        return len(self.run_tasks(exp_name, category)) == len(tasks) and can_be_normalized

    def category(self, metric: str, exp_name: str, category: str) -> Spread | None:
        """``"n_scores"`` or ``"n_aucs"`` over a category, as in the paper's table; None if it was not run in full."""
        if not self.is_complete(exp_name, category):
            return None
        values = [getattr(self, metric)(exp_name, task.env_id) for task in tasks_of(category)]
        means, stds = [of_task.mean() for of_task in values], [of_task.std() for of_task in values]
        return Spread(float(np.mean(means)), float(np.mean(stds)), tuple(map(len, values)))

    def scores_by_task(self, exp_name: str, category: str) -> list[np.ndarray] | None:
        """n-scores of all runs, task by task, which may have different numbers of them; None if it was not run."""
        if not self.is_complete(exp_name, category):
            return None
        scores = [self.n_scores(exp_name, task.env_id) for task in tasks_of(category)]
        return [of_task for of_task in scores if of_task is not None]

    def robust(self, exp_name: str, category: str) -> Robust | None:
        """The interquartile mean over a category, with a stratified bootstrap interval; None if it was not run."""
        scores = self.scores_by_task(exp_name, category)
        if scores is None:
            return None
        return Robust(iqm(np.concatenate(scores)), *stratified_interval(scores), runs=sum(map(len, scores)))


def stratified_interval(scores_by_task: list[np.ndarray], resamples: int = 2_000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the interquartile mean: runs are drawn anew within each task on its own.

    As ``metrics.bootstrap_ci``, but tasks may have different numbers of runs: to leave some out would be to choose.

    >>> stratified_interval([np.array([0.5, 0.5]), np.array([0.5])])
    (0.5, 0.5)
    """
    rng = np.random.default_rng(0)
    means = [
        iqm(np.concatenate([rng.choice(scores, size=len(scores)) for scores in scores_by_task]))
        for _ in range(resamples)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def scores_of(runs: list[RunResult]) -> list[float]:
    """The last score of every run."""
    return [float(run.curve("final/score")[1][-1]) for run in runs]


def frames_of(run: RunResult) -> int:
    """How long it was trained."""
    return int(run.curve("final/score")[0][-1])


def profile(scores_by_task: list[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """Performance profile: the share of runs whose n-score is above each threshold, mean over tasks.

    >>> profile([np.array([0.2, 0.4]), np.array([0.9])], np.array([0.0, 0.3, 0.9]))
    array([1.  , 0.75, 0.  ])
    """
    return np.mean([(scores > thresholds[:, None]).mean(axis=1) for scores in scores_by_task], axis=0)


def frame_of_goal(run: RunResult, goal: float) -> int | None:
    """The frame of the second of two evaluations in a row that reach the score; None if there is none."""
    frames, scores = run.curve("eval/score")
    twice = np.flatnonzero((scores[1:] >= goal) & (scores[:-1] >= goal))
    return int(frames[twice[0] + 1]) if len(twice) else None


def minutes_at(run: RunResult, frame: int) -> float | None:
    """Minutes from the start to a frame, by the frames per second since the start that were logged last before it."""
    frames, speeds = run.curve("charts/SPS")
    logged = np.flatnonzero(frames <= frame)
    return float(frame / speeds[logged[-1]] / 60) if len(logged) else None


def mean_curve(runs: list[RunResult]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Frames at which a method was evaluated first, and there mean, lowest and highest score of its runs.

    Scores between two evaluations are interpolated; frames that not all runs reached are left out.
    """
    last = min(run.curve("eval/score")[0][-1] for run in runs)
    frames = runs[0].curve("eval/score")[0]
    frames = frames[frames <= last]
    scores = np.array([np.interp(frames, *run.curve("eval/score")) for run in runs])
    return frames, scores.mean(axis=0), scores.min(axis=0), scores.max(axis=0)
