"""The numbers that are reported about a method: normalized scores, their robust aggregates, and how much it repeats.

Normalized score and n-AUC are the paper's; the interquartile mean and its stratified bootstrap interval follow Agarwal
et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike


def n_score(score: ArrayLike, random: float, best: float) -> np.ndarray | float:
    """Scores on a scale where a random policy is at 0 and the best method at 1, ``(Z - Z0) / (Z1 - Z0)``.

    Args:
        score: scores of one task, of any shape.
        random: score of a random policy, the paper's Z0 (100 episodes).
        best: average score of the best method on that task, the paper's Z1.

    >>> n_score([-50.0, -20.0, -10.0], random=-50.0, best=-10.0)
    array([0.  , 0.75, 1.  ])
    """
    if not (math.isfinite(random) and math.isfinite(best)) or random == best:
        raise ValueError(f"random and best must be finite and differ, got random={random!r}, best={best!r}")
    return (_finite("score", score) - random) / (best - random)


def n_auc(curve: ArrayLike) -> np.ndarray | float:
    """Area under a curve of n-scores over the length of its x-axis: their mean, for evenly spaced evaluations.

    Args:
        curve: n-scores in the order of training, ``[..., points]``.

    >>> n_auc([0.0, 0.5, 1.0, 1.0])
    0.625
    """
    curve = _finite("curve", curve)
    area = curve.mean(axis=-1)
    return float(area) if curve.ndim == 1 else area


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: the mean of all scores without the lowest and the highest quarter (each rounded down).

    Less sensitive to outliers than the mean, and it needs fewer runs than the median.

    >>> iqm([0.0, 1.0, 2.0, 100.0])
    1.5
    """
    ordered = np.sort(_finite("scores", scores), axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def bootstrap_ci(
    scores: ArrayLike,
    statistic: Callable[[np.ndarray], float] = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of ``statistic``, stratified: runs are drawn anew within each task on its own.

    Args:
        scores: n-scores ``[runs, tasks]``.
        statistic: maps ``[runs, tasks]`` to a number.
        confidence: share of the resampled statistics inside the interval, between 0 and 1.
        resamples: how many times the runs are drawn anew.
        seed: of the draws.

    >>> low, high = bootstrap_ci([[0.1, 0.8], [0.3, 0.9], [0.2, 0.7]], np.mean)
    >>> 0.1 < low < 0.5 < high < 0.9
    True
    """
    scores = _finite("scores", scores)
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape [runs, tasks], got {scores.shape}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples!r}")
    rng = np.random.default_rng(seed)
    runs, tasks = scores.shape
    columns = np.arange(tasks)
    statistics = [statistic(scores[rng.integers(runs, size=(runs, tasks)), columns]) for _ in range(resamples)]
    outside = 50.0 * (1.0 - confidence)
    low, high = np.percentile(statistics, [outside, 100.0 - outside])
    return float(low), float(high)


def repetition_percentage(switch: ArrayLike) -> float:
    """Per cent of frames at which the previous action was repeated.

    Args:
        switch: per frame, 1 where the policy acted anew and 0 where it repeated, of any shape.

    >>> repetition_percentage([1, 0, 0, 1])
    50.0
    """
    return 100.0 * float(np.mean(_finite("switch", switch) == 0))


def apr(repeat_fraction: float) -> float:
    """Action persistence rate ``1 / (1 - p)``: frames per action where a fraction ``p`` of them repeats the one before.

    Infinite if every frame was a repetition.

    >>> apr(0.75)
    4.0
    """
    if not 0.0 <= repeat_fraction <= 1.0:
        raise ValueError(f"repeat_fraction must be between 0 and 1, got {repeat_fraction!r}")
    return math.inf if repeat_fraction == 1.0 else 1.0 / (1.0 - repeat_fraction)


def afr(actions: ArrayLike) -> float:
    """Action fluctuation rate: mean absolute change of the executed action from frame to frame, per dimension.

    Args:
        actions: one episode's executed actions ``[frames, dimensions]``; a single frame has no change, 0.

    >>> afr([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    0.25
    """
    actions = _finite("actions", actions)
    if actions.ndim != 2:
        raise ValueError(f"actions must have shape [frames, dimensions], got {actions.shape}")
    return float(np.abs(np.diff(actions, axis=0)).mean()) if len(actions) > 1 else 0.0


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    """``values`` as an array of floats; empty or not finite ones would silently become a nan further on."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]!r}")
    return array
