"""The numbers that the paper prints, to be shown beside ours.

Source: Haonan Yu, Wei Xu, Haichao Zhang, "TAAC: Temporally Abstract Actor-Critic for Continuous Control", NeurIPS 2021.
The table of n-score and n-AUC (eight methods), the table of the off-policyness experiments (TAAC-Ntd with N = 10,
SAC-Hybrid-CompThr), and the table of action repetition percentages.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "Yu, Xu, Zhang: TAAC: Temporally Abstract Actor-Critic for Continuous Control, NeurIPS 2021"


class Printed(NamedTuple):
    """A mean over the tasks of a category, and the mean over these tasks of the standard deviation over 3 seeds."""

    mean: float
    std: float


ROWS = ("SimpleControl", "Locomotion", "Terrain", "Manipulation", "Driving", "All")
"""``All`` is the mean over the 14 tasks, not over the 5 categories."""


def _column(*numbers: float) -> dict[str, Printed]:
    """Means and deviations in turn, a pair for each of ``ROWS``."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {row: Printed(*pair) for row, pair in zip(ROWS, pairs, strict=True)}


N_SCORE: dict[str, dict[str, Printed]] = {
    "taac": _column(0.99, 0.04, 0.90, 0.05, 1.00, 0.03, 0.99, 0.01, 0.97, 0.04, 0.96, 0.03),
    "taac-1td": _column(0.83, 0.13, 0.88, 0.04, 0.96, 0.02, 0.99, 0.02, 0.92, 0.02, 0.92, 0.05),
    "taac-ntd": _column(0.88, 0.16, 0.73, 0.18, 0.79, 0.06, 0.82, 0.07, 0.72, 0.01, 0.79, 0.12),
    "sac": _column(0.64, 0.03, 0.89, 0.06, 0.35, 0.10, 0.60, 0.12, 0.88, 0.05, 0.68, 0.08),
    "sac-ntd": _column(0.54, 0.07, 0.88, 0.11, 0.48, 0.02, 0.75, 0.17, 0.84, 0.04, 0.71, 0.10),
    "sac-nrep": _column(0.84, 0.01, 0.70, 0.08, 0.54, 0.03, 0.91, 0.07, 0.92, 0.03, 0.78, 0.05),
    "sac-krep": _column(0.55, 0.03, 0.82, 0.07, 0.48, 0.03, 0.98, 0.05, 0.95, 0.04, 0.77, 0.05),
    "sac-ez": _column(0.65, 0.03, 0.92, 0.07, 0.45, 0.15, 0.68, 0.07, 0.71, 0.03, 0.71, 0.07),
    "sac-hybrid": _column(0.88, 0.14, 0.63, 0.08, 0.79, 0.03, 0.49, 0.07, 1.00, 0.04, 0.69, 0.08),
    "sac-hybrid-compthr": _column(0.89, 0.12, 0.65, 0.08, 0.75, 0.03, 0.68, 0.17, 0.90, 0.04, 0.74, 0.11),
}
"""Final n-score by method and category."""

N_AUC: dict[str, dict[str, Printed]] = {
    "taac": _column(0.72, 0.04, 0.74, 0.05, 0.59, 0.02, 0.77, 0.02, 0.65, 0.02, 0.72, 0.03),
    "taac-1td": _column(0.60, 0.10, 0.72, 0.02, 0.50, 0.02, 0.71, 0.04, 0.60, 0.03, 0.65, 0.04),
    "taac-ntd": _column(0.56, 0.11, 0.54, 0.12, 0.53, 0.03, 0.62, 0.04, 0.38, 0.06, 0.55, 0.08),
    "sac": _column(0.45, 0.01, 0.69, 0.03, 0.17, 0.02, 0.41, 0.04, 0.38, 0.02, 0.46, 0.03),
    "sac-ntd": _column(0.41, 0.01, 0.64, 0.07, 0.19, 0.02, 0.50, 0.10, 0.41, 0.04, 0.47, 0.06),
    "sac-nrep": _column(0.51, 0.02, 0.55, 0.05, 0.38, 0.01, 0.69, 0.06, 0.52, 0.02, 0.55, 0.04),
    "sac-krep": _column(0.28, 0.03, 0.59, 0.04, 0.23, 0.01, 0.71, 0.08, 0.51, 0.03, 0.50, 0.05),
    "sac-ez": _column(0.45, 0.02, 0.64, 0.05, 0.21, 0.03, 0.49, 0.06, 0.32, 0.02, 0.47, 0.04),
    "sac-hybrid": _column(0.62, 0.08, 0.50, 0.06, 0.50, 0.01, 0.38, 0.02, 0.61, 0.02, 0.50, 0.04),
    "sac-hybrid-compthr": _column(0.58, 0.08, 0.48, 0.06, 0.47, 0.01, 0.47, 0.09, 0.49, 0.01, 0.50, 0.06),
}
"""n-AUC by method and category."""

REPETITION_OF_TAAC: dict[str, int] = {
    "MountainCarContinuous-v0": 89,
    "LunarLanderContinuous-v2": 74,
    "InvertedDoublePendulum-v2": 26,
    "Hopper-v2": 37,
    "Ant-v2": 13,
    "Walker2d-v2": 26,
    "HalfCheetah-v2": 1,
    "BipedalWalker-v2": 25,
    "BipedalWalkerHardcore-v2": 39,
    "FetchReach-v1": 9,
    "FetchPush-v1": 55,
    "FetchSlide-v1": 54,
    "FetchPickAndPlace-v1": 49,
    "Town01": 55,
}
"""Per cent of the frames of 100 episodes by the mode, by the paper's id of the task."""
